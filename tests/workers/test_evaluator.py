"""Evaluation while a policy is trained: frozen weights, fair shares, and nothing of it in the
training."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest
import torch

from sampleforge.algorithms.acting import FrozenPolicy
from sampleforge.api import Trainer
from sampleforge.config import ConfigError
from sampleforge.env.config import EnvConfig
from sampleforge.env.place import row_seeds
from sampleforge.evaluation import evaluate
from sampleforge.models.config import ModelConfig
from sampleforge.run.folder.trust import Trust
from sampleforge.run.reports.metrics import read_metrics
from sampleforge.runners.base import WorkerDied
from sampleforge.shared.counters import Counters, Progress, TrainingClock
from sampleforge.shared.newest import SharedWeights
from sampleforge.shared.records import Evaluation, Evaluations
from sampleforge.shared.wakeup import Wakeup
from sampleforge.topologies.config import AnyConfig, ApexConfig, AppoConfig, DdppoConfig
from sampleforge.topologies.graph import COUNTERS
from sampleforge.workers.episode_player import EpisodePlayer, PlayedEpisode, evaluation_envs
from sampleforge.workers.evaluator import EvaluationSettings, EvaluatorChannels, EvaluatorWorker
from sampleforge.workers.worker import Post
from tests.support.envs import code_reward, episode_length
from tests.support.one_weight import OneWeight
from tests.support.runs import summary, worker
from tests.support.serial_runs import run_serially

CODE = EnvConfig(env="tests.support.envs:CodeEnv")
FOUND = Evaluation(7, 1500, 10, 50.0, 4.0, 40.0, 60.0, 12.5)


class Bench:
    """An evaluator of `OneWeight` on CodeEnv; the test does the work of all other workers."""

    def __init__(self, *, interval: int = 1000, episodes: int = 20, earlier_steps: int = 0) -> None:
        self.model = OneWeight()
        self.weights = SharedWeights(self.model.state_dict())
        self.results = Evaluations()
        self.counters = Counters(COUNTERS, 2)  # of what trains, and of the evaluator
        self.progress = Progress(self.counters, TrainingClock(), base_env_steps=earlier_steps)
        self.worker = EvaluatorWorker(
            CODE,
            lambda: self.model,  # type: ignore[arg-type, return-value]
            EvaluatorChannels(self.weights, self.results),
            EvaluationSettings(interval, episodes, stochastic=False, seed=3),
            Post(1, Wakeup(), self.progress),
        )
        self.publish(0)
        self.worker.start()

    def publish(self, version: int) -> None:
        self.weights.publish({"weight": torch.tensor([float(version)])}, version)

    def train(self, env_steps: int) -> None:
        self.counters.row(0)["env_steps"] += env_steps

    def begins(self) -> bool:
        """Step an evaluator that is idle."""
        assert self.worker._player is None
        return self.worker.step()

    def play(self) -> Evaluation:
        """The evaluation under way, to its end."""
        while not (found := self.results.take()):
            assert self.worker.step()
        return found[0]


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.worker.close()


def test_the_weights_of_an_evaluation_are_frozen(bench: Bench) -> None:
    """Others learn and publish at every one of its steps."""
    bench.train(1200)
    bench.publish(5)
    assert bench.begins()
    for version in range(6, 12):
        bench.publish(version)
        bench.train(100)
        assert bench.worker.step()
    found = bench.play()
    assert set(bench.model.seen) == {5.0} and len(bench.model.seen) > 6
    assert (found.policy_version, found.env_steps) == (5, 1200)
    bench.train(200)
    assert bench.begins(), "2000 env steps were reached"
    again = bench.play()
    assert (again.policy_version, again.env_steps) == (11, 2000)
    assert again[2:] == found[2:], "the same episodes, by a policy that does the same"


def test_evaluations_begin_at_multiples_of_the_interval(bench: Bench) -> None:
    assert not bench.begins(), "not at the start"
    bench.train(999)
    assert not bench.begins()
    bench.train(1)
    assert bench.begins()
    bench.train(1400)
    bench.play()
    assert bench.begins(), "late: at once"
    bench.play()
    assert not bench.begins(), "what was missed is not made up for"


def test_the_last_weights_are_evaluated_once_they_are_known(bench: Bench) -> None:
    bench.train(1200)
    bench.publish(5)
    assert bench.begins()
    bench.progress.end()
    bench.publish(6)
    bench.train(100)
    bench.progress.clock.settle()
    found = bench.play()
    assert (found.policy_version, found.env_steps) == (6, 1300), "that of version 5 is dropped"
    assert not bench.begins()


def test_an_evaluation_of_the_last_weights_goes_on_when_they_become_the_last(bench: Bench) -> None:
    bench.train(1200)
    bench.publish(5)
    assert bench.begins()
    bench.progress.end()
    bench.progress.clock.settle()
    found = bench.play()
    assert (found.policy_version, found.env_steps) == (5, 1200)
    assert not bench.begins()


def test_no_evaluation_begins_between_the_end_and_the_last_weights(bench: Bench) -> None:
    bench.train(1200)
    bench.publish(5)
    bench.progress.end()
    assert not bench.begins()
    bench.progress.clock.settle()
    assert bench.begins()


def test_a_resumed_run_evaluates_at_the_next_multiple() -> None:
    bench = Bench(earlier_steps=2500)
    bench.train(499)
    assert not bench.begins()
    bench.train(1)
    assert bench.begins()
    bench.worker.close()


@pytest.mark.parametrize("episodes", [1, 16, 20, 37])
def test_every_row_plays_its_share(episodes: int) -> None:
    """CodeEnv's returns say whose and which episode they are; rows have episodes of all lengths."""
    envs = evaluation_envs(CODE, episodes, seed=3)
    model: Any = OneWeight()
    player = EpisodePlayer(envs, FrozenPolicy(model), episodes, stochastic=False, seed=3)
    while not player.done:
        player.step()
    envs.close()
    rows = min(16, episodes)
    expected = []
    for row, seed in enumerate(row_seeds(3, 0, 0, rows)):
        for k in range(episodes // rows + (row < episodes % rows)):
            length = episode_length(seed % 1000, k, 9)
            ret = sum(code_reward(seed % 1000, k, step + 1) for step in range(length))
            expected.append(PlayedEpisode(ret, length))
    assert player.played == expected and len(expected) == episodes


@pytest.mark.parametrize(
    ("env", "kwargs"),
    [("envs:CodeEnv", {"length": 5, "ending": "terminate"}), ("multi_agent:zero_sum", {})],
)
def test_an_episode_that_ends_at_the_limit_by_itself_is_not_cut(
    env: str, kwargs: dict[str, Any]
) -> None:
    config, model = EnvConfig(env=f"tests.support.{env}", env_kwargs=kwargs), OneWeight()
    for limit in (3, 4, 5, 6):
        envs = evaluation_envs(config, 4, seed=3)
        policy: Any = FrozenPolicy(model)  # type: ignore[arg-type]
        player = EpisodePlayer(envs, policy, 4, stochastic=False, seed=3, limit=limit)
        while not player.done:
            player.step()
        envs.close()
        itself = 4 if "zero_sum" in env else 5
        assert [one.length for one in player.played] == [min(itself, limit)] * 4
        assert [one.cut for one in player.played] == [limit < itself] * 4


def test_results_come_out_in_order_and_none_is_overwritten() -> None:
    results, sent, taken = Evaluations(capacity=3), 0, []
    for _ in range(4):
        while results.has_room():
            results.put(FOUND._replace(policy_version=sent))
            sent += 1
        taken += results.take()
    assert [found.policy_version for found in taken] == list(range(12))
    assert taken[7] == FOUND and results.take() == []


# ---- whole runs ----

SMALL = ModelConfig(hidden_sizes=(8,), normalise_observations=False)
COMMON: dict[str, Any] = {
    "env": "CartPole-v1",
    "device": "cpu",
    "num_envs_per_worker": 8,
    "quiet": True,
    "seed": 4,
    "model": SMALL,
    "evaluate_interval": 500,
    "evaluate_episodes": 3,
}
CONFIGS: dict[str, Any] = {
    "appo": lambda **more: AppoConfig(**{**COMMON, "num_workers": 1, "async_rl": True, **more}),
    "apex": lambda **more: ApexConfig(
        **{**COMMON, "num_workers": 1, "learning_starts": 200, "replay_capacity": 5000, **more}
    ),
    "ddppo": lambda **more: DdppoConfig(**{**COMMON, "num_ranks": 2, "rollout": 32, **more}),
}


@pytest.mark.long
@pytest.mark.parametrize("algo", list(CONFIGS))
def test_a_serial_run_learns_the_same_with_and_without(tmp_path: Path, algo: str) -> None:
    """To the last bit, and again so with it, evaluations included."""
    more: dict[str, Any] = {"evaluate_stochastic": True, "train_for_env_steps": 2500}
    if algo == "ddppo":
        more["num_ranks"] = 1
    finals, reports = zip(
        *(
            run_serially(tmp_path / name, 4, make=CONFIGS[algo], **{**more, **kind})
            for name, kind in {
                "without": {"evaluate_interval": None},
                "with": {},
                "again": {},
            }.items()
        ),
        strict=True,
    )
    for other in finals[1:]:
        assert finals[0].keys() == other.keys()
        assert all(tensor.equal(other[name]) for name, tensor in finals[0].items())
    with_it, again = (
        [{k: v for k, v in r.items() if not k.startswith("rank0_")} for r in each]  # seconds
        for each in reports[1:]
    )
    assert with_it == again
    found = [r for r in with_it if "eval_return_mean" in r]
    assert len({r["eval_policy_version"] for r in found}) > 1
    steps = [r["eval_env_steps"] for r in found]
    assert len(steps) >= 3 and len({step // 500 for step in steps}) == len(steps)
    assert not any("eval_return_mean" in r for r in reports[0])


@pytest.mark.long
@pytest.mark.parametrize("algo", list(CONFIGS))
def test_the_last_evaluation_is_of_the_weights_of_the_last_checkpoint(
    tmp_path: Path, algo: str
) -> None:
    """Also where the run is shorter than the interval between evaluations."""
    more: dict[str, Any] = {"train_for_env_steps": 1300, "evaluate_interval": 10_000}
    if algo == "ddppo":
        more["num_ranks"] = 1
    if algo == "apex":
        more["samples_per_insert"] = None  # its learner could go on learning for ever
    _, reports = run_serially(tmp_path, 4, make=CONFIGS[algo], **more)
    last = summary(tmp_path)
    assert last["eval_policy_version"] == last["updates"] > 0
    assert last["eval_env_steps"] == last["env_steps"]
    assert [r["eval_env_steps"] for r in reports if "eval_return_mean" in r] == [last["env_steps"]]
    again = evaluate(tmp_path, episodes=3, trust=Trust(everything=True))
    assert again["env_steps"] == last["env_steps"]
    assert again["return_mean"] == last["eval_return_mean"]


@pytest.mark.multiprocess(timeout=120)
@pytest.mark.parametrize("algo", list(CONFIGS))
@pytest.mark.parametrize("evaluators", [1, 2])
def test_processes_evaluate_the_last_weights_too(
    tmp_path: Path, algo: str, evaluators: int
) -> None:
    more = {"train_for_env_steps": 3000, "run_dir": str(tmp_path), "num_evaluators": evaluators}
    config: AnyConfig = CONFIGS[algo](**more)
    with Trainer(config) as trainer:
        reports = list(trainer)
    last = summary(tmp_path)
    assert reports[-1]["eval_policy_version"] == last["eval_policy_version"] == last["updates"]
    found = evaluate(tmp_path, episodes=3, trust=Trust(everything=True))
    if evaluators == 1:  # each of several draws from a seed of its own
        assert found["return_mean"] == last["eval_return_mean"]


@pytest.mark.multiprocess(timeout=120)
def test_ctrl_c_does_not_wait_for_the_last_evaluation(tmp_path: Path, start_cli: Any) -> None:
    """Its episodes have no end in sight."""
    flags = (
        "train appo --env tests.support.envs:CodeEnv --env-kwargs length=1000000 sleep=0.0005 "
        "--device cpu --num-workers 1 --num-envs-per-worker 4 --batch-size 256 --run-dir run "
        "--train-for-env-steps 600 --evaluate-interval 5000 --evaluate-episodes 3"
    )
    run = start_cli(*flags.split())
    said = next((line for line in run.stdout if "Evaluating the last weights" in line), "")
    assert "with 3 episodes" in said
    run.send_signal(signal.SIGINT)
    began = monotonic()
    _, shown = run.communicate()
    assert (run.returncode, monotonic() - began < 20) == (130, True), shown
    assert list((tmp_path / "run").glob("checkpoints/*.safetensors"))


@pytest.mark.long
def test_a_resumed_run_at_its_limit_does_not_evaluate_again(tmp_path: Path) -> None:
    more = {"train_for_env_steps": 1300, "evaluate_interval": 10_000}
    run_serially(tmp_path, 4, make=CONFIGS["appo"], **more)
    _, reports = run_serially(tmp_path, 4, make=CONFIGS["appo"], **more)
    assert sum("eval_return_mean" in report for report in reports) == 1, "of both runs"
    assert summary(tmp_path)["eval_policy_version"] == summary(tmp_path)["updates"]


@pytest.mark.long
def test_eval_plays_the_same_episodes_and_a_resumed_run_goes_on_evaluating(tmp_path: Path) -> None:
    """The first evaluation after a checkpoint is of its weights, and finds what `sampleforge eval`
    finds."""
    run_serially(tmp_path, 4, make=CONFIGS["appo"], train_for_env_steps=2000)
    before = summary(tmp_path)
    expected = evaluate(tmp_path, episodes=3, trust=Trust(everything=True))
    more = {"train_for_env_steps": 4000, "evaluate_interval": before["env_steps"] + 1}
    _, reports = run_serially(tmp_path, 4, make=CONFIGS["appo"], **more)
    report = next(r for r in reports if r.get("eval_env_steps", 0) > before["env_steps"])
    assert report["eval_policy_version"] == before["updates"] > 0
    for name in ("return_mean", "return_std", "return_min", "return_max", "length_mean"):
        assert report[f"eval_{name}"] == expected[name]


def until_evaluated(trainer: Trainer, least_version: int) -> dict[str, float]:
    """The first report of an evaluation of these or newer weights."""
    return next(r for r in trainer if r.get("eval_policy_version", -1) >= least_version)


@pytest.mark.multiprocess(timeout=90)
@pytest.mark.parametrize("algo", list(CONFIGS))
def test_trained_weights_are_evaluated_by_a_process_of_its_own(tmp_path: Path, algo: str) -> None:
    config: AnyConfig = CONFIGS[algo](run_dir=str(tmp_path / "run"))
    with Trainer(config) as trainer:
        pids = trainer.session.runner.pids()
        report = until_evaluated(trainer, least_version=2)
    assert len(set(pids.values())) == len(pids) and pids["evaluator"] != os.getpid()
    assert 8 <= report["eval_return_min"] <= report["eval_return_mean"] <= report["eval_return_max"]
    assert report["eval_return_mean"] == report["eval_length_mean"] and report["eval_episodes"] == 3
    assert 500 <= report["eval_env_steps"] <= report["env_steps"]
    written = read_metrics(tmp_path / "run" / "metrics.jsonl")
    found = [r["eval_env_steps"] for r in written if "eval_return_mean" in r]
    assert len(found) == len(set(found)), "each in one report"
    assert found[-1] == report["eval_env_steps"]
    last = summary(tmp_path / "run")
    assert last["eval_env_steps"] >= found[-1] and last["restarts"] == 0


@pytest.mark.multiprocess(timeout=90)
def test_a_killed_evaluator_is_replaced_up_to_the_limit(tmp_path: Path) -> None:
    config = CONFIGS["appo"](run_dir=str(tmp_path / "run"), max_worker_restarts=1)
    with (
        pytest.raises(WorkerDied, match="evaluator was ended by signal SIGKILL"),
        Trainer(config) as trainer,
    ):
        until_evaluated(trainer, least_version=1)
        os.kill(trainer.session.runner.pids()["evaluator"], signal.SIGKILL)
        at = next(report["env_steps"] for report in trainer if report["restarts"] == 1)
        next(report for report in trainer if report.get("eval_env_steps", 0) > at)  # its successor
        os.kill(trainer.session.runner.pids()["evaluator"], signal.SIGKILL)
        for _ in trainer:
            pass
    found = summary(tmp_path / "run")
    assert (found["status"], found["restarts"]) == ("failed", 1)


@pytest.mark.multiprocess(timeout=180)
def test_a_run_ends_while_an_evaluation_is_under_way_and_resumes(tmp_path: Path) -> None:
    """Its episodes have no end in sight; the run does not wait for them."""
    kwargs = {"length": 1_000_000, "sleep": 0.001}
    more = {"env": CODE.env, "env_kwargs": kwargs, "run_dir": str(tmp_path / "r")}
    for episodes in (3, 4):
        config = CONFIGS["appo"](**more, evaluate_episodes=episodes, report_interval=0.2)
        with Trainer(config) as trainer:
            graph = trainer.session.graph
            (evaluator,) = graph.having("evaluator")
            for report in trainer:
                assert "eval_return_mean" not in report
                if graph.counters.column("split_steps")[evaluator.counter_row] > 0:
                    break
            left = monotonic()
        assert monotonic() - left < 60, "which the checkpoint is part of"
        found = summary(tmp_path / "r")
        assert found["status"] == "finished" and "eval_return_mean" not in found


@pytest.mark.multiprocess(timeout=120)
def test_a_rank_of_torchrun_has_an_evaluator_beside_it(
    tmp_path: Path, start_cli: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 0, which is the driver as well, and here the only one."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    variables = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    flags = (
        "train ddppo --env CartPole-v1 --device cpu --num-envs-per-worker 2 --rollout 32 --quiet "
        "--run-dir run --evaluate-interval 300 --evaluate-episodes 3"
    )
    run = start_cli(*flags.split())
    metrics = tmp_path / "run" / "metrics.jsonl"

    def evaluated() -> bool:
        reports = read_metrics(metrics) if metrics.exists() else []
        return any(report.get("eval_policy_version", 0) > 4 for report in reports)

    while not evaluated():  # the test has a limit of its own
        assert run.poll() is None, run.communicate()
        sleep(0.1)
    assert worker(run, "sampleforge: evaluator").ppid() != run.pid, "of the fork server"
    run.terminate()
    _, shown = run.communicate()
    assert run.returncode == 143, shown
    found = summary(tmp_path / "run")
    assert found["status"] == "interrupted" and found["eval_episodes"] == 3


# ---- config ----


@pytest.mark.parametrize(
    ("algo", "kwargs", "answer"),
    [
        ("appo", {"evaluate_interval": 0}, "--evaluate-interval 0: must be at least 1"),
        ("ddppo", {"evaluate_episodes": 0}, "--evaluate-episodes 0: must be at least 1"),
        ("appo", {"sampler_only": True}, "--evaluate-interval 500 --sampler-only: nothing"),
        ("apex", {"sampler_only": True}, "--evaluate-interval 500 --sampler-only: nothing"),
    ],
)
def test_invalid_evaluation_settings_are_refused(
    algo: str, kwargs: dict[str, Any], answer: str
) -> None:
    with pytest.raises(ConfigError, match=answer):
        CONFIGS[algo](**kwargs)
