"""Values that are not finite: no array, statistic, checkpoint or other row ever sees one; runs go
on after a single one, and end with the reason where they do not stop."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from sampleforge.env.config import EnvConfig
from sampleforge.env.not_finite import NotFiniteError
from sampleforge.env.registry import make_vector
from sampleforge.env.threaded import ThreadedVector
from sampleforge.env.vector import EnvVector, Episode, own_outputs
from tests.fakes.envs import code_reward

FAKES = "tests.fakes.not_finite"
ROWS, STEPS, LENGTH = 4, 100, 8
BACKENDS = ("single", "threaded", "next_step", "same_step", "disabled")


def make(backend: str, **kwargs: Any) -> EnvVector:
    """Rows 0 and 3 give values that are not finite, 1 and 2 never do."""
    kwargs = {"alone": True, "length": LENGTH, **kwargs}
    rows = list(range(ROWS))
    if backend in ("single", "threaded"):
        config = EnvConfig(env=f"{FAKES}:NotFiniteEnv", env_kwargs=kwargs, decorrelate=False)
        if backend == "threaded":
            return ThreadedVector(lambda: make_vector(config, ROWS, rows), lambda: None)
        return make_vector(config, ROWS, rows)
    given = {**kwargs, "mode": backend}
    config = EnvConfig(env=f"{FAKES}:NotFiniteVectorEnv", env_kwargs=given, decorrelate=False)
    return make_vector(config, ROWS, rows)


@dataclass
class Played:
    """What a vector gave. ``valid`` [steps, rows]; the rest of each valid step is checked."""

    vector: EnvVector
    valid: Any = None
    episodes: list[Episode] = field(default_factory=list)


def play(vector: EnvVector, steps: int = STEPS) -> Played:
    """Step a vector of CodeEnvs. Everything must be finite, and each valid step must be one that a
    CodeEnv makes, with its reward."""
    out, played, valid = own_outputs(vector.spec, ROWS), Played(vector), []
    vector.reset(out.obs)
    actions = {"action": np.ones(ROWS, np.int64)}
    for _ in range(steps):
        before = out.obs["obs"].copy()
        vector.send(actions)
        played.episodes += vector.recv(out)
        assert np.isfinite(out.reward).all() and np.isfinite(out.obs["obs"]).all()
        assert vector.valid_rows == np.count_nonzero(out.valid)
        ended = out.terminated | out.truncated
        for row in np.flatnonzero(out.valid):
            _, episode, step, _ = before[row]
            assert out.reward[row] == code_reward(row, episode, step + 1), (row, before[row])
            assert ended[row] == (step + 1 == LENGTH)
            after = out.obs["obs"][row]
            if ended[row] and out.final_obs is not None:
                after = out.final_obs["obs"][row]
            assert np.isfinite(after).all()
            zeroed = out.terminated[row] and after[2] == 0
            assert zeroed or after.tolist() == [row, episode, step + 1, 1]
        valid.append(out.valid.copy())
    played.valid = np.array(valid)
    vector.close()
    assert all(np.isfinite(e.ret) and e.length == LENGTH for e in played.episodes)
    return played


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("where", ["obs", "reward", "final", "final_reward", "first"])
def test_one_value_costs_its_row_a_step_or_an_episode_and_nobody_else_anything(
    backend: str, value: float, where: str
) -> None:
    after = 1 if where == "first" else 3
    played = play(make(backend, where=where, value=value, after=after, ending="truncate"))
    good = play(make(backend, where="never", ending="truncate"))
    assert (played.valid[:, 1:3] == good.valid[:, 1:3]).all()
    of_good_rows = [[e for e in p.episodes if e.row in (1, 2)] for p in (played, good)]
    assert of_good_rows[0] == of_good_rows[1]
    lost = good.valid[:, 0].sum() - played.valid[:, 0].sum()
    assert lost <= LENGTH + 1
    assert played.vector.not_finite.first.startswith(f"{FAKES}:NotFinite")
    if where == "first":
        return
    assert played.vector.not_finite.dropped_steps >= 2, "one of row 0, one of row 3"
    in_place = backend in ("single", "threaded", "disabled")
    if where in ("final", "final_reward") or in_place:
        assert lost <= 1 + in_place, "the row goes on with another episode at once"
    what = "the reward is" if "reward" in where else "observation leaf 'obs' holds"
    assert f"row 0: {'final ' * (backend in BACKENDS[3:] and where == 'final')}{what}" in (
        played.vector.not_finite.first
    )


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_final_observation_of_a_terminated_episode_is_zeroed_and_costs_nothing(
    backend: str,
) -> None:
    played = play(make(backend, where="final", every=1, after=1, ending="terminate"), 300)
    good = play(make(backend, where="never", ending="terminate"), 300)
    assert (played.valid == good.valid).all() and played.episodes == good.episodes
    assert played.vector.not_finite.first == "" and not played.vector.not_finite.dropped_steps


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("where", "what"), [("reward", "the reward is inf"), ("obs", "leaf 'obs' holds inf at [2]")]
)
def test_values_without_end_are_an_error_that_names_env_row_and_value(
    backend: str, where: str, what: str
) -> None:
    vector = make(backend, where=where, value=np.inf, every=1)
    message = f"row 0: .*{re.escape(what)}; this row gave values that are not finite 10 times"
    with pytest.raises(NotFiniteError, match=message):
        play(vector, 2000)
    vector.close()


def test_a_first_observation_that_is_never_finite_is_an_error() -> None:
    vector = make("single", where="first", after=1, every=1)
    with pytest.raises(NotFiniteError, match=r"row 0: observation leaf 'obs' holds nan at \[0\]"):
        play(vector)
    vector.close()


def test_episodes_that_count_end_a_series() -> None:
    """At least one episode of 8 steps between any two; without, the 10th would be an error."""
    played = play(make("single", where="obs", every=20), 1000)
    assert played.vector.not_finite.dropped_steps >= 2 * 40


def test_good_steps_end_a_series_where_no_episode_ever_ends() -> None:
    vector = make("single", where="reward", every=150, length=10**6)
    out = own_outputs(vector.spec, ROWS)
    vector.reset(out.obs)
    for _ in range(150 * 20):
        vector.send({"action": np.ones(ROWS, np.int64)})
        vector.recv(out)
    assert vector.not_finite.dropped_steps == 2 * 20
    vector.close()
