"""Rows of multi-agent environments: each agent is an env vector of its own; agents that join late
or leave early are masked, and have episodes of their own."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

from sampleforge.config import ConfigError
from sampleforge.env.config import EnvConfig
from sampleforge.env.probe import probe
from sampleforge.env.random_play import random_actions
from sampleforge.env.registry import make_vector
from sampleforge.env.spec_json import spec_from_plain, spec_to_plain
from sampleforge.env.vector import Episode, StepOut, own_outputs
from tests.support.envs import code_reward
from tests.support.multi_agent import CodeParallelEnv, Dicts

CODE = "tests.support.multi_agent:CodeParallelEnv"


def config(env: str = CODE, **kwargs: Any) -> EnvConfig:
    given = {name: kwargs.pop(name) for name in ("max_episode_steps",) if name in kwargs}
    return EnvConfig(env=env, env_kwargs=kwargs, decorrelate=False, **given)


class Played:
    """Rows that are stepped with random actions, and all that each seat has received."""

    def __init__(self, chosen: EnvConfig, rows: int = 2, steps: int = 40) -> None:
        vector = make_vector(chosen, rows, list(range(10, 10 + rows)))
        self.seats = vector.seats
        self.first_obs, self.steps, self.episodes = [], [], []
        rng = np.random.default_rng(3)
        outs = [own_outputs(seat.spec, rows) for seat in self.seats]
        for seat, out in zip(self.seats, outs, strict=True):
            seat.reset(out.obs)
            self.first_obs.append(out.obs["obs"].copy())
            self.steps.append(list[StepOut]())
            self.episodes.append(list[tuple[int, Episode]]())
        for step in range(steps):
            for seat in self.seats:
                seat.send(random_actions(seat.spec, rows, rng))
            for index, (seat, out) in enumerate(zip(self.seats, outs, strict=True)):
                self.episodes[index] += [(step, episode) for episode in seat.recv(out)]
                self.steps[index].append(copy.deepcopy(out))
        vector.close()

    def observed(self, seat: int, row: int) -> list[tuple[int, int]]:
        """(episode, step) of each observation of a row."""
        seen = [self.first_obs[seat], *(out.obs["obs"] for out in self.steps[seat])]
        return [(int(obs[row, 1]), int(obs[row, 2])) for obs in seen]


def test_each_agent_is_an_env_vector_with_its_own_observations_rewards_and_episodes() -> None:
    played = Played(config(agents=3, length=5))
    assert [seat.agent for seat in played.seats] == ["a_0", "a_1", "a_2"]
    assert played.seats[0].spec.agents == ("a_0", "a_1", "a_2")
    assert len({id(seat.spec.observations["obs"]) for seat in played.seats}) == 1
    for seat in range(3):
        for row in (0, 1):
            env = 10 + row
            seen = played.observed(seat, row)
            assert seen[:8] == [(0, 0), (0, 1), (0, 2), (0, 3), (0, 4), (0, 5), (1, 0), (1, 1)]
            for t, out in enumerate(played.steps[seat]):
                assert out.obs["obs"][row, 4] == seat and out.obs["obs"][row, 0] == env
                assert out.valid[row] == (t % 6 != 5), "the step that resets is not valid"
                assert out.first[row] == (t % 6 == 5)
                (episode, _), (_, after) = seen[t], seen[t + 1]
                reward = code_reward(env, episode, after) + 1000 * seat if out.valid[row] else 0
                assert out.reward[row] == reward
                ends = t % 6 == 4
                assert out.terminated[row] == (ends and episode % 2 == 0)
                assert out.truncated[row] == (ends and episode % 2 == 1)
        lengths = {episode.length for _, episode in played.episodes[seat]}
        assert lengths == {5} and len(played.episodes[seat]) == 2 * 6
        _, first = played.episodes[seat][0]
        assert first.ret == sum(code_reward(10, 0, k) + 1000 * seat for k in range(1, 6))


def test_an_agent_that_leaves_early_is_masked_until_the_environment_is_reset() -> None:
    played = Played(config(agents=2, length=6, shorter=2))
    for t, out in enumerate(played.steps[1]):
        at = t % 7
        assert (out.valid == (at < 4)).all(), "it leaves after 4 of 6 steps"
        assert (out.first == (at == 6)).all(), "and begins anew with the reset"
        ended = out.terminated | out.truncated
        assert (ended == (at == 3)).all()
        assert (out.reward[~out.valid] == 0).all()
    assert {episode.length for _, episode in played.episodes[1]} == {4}
    assert {episode.length for _, episode in played.episodes[0]} == {6}
    assert all((out.valid == (t % 7 < 6)).all() for t, out in enumerate(played.steps[0]))


class BreaksDown(CodeParallelEnv):
    """The last observations of the agent that leaves first are not finite."""

    def step(self, actions: dict[str, Any]) -> Dicts:
        observations, *rest = super().step(actions)
        if self.steps == 4:
            observations["a_1"][:] = np.nan
        return observations, *rest  # type: ignore[return-value]


def test_the_last_observation_of_an_agent_that_leaves_need_not_be_finite() -> None:
    played = Played(config(f"{__name__}:BreaksDown", agents=2, length=6, shorter=2), steps=70)
    terminated = [t for t, out in enumerate(played.steps[1]) if out.terminated.any()]
    assert terminated == list(range(3, 70, 14)), "the others are truncated: their steps are dropped"
    for t, out in enumerate(played.steps[1]):
        assert np.isfinite(out.obs["obs"]).all()
        if t not in (10, 24, 38, 52, 66):
            assert (out.valid == (t % 7 < 4)).all(), t
    assert all((out.valid == (t % 7 < 6)).all() for t, out in enumerate(played.steps[0]))


def test_an_agent_that_joins_late_begins_with_its_first_observation() -> None:
    played = Played(config(agents=2, length=6, late=3))
    for t, out in enumerate(played.steps[1]):
        at = t % 7
        assert (out.valid == (3 <= at < 6)).all()
        assert (out.first == (at == 2)).all()
        if at == 2:
            assert (out.obs["obs"][:, 2] == 3).all()
    assert {episode.length for _, episode in played.episodes[1]} == {3}


def test_an_agent_that_stays_listed_after_its_end_takes_no_further_part() -> None:
    """It had a phantom episode of one step in every second step."""
    env = "tests.support.multi_agent:StayingParallelEnv"
    played = Played(config(env, agents=2, length=6, shorter=2))
    for t, out in enumerate(played.steps[1]):
        assert (out.valid == (t % 7 < 4)).all(), t
    assert {episode.length for _, episode in played.episodes[1]} == {4}
    assert {episode.length for _, episode in played.episodes[0]} == {6}


def test_an_agent_that_is_not_possible_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="the agents list stranger, which possible_agents"):
        Played(config("tests.support.multi_agent:ForeignParallelEnv"))


def test_a_time_limit_truncates_all_agents() -> None:
    played = Played(config(agents=2, length=50, max_episode_steps=4))
    for seat in (0, 1):
        for t, out in enumerate(played.steps[seat]):
            assert (out.truncated == (t % 5 == 3)).all() and not out.terminated.any()
        assert {episode.length for _, episode in played.episodes[seat]} == {4}


def test_agents_with_other_spaces_are_another_agent_group() -> None:
    spec = make_vector(config(agents=2, scouts=2), 1, [1]).spec
    assert [group.agents for group in spec.agent_groups] == [("a_0", "a_1"), ("scout_0", "scout_1")]
    assert spec.num_seats == 4 and spec.num_agents == 2
    assert [spec.group_of(agent) for agent in ("a_1", "scout_0")] == [0, 1]
    scouts = spec.other_groups[0]
    assert scouts.observations["obs"].shape == (7,) and scouts.actions["action"].categories == (4,)
    assert spec_from_plain(spec_to_plain(spec)) == spec


def test_the_probe_returns_the_spec_of_all_agent_groups() -> None:
    spec = probe(config(agents=2, scouts=1))
    assert [group.agents for group in spec.agent_groups] == [("a_0", "a_1"), ("scout_0",)]


def test_one_seat_alone_cannot_be_stepped() -> None:
    seat = make_vector(config(), 1, [1])
    out = own_outputs(seat.spec, 1)
    for each in seat.seats:
        each.reset(out.obs)
    seat.send({"action": np.zeros(1, np.int64)})
    with pytest.raises(AssertionError, match="1 of 2 agents have actions"):
        seat.recv(out)


def test_an_environment_that_raises_is_rebuilt_and_its_step_is_masked_for_all_agents() -> None:
    env = "tests.support.multi_agent:RaisingParallelEnv"
    played = Played(config(env, every=9, length=4), rows=1, steps=30)
    assert played.seats[0].rebuilt > 0 and "deliberate" in (played.seats[0].fault or "")
    for seat in (0, 1):
        lost = [t for t, out in enumerate(played.steps[seat]) if out.truncated[0] and out.first[0]]
        assert len(lost) == played.seats[0].rebuilt
        assert not any(played.steps[seat][t].valid[0] for t in lost)
        assert {episode.length for _, episode in played.episodes[seat]} == {4}


def test_an_environment_that_always_raises_ends_the_run_with_its_first_error() -> None:
    env = "tests.support.multi_agent:RaisingParallelEnv"
    with pytest.raises(ValueError, match="deliberate") as raised:
        Played(config(env, every=1), rows=1, steps=30)
    assert "rebuilt 3 times" in str(raised.value.__notes__)


def test_a_factory_that_returns_something_else_is_refused() -> None:
    with pytest.raises(ConfigError, match="must return a gymnasium Env"):
        make_vector(config("collections:Counter"), 1, [1])
