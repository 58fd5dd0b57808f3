"""Benchmark mode: the figures add up, the verdict follows its rules, nothing is trained or left."""

from __future__ import annotations

import dataclasses
import json
import signal
from typing import Any

import numpy as np
import pytest

from sampleforge.api import train
from sampleforge.models.config import ModelConfig
from sampleforge.run.reports.verdict import CounterRows, VerdictContext, stages, verdict
from sampleforge.runners.serial import SerialRunner
from sampleforge.spec import ACTION_MASK, ActionSpec, ArraySpec, EnvSpec
from sampleforge.tools.benchmark.benchmark import RandomActions
from sampleforge.tools.benchmark.table import WIDTH, render
from sampleforge.topologies.config import AppoConfig, SacConfig
from sampleforge.topologies.graph import COUNTERS
from sampleforge.topologies.pairings.critics_defaults import resolve_defaults
from sampleforge.topologies.starts import ResumePoint
from tests.support.graphs import build, one_policy, spec_of
from tests.support.pairings import plan_of, wire_of

SETTING = VerdictContext(
    num_workers=2,
    num_envs_per_worker=32,
    num_splits=2,
    inference="inline",
    num_policy_workers=0,
    batch_size=2048,
    num_epochs=1,
    precision="fp32",
    device="cpu",
    learner_threads=1,
    synchronous=False,
    sampler_only=False,
    bf16_may_pay=False,
    cores=2,
)


def counted(**seconds: list[float]) -> dict[str, np.ndarray]:
    """What workers counted, a column per counter; what is not given is zero."""
    workers = len(next(iter(seconds.values())))
    return {name: np.array(seconds.get(name, [0.0] * workers), np.float64) for name in COUNTERS}


INLINE: dict[str, Any] = {
    "env_steps": [500_000, 500_000, 0],
    "step_s": [9.0, 8.0, 0],
    "env_s": [4.0, 4.0, 0],
    "infer_s": [3.0, 3.0, 0],
    "wait_s": [1.0, 2.0, 2.5],
    "batch_s": [0, 0, 1.0],
    "learn_s": [0, 0, 6.0],
    "publish_s": [0, 0, 0.5],
}


def table_of(roles: CounterRows, seconds: float = 10.0, **columns: list[float]):
    return {stage.name: stage for stage in stages(counted(**columns), roles, seconds)}


# ---- stages ----


def test_stages_of_inline_actors_and_a_learner() -> None:
    table = table_of(CounterRows([0, 1], [], [2]), **INLINE)
    us = {name: round(stage.us, 6) for name, stage in table.items()}
    assert us == {
        "env step": 8.0,
        "gather": 0.0,
        "forward": 6.0,
        "hand-over": 3.0,
        "bookkeeping": 3.0,
        "batch": 1.0,
        "learn": 6.0,
        "publish": 0.5,
        "learner idle": 2.5,
    }
    actors = [stage.share for stage in table.values() if stage.role == "actor"]
    learner = [stage.share for stage in table.values() if stage.role == "learner"]
    assert sum(actors) == pytest.approx(1) and sum(learner) == pytest.approx(1)
    assert table["env step"].share == pytest.approx(0.4)


def test_with_policy_workers_asking_is_part_of_the_hand_over() -> None:
    table = table_of(
        CounterRows([0], [1], []),
        env_steps=[1_000_000, 0],
        step_s=[6.0, 0],
        env_s=[4.0, 0],
        infer_s=[1.0, 8.0],
        gather_s=[0, 2.0],
        wait_s=[4.0, 2.0],
    )
    us = {name: round(stage.us, 6) for name, stage in table.items()}
    assert (us["hand-over"], us["bookkeeping"]) == (5.0, 1.0)
    assert (us["gather"], us["forward"], us["policy idle"]) == (2.0, 6.0, 2.0)
    assert "learn" not in us or us["learn"] == 0


