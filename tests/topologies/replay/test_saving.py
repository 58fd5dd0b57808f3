"""Runs that save their replay: while actors write, over resumes, interrupts, kills, full disks."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
import pytest

from sampleforge.api import Trainer, train
from sampleforge.config import ConfigError
from sampleforge.models.config import ModelConfig
from sampleforge.replay.snapshot import ReplayFolder, SavedReplay
from sampleforge.run.callback import Callback
from sampleforge.run.folder.replays import Replays
from sampleforge.run.session import Session
from sampleforge.spec import ACTION
from sampleforge.topologies.config import ApexConfig
from sampleforge.topologies.pairings import critics_defaults
from sampleforge.topologies.pairings.dqn_defaults import resolve_defaults
from tests.support.apex_graphs import (
    CheckingLearnerMaker,
    apex_config,
    build_replay,
    check_transition,
    learner_worker,
    limiter_of,
    with_learner,
)
from tests.support.box_code import CheckingSacMaker, action_code, box_config
from tests.support.full_disk import full_disk
from tests.support.goal_envs import GOAL_CODE, CheckingHindsightMaker
from tests.support.graphs import running, spec_of
from tests.support.pairings import network_maker
from tests.support.runs import until, until_trained
from tests.support.variants import slow

pytestmark = pytest.mark.long


def never() -> bool:
    return False


def check_saved(saved: SavedReplay, config: Any, code: Callable[[Any], int] = int) -> int:
    """Check every transition in the files against CodeEnv's own rule; returns how many. ``code``
    returns the number that CodeEnv shows of an action."""
    checked = 0
    for shard in saved.shards:
        found = {n: np.load(saved.folder / f.file) for n, f in shard.arrays.items()}
        steps = found["slot/steps"]
        for slot, t, row in np.argwhere(steps > 0).tolist():
            check_transition(
                found["slot/obs/obs"][slot, t, row],
                code(found[f"slot/action/{ACTION}"][slot, t, row]),
                float(found["slot/returns"][slot, t, row]),
                float(found["slot/discount"][slot, t, row]),
                found["slot/obs/obs"][slot, t + steps[slot, t, row], row],
                config,
            )
        if "priorities" in found:
            priorities = found["priorities"].reshape(steps.shape)
            assert ((priorities > 0) == (steps > 0)).all()
        assert np.count_nonzero(steps) == shard.plain["stored"]
        checked += int(shard.plain["stored"])
    return checked


class Resumed:
    """In the place of a checkpoint: the learner's plain state alone."""

    def __init__(self, state: dict[str, Any]) -> None:
        self._state = state

    def weights(self, model: Any) -> int:
        return 0

    def learner(self, learner: Any) -> None:
        """It begins anew."""

    def plain(self) -> dict[str, Any]:
        return self._state


def checked_run(algo: str) -> tuple[Any, Any, Callable[[Any], int] | None]:
    """The config of a run that saves its replay, what makes a learner that checks every transition,
    and the code of an action (None: goals, of which the learner alone knows the rule)."""
    more: dict[str, Any] = {"num_replay_shards": 2, "save_replay": True}
    if algo == "hindsight":
        goals = box_config(**more, env=GOAL_CODE, her=True, n_step=3)
        goals, spec = critics_defaults.resolve_defaults(goals, spec_of(goals)), spec_of(goals)
        return goals, CheckingHindsightMaker(goals, spec), None
    if algo == "sac":
        box = box_config(**more)
        box, spec = critics_defaults.resolve_defaults(box, spec_of(box)), spec_of(box)
        return box, CheckingSacMaker(box, spec), action_code
    config = fitted(apex_config(**more, samples_per_insert=None))
    maker = CheckingLearnerMaker(network_maker(config, spec_of(config), 0), config)
    return config, maker, int


@pytest.mark.multiprocess(timeout=110)
@pytest.mark.parametrize("algo", ["apex", "sac", slow("hindsight")])
def test_what_is_saved_while_actors_write_is_whole(algo: str, tmp_path: Path) -> None:
    """As fast as they can, on a small replay that is overwritten all the time; then restored, in
    other processes, under a learner that checks every transition as well."""
    (tmp_path / "replays").mkdir()
    config, maker, code = checked_run(algo)
    where = ReplayFolder(tmp_path / "replays")
    graph, plan = build_replay(config, where)
    replays, deadline = Replays(where.path, never), monotonic() + 90
    with running(with_learner(graph, maker), tmp_path) as runner:
        limiter = limiter_of(graph)
        for _ in range(2):
            seen = limiter.replay_counters.inserted.sum()
            while limiter.replay_counters.inserted.sum() < seen + plan.capacity:
                runner.poll(0.02)
                assert monotonic() < deadline
            reference, problem = replays.save(
                graph.groups[0].archive, lambda: 5, lambda: runner.poll(0.02), print
            )
            assert problem is None
            found = Replays(where.path, never).find(reference, pytest.fail)
            assert found.saved is not None
            if code is not None:
                assert check_saved(found.saved, config, code) > plan.capacity / 3
            replays.prune(reference)
    state = {
        "limiter": limiter.state(0),
        "shard_choice": np.random.default_rng(7).bit_generator.state,
    }
    again, _ = build_replay(config, found, Resumed(state))
    assert any("resumed with the replay of 5 env steps" in note for note in again.notes)
    (tmp_path / "again").mkdir()
    with running(with_learner(again, maker), tmp_path / "again") as runner:
        replay_counters = limiter_of(again).replay_counters
        while again.counters.total("trained_steps") < 1000:
            runner.poll(0.02)
            assert monotonic() < deadline
    assert replay_counters.base.sum() >= sum(
        shard.plain["inserted"] for shard in found.saved.shards
    )


