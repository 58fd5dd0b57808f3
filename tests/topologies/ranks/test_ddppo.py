"""DD-PPO as its users meet it: ranks as processes, one set of weights, clear refusals."""

from __future__ import annotations

import json
import math
import os
import signal
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from sampleforge.algorithms.rollout_learner import RolloutLearner
from sampleforge.api import load_policy, train
from sampleforge.cli.train import parse_config
from sampleforge.config import ConfigError
from sampleforge.models.config import ModelConfig
from sampleforge.peers.group import RankGroup, SoloGroup
from sampleforge.run.callback import Callback
from sampleforge.run.reports.metrics import read_metrics
from sampleforge.run.session import Session
from sampleforge.runners.base import WorkerDied
from sampleforge.shared.records import EpisodeRecord
from sampleforge.spec import ArraySpec
from sampleforge.topologies.config import AppoConfig, DdppoConfig
from sampleforge.topologies.devices import NOT_REPLACED, local_rendezvous
from sampleforge.topologies.ranks import wire
from sampleforge.workers.group_member import RanksDiverged, check_same_state, share_state
from tests.support.graphs import resolved, spec_of
from tests.support.pairings import plan_of
from tests.support.rank_learners import batches, learner_of
from tests.support.rank_learners import config as learner_config
from tests.support.rank_runs import (
    is_replaced,
    rank_process,
    training,
    wait_for_restarts,
    wait_for_updates,
)
from tests.support.rank_threads import on_ranks
from tests.support.runs import newest, until
from tests.support.variants import slow

SMALL = ModelConfig(hidden_sizes=(8,))


def config(**kwargs: Any) -> DdppoConfig:
    defaults: dict[str, Any] = {
        "env": "tests.support.envs:CodeEnv",
        "device": "cpu",
        "num_ranks": 2,
        "num_envs_per_worker": 4,
        "num_splits": 2,
        "rollout": 16,
        "minibatch_size": 32,
        "num_epochs": 2,
        "quiet": True,
        "seed": 1,
        "model": SMALL,
    }
    return DdppoConfig(**{**defaults, **kwargs})


def plan(**kwargs: Any) -> Any:
    spec = spec_of(config())
    return plan_of(resolved(config(**kwargs), spec), spec, "cpu")


@pytest.mark.multiprocess(timeout=120)
def test_ranks_train_with_equal_weights_and_resume(tmp_path: Path) -> None:
    """--debug compares the checksums of weights, optimiser and statistics after each update."""
    folder = str(tmp_path / "run")
    result = train(config(num_ranks=3, train_for_env_steps=1500, run_dir=folder, debug=True))
    summary = result.summary
    assert summary["status"] == "finished" and summary["algo"] == "ddppo"
    assert summary["env_steps"] >= 1500
    assert summary["updates"] % 4 == 0, "2 epochs of 2 minibatches"
    longest = 24  # an early rank goes on for half a rollout at most
    assert summary["updates"] / 4 * 3 * 4 * longest >= 1500, "each from all rows of all ranks"
    reports = read_metrics(result.run_dir / "metrics.jsonl")
    last = [report for report in reports if "policy_lag_max" in report][-1]
    assert last["policy_lag_max"] == 0 and last["ratio_deviation_first"] < 1e-5
    again = train(config(num_ranks=2, train_for_env_steps=3000, run_dir=folder, debug=True))
    assert again.summary["env_steps"] >= 3000
    assert again.summary["updates"] > summary["updates"]
    assert load_policy(folder, trust=True).act([0.0, 0.0, 0.0, 0.0])[0] in range(3)