RANKS: dict[str, Any] = {
    "env_steps": [500_000, 500_000],
    "step_s": [5.5, 4.5],
    "env_s": [3.0, 2.0],
    "infer_s": [2.0, 2.0],
    "batch_s": [0.5, 0.5],
    "learn_s": [3.5, 4.5],
    "wait_s": [0.5, 1.5],
    "publish_s": [0.5, 0.5],
}
"""Ranks step, learn, and wait for each other while they learn."""
ALL_RANKS = CounterRows([0, 1], [], [], ranks=True)


def test_the_time_that_ranks_wait_for_each_other_does_not_count_as_learning() -> None:
    table = table_of(ALL_RANKS, **RANKS)
    assert table["bookkeeping"].us == pytest.approx(1.0)
    assert table["learn"].role == "actor" and table["learn"].share == pytest.approx(0.3)
    assert table["hand-over"].share == pytest.approx(0.1)
    assert "each other" in table["hand-over"].means
    assert sum(stage.share for stage in table.values()) == pytest.approx(1)


# ---- verdict ----


def judge(free: float = 0.5, idle: float = 0.0, roles=None, columns=None, gpu=None, **setting):
    """The verdict on INLINE with the given changes (column -> values)."""
    rows = {**INLINE, **(columns or {})}
    found = stages(counted(**rows), roles or CounterRows([0, 1], [], [2]), 10.0)
    return verdict(found, free, idle, dataclasses.replace(SETTING, **setting), gpu=gpu)


BEHIND = {"wait_s": [4.0, 4.0, 0.1], "step_s": [6.0, 6.0, 0], "infer_s": [1.0, 1.0, 0]}
"""Actors that wait for a learner."""


def test_when_the_learner_waits_the_sampler_limits() -> None:
    found = judge(columns={"wait_s": [0.1, 0.1, 4.0]})
    assert found.bottleneck == "env step" and "the learner waits 40%" in found.reason
    assert found.flags == ()  # no core is left, and there is nothing else to turn
    assert judge(idle=1.0, columns={"wait_s": [0.1, 0.1, 4.0]}).flags == ("--num-workers 3",)


def test_when_actors_wait_for_slots_the_learner_limits() -> None:
    found = judge(free=0.02, columns=BEHIND)
    assert found.bottleneck == "learn" and "the learner is behind" in found.reason
    assert found.flags == ("--batch-size 4096",)


def test_the_remedies_for_a_slow_learner_are_flags_in_the_order_to_try() -> None:
    found = judge(free=0.0, idle=1.0, columns=BEHIND, bf16_may_pay=True, num_epochs=2)
    assert found.flags == (
        "--num-epochs 1",
        "--learner-threads 2",
        "--precision bf16",
        "--batch-size 4096",
    )
    assert "--learner-threads 2" not in judge(columns=BEHIND, idle=1.0, device="cuda").flags


@pytest.mark.parametrize(
    ("more", "pays"),
    [
        ({}, True),
        ({"compile": True}, False),
        ({"model": ModelConfig(layer_norm=True)}, False),
        ({"model": ModelConfig(activation="silu")}, False),
        ({"num_learners": 2}, False),
        ({"freeze": ("encoder",)}, False),
    ],
)
def test_a_learner_whose_passes_are_by_hand_is_advised_to_compile_them(
    more: dict[str, Any], pays: bool
) -> None:
    spec = spec_of(SacConfig(env="Pendulum-v1"))
    config = resolve_defaults(SacConfig(env="Pendulum-v1", **more), spec)
    plan = plan_of(config, spec)
    graph = wire_of(config, plan, spec, *one_policy(ResumePoint(1)))
    assert VerdictContext.of(config, plan, spec, graph).compile_may_pay is pays
    advised = judge(free=0.0, columns=BEHIND, compile_may_pay=pays).flags
    assert ("--compile" in advised) is pays


def test_when_no_worker_waits_the_cores_are_full() -> None:
    found = judge(columns={"wait_s": [0.1, 0.1, 0.1]})
    assert (
        found.bottleneck == "env step"
        and found.reason == "all cores are busy; most of the time goes into env steps"
    )