def fitted(config: ApexConfig) -> ApexConfig:
    return resolve_defaults(config, spec_of(config))


# ---- whole runs, in one process ----


def config(run: Path, env_steps: int, **more: Any) -> ApexConfig:
    chosen = {"save_replay": True, "replay_capacity": 21 * 60, "report_interval": 0.7, **more}
    return apex_config(
        run_dir=str(run), serial=True, quiet=True, train_for_env_steps=env_steps, **chosen
    )


def replays_in(run: Path) -> list[str]:
    return sorted(path.name for path in (run / "checkpoints").iterdir() if path.is_dir())


def log_of(run: Path) -> str:
    return (run / "log.txt").read_text()


def test_a_resumed_run_learns_at_once(tmp_path: Path) -> None:
    run, shards = tmp_path / "run", 2
    first = train(config(run, 1500, num_replay_shards=shards)).summary
    (kept,) = replays_in(run)
    assert "each checkpoint (--checkpoint-interval 120) saves the replay" in log_of(run)
    again = train(config(run, 1650, num_replay_shards=shards)).summary
    assert again["updates"] > first["updates"] + 3, "150 steps are less than learning_starts"
    assert "resumed with the replay of" in log_of(run) and "empty replay" not in log_of(run)
    (newer,) = replays_in(run)
    assert newer != kept, "the latest one is kept"
    removed = "; the next checkpoint removes it, --save-replay keeps one"
    assert removed not in log_of(run)
    third = train(config(run, 1800, num_replay_shards=shards, save_replay=False)).summary
    assert third["updates"] > again["updates"] + 3, "what was saved is taken up"
    assert removed in log_of(run)
    assert replays_in(run) == [], "and not kept any longer"
    before = third["updates"]
    fourth = train(config(run, 1900, num_replay_shards=shards, save_replay=False)).summary
    assert fourth["updates"] == before
    assert "before learning continues (--save-replay would keep it)" in log_of(run)


class Fails(Callback):
    """Fails before the first env step; ``learned``: the learner has learned from what was saved."""

    def __init__(self, *, learned: bool) -> None:
        self.learned = learned

    def on_start(self, session: Session) -> None:
        session.graph.counters.row(0)["trained_steps"] += self.learned
        raise ValueError("mine")


@pytest.mark.parametrize("learned", [True, False])
def test_a_resumed_run_that_fails_is_described_if_it_has_learned(
    learned: bool, tmp_path: Path
) -> None:
    """Its checkpoints may be newer, though no env step was taken."""
    run = tmp_path / "run"
    train(config(run, 300))
    with pytest.raises(Exception, match="mine"):
        train(config(run, 600, learning_rate=0.125), callbacks=[Fails(learned=learned)])
    assert ("learning_rate: 0.125" in (run / "config.yaml").read_text()) == learned
    summary = json.loads((run / "summary.json").read_text())
    assert summary["status"] == ("failed" if learned else "finished")


def test_a_resumed_run_restores_the_limiter_and_the_replay_counters(tmp_path: Path) -> None:
    run, states = tmp_path / "run", []
    for env_steps in (1500, 1501):  # reached: it is restored, and saved again
        with Trainer(config(run, env_steps)) as trainer:
            for _ in trainer:
                pass
            source = learner_worker(trainer.session.graph)._source.samples
            states.append((source.limiter.state(0), source.shard_choice))
            replay_counters = source.limiter.replay_counters
            states.append((int(replay_counters.inserted.sum()), bool(replay_counters.full.all())))
    assert abs(states[0][0]["balance"] - states[2][0]["balance"]) < 100
    assert 0 <= states[3][0] - states[1][0] < 300 and states[3][1] == states[1][1]