@pytest.mark.multiprocess
def test_every_episode_of_every_rank_arrives_as_that_rank_sent_it(tmp_path: Path) -> None:
    """Each rank has a ring of its own in the queue: in one that they shared, episodes of two ranks
    would overwrite each other."""
    records: list[EpisodeRecord] = []

    class Listener(Callback):
        def on_episode_record(self, session: Session, record: EpisodeRecord) -> None:
            records.append(record)

    folder = str(tmp_path / "run")
    chosen = config(num_ranks=3, train_for_env_steps=6000, run_dir=folder)
    result = train(chosen, callbacks=[Listener()])
    assert {record.actor for record in records} == {0, 1, 2}
    assert len(records) == result.summary["episodes"] > 50
    assert {record.split for record in records} == {0, 1}


@pytest.mark.multiprocess
def test_ranks_that_wait_for_each_other_depend_on_the_seed_alone(tmp_path: Path) -> None:
    """Not on time, of which rank 0 needs much more in the second run."""
    found = []
    for number, env in enumerate(("tests.support.envs:CodeEnv", "tests.support.envs:StragglerEnv")):
        folder = tmp_path / str(number)
        waiting = {"sync_fraction": 1.0, "max_rollout_fraction": 1.0, "lr_schedule": "linear"}
        train(config(env=env, train_for_env_steps=500, run_dir=str(folder), **waiting))
        found.append(newest(folder))
    assert found[0].keys() == found[1].keys()
    for name, tensor in found[0].items():
        assert torch.equal(tensor, found[1][name]), name


@pytest.mark.multiprocess
def test_a_run_that_has_reached_its_limit_learns_no_more_when_it_is_resumed(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    finished = config(train_for_env_steps=500, run_dir=str(folder))
    first = train(finished).summary
    before = newest(folder)
    again = train(finished).summary
    assert (again["env_steps"], again["updates"]) == (first["env_steps"], first["updates"])
    after = newest(folder)
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())


def updates_of_one_step(**kwargs: Any) -> DdppoConfig:
    """Three ranks whose every update is one gradient step, compared under --debug."""
    defaults = {"num_ranks": 3, "rollout": 8, "minibatch_size": 32, "num_epochs": 1}
    return config(debug=True, **{**defaults, **kwargs})


@pytest.mark.multiprocess(timeout=240)
def test_checksums_are_equal_after_each_of_80_updates(tmp_path: Path) -> None:
    """Rollouts that are cut short included; an update cannot be made without its comparison. An
    early rank goes on to 12 steps at most: there are as many updates even if all do."""
    env_steps = 85 * 3 * 4 * 12
    chosen = updates_of_one_step(train_for_env_steps=env_steps, run_dir=str(tmp_path / "run"))
    result = train(chosen)
    compared = result.summary["checksums_compared"]
    assert compared >= 80
    assert compared <= result.summary["updates"] <= compared + 1, "the last one may be cut off"
    assert read_metrics(result.run_dir / "metrics.jsonl")[-1]["checksums_compared"] >= 80


class BatchNormEncoder(nn.Module):
    """Keeps statistics of the rows that it has learned from, which are others on each rank."""

    def __init__(self, observations: Mapping[str, ArraySpec], _: ModelConfig) -> None:
        super().__init__()
        self.out_features = observations["obs"].shape[0]
        self.norm = nn.BatchNorm1d(self.out_features)

    def forward(self, obs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        found: torch.Tensor = self.norm(obs["obs"])
        return found


@pytest.mark.multiprocess(timeout=60)
def test_ranks_that_differ_after_an_update_end_the_run(tmp_path: Path) -> None:
    """Their gradients are averaged and their weights are equal, but not all of their state."""
    model = ModelConfig(encoder="tests.topologies.ranks.test_ddppo:BatchNormEncoder")
    folder = tmp_path / "run"
    with pytest.raises(WorkerDied, match="after update 1 the ranks do not hold the same"):
        train(updates_of_one_step(model=model, train_for_env_steps=10_000, run_dir=str(folder)))
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["status"] == "failed" and "RanksDiverged" in summary["error"]
    assert "checksums_compared" not in summary


@pytest.mark.long
def test_one_rank_runs_serially_and_repeatably(tmp_path: Path) -> None:
    finals = []
    for name in ("a", "b"):
        train(
            config(
                num_ranks=None,
                serial=True,
                train_for_env_steps=1000,
                run_dir=str(tmp_path / name),
                report_interval=0.2,
            )
        )
        model = load_policy(tmp_path / name, trust=True).model
        finals.append(torch.cat([p.flatten() for p in model.parameters()]))
    assert torch.equal(finals[0], finals[1])


@pytest.mark.long
@pytest.mark.parametrize("waited", [0.0, math.nan])
def test_waits_that_a_rank_does_not_know_are_in_no_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waited: float
) -> None:
    monkeypatch.setattr(SoloGroup, "waited", waited)
    folder = str(tmp_path / "run")
    train(config(num_ranks=1, serial=True, train_for_env_steps=500, run_dir=folder))
    last = read_metrics(Path(folder, "metrics.jsonl"))[-1]
    assert last["rank0_steps"] >= 500
    assert ("rank0_wait_s" in last) is (waited == 0.0)