def test_without_a_learner_the_largest_of_the_actors_stages_limits() -> None:
    heavy = {"infer_s": [5.0, 5.0, 0], "step_s": [9.5, 9.5, 0], "wait_s": [0.1, 0.1, 0]}
    found = judge(columns=heavy, sampler_only=True, bf16_may_pay=True)
    assert found.bottleneck == "forward" and "no learner" in found.reason
    assert found.flags == ("--precision bf16", "--num-envs-per-worker 64")
    own = {"env_s": [1.0, 1.0, 0], "infer_s": [1.0, 1.0, 0], "wait_s": [0.1, 0.1, 0]}
    found = judge(columns=own, sampler_only=True)
    assert found.bottleneck == "bookkeeping"
    assert found.flags == ("--num-envs-per-worker 64", "--num-splits 1")


def remote(gpu: float | None = None, device: str = "cpu", **columns: list[float]):
    """Two actors, a policy worker, a learner that waits."""
    rows = {
        "env_steps": [500_000, 500_000, 0, 0],
        "step_s": [3.0, 3.0, 0, 0],
        "env_s": [2.0, 2.0, 0, 0],
        "infer_s": [0.1, 0.1, 3.0, 0],
        "gather_s": [0, 0, 0.5, 0],
        "wait_s": [7.0, 7.0, 7.0, 9.0],
        **{name: [0.0] * 4 for name in ("batch_s", "learn_s", "publish_s")},
    }
    roles = CounterRows([0, 1], [2], [3])
    served: dict[str, Any] = {"inference": "worker", "num_policy_workers": 1, "device": device}
    return judge(roles=roles, columns={**rows, **columns}, gpu=gpu, **served)


def test_idle_policy_workers_and_waiting_actors_mean_the_hand_over_limits() -> None:
    found = remote()
    assert found.bottleneck == "hand-over"
    assert found.flags == ("--inference inline", "--num-envs-per-worker 64")


def test_busy_policy_workers_limit_by_their_forward_pass() -> None:
    found = remote(infer_s=[0.1, 0.1, 9.0, 0], wait_s=[7.0, 7.0, 1.0, 9.0])
    assert found.bottleneck == "forward" and "policy workers are busy 90%" in found.reason


def test_another_policy_worker_is_advised_only_while_the_gpu_has_time_for_it() -> None:
    busy = {"infer_s": [0.1, 0.1, 9.0, 0], "wait_s": [7.0, 7.0, 1.0, 9.0]}
    for gpu, said in ((None, False), (35.0, True)):
        found = remote(gpu, "cuda", **busy)
        assert "--num-policy-workers 2" in found.flags
        assert ("the GPU computes 35% of the time" in found.reason) == said
    full = remote(97.0, "cuda", **busy)
    assert full.bottleneck == "forward" and "the GPU computes 97%" in full.reason
    assert not any("--num-policy-workers" in flag for flag in full.flags)


def test_in_synchronous_mode_sampling_and_learning_take_turns() -> None:
    found = judge(columns=BEHIND, synchronous=True)
    assert found.bottleneck == "learn" and "take turns" in found.reason
    assert found.flags[-1] == "--async-rl"


def test_remedies_for_ranks_are_flags_that_ddppo_has() -> None:
    """They learn from the rollouts of their own envs, synchronously."""

    def judged(idle: float = 0.0, **columns: list[float]):
        found = stages(counted(**{**RANKS, **columns}), ALL_RANKS, 10.0)
        setting = dataclasses.replace(SETTING, synchronous=True, ranks=True, sync_fraction=0.6)
        return verdict(found, 0.0, idle, setting)

    learning = judged()
    assert learning.bottleneck == "learn" and learning.flags == ("--num-envs-per-worker 64",)
    simulating = judged(idle=1.0, env_s=[4.0, 4.0])
    assert simulating.bottleneck == "env step" and "40%" in simulating.reason
    assert simulating.flags == ("--num-ranks 3",)
    waiting = judged(wait_s=[3.4, 3.4], env_s=[1.0, 1.0])
    assert waiting.bottleneck == "hand-over" and waiting.flags[0] == "--sync-fraction 0.3"


