"""Several learners of one policy (--num-learners) take the steps of one learner with all rows."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from sampleforge.algorithms.averaging import DataParallel
from sampleforge.algorithms.experience import Share
from sampleforge.api import train
from sampleforge.config import ConfigError
from sampleforge.peers.boards import GroupEpoch
from sampleforge.peers.group import RankGroup
from sampleforge.rollouts.exchange import SlotExchange
from sampleforge.rollouts.slots import Owner
from sampleforge.run.reports.metrics import read_metrics
from sampleforge.shared.wakeup import Wakeup
from sampleforge.topologies import learner_group
from sampleforge.topologies.config import AppoConfig
from sampleforge.topologies.devices import NOT_REPLACED, local_rendezvous
from tests.support.graphs import build
from tests.support.processes import StartCli
from tests.support.rank_learners import (
    Learned,
    batches,
    config,
    learned,
    learner_of,
    model_of,
    rows,
)
from tests.support.rank_threads import on_ranks
from tests.support.runs import last_report, summary, until
from tests.support.slots import some_slots
from tests.support.variants import slow


def over_learners(chosen: AppoConfig, core: str, learners: int) -> list[Learned]:
    """What each of several learners has learned from its equal part of the batches' rows."""
    each = 8 // learners

    def work(group: RankGroup) -> Learned:
        part = [rows(b, group.rank * each, (group.rank + 1) * each) for b in batches(core)]
        share = Share(group.rank, learners)
        return learned(learner_of(chosen, DataParallel(group), share=share), part)

    return on_ranks(learners, work)


@pytest.mark.long
@pytest.mark.parametrize("learners", [2, 4])
@pytest.mark.parametrize(
    "settings",
    [
        {"advantage": "gae", "minibatch_size": 16},
        {"advantage": "gae", "minibatch_size": 8, "max_policy_lag": 3},
        {"advantage": "vtrace", "minibatch_size": 16},
        {"advantage": "gae", "core": "gru", "minibatch_size": 32, "lr_schedule": "linear"},
        {"advantage": "gae", "lr_schedule": "kl_adaptive", "minibatch_size": 32},
        {"advantage": "gae"},
    ],
    ids=lambda settings: "-".join(map(str, settings.values())),
)
def test_k_learners_take_the_steps_of_one_learner_with_all_rows(
    learners: int, settings: dict[str, object]
) -> None:
    """Weights, optimiser, statistics, generator and metrics, after 20 updates of several
    minibatches each. With 4 learners some have no row of a minibatch."""
    settings = dict(settings)
    core = str(settings.pop("core", "none"))
    chosen = config(model=model_of(core), train_for_env_steps=1, **settings)
    state, metrics = learned(learner_of(chosen), batches(core))
    found = over_learners(chosen, core, learners)
    for tensors, said in found:
        for name, expected in state.items():
            torch.testing.assert_close(
                tensors[name], expected, atol=1e-5, rtol=1e-5, msg=f"{name}: {{}}".format
            )
            assert torch.equal(tensors[name], found[0][0][name]), f"{name} differs"
        for name, value in metrics.items():
            if name != "own_trained_steps":
                assert said[name] == pytest.approx(value, rel=1e-3, abs=1e-4), name
    assert sum(said["own_trained_steps"] for _, said in found) == metrics["own_trained_steps"]


