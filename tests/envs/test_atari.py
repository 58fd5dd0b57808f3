"""Atari: what is an episode in training, and what in evaluations."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from sampleforge.api import train
from sampleforge.config import ConfigError
from sampleforge.data.dataset import open_dataset
from sampleforge.env.config import EnvConfig
from sampleforge.env.gymnasium_vector import GymnasiumVector
from sampleforge.env.place import Place
from sampleforge.env.random_play import random_actions
from sampleforge.env.registry import make_vector
from sampleforge.env.vector import Episode, StepOut, own_outputs
from sampleforge.topologies.config import ApexConfig, AppoConfig
from sampleforge.workers.episode_player import evaluation_envs
from sampleforge_envs import atari
from tests.support.graphs import spec_of
from tests.support.probes import probe_by

pytest.importorskip("ale_py")
ROWS = 4
NOOP = 0


CONFIG = EnvConfig(
    env="ALE/Breakout-v5", env_kwargs={"episodic_life": True, "noop_max": 1}, decorrelate=False
)
SMALL: dict[str, Any] = {
    **{"num_workers": 1, "num_envs_per_worker": ROWS, "num_splits": 1, "decorrelate": False},
    **{"serial": True, "quiet": True, "device": "cpu", "seed": 1},
}


@pytest.mark.long
def test_a_life_is_an_episode_of_training_and_a_game_one_of_evaluations() -> None:
    training, evaluation = make_vector(CONFIG, ROWS, range(ROWS)), evaluation_envs(CONFIG, ROWS, 0)
    assert "a life is an episode of training" in training.spec.protocol
    assert "a game is an episode" in evaluation.spec.protocol
    training.close(), evaluation.close()


@pytest.mark.long
@pytest.mark.parametrize("episodic_life", [False, True])
def test_rows_that_step_in_several_threads_play_the_same_games(episodic_life: bool) -> None:
    config = dataclasses.replace(CONFIG, env_kwargs={"episodic_life": episodic_life})
    one, several = (
        make_vector(config, ROWS, range(ROWS), Place(threads=threads)) for threads in (1, 3)
    )
    out, expected = own_outputs(several.spec, ROWS), own_outputs(one.spec, ROWS)
    several.reset(out.obs)
    one.reset(expected.obs)
    rng = np.random.default_rng(0)
    for _ in range(300):
        actions = random_actions(one.spec, ROWS, rng)
        one.send(actions)
        several.send(actions)
        assert one.recv(expected) == several.recv(out)
        assert np.array_equal(out.obs["obs"], expected.obs["obs"])
        assert np.array_equal(out.terminated, expected.terminated)
    one.close(), several.close()


@pytest.mark.long
def test_a_lost_life_is_terminal_and_the_game_goes_on() -> None:
    """With random actions; ALE itself plays the same games beside it."""
    vector = make_vector(CONFIG, ROWS, range(ROWS))
    whole = dataclasses.replace(CONFIG, env_kwargs={"noop_max": 1})
    reference = make_vector(whole, ROWS, range(ROWS))
    out, expected = own_outputs(vector.spec, ROWS), own_outputs(reference.spec, ROWS)
    vector.reset(out.obs)
    reference.reset(expected.obs)
    rng = np.random.default_rng(0)
    terminals = np.zeros(ROWS, np.int64)
    left_out = np.zeros(ROWS, np.bool_)
    held = np.full(ROWS, 4)  # frames of the life among those of a stack
    games = 0
    while games < 2 * ROWS:
        actions = random_actions(vector.spec, ROWS, rng)
        vector.send(actions)
        pressed = np.where(left_out, NOOP, actions["action"])
        reference.send({"action": pressed})
        episodes, whole_games = vector.recv(out), reference.recv(expected)
        held = np.where(left_out, 1, np.minimum(held + 1, 4))
        for stack, whole_stack, own in zip(
            out.obs["obs"], expected.obs["obs"], held.tolist(), strict=True
        ):
            assert np.array_equal(stack[-own:], whole_stack[-own:])
            assert not stack[:-own].any(), "frames of the life before"
        assert episodes == whole_games, "returns and lengths of whole games"
        assert not (out.terminated & left_out).any()
        assert np.array_equal(out.valid, expected.valid & ~left_out)
        assert np.array_equal(out.first, expected.first | left_out)
        terminals += out.terminated
        left_out = out.terminated & ~expected.terminated
        assert (expected.terminated <= out.terminated).all()
        for episode in episodes:
            assert terminals[episode.row] == 5
            terminals[episode.row] = 0
            games += 1
    vector.close()
    reference.close()


def test_single_environments_have_no_episodes_of_lives() -> None:
    config = dataclasses.replace(CONFIG, env_backend="single")
    remedy = "begins a new game after each life. Use --env ALE/Breakout-v5 --env-backend vector"
    with pytest.raises(ConfigError, match=remedy):
        make_vector(config, 1, [0])


class ScriptedAle:
    """In place of ALE's vector env, one row: plays ``script``, (lives, terminated, reward) of each
    step. All pixels of its n-th frame are n, and a game begins with an empty stack."""

    def __init__(self, script: list[tuple[int, bool, float]]) -> None:
        self.script = iter(script)
        self.pressed: list[int] = []
        self.stack = [0] * 4
        self.over = True

    def send(self, actions: np.ndarray) -> None:
        self.pressed.append(int(actions[0]))

    def recv(self) -> tuple[Any, ...]:
        before = [0] * 3 if self.over else self.stack[1:]
        self.stack = [*before, len(self.pressed)]
        lives, self.over, reward = next(self.script)
        info = {"env_id": np.zeros(1, np.int64), "lives": np.array([lives])}
        flags = np.array([self.over]), np.zeros(1, np.bool_)
        frames = np.repeat(np.array(self.stack, np.uint8), 84 * 84)
        return frames.reshape(1, 4, 84, 84), np.array([reward]), *flags, info


@pytest.mark.parametrize("ends", ["life", "game"])
def test_what_is_lost_in_the_step_left_out_ends_the_next_one(ends: str) -> None:
    vector = make_vector(CONFIG, 1, [0])
    assert isinstance(vector, GymnasiumVector)
    out = own_outputs(vector.spec, 1)
    vector.reset(out.obs)
    over = ends == "game"
    left = 5 if over else 1
    lost = [(3, False, 1.0), (2, False, 1.0), (1 - over, over, 1.0), (left, False, 0.0)]
    ale = ScriptedAle([*lost, lost[-1]])
    played, vector._ale = vector._ale, ale  # type: ignore[attr-defined]
    steps, stacks = [], []
    for _ in range(5):
        vector.send({"action": np.array([2])})
        games = vector.recv(out)
        steps.append((bool(out.valid[0]), bool(out.terminated[0]), [g.ret for g in games]))
        stacks.append(out.obs["obs"][0, :, 0, 0].tolist())
    vector._ale = played  # type: ignore[attr-defined]
    vector.close()
    game = [3.0] if over else []
    assert steps == [
        (True, False, []),
        (True, True, []),
        (False, False, []),
        (True, True, game),
        (False, False, []),
    ]
    assert ale.pressed == [2, 2, NOOP, 2, NOOP]
    assert stacks[2:] == [[0, 0, 0, 3], [0, 0, 3, 4], [0, 0, 0, 5]]


@pytest.mark.long
@pytest.mark.parametrize("kwargs", [{}, {"stack_num": 1}, {"grayscale": False, "stack_num": 2}])
def test_a_replay_of_lives_has_the_stacks_that_were_seen(
    kwargs: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With debug=True every stack is compared with the one that is read from single frames."""
    probe_by(spec_of, monkeypatch)
    config = ApexConfig(
        env=CONFIG.env,
        env_kwargs={**CONFIG.env_kwargs, "img_height": 36, "img_width": 36, **kwargs},
        **SMALL,
        rollout=10,
        learning_starts=600,
        replay_capacity=1000,
        batch_size=4,
        debug=True,
        run_dir=str(tmp_path),
        train_for_env_steps=640,
    )
    summary = train(config).summary
    assert (summary["status"], summary["updates"] > 0) == ("finished", True)