# ---- random actions ----


def test_random_actions_are_of_the_space() -> None:
    actions = {
        "d": ActionSpec("discrete", (), "int64", (3,), start=5),
        "m": ActionSpec("multidiscrete", (2,), "int64", (2, 4)),
        "b": ActionSpec("box", (2,), "float32", low=(-2.0, -np.inf), high=(-1.0, 0.0)),
    }
    spec = EnvSpec("X-v0", {"obs": ArraySpec((1,), "float32")}, actions)
    random = RandomActions(spec, 500, np.random.default_rng(0))
    drawn = random({})
    assert {n: (a.shape, str(a.dtype)) for n, a in drawn.items()} == {
        "d": ((500,), "int64"),
        "m": ((500, 2), "int64"),
        "b": ((500, 2), "float32"),
    }
    assert set(drawn["d"]) == {0, 1, 2}  # the offset is added on the way to the environment
    assert set(drawn["m"][:, 0]) == {0, 1} and set(drawn["m"][:, 1]) == {0, 1, 2, 3}
    assert (drawn["b"][:, 0] >= -2).all() and (drawn["b"][:, 0] <= -1).all()
    assert np.isfinite(drawn["b"]).all()
    assert any((random({})["d"] != drawn["d"]).any() for _ in range(3))


def test_random_actions_obey_masks() -> None:
    actions = {"m": ActionSpec("multidiscrete", (2,), "int64", (3, 2))}
    observations = {"obs": ArraySpec((1,), "float32"), ACTION_MASK: ArraySpec((5,), "bool")}
    random = RandomActions(EnvSpec("X-v0", observations, actions), 200, np.random.default_rng(0))
    mask = np.tile(np.array([True, False, True, False, True]), (200, 1))
    drawn = random({ACTION_MASK: mask})["m"]
    assert set(drawn[:, 0]) == {0, 2} and set(drawn[:, 1]) == {1}


# ---- the whole ----


def test_the_simulators_alone_step_the_envs_of_the_actors() -> None:
    from sampleforge.tools.benchmark.benchmark import Benchmark

    config = AppoConfig(env="CartPole-v1", num_workers=3, num_envs_per_worker=8, serial=True)
    graph, _ = build(config)
    alone = Benchmark(graph, SETTING, 0.1, lambda: True, print).simulators()
    assert [node.placement for node in alone.nodes] == [n.placement for n in graph.nodes[:3]]
    runner = SerialRunner(alone)
    runner.start()
    for _ in range(4):
        runner.poll(0)
    runner.close()
    assert alone.counters.column("env_steps").tolist() == [32.0, 32.0, 32.0]  # 8 rows, 4 steps
    assert graph.counters.total("env_steps") == 0


@pytest.mark.long
def test_a_serial_benchmark_reports_and_trains_nothing_to_keep(tmp_path) -> None:
    """A preset's stop condition would be reached before anything is measured: it does not count."""
    config = AppoConfig(
        env="CartPole-v1",
        benchmark=True,
        benchmark_seconds=0.3,
        serial=True,
        train_for_env_steps=1,
        run_dir=str(tmp_path),
    )
    train(config)
    result = json.loads((tmp_path / "benchmark.json").read_text())
    check_result(result)
    assert result["gpus"] == {} and result["policy_busy"] is None
    assert result["rows_per_pass"] is None
    used = {"0": {"percent": 63.4, "memory_mib": 2048.0}, "1": {"percent": None, "memory_mib": 1.0}}
    shown = render({**result, "gpus": used, "policy_busy": 0.97, "rows_per_pass": 32})
    assert "GPU 0      computes 63% of the time, 2 GiB of its memory in use; policy" in shown
    assert "97% of their time, 32.0 rows a pass" in " ".join(shown.split())
    assert "GPU 1      1 MiB of its memory in use" in shown
    # In turn, and measured from the end of a batch to the end of another; the steps after an
    # episode's end are not trained on.
    assert 0.85 < result["trained_per_s"] / result["sampled_per_s"] <= 1.0