@pytest.mark.parametrize("whole_rows", [False, True])
def test_shares_partition_each_minibatch(whole_rows: bool) -> None:
    """Every position of a permutation belongs to exactly one learner, at its own position."""
    steps, each, learners = 5, 3, 4
    count = each * learners * (1 if whole_rows else steps)
    drawn = torch.randperm(count, generator=torch.Generator().manual_seed(1))[: count // 2]
    whole = torch.arange(count).reshape(-1, each * learners)
    found = []
    for index in range(learners):
        part = whole[:, index * each : (index + 1) * each].flatten()
        found += part[Share(index, learners).own(drawn, each)].tolist()
    assert sorted(found) == sorted(drawn.tolist())


def exchange_of(count: int, actors: int, learners: int) -> SlotExchange:
    return SlotExchange(
        some_slots(count, debug=True),
        [Wakeup() for _ in range(actors)],
        [Wakeup() for _ in range(learners)],
    )


def test_each_learner_gets_an_equal_share_of_the_slots_from_every_actor() -> None:
    exchange = exchange_of(12, actors=2, learners=3)
    for actor in (0, 1):
        slots = [exchange.take_free(actor) for _ in range(6)]
        assert exchange.take_free(actor) is None
        for slot in slots:
            assert slot is not None
            exchange.hand_over(actor, slot)
    taken = []
    for learner in range(3):
        own = [exchange.take_ready(learner) for _ in range(4)]
        assert exchange.take_ready(learner) is None
        assert sorted(int(slot or 0) % 2 for slot in own) == [0, 0, 1, 1]
        taken += own
    assert sorted(map(int, filter(lambda slot: slot is not None, taken))) == list(range(12))  # type: ignore[arg-type]


def test_slots_that_cannot_be_dealt_evenly_to_learners_are_refused() -> None:
    with pytest.raises(ValueError, match="4 slots cannot be dealt evenly to 3 learners"):
        exchange_of(4, actors=1, learners=3)


def test_a_learners_successor_gives_back_what_was_being_read_and_loses_no_slot() -> None:
    exchange = exchange_of(8, actors=1, learners=2)
    for _ in range(8):
        slot = exchange.take_free(0)
        assert slot is not None
        exchange.hand_over(0, slot)
    first, second, third = (exchange.take_ready(1) for _ in range(3))
    assert first is not None and second is not None and third is not None
    exchange.slots.move(second, Owner.READING, Owner.FREE)  # killed before it was given back
    waiting = exchange._ready.peek(1)
    assert waiting is not None
    exchange.slots.move(waiting, Owner.READY, Owner.READING)  # killed before it was taken
    exchange.give_back_all(1)
    free = []
    while (slot := exchange.take_free(0)) is not None:
        free.append(slot)
    assert sorted(free) == sorted([first, second, third]), "the other learner's are untouched"
    assert exchange.take_ready(1) == waiting
    assert exchange.take_ready(1) is None
    assert sum(exchange.take_ready(0) is not None for _ in range(5)) == 4


EPOCHS = 3


def learners(**kwargs: Any) -> AppoConfig:
    defaults: dict[str, Any] = {
        "env": "tests.support.envs:CodeEnv",
        "device": "cpu",
        "num_learners": 2,
        "num_workers": 2,
        "num_envs_per_worker": 4,
        "rollout": 8,
        "batch_size": 64,
        "minibatch_size": 32,
        "num_epochs": EPOCHS,
        "quiet": True,
        "seed": 1,
        "debug": True,
        "model": model_of("none"),
    }
    return AppoConfig(**{**defaults, **kwargs})


def test_learners_of_a_group_through_nccl_are_not_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    def as_through_nccl(*args: Any) -> Any:
        return local_rendezvous(*args)._replace(not_replaced=NOT_REPLACED["learner"])

    graph, _ = build(learners())
    assert all(node.restart.begin_next_life() for node in graph.having("learner"))
    monkeypatch.setattr(learner_group, "local_rendezvous", as_through_nccl)
    graph, _ = build(learners())
    for node in graph.having("learner"):
        assert node.restart.begin_next_life() is None
        assert "nccl" in node.restart.told(f"{node.name} was ended by signal SIGKILL")


@pytest.mark.multiprocess
@pytest.mark.parametrize("async_rl", [False, True])
def test_learners_train_with_equal_weights_and_resume_with_another_number(
    tmp_path: Path, async_rl: bool
) -> None:
    """--debug compares the checksums of weights, optimiser and statistics after each update."""
    folder = str(tmp_path / "run")
    chosen = {"async_rl": async_rl, "run_dir": folder}
    first = train(learners(train_for_env_steps=2000, **chosen)).summary
    assert first["status"] == "finished"
    assert first["checksums_compared"] >= 15
    # A report has what was learned since the one before: on a slow machine the last has nothing.
    reports = read_metrics(Path(folder, "metrics.jsonl"))
    deviations = [r["ratio_deviation_first"] for r in reports if "ratio_deviation_first" in r]
    lags = [r["policy_lag_max"] for r in reports if "policy_lag_max" in r]
    assert deviations and lags
    if not async_rl:
        assert max(deviations) < 1e-5
        assert max(lags) == 0, "slots go back when the new weights are published"
    again = train(learners(num_learners=1, train_for_env_steps=3000, **chosen)).summary
    assert again["updates"] > first["updates"]


LEARNING = (
    "train appo --env CartPole-v1 --seed 1 --run-dir run --debug "
    "--report-interval 0.3 --train-for-env-steps 10000000"
)


def learner_process(driver: int, name: str) -> int:
    """Process id of a learner."""
    (found,) = (
        child.pid
        for child in psutil.Process(driver).children(recursive=True)
        if f"sampleforge: {name}" in " ".join(child.cmdline())
    )
    return found


@pytest.mark.multiprocess(timeout=180)
@pytest.mark.parametrize(
    ("mode", "names"),
    [
        ("--async-rl", ["learner", "learner"]),
        ("--no-async-rl", ["learner 1", "learner 0"]),
        slow("--no-async-rl", ["learner", "learner"]),
        slow("--async-rl", ["learner 1", "learner 0"]),
    ],
)
def test_a_killed_learner_is_replaced_and_all_go_on_from_the_newest_state(
    start_cli: StartCli, tmp_path: Path, names: list[str], mode: str
) -> None:
    run = tmp_path / "run"
    several = "2" if "learner 1" in names else "1"
    process = start_cli(*LEARNING.split(), mode, "--num-learners", several)

    def until_updates(least: float) -> None:
        def reached() -> bool:
            metrics = run / "metrics.jsonl"
            reported = metrics.exists() and "\n" in metrics.read_text()
            return bool(reported and last_report(run).get("updates", 0) > least)

        until(reached, process)

    def until_restarted(count: int) -> None:
        until(lambda: last_report(run).get("restarts") == count, process)

    until_updates(50)
    for life, name in enumerate(names, 1):
        os.kill(learner_process(process.pid, name), signal.SIGKILL)
        until_restarted(life)
        until_updates(last_report(run)["updates"] + 50)
    process.terminate()
    _, shown = process.communicate(timeout=20)
    assert process.returncode == 143
    pattern = r"the learners? goe?s? on from update [\d,]+: \d+ updates? (?:is|are)"
    resumed = re.findall(pattern, shown)
    assert len(resumed) == 2, shown
    reported = [report["updates"] for report in read_metrics(run / "metrics.jsonl")]
    assert reported == sorted(reported), "the version never goes back"
    found = summary(run)
    assert found["restarts"] == found["restarts_by_role"]["learner"] == len(names)
    reports = read_metrics(run / "metrics.jsonl")
    lags = [report["policy_lag_min"] for report in reports if "policy_lag_min" in report]
    assert lags and min(lags) >= 0, "no behaviour is newer than the policy that learns from it"


@pytest.mark.multiprocess(timeout=90)
def test_a_learner_that_lacks_experience_at_the_end_holds_up_nobody(tmp_path: Path) -> None:
    """Actors begin no rollout after the limit, so the last batch may be complete for one learner
    alone."""
    for number in range(4):
        chosen = learners(
            async_rl=True,
            num_workers=1,
            num_splits=1,
            train_for_env_steps=300 + 24 * number,
            run_dir=str(tmp_path / f"{number}"),
            learner_timeout=20.0,
        )
        assert train(chosen).summary["status"] == "finished"


@pytest.mark.parametrize(
    ("kwargs", "answer"),
    [
        ({"serial": True}, "--serial --num-learners 2: serial mode is one process"),
        ({"sampler_only": True}, "--sampler-only --num-learners 2: nothing is learned"),
        ({"compile": True}, "--compile --num-learners 2: a learner's part of a minibatch"),
        ({"num_learners": 0}, "--num-learners 0"),
        ({"learner_devices": ("cpu",)}, "1 devices for 2 learners"),
        ({"learner_devices": ("cpu", "gpu")}, "gpu must be cpu or cuda:N"),
    ],
)
def test_settings_that_do_not_go_with_several_learners_are_refused(
    kwargs: dict[str, Any], answer: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(answer)):
        learners(**kwargs)


@pytest.mark.parametrize("learner_devices", [("cuda:0", "cuda:1"), ("cpu", "cuda:0")])
def test_devices_that_the_run_does_not_have_are_refused(learner_devices: tuple[str, str]) -> None:
    with pytest.raises(
        ConfigError, match=r"--learner-devices .*another kind than the run's device"
    ):
        build(learners(learner_devices=learner_devices))


def test_a_group_has_a_batch_when_each_of_its_members_has() -> None:
    epoch = GroupEpoch(0, 2)
    assert not epoch.mark_batch(0, 1)
    assert epoch.mark_batch(1, 1) and epoch.mark_batch(0, 1)
    assert not epoch.mark_batch(1, 2)
    epoch.mark_batch(0, 0)  # it was replaced
    assert not epoch.mark_batch(1, 2) and epoch.mark_batch(0, 2)


def test_a_batch_that_learners_cannot_share_is_refused_with_the_nearest_size() -> None:
    with pytest.raises(ConfigError, match=r"equal shares for 3 learners.*nearest: 96"):
        build(learners(num_learners=3, async_rl=True))