@pytest.mark.long
def test_what_is_recorded_of_lives_is_what_the_policy_saw(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[list[tuple[bool, bytes]]] = [[] for _ in range(ROWS)]

    def note(obs: Any, first: Any) -> None:
        """Of each row: its observation as it is in the slot that the policy reads."""
        for row, stack in enumerate(obs["obs"]):
            seen[row].append((bool(first[row]), stack.tobytes()))

    def reset(envs: Any, obs: Any) -> None:
        atari.AtariVector.reset(envs, obs)
        note(obs, np.ones(ROWS))

    def recv(envs: Any, out: StepOut) -> list[Episode]:
        episodes = GymnasiumVector.recv(envs, out)
        note(out.obs, out.first)
        return episodes

    probe_by(spec_of, monkeypatch)
    monkeypatch.setattr(atari.AtariLives, "reset", reset)
    monkeypatch.setattr(atari.AtariLives, "recv", recv)
    config = AppoConfig(
        env=CONFIG.env,
        env_kwargs=CONFIG.env_kwargs,
        **SMALL,
        rollout=20,
        record=str(tmp_path / "data"),
        run_dir=str(tmp_path / "run"),
        train_for_env_steps=800,
    )
    train(config)
    lives = 0
    for episode in open_dataset(tmp_path / "data").episodes():
        assert episode.begins and episode.number is not None
        row, number = episode.number[-2:]
        begins = [at for at, (first, _) in enumerate(seen[row]) if first][number]
        stacks = [stack.tobytes() for stack in episode.observations["obs"]]
        assert stacks == [stack for _, stack in seen[row][begins : begins + len(stacks)]]
        lives += 1
    assert lives > 2 * ROWS


@pytest.mark.long
@pytest.mark.parametrize("backend", ["vector", "single"])
@pytest.mark.parametrize(("given", "steps"), [(None, 10), (39, 10), (41, 11)])
def test_no_ops_and_fire_do_not_count_for_the_time_limit(
    backend: Literal["vector", "single"], given: int | None, steps: int
) -> None:
    """That of --max-episode-steps, or of max_num_frames_per_episode, whose last step is cut."""
    kwargs = {} if given is None else {"max_num_frames_per_episode": given}
    limit = steps if given is None else None
    config = EnvConfig(
        "ALE/Breakout-v5", kwargs, backend, max_episode_steps=limit, decorrelate=False
    )
    vector = make_vector(config, 2, [0, 1])
    assert vector.spec.max_episode_steps == steps
    out, lengths = own_outputs(vector.spec, 2), set()
    vector.reset(out.obs)
    for _ in range(40):
        vector.send({"action": np.zeros(2, np.int64)})
        lengths |= {episode.length for episode in vector.recv(out)}
    assert lengths == {steps}
    vector.close()