def check_result(result) -> None:
    assert result["sampled_per_s"] > 0 and result["trained_per_s"] > 0
    # No frame skip; but the two counters are not read at the same instant.
    assert result["frames_per_s"] == pytest.approx(result["sampled_per_s"], rel=0.05)
    assert result["fraction_of_peak"] == pytest.approx(
        result["frames_per_s"] / result["peak_frames_per_s"]
    )
    names = {stage["name"] for stage in result["stages"]}
    assert names >= {"env step", "gather", "forward", "hand-over", "bookkeeping"}
    assert names >= {"batch", "learn", "publish"}
    assert result["verdict"]["bottleneck"] in names
    assert 0 <= result["queue_fill"]["free"] <= 1 and 0 <= result["queue_fill"]["ready"] <= 1
    lag = result["policy_lag"]
    assert lag["max"] >= lag["mean"] >= 0 and lag["batches_max"] >= lag["batches_mean"] >= 0
    assert "driver" in result["busy_cores"]


@pytest.mark.multiprocess(timeout=120)
def test_benchmark_of_processes(run_cli, tmp_path) -> None:
    flags = "--env CartPole-v1 --num-workers 2 --async-rl --benchmark --benchmark-seconds 1"
    flags += " --num-envs-per-worker 8 --batch-size 256"  # many updates, on a slow machine too
    flags += " --inference worker --num-splits 2"
    done = run_cli("train", "appo", *flags.split(), "--run-dir", "run")
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "run" / "benchmark.json").read_text())
    check_result(result)
    assert {"actor 0", "actor 1", "policy 0", "learner"} <= set(result["busy_cores"])
    assert 4 <= result["rows_per_pass"] <= 16, "of one request, and of all four"
    assert "bookkeeping" in done.stdout and "simulator alone" in done.stdout
    table = done.stdout[
        done.stdout.index("\n  simulator alone") : done.stdout.index("\nbottleneck")
    ]
    assert all(len(line) <= WIDTH for line in table.splitlines())
    assert (tmp_path / "run" / "config.yaml").exists()
    assert not list((tmp_path / "run" / "checkpoints").glob("*.safetensors"))


@pytest.mark.multiprocess(timeout=120)
def test_sampler_only_has_nothing_trained(run_cli, tmp_path) -> None:
    flags = "--env CartPole-v1 --num-workers 1 --sampler-only --no-benchmark-peak --run-dir run"
    done = run_cli("train", "appo", *flags.split(), "--benchmark", "--benchmark-seconds", "0.5")
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "run" / "benchmark.json").read_text())
    assert result["trained_per_s"] is None and result["fraction_of_peak"] is None
    assert result["sampled_per_s"] > 0 and set(result["policy_lag"].values()) == {None}
    assert result["verdict"]["bottleneck"] not in ("learn", "batch", "publish")


@pytest.mark.multiprocess(timeout=120)
def test_an_interrupted_benchmark_reports_nothing(start_cli, tmp_path) -> None:
    flags = "--env CartPole-v1 --num-workers 1 --benchmark --benchmark-seconds 30 --run-dir run"
    process = start_cli("train", "appo", *flags.split())
    for line in process.stdout:
        if line.startswith("benchmark: the simulator"):
            break
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, out + err
    assert not (tmp_path / "run" / "benchmark.json").exists()


@pytest.mark.multiprocess(timeout=120)
def test_a_training_run_is_not_benchmarked_over(run_cli, tmp_path) -> None:
    flags = "--env CartPole-v1 --num-workers 1 --train-for-env-steps 100 --run-dir run"
    assert run_cli("train", "appo", *flags.split()).returncode == 0
    before = (tmp_path / "run" / "config.yaml").read_bytes()
    done = run_cli("train", "appo", *flags.split(), "--benchmark")
    assert done.returncode == 2 and "give another --run-dir" in done.stderr
    assert (tmp_path / "run" / "config.yaml").read_bytes() == before