def test_state_is_shared_and_differences_are_found() -> None:
    chosen = learner_config()

    def work(group: RankGroup) -> tuple[bool, str]:
        learner: RolloutLearner = learner_of(chosen)
        if group.rank == 1:
            learner.update(batches("none")[0], 0.0)
        share_state(learner, group, source=1)
        moved = learner.version == chosen.num_epochs and learner.state()[0]["optimiser/0/step"] > 0
        if group.rank == 0:
            next(learner.model.parameters()).data[0, 0] += 1e-6
        with pytest.raises(RanksDiverged, match=r"after update 2 .* rank 0: \w{12}, rank 1: ") as e:
            check_same_state(learner, group)
        return bool(moved), str(e.value)

    found = on_ranks(2, work)
    assert found[0] == found[1] and found[0][0]


@pytest.mark.parametrize(
    ("kwargs", "answer"),
    [
        ({"num_ranks": 0}, "--num-ranks 0: must be at least 1"),
        ({"num_workers": 2}, "--num-workers 2: with ddppo each of the --num-ranks ranks"),
        ({"async_rl": True}, "--async-rl: with ddppo a rank learns from its own"),
        ({"inference": "worker"}, "a rank computes its own actions"),
        ({"sampler_only": True}, "sampling and learning take turns"),
        ({"serial": True}, "--serial --num-ranks 2: .* ranks wait for each other"),
        ({"lr_schedule": "linear"}, "there is none; add --train-for-env-steps"),
        ({"num_envs_per_worker": 5}, "5 .of one rank. cannot be split into 2 equal parts"),
        ({"batch_size": 70}, "70 is not 4 envs x 16 steps .* use 64"),
        ({"batch_size": 48, "num_envs_per_worker": None}, "48 is not a multiple of 2 .* use 64"),
        ({"minibatch_size": 30}, "--minibatch-size 30 does not divide the batch of 64 .*: 32"),
        (
            {"minibatch_size": 500, "num_envs_per_worker": 8, "rollout": 128},
            "--minibatch-size 500 does not divide the batch of 1024 .* nearest: 512",
        ),
        (
            {"minibatch_size": 24, "advantage": "vtrace"},
            "24 is not a multiple of --rollout 16, .*; nearest: 16 or 32",
        ),
    ],
)
def test_what_does_not_fit_is_refused(kwargs: dict[str, Any], answer: str) -> None:
    with pytest.raises(ConfigError, match=answer):
        plan(**kwargs)