def test_a_saved_replay_of_another_layout_is_refilled_and_the_log_says_so(tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(config(run, 1500))
    train(config(run, 1600, num_replay_shards=2))
    assert "the saved one does not fit: slots_per_shard: [60] -> [30, 30]" in log_of(run)
    assert "200 transitions are collected" in log_of(run)
    (told,) = (line for line in log_of(run).splitlines() if "the next checkpoint removes" in line)
    assert " warning " in told and "slots_per_shard" in told, "also on the screen"


@pytest.mark.parametrize("core", ["none", "gru"])
def test_a_saved_replay_of_rewards_of_another_scale_is_refilled(core: Any, tmp_path: Path) -> None:
    """But for sequences, whose windows are made when they are read."""
    model = {} if core == "none" else {"model": ModelConfig(core="gru", hidden_sizes=(8,))}
    train(config(tmp_path, 1500, **model))
    train(config(tmp_path, 1600, **model, reward_scale=0.5))
    refilled = "the saved one does not fit: reward_scale: 1.0 -> 0.5" in log_of(tmp_path)
    assert refilled is (core == "none")


def test_a_damaged_replay_is_refilled_and_the_log_says_so(
    tmp_path: Path,
) -> None:
    run = tmp_path / "run"
    updates = train(config(run, 1500)).summary["updates"]
    (kept,) = replays_in(run)
    path = run / "checkpoints" / kept / "shard-0-0.npy"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert train(config(run, 1600)).summary["updates"] == updates
    assert f"replay {kept}: the saved one is refused" in log_of(run)
    assert "checksum of shard-0-0.npy is wrong" in log_of(run)


def test_a_full_disk_loses_nothing_but_the_newest_replay(tmp_path: Path) -> None:
    """The weights are small and are saved all the same, with the replay before."""
    run = tmp_path / "run"
    with (
        pytest.raises(OSError, match=r"replay not saved.*Make room"),
        Trainer(config(run, 10**9)) as trainer,
    ):
        trainer.train_until(env_steps=700)
        trainer.save()
        (kept,) = replays_in(run)
        trainer.train_until(env_steps=1400)
        biggest = max(p.stat().st_size for p in (run / "checkpoints" / kept).iterdir())
        with full_disk(biggest - 1):
            trainer.save()
    assert replays_in(run) == [kept]
    manifest = json.loads((run / "checkpoints" / "manifest.json").read_text())
    assert len(manifest["entries"]) == 2
    summary = json.loads((run / "summary.json").read_text())
    assert summary["status"] == "failed" and "leave out --save-replay" in summary["error"]
    again = train(config(run, manifest["entries"][-1]["env_steps"] + 150)).summary
    assert again["status"] == "finished" and "resumed with the replay of" in log_of(run)


def test_no_room_for_two_replays_is_refused_before_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:

    class Usage:
        free = 100_000

    monkeypatch.setattr("shutil.disk_usage", lambda path: Usage)
    with pytest.raises(ConfigError, match=r"and as much again.*only 97.66 KiB are free"):
        train(config(tmp_path / "run", 1500))
    chosen = dataclasses.replace(config(tmp_path / "other", 300), save_replay=False)
    assert train(chosen).summary["status"] == "finished"


def test_an_interrupt_does_not_wait_for_a_large_replay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has a second; if that is too short, the replay before stays."""
    from sampleforge.run.folder import replays

    monkeypatch.setattr(replays, "INTERRUPTED_TIMEOUT", 0.0)
    run = tmp_path / "run"
    with Trainer(config(run, 10**9)) as trainer:
        reports = iter(trainer)
        next(reports)
        trainer.save()
        (kept,) = replays_in(run)
        archive = trainer.session.graph.groups[0].archive
        monkeypatch.setattr(type(archive), "answered", property(lambda self: False))
        trainer.session.interrupt()
        for _ in reports:
            pass
    assert replays_in(run) == [kept] and list((run / "checkpoints").glob(".*")) == []
    assert "interrupted before the replay was saved: there is the replay of" in log_of(run)
    monkeypatch.undo()
    manifest = json.loads((run / "checkpoints" / "manifest.json").read_text())
    train(config(run, manifest["entries"][-1]["env_steps"] + 150))
    assert "resumed with the replay of" in log_of(run)


@pytest.mark.multiprocess(timeout=110)
def test_a_run_killed_while_it_saves_keeps_the_checkpoint_before_with_its_replay(
    tmp_path: Path, start_cli: Any
) -> None:
    """The checkpoint before stays whole with its replay, and no half of another."""
    run = tmp_path / "run"
    flags = ["--num-workers", "1", "--num-envs-per-worker", "8", "--report-interval", "0.3"]
    flags += ["--replay-capacity", "30000", "--learning-starts", "500", "--save-replay"]
    flags += ["--checkpoint-interval", "0.1", "--run-dir", "run", "--quiet"]
    command = ["train", "apex", "--env", "CartPole-v1", *flags]
    process = start_cli(*command)
    until_trained(process, run)
    until((run / "checkpoints" / "manifest.json").exists, process)  # which names a replay
    until(lambda: list((run / "checkpoints").glob(".replay-*/*.npy")), process)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    again = start_cli(*command, "--train-for-seconds", "1")
    assert again.wait(timeout=60) == 0, again.communicate()
    assert list((run / "checkpoints").glob(".*")) == [] and len(replays_in(run)) == 1
    assert "resumed with the replay of" in log_of(run)
