"""Values that are not finite: no array, statistic, checkpoint or other row ever sees one; runs go
on after a single one, and end with the reason where they do not stop."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sampleforge.api import train
from sampleforge.env.config import EnvConfig
from sampleforge.env.guard import NotFiniteError
from sampleforge.env.registry import make_vector
from sampleforge.env.threaded import ThreadedVector
from sampleforge.env.vector import EnvVector, Episode, own_outputs
from sampleforge.models.config import ModelConfig
from sampleforge.run.folder.checkpoint import Checkpoint, CheckpointError, CheckpointStore
from sampleforge.run.session import Session
from sampleforge.topologies.config import AnyConfig, ApexConfig, AppoConfig, DdppoConfig
from sampleforge.workers.metrics import DivergedError
from tests.support.envs import code_reward
from tests.support.graphs import rollouts
from tests.support.processes import RunCli
from tests.support.runs import newest, summary
from tests.support.variants import slow

FAKES = "tests.support.not_finite_envs"
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
def test_a_value_that_is_not_finite_costs_only_its_row_a_step_or_an_episode(
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
    assert played.vector.guard.first.startswith(f"{FAKES}:NotFinite")
    if where == "first":
        return
    assert played.vector.guard.dropped_steps >= 2, "one of row 0, one of row 3"
    in_place = backend in ("single", "threaded", "disabled")
    if where in ("final", "final_reward") or in_place:
        assert lost <= 1 + in_place, "the row goes on with another episode at once"
    what = "the reward is" if "reward" in where else "observation leaf 'obs' holds"
    assert f"row 0: {'final ' * (backend in BACKENDS[3:] and where == 'final')}{what}" in (
        played.vector.guard.first
    )


@pytest.mark.long
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_bad_final_observation_of_a_terminated_episode_is_zeroed_and_no_step_is_dropped(
    backend: str,
) -> None:
    played = play(make(backend, where="final", every=1, after=1, ending="terminate"), 300)
    good = play(make(backend, where="never", ending="terminate"), 300)
    assert (played.valid == good.valid).all() and played.episodes == good.episodes
    assert played.vector.guard.first == "" and not played.vector.guard.dropped_steps


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("where", "what"), [("reward", "the reward is inf"), ("obs", "leaf 'obs' holds inf at [2]")]
)
def test_too_many_bad_values_raise_an_error_with_env_row_and_value(
    backend: str, where: str, what: str
) -> None:
    vector = make(backend, where=where, value=np.inf, every=1)
    message = f"row 0: .*{re.escape(what)}; this row gave values that are not finite 10 times"
    with pytest.raises(NotFiniteError, match=message):
        play(vector, 2000)
    vector.close()


def test_a_first_observation_that_is_never_finite_raises_an_error() -> None:
    vector = make("single", where="first", after=1, every=1)
    with pytest.raises(NotFiniteError, match=r"row 0: observation leaf 'obs' holds nan at \[0\]"):
        play(vector)
    vector.close()


def test_an_episode_that_counts_resets_the_number_of_events() -> None:
    """At least one episode of 8 steps between any two; without, the 10th would be an error."""
    played = play(make("single", where="obs", every=20), 1000)
    assert played.vector.guard.dropped_steps >= 2 * 40


def test_good_steps_reset_the_number_of_events_if_episodes_never_end() -> None:
    vector = make("single", where="reward", every=150, length=10**6)
    out = own_outputs(vector.spec, ROWS)
    vector.reset(out.obs)
    for _ in range(150 * 20):
        vector.send({"action": np.ones(ROWS, np.int64)})
        vector.recv(out)
    assert vector.guard.dropped_steps == 2 * 20
    vector.close()


# ---- whole runs ----

NORMALISED = ModelConfig(hidden_sizes=(8,), normalise_observations=True)
RECURRENT = ModelConfig(hidden_sizes=(8,), core="gru", core_size=6, normalise_observations=True)
SMALL: dict[str, Any] = {
    "env": f"{FAKES}:NotFiniteEnv",
    "num_envs_per_worker": 6,
    "rollout": 8,
    "seed": 1,
}
REPLAY: dict[str, Any] = {
    "num_workers": 1,
    "num_splits": 1,
    "learning_starts": 200,
    "replay_capacity": 2000,
    "batch_size": 16,
    "samples_per_insert": 1.0,
}
SEQUENCES: dict[str, Any] = {
    "rollout": 12,
    "model": RECURRENT,
    "sequence_length": 10,
    "sequence_overlap": 4,
    "burn_in": 3,
}
TOPOLOGIES: dict[str, Callable[..., AnyConfig]] = {
    "appo": partial(AppoConfig, batch_size=96, num_workers=1, model=NORMALISED),
    "appo-gae": partial(
        AppoConfig, batch_size=96, num_workers=1, model=NORMALISED, advantage="gae", num_epochs=2
    ),
    "appo-worker": partial(
        AppoConfig, batch_size=96, num_workers=1, model=RECURRENT, inference="worker"
    ),
    "apex": partial(ApexConfig, model=NORMALISED, **REPLAY),
    "r2d2": partial(ApexConfig, **{**REPLAY, **SEQUENCES}),
    "ddppo": partial(DdppoConfig, num_ranks=1, model=NORMALISED),
}


def config(topology: str, tmp_path: Path, **more: Any) -> AnyConfig:
    given = dict(SMALL)
    if topology == "r2d2":
        del given["rollout"]
    run = {"run_dir": str(tmp_path / "run"), "quiet": True, "report_interval": 0.5}
    return TOPOLOGIES[topology](**{**given, **run, **more})


@pytest.mark.long
@pytest.mark.parametrize(
    ("topology", "where"),
    [
        *((topology, "obs") for topology in TOPOLOGIES),
        *(("appo", "reward"), ("apex", "reward")),
        *(("appo", "final"), ("apex", "final"), ("r2d2", "final")),
    ],
)
def test_a_run_with_bad_values_goes_on_and_neither_weights_nor_statistics_use_them(
    topology: str, where: str, tmp_path: Path
) -> None:
    """In serial mode: one process, with the workers of every topology."""
    every = 3 if where == "final" else 25
    kwargs = {"where": where, "value": float("inf"), "after": every, "every": every, "length": 7}
    train(config(topology, tmp_path, env_kwargs=kwargs, serial=True, train_for_env_steps=2500))
    written = summary(tmp_path / "run")
    assert written["nonfinite_steps"] > 20
    assert math.isfinite(written["return_mean"]) and written["episodes"] > 100
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    reports = [json.loads(line) for line in lines]
    assert reports[-1]["nonfinite_steps"] == written["nonfinite_steps"]
    learned = [report for report in reports if "skipped_steps" in report]
    assert learned and not any(report["skipped_steps"] for report in learned)
    assert all(math.isfinite(report["loss"]) for report in learned)
    for name, tensor in newest(tmp_path / "run").items():
        assert tensor.isfinite().all(), name
    log = (tmp_path / "run" / "log.txt").read_text()
    worker = "rank 0" if topology == "ddppo" else "actor 0"
    found = "the reward is inf" if where == "reward" else "observation leaf 'obs' holds inf at [2]"
    assert log.count("dropped an env step") == 1
    assert re.search(rf"warning dropped .*: {worker}, split 0, .*{re.escape(found)}", log)


@pytest.mark.multiprocess(timeout=120)
@pytest.mark.parametrize(
    "words",
    [
        "appo --inference inline --num-workers 1",
        slow("appo --inference worker --num-workers 1"),
        "apex --num-workers 1 --learning-starts 500",
        slow("apex --num-workers 1 --learning-starts 500 --model.core gru"),
        "ddppo --num-ranks 2",
        slow("ddppo --num-ranks 2 --variable-experience"),
    ],
)
def test_rewards_of_nan_end_the_command_with_the_reason_last(
    run_cli: RunCli, tmp_path: Path, words: str
) -> None:
    more = "--num-envs-per-worker 4 --quiet --run-dir run --train-for-env-steps 1000000"
    kwargs = ("--env-kwargs", "where=reward", "after=100", "every=1")
    done = run_cli(
        "train", *words.split(), "--env", f"{FAKES}:NotFiniteEnv", *more.split(), *kwargs
    )
    assert done.returncode == 1
    last = done.stderr.rstrip().splitlines()[-1]
    worker = "rank [01]" if words.startswith("ddppo") else "actor 0"
    assert re.search(rf"{worker}, split \d, {FAKES}:NotFiniteEnv, row \d: the reward is nan", last)
    assert "10 times in a row" in last and "correct the environment" in last
    written = summary(tmp_path / "run")
    assert written["status"] == "failed" and written["nonfinite_steps"] > 0


@pytest.mark.multiprocess(timeout=120)
def test_the_first_value_is_a_warning_on_the_screen(run_cli: RunCli, tmp_path: Path) -> None:
    done = run_cli(
        *("train", "appo", "--env", f"{FAKES}:NotFiniteEnv", "--run-dir", "run"),
        *("--num-workers", "1", "--num-envs-per-worker", "4", "--train-for-env-steps", "3000"),
        *("--env-kwargs", "where=obs", "value=1e39", "after=30", "every=40"),
    )
    assert done.returncode == 0, done.stderr
    assert "dropped an env step with a value that is not finite: actor 0, split" in done.stdout
    assert "leaf 'obs' holds inf" in done.stdout, "1e39 is inf as float32"
    assert "dropped an env step" in (tmp_path / "run" / "log.txt").read_text()


# ---- policies and learners ----

LARGE = pytest.mark.filterwarnings("ignore:overflow encountered in vdot")


class SquaringEncoder(torch.nn.Module):
    """Overflows on observations of 10,000; the gated core makes NaN of that."""

    def __init__(self, observations: Any, config: ModelConfig) -> None:
        super().__init__()
        self.out_features = 3
        self.layer = torch.nn.Linear(4, 3)

    def forward(self, obs: Any) -> torch.Tensor:
        x = (obs["obs"] / 1000).pow(21)
        out: torch.Tensor = self.layer(x * x) - self.layer(x.abs() * x)
        return out


OVERFLOWS = ModelConfig(
    encoder=f"{__name__}:SquaringEncoder", core="gru", core_size=4, normalise_observations=False
)


def overflowing(**kwargs: Any) -> AppoConfig:
    """Observations of 10,000 now and then, on which a network overflows."""
    given = {"where": "obs", "value": 1e4, "length": 8, **kwargs}
    return AppoConfig(**SMALL, num_workers=1, model=OVERFLOWS, env_kwargs=given)


@LARGE
def test_policy_outputs_that_are_not_finite_are_masked_out() -> None:
    dropped = 0
    for batch in rollouts(overflowing(after=20, every=60), 60):
        columns = (batch.log_prob, batch.value, batch.state, *batch.obs.values())
        assert all(column.isfinite().all() for column in columns)
        dropped += int((~batch.valid).all(0).sum())
    assert 10 < dropped < 60 * 6 / 2, "their own rows only"


@LARGE
def test_a_policy_whose_outputs_are_never_finite_raises_an_error() -> None:
    message = r"actor 0, split 0, .*the policy's \w+ is not finite .* 10 rollouts in a row"
    with pytest.raises(NotFiniteError, match=message):
        for _ in rollouts(overflowing(after=1, every=1), 60):
            pass


@pytest.mark.long
@LARGE
def test_a_diverged_training_ends_with_the_remedies(tmp_path: Path) -> None:
    """Rewards are finite, their squares are not."""
    kwargs = {"where": "reward", "value": 1e30, "after": 1, "every": 1}
    more = {"env_kwargs": kwargs, "normalise_returns": False}
    message = r"no gradient was finite in 10 updates in a row.*rewards are far too large.*1e\+30"
    with pytest.raises(DivergedError, match=message):
        train(config("appo", tmp_path, **more, serial=True, train_for_env_steps=10**6))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_checkpoint_that_is_not_finite_is_not_written(value: float, tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=3)
    about: dict[str, Any] = {"env_steps": 1, "version": 1, "return_mean": 1.0}
    good = {"a": torch.ones(3), "b": torch.arange(3)}
    store.save(Checkpoint(good, {}), **about)
    bad = {**good, "model/head.weight": torch.tensor([1.0, value])}
    with pytest.raises(CheckpointError, match=f"'model/head.weight' holds {value}.*1 of its 2"):
        store.save(Checkpoint(bad, {}), **{**about, "env_steps": 2})
    found = store.load(log=print)
    assert found is not None and found[1].env_steps == 1


@pytest.mark.long
def test_a_learner_that_cannot_save_says_which_tensor(tmp_path: Path) -> None:
    training = Session(config("appo", tmp_path, serial=True, train_for_env_steps=400))
    with (
        pytest.raises(OSError, match=r"checkpoint not written: .*model/.*bias' holds nan"),
        training,
    ):
        for _ in training.reports():
            pass
        model = training.graph.groups[0].learner.worker._learner.model  # type: ignore[attr-defined]
        next(p for n, p in model.named_parameters() if n.endswith("bias")).data.fill_(np.nan)


def test_a_guard_that_goes_on_with_new_environments_keeps_its_counts_and_forgets_the_rows() -> None:
    vector = make_vector(EnvConfig(env="tests.support.envs:CodeEnv"), 2, [0, 1])
    guard, out = vector.guard, own_outputs(vector.spec, 2)
    out.obs["obs"][0, 1] = np.nan
    guard.begin(out.obs, lambda row, obs: False)
    assert guard.drops, "row 0 could not begin again: it is dropped to the end of its episode"
    guard.drop(out, np.zeros(2, np.bool_))
    first = guard.first
    guard.begin(own_outputs(vector.spec, 2).obs, lambda row, obs: False)
    assert not guard.drops
    assert (guard.dropped_steps, guard.first) == (1, first) and "row 0" in first