@pytest.mark.long
@pytest.mark.parametrize("name", ["halfcheetah", "minatar-breakout"])
def test_presets_of_ddppo_have_batches_as_large_as_those_of_appo(name: str) -> None:
    """A batch, a minibatch and its passes over all ranks together, of as long rollouts."""
    spec = spec_of(config())
    ranks, central = (
        resolved(parse_config(algo, ["--preset", name]), spec) for algo in ("ddppo", "appo")
    )
    assert isinstance(ranks, DdppoConfig) and isinstance(central, AppoConfig)
    assert ranks.num_ranks and ranks.batch_size and ranks.minibatch_size
    assert central.num_workers and central.num_envs_per_worker and ranks.num_envs_per_worker
    assert ranks.batch_size == ranks.num_envs_per_worker * ranks.rollout
    assert ranks.num_ranks * ranks.batch_size == central.batch_size
    assert ranks.num_ranks * ranks.minibatch_size == central.minibatch_size
    for field in ("env", "num_epochs", "rollout", "advantage", "gamma", "model", "clip_ratio"):
        assert getattr(ranks, field) == getattr(central, field), field


def test_under_torchrun_training_from_python_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """From Python every process would train by itself, without a sign of it."""
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match="RANK or WORLD_SIZE is set"):
        plan()
    for name, value in {"LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "h", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match="under torchrun use the command line"):
        plan()


def test_the_batch_is_one_rollout_of_every_env_of_a_rank() -> None:
    assert plan(batch_size=64).batch_size == 64
    fitted = plan(batch_size=128, num_envs_per_worker=None)
    assert (fitted.rows, fitted.num_splits, fitted.batch_size) == (4, 2, 128)


def summary_of(tmp_path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((tmp_path / "run" / "summary.json").read_text())
    return found


@pytest.mark.multiprocess(timeout=120)
@pytest.mark.parametrize("victim", [slow(0), 1])
def test_a_killed_rank_is_replaced_and_all_go_on_with_equal_weights(
    start_cli: Any, tmp_path: Path, victim: int
) -> None:
    """From what the others had learned: --debug compares checksums after every update."""
    run = training(start_cli, tmp_path)
    os.kill(rank_process(run.pid, victim), signal.SIGKILL)
    wait_for_restarts(run, tmp_path, 1)
    wait_for_updates(run, tmp_path, 10)
    run.terminate()
    _, shown = run.communicate(timeout=20)
    assert run.returncode == 143
    assert f"rank {victim} was ended by signal SIGKILL" in shown
    assert "it is restarted (1 of 3 times)" in shown
    assert shown.count("the ranks go on from update") == 1
    assert summary_of(tmp_path)["restarts"] == 1


@pytest.mark.multiprocess(timeout=120)
def test_a_killed_rank_ends_the_run_where_none_is_replaced(start_cli: Any, tmp_path: Path) -> None:
    run = training(start_cli, tmp_path, "--max-rank-restarts", "0", "--rank-timeout", "600")
    os.kill(rank_process(run.pid, 1), signal.SIGKILL)
    _, shown = run.communicate(timeout=60)  # nobody waits for the rank until its time-out
    assert run.returncode == 1 and summary_of(tmp_path)["status"] == "failed"
    assert "rank 1 was ended by signal SIGKILL" in shown


class Killing(Callback):
    """Kills a worker once something was learned; stops the run once its successor has learned."""

    def __init__(self, victim: str) -> None:
        self.victim = victim
        self.killed = False

    def on_report(self, session: Session, report: Mapping[str, float]) -> None:
        if report["updates"] > 10 and not self.killed:
            self.killed = True
            os.kill(session.pids()[self.victim], signal.SIGKILL)
            self.updates = report["updates"]
        elif report["restarts"] and report["updates"] > self.updates:
            session.stop()


@pytest.mark.multiprocess(timeout=120)
@pytest.mark.parametrize("victim", [0, slow(1)])
def test_a_killed_rank_of_a_group_through_nccl_ends_the_run_with_its_last_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, victim: int
) -> None:
    """The group of the test goes through shared memory; the driver takes it for one of nccl."""

    def as_through_nccl(*args: Any) -> Any:
        return local_rendezvous(*args)._replace(not_replaced=NOT_REPLACED["rank"])

    monkeypatch.setattr(wire, "local_rendezvous", as_through_nccl)
    folder = tmp_path / "run"
    chosen = config(run_dir=str(folder), train_for_env_steps=10_000_000, report_interval=0.3)
    with pytest.raises(WorkerDied) as raised:
        train(chosen, callbacks=[Killing(f"rank {victim}")])
    told = str(raised.value)
    assert told.startswith(f"rank {victim} was ended by signal SIGKILL") and "nccl" in told
    assert "The same command resumes from the newest checkpoint" in told
    summary = summary_of(tmp_path)
    assert summary["status"] == "failed" and not summary["restarts"]
    assert newest(folder)


@pytest.mark.multiprocess(timeout=120)
def test_a_killed_only_rank_is_replaced_and_goes_on(tmp_path: Path) -> None:
    folder, killing = tmp_path / "run", Killing("rank 0")
    chosen = config(num_ranks=1, run_dir=str(folder), train_for_env_steps=10_000_000, debug=True)
    train(replace(chosen, report_interval=0.3), callbacks=[killing])
    summary = summary_of(tmp_path)
    assert killing.killed and summary["restarts"] == 1 and summary["status"] == "finished"
    assert "one rank, which exchanges no gradients" in (folder / "log.txt").read_text()


@pytest.mark.multiprocess(timeout=120)
@pytest.mark.parametrize("victim", [0, slow(1)])
def test_a_rank_that_stands_still_is_replaced(start_cli: Any, tmp_path: Path, victim: int) -> None:
    """Wherever it stopped, in an update or not: the others have their time-out."""
    run = training(start_cli, tmp_path, "--rank-timeout", "5")
    stopped = rank_process(run.pid, victim)
    os.kill(stopped, signal.SIGSTOP)
    wait_for_restarts(run, tmp_path, 1)
    wait_for_updates(run, tmp_path, 10)
    assert rank_process(run.pid, victim) != stopped
    run.terminate()
    _, shown = run.communicate(timeout=20)
    assert run.returncode == 143
    assert f"rank {victim} was silent for 5 s" in shown and "(1 of 3 times)" in shown
    assert summary_of(tmp_path)["restarts"] == 1


@pytest.mark.multiprocess(timeout=150)
@pytest.mark.parametrize("second", [slow(0), 1, slow(2)])
def test_a_rank_that_is_killed_while_another_one_is_replaced_is_replaced_too(
    start_cli: Any, tmp_path: Path, second: int
) -> None:
    run = training(start_cli, tmp_path, "--num-ranks", "3")
    first = rank_process(run.pid, 1)
    os.kill(first, signal.SIGKILL)
    until(lambda: is_replaced(run.pid, 1, first), run)
    os.kill(rank_process(run.pid, second), signal.SIGKILL)
    wait_for_restarts(run, tmp_path, 2)
    wait_for_updates(run, tmp_path, 10)
    run.terminate()
    _, shown = run.communicate(timeout=20)
    assert run.returncode == 143
    assert "(2 of 3 times)" in shown
    assert summary_of(tmp_path)["restarts"] == 2


@pytest.mark.slow
@pytest.mark.multiprocess(timeout=120)
def test_a_rank_that_stands_still_is_named(start_cli: Any, tmp_path: Path) -> None:
    run = training(start_cli, tmp_path, "--rank-timeout", "8", "--max-rank-restarts", "0")
    os.kill(rank_process(run.pid, 1), signal.SIGSTOP)
    _, shown = run.communicate(timeout=60)
    assert run.returncode == 1
    assert "rank 1 was silent for 8 s" in shown


@pytest.mark.multiprocess(timeout=120)
def test_two_ranks_learn_to_balance(tmp_path: Path) -> None:
    """20 is random, 500 perfect. At 60 thousand steps ten runs, half of them on a busy machine, had
    264 to 470; at half of them 54 to 172."""
    flags = ["--preset", "cartpole", "--train-for-env-steps", "60000", "--device", "cpu", "--quiet"]
    found = parse_config("ddppo", [*flags, "--seed", "1", "--run-dir", str(tmp_path / "run")])
    assert train(found).summary["return_mean"] > 150
