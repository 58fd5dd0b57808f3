"""The recorder: segments that survive a kill, what is left out, and the end of a recording."""

from __future__ import annotations

import dataclasses
import errno
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path
from time import monotonic
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sampleforge.cli import main
from sampleforge.config import ConfigError
from sampleforge.data import writer
from sampleforge.data.dataset import StoredEpisode, open_dataset, whole_episodes
from sampleforge.data.minari_format import Dropped
from sampleforge.data.writer import DatasetFormat, DatasetWriter, check_folder
from sampleforge.run.recording import RecordingReports
from sampleforge.run.session import Session
from sampleforge.runtime import folder_lock
from sampleforge.runtime.files import write_atomically
from sampleforge.topologies.config import AppoConfig
from sampleforge.topologies.graph import Graph
from sampleforge.topologies.recorder import check_recording
from sampleforge.workers import recorder
from sampleforge.workers.actor import END_RECORDING
from sampleforge.workers.episode_player import EpisodePlayer
from tests.support.full_disk import full_disk
from tests.support.graphs import running, spec_of
from tests.support.offline import PLAYED, SEEN, record, stored, wired
from tests.support.recorded_spec import SPEC
from tests.support.recordings import CODE, check_code, config


@pytest.mark.long
def test_a_kill_at_any_moment_leaves_all_closed_segments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder is copied before and after each change that a reader can see: so it is if the
    process is killed there. A writer goes on with each copy."""
    folder = tmp_path / "data"
    copies: list[Path] = []
    rename = writer._sync_and_rename

    def watched(temporary: Path, path: Path) -> None:
        for act in (lambda: rename(temporary, path), lambda: None):
            copies.append(shutil.copytree(folder, tmp_path / f"copy {len(copies)}"))
            act()

    monkeypatch.setattr(writer, "_sync_and_rename", watched)
    graph, spec = record(config(folder, serial=True), 90)
    monkeypatch.undo()
    whole = [episode.observations["obs"].tobytes() for episode in open_dataset(folder).episodes()]
    assert len(list((folder / "data").glob("part-*.hdf5"))) >= 3
    counts = []
    for copy in copies[2:-1]:
        found = [each.episode.observations.tobytes() for each in stored(copy)]
        assert found == whole[: len(found)]
        counts.append(len(found))
        again = DatasetWriter(copy, DatasetFormat(spec))
        again.close_segment()
        linked = [
            episode.observations["obs"].tobytes() for episode in open_dataset(copy).episodes()
        ]
        assert linked == whole[: len(linked)] and len(linked) >= len(found)
        assert not list((copy / "data").glob(".*"))
    assert counts == sorted(counts) and len(set(counts)) >= 3
    assert graph.counters.total("recorded_episodes") == len(whole)


@pytest.mark.multiprocess(timeout=120)
def test_a_killed_recorder_is_replaced_and_nothing_wrong_is_written(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    graph, _ = wired(config(folder, num_workers=2))
    with running(graph, tmp_path) as runner:
        deadline, wanted = monotonic() + 100, 100.0
        for kill in (True, True, False):
            while graph.counters.total("recorded_steps") < wanted:
                runner.poll(0.02)
                assert monotonic() < deadline, (graph.counters.total("recorded_steps"), wanted)
            wanted = graph.counters.total("recorded_steps") + 200
            if kill:
                os.kill(runner.pids()["recorder"], signal.SIGKILL)
        assert graph.restarts()["recorder"] == 2
        assert graph.recording is not None
        lost = graph.recording.queue.dropped
    assert lost.breaks == 2 and lost.lost_episodes >= 2
    said = open_dataset(folder).dropped
    assert (said.breaks, said.lost_episodes) == (2, lost.lost_episodes)
    episodes = list(open_dataset(folder).episodes())
    assert sum(map(len, episodes)) >= 500
    for episode in episodes:
        check_code(episode)


def started(graph: Graph) -> list[Any]:
    """The workers of a run, started in this process."""
    workers = [node.worker for node in graph.nodes]
    for worker in workers:
        worker.start()
    return workers


def test_the_dataset_says_how_many_episodes_a_killed_recorder_had(tmp_path: Path) -> None:
    """Also while it is not known yet, because nothing has taken its place."""
    folder = tmp_path / "data"
    graph, _ = wired(config(folder, serial=True, decorrelate=False))
    assert graph.recording is not None
    writing, queue = graph.recording.node.worker, graph.recording.queue
    workers = started(graph)
    for number in range(300):
        for worker in workers:
            worker.step()
        if number == 100:
            assert open_dataset(folder).dropped == Dropped(breaks=1)
            writing.start()  # as the next one does after a kill
    for node in graph.having("actor"):
        node.worker.handle(END_RECORDING, None)
    for worker in reversed(workers):
        worker.close()
    lost = open_dataset(folder).dropped
    assert lost == queue.dropped == Dropped(breaks=1, lost_episodes=lost.lost_episodes)
    assert lost.lost_episodes >= 4
    recorded = sum(episode.begins for episode in open_dataset(folder).episodes())
    assert 0 <= lost.lost_episodes + recorded - graph.total("episodes") <= 4, "are going on"
    assert str(lost).endswith("when the recording was broken off, once")


def test_what_would_be_lost_is_known_when_an_old_segment_was_closed_and_before_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, _ = wired(config(tmp_path, serial=True, record_segment_mb=128))
    assert graph.recording is not None
    writing: Any = graph.recording.node.worker
    held = graph.recording.queue.state["held"]
    workers = started(graph)
    for _ in range(60):
        for worker in workers:
            worker.step()
    assert held[0] == writing._held() > writing._assembler.unfinished
    monkeypatch.setattr(recorder, "SEGMENT_S", 0.0)
    while writing.step():
        pass
    assert held[0] == writing._assembler.unfinished
    monkeypatch.undo()
    before = held[0]
    while not graph.recording.queue.ready_actors():
        for worker in workers:
            if worker is not writing:
                worker.step()
    monkeypatch.setattr(writing, "_end", lambda: None)
    writing.handle("finish", None)
    assert held[0] == writing._held() != before
    monkeypatch.undo()
    writing.close()


@pytest.mark.parametrize("in_time", [True, False])
def test_a_run_says_what_its_recorder_had_no_time_to_write(in_time: bool, tmp_path: Path) -> None:
    """As after an interrupt, which gives it seconds: the workers are ended without an answer."""
    graph, _ = wired(config(tmp_path / "data", serial=True, record_segment_mb=128))
    assert graph.recording is not None
    workers = started(graph)
    for _ in range(60):
        for worker in workers:
            worker.step()
    if in_time:
        graph.recording.node.worker.handle("finish", None)
    said: list[str] = []
    session: Any = SimpleNamespace(graph=graph, alert=said.append)
    summary: dict[str, Any] = {}
    RecordingReports(graph.recording).extend_summary(session, summary)
    lost, kept = summary["record_lost_episodes"], summary["recorded_episodes"]
    assert (lost == 0, kept > 0, not said) == (in_time, in_time, in_time)
    assert max(lost, kept) >= graph.total("episodes") > 0
    if not in_time:
        assert f"lacks the episodes that were going on or not stored yet ({lost} of" in said[0]
        graph.recording.node.worker.close()


@pytest.mark.long
def test_a_long_episode_in_parts_is_the_same_episode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "UNFINISHED_BYTES", 300)
    folder, kwargs = tmp_path / "data", {"name": "stacked"}
    record(config(folder, env=SEEN, env_kwargs=kwargs, serial=True, decorrelate=False), 300)
    dataset = open_dataset(folder)
    joined: dict[tuple[int, int], list[StoredEpisode]] = defaultdict(list)
    about = [each.about for each in stored(folder)]
    for episode, attributes in zip(dataset.episodes(), about, strict=True):
        joined[int(attributes["stream"][-1]), int(attributes["number"])].append(episode)
    assert any(len(parts) > 1 for parts in joined.values())
    for (row, number), parts in joined.items():
        assert [part.begins for part in parts] == [True] + [False] * (len(parts) - 1)
        stacks = [part.observations["obs"][: len(part)] for part in parts]
        stacks.append(parts[-1].observations["obs"][-1:])
        seen = np.stack(PLAYED[row][number].observations)
        read = np.concatenate(stacks)
        assert read.tobytes() == seen[: len(read)].tobytes()


@pytest.mark.long
def test_first_episodes_that_decorrelation_shortens_are_marked_and_no_others(
    tmp_path: Path,
) -> None:
    """Also those that go on over several rollouts, and in several parts."""
    limit: dict[str, Any] = {"env_kwargs": {"length": 100}, "max_episode_steps": 12}
    for spread in (True, False):
        folder = tmp_path / f"{spread}"
        record(config(folder, serial=True, decorrelate=spread, **limit), 200)
        lengths: dict[bool, list[int]] = {True: [], False: []}
        for each, episode in zip(stored(folder), open_dataset(folder).episodes(), strict=True):
            assert episode.shortened == (spread and each.about["number"] == 0)
            if episode.ends:
                lengths[episode.shortened].append(len(episode))
        assert sorted(lengths[True]) == ([3, 6, 9, 12] if spread else [])
        assert len(lengths[False]) >= 8 and set(lengths[False]) == {12}


@pytest.mark.long
@pytest.mark.parametrize("why", ["size", "disk"])
def test_recording_ends_and_training_goes_on(
    why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    limit = 0.00002 if why == "size" else 1.0
    calls = 0

    def full(self: DatasetWriter, episode: Any, add: Any = DatasetWriter.add) -> None:
        nonlocal calls
        calls += 1
        if why == "disk" and calls > 40:
            raise OSError(28, "No space left on device")
        add(self, episode)

    monkeypatch.setattr(DatasetWriter, "add", full)
    folder = tmp_path / "data"
    with caplog.at_level(logging.WARNING):
        graph, _ = record(config(folder, serial=True, record_max_gb=limit), 400)
    assert graph.recording is not None and graph.recording.queue.ended
    assert ("--record-max-gb" if why == "size" else "No space left") in caplog.text
    lost = graph.recording.queue.dropped
    assert (lost.breaks, lost.lost_episodes > 0) == ((0, False) if why == "size" else (1, True))
    kept = list(open_dataset(folder).episodes())
    assert 0 < sum(map(len, kept)) < 300 <= graph.total("env_steps")
    for episode in kept:
        check_code(episode)
    going_on = [episode for episode in kept if not episode.ends]
    assert bool(going_on) == (why == "size"), "so that it is seen what is missing"


@pytest.mark.long
def test_a_disk_that_becomes_full_within_a_segment_ends_the_recording(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """HDF5 itself must not meet it: it could neither drop what it holds nor close its file."""
    folder = tmp_path / "data"
    closed = folder / "data" / "part-000000.hdf5"
    with ExitStack() as filled:

        def fill(self: DatasetWriter, episode: Any, add: Any = DatasetWriter.add) -> None:
            if closed.exists() and not self.in_segment:
                filled.enter_context(full_disk(closed.stat().st_size // 2))
            add(self, episode)

        with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
            patch.setattr(DatasetWriter, "add", fill)
            graph, _ = record(config(folder, serial=True, record_segment_mb=0.04), 1500)
    assert graph.recording is not None and graph.recording.queue.ended
    assert "training goes on: the dataset cannot be written: [Errno 27] File too" in caplog.text
    kept = list(open_dataset(folder).episodes())
    assert 0 < sum(map(len, kept)) < 1200 < 1500 <= graph.total("env_steps")
    for episode in kept:
        check_code(episode)
    assert not list((folder / "data").glob(".*.tmp"))


@pytest.mark.long
@pytest.mark.parametrize("what", ["copyfile", "write_atomically"])
def test_what_a_disk_that_is_full_for_the_index_or_the_metadata_keeps_is_not_counted_as_lost(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next writer finds as many episodes as the recorder has counted."""
    place: Any = shutil if what == "copyfile" else writer
    write, calls = getattr(place, what), 0

    def full(*args: Any) -> None:
        nonlocal calls
        calls += 1
        if calls > 4:
            raise OSError(28, "No space left on device")
        write(*args)

    with monkeypatch.context() as patch:
        patch.setattr(place, what, full)
        graph, spec = record(config(tmp_path, serial=True), 400)
    assert graph.recording is not None and graph.recording.queue.dropped.lost_episodes > 0
    DatasetWriter(tmp_path, DatasetFormat(spec)).release()
    kept = open_dataset(tmp_path).num_episodes
    assert kept == graph.counters.total("recorded_episodes") > 0


@pytest.mark.long
def test_the_time_at_which_an_episode_began_is_recorded(tmp_path: Path) -> None:
    """In env steps of the run, to within a rollout: of four rows that take six steps in each. Also
    of an episode in several parts."""
    folder = tmp_path / "data"
    record(config(folder, serial=True, env_kwargs={"length": 9}, decorrelate=False), 200)
    for episode in whole_episodes(open_dataset(folder).episodes()):
        assert episode.number is not None and episode.span is not None
        before = 9 * episode.number[-1]  # steps of the row
        for step, at in zip((before, before + len(episode) - 1), episode.span, strict=True):
            assert at % 4 == 0 and at // 4 <= step < at // 4 + 6


@pytest.mark.long
def test_a_trained_policy_is_recorded_episode_by_episode(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, data = str(tmp_path / "run"), tmp_path / "data"
    small = ["--num-envs-per-worker", "4", "--train-for-env-steps", "500", "--seed", "1"]
    small += ["--rollout", "16", "--batch-size", "64"]
    assert (
        main(["train", "appo", "--env", "CartPole-v1", "--run-dir", run, "--serial", *small]) == 0
    )
    for explore in ([], ["--stochastic"]):
        capsys.readouterr()
        assert (
            main(["record", run, "--episodes", "5", "--out", str(data), "--quiet", *explore]) == 0
        )
        said = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert said["episodes"] == 5 and said["dataset"] == str(data)
    episodes = list(open_dataset(data).episodes())
    assert len(episodes) == 10 and all(each.begins and each.ends for each in episodes)
    assert np.mean([each.rewards.sum() for each in episodes[5:]]) == said["return_mean"]
    assert sum(map(len, episodes[5:])) == said["steps"]
    assert [each.log_probs is None for each in episodes] == [True] * 5 + [False] * 5
    assert {int(each.policy_version.min()) for each in episodes if each.policy_version is not None}
    manifest = json.loads((tmp_path / "run" / "checkpoints" / "manifest.json").read_text())
    version = max(entry["version"] for entry in manifest["entries"])
    assert version > 0 and all((each.policy_version == version).all() for each in episodes)


@pytest.mark.long
def test_episodes_that_broke_down_are_not_recorded_in_the_place_of_those_that_count(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every environment raises in its fifth step, in the middle of an episode as a rule."""
    run, data = str(tmp_path / "run"), tmp_path / "data"
    small = [
        "--num-envs-per-worker",
        "2",
        "--seed",
        "1",
        "--train-for-env-steps",
        "60",
        "--rollout",
        "8",
    ]
    small += ["--batch-size", "16", "--serial", "--quiet", "--env-kwargs", "where=step", "every=5"]
    env = ["--env", "tests.support.envs:RaisingEnv"]
    assert main(["train", "appo", *env, "--run-dir", run, *small]) == 0
    command = ["record", run, "--trust", "--episodes", "16", "--out", str(data), "--quiet"]
    assert main(command) == 0
    said = json.loads(capsys.readouterr().out.splitlines()[-1])
    episodes = list(open_dataset(data).episodes())
    assert said["episodes"] == len(episodes) == 16
    assert all(each.begins and each.ends for each in episodes)
    assert np.mean([each.rewards.sum() for each in episodes]) == said["return_mean"]


@pytest.mark.long
def test_a_second_recording_has_other_episodes_and_an_interrupted_one_those_that_have_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run, data = str(tmp_path / "run"), tmp_path / "data"
    small = ["--num-envs-per-worker", "4", "--train-for-env-steps", "200", "--seed", "1"]
    small += ["--rollout", "16", "--batch-size", "64", "--serial", "--quiet"]
    assert main(["train", "appo", "--env", "CartPole-v1", "--run-dir", run, *small]) == 0
    command = ["record", run, "--episodes", "5", "--out", str(data), "--quiet"]
    seeds = []
    for _ in range(2):
        assert main(command) == 0
        seeds.append(json.loads(capsys.readouterr().out.splitlines()[-1])["seed"])
    assert seeds == [2, 7]
    begins = {each.observations["obs"][0].tobytes() for each in open_dataset(data).episodes()}
    assert len(begins) == 10, "no episode is the same as another one"

    step = EpisodePlayer.step

    def interrupted(self: EpisodePlayer) -> None:
        step(self)
        if self.num_played >= 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(EpisodePlayer, "step", interrupted)
    assert main(command) == 130
    dataset = open_dataset(data)
    assert dataset.num_episodes == 13 and all(each.ends for each in dataset.episodes())
    assert (dataset.dropped.breaks, dataset.dropped.lost_episodes) == (1, 2)
    assert not list((data / "data").glob(".*.tmp"))


@pytest.mark.long
def test_episodes_of_a_policy_that_a_full_disk_does_not_take_are_counted_as_lost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, data = str(tmp_path / "run"), tmp_path / "data"
    small = ["--num-envs-per-worker", "4", "--train-for-env-steps", "200", "--seed", "1"]
    small += ["--rollout", "16", "--batch-size", "64", "--serial", "--quiet"]
    assert main(["train", "appo", "--env", "CartPole-v1", "--run-dir", run, *small]) == 0
    command = ["record", run, "--episodes", "5", "--out", str(data), "--quiet"]
    assert main(command) == 0
    size = (data / "data" / "part-000000.hdf5").stat().st_size
    with full_disk(size // 2):
        assert main(command) == 1
    assert "File too large" in capsys.readouterr().err
    dataset = open_dataset(data)
    assert dataset.num_episodes == 5
    assert dataset.dropped == Dropped(lost_episodes=5, breaks=1)
    assert not list((data / "data").glob(".*.tmp")), "what is left would keep the disk full"


@pytest.mark.long
def test_episodes_of_a_policy_are_not_lost_if_only_the_metadata_cannot_be_written(
    tmp_path: Path, monkeypatch: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """Their segment is linked, so that they can be read as soon as the metadata are written."""
    run, data = str(tmp_path / "run"), tmp_path / "data"
    small = ["--num-envs-per-worker", "4", "--train-for-env-steps", "200", "--seed", "1"]
    small += ["--rollout", "16", "--batch-size", "64", "--serial", "--quiet"]
    assert main(["train", "appo", "--env", "CartPole-v1", "--run-dir", run, *small]) == 0
    left = iter([None])

    def full(path: Path, text: bytes) -> None:
        if (data / "data" / "part-000000.hdf5").exists() and next(left, True) is None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        write_atomically(path, text)

    monkeypatch.setattr(writer, "write_atomically", full)
    assert main(["record", run, "--episodes", "5", "--out", str(data), "--quiet"]) == 1
    assert "No space left on device" in capsys.readouterr().err
    dataset = open_dataset(data)
    assert dataset.num_episodes == 5 and dataset.dropped.lost_episodes == 0


READER = """
import sys
from sampleforge.data.dataset import open_dataset
episodes = open_dataset(sys.argv[1]).episodes()
next(episodes)
print("reads", flush=True)
sys.stdin.read()
print(1 + len(list(episodes)), flush=True)
"""


@pytest.mark.long
@pytest.mark.multiprocess
def test_a_dataset_is_recorded_into_while_another_process_reads_it(tmp_path: Path) -> None:
    """HDF5 locks a file for as long as it is open: a pass over the data, for a reader."""
    record(config(tmp_path, serial=True), 30)
    before = open_dataset(tmp_path).num_episodes
    command = [sys.executable, "-c", READER, str(tmp_path)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as reader:
        assert reader.stdout is not None and reader.stdin is not None
        assert reader.stdout.readline() == "reads\n"
        record(config(tmp_path, serial=True), 30)
        reader.stdin.close()
        assert reader.stdout.readline() == f"{before}\n", "those that there were at its start"
    assert reader.returncode == 0
    assert open_dataset(tmp_path).num_episodes > before > 1


def test_one_writer_at_a_time_has_a_dataset(tmp_path: Path, monkeypatch: Any) -> None:
    """A second one would take the segments of the first one for what a killed one has left."""
    monkeypatch.setattr(folder_lock, "RELEASE_S", 0.0)
    first = DatasetWriter(tmp_path, DatasetFormat(SPEC))
    for second in (
        lambda: check_folder(tmp_path, SPEC),
        lambda: DatasetWriter(tmp_path, DatasetFormat(SPEC)),
    ):
        with pytest.raises(ConfigError, match=f"in use by process {os.getpid()}"):
            second()
    first.release()
    check_folder(tmp_path, SPEC)
    DatasetWriter(tmp_path, DatasetFormat(SPEC)).release()

    def full(self: DatasetWriter) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(DatasetWriter, "_open", full)
        with pytest.raises(OSError, match="No space"):
            DatasetWriter(tmp_path, DatasetFormat(SPEC))
    DatasetWriter(tmp_path, DatasetFormat(SPEC)).release()  # one that could not open holds no lock


@pytest.mark.long
def test_a_trained_policy_is_not_recorded_on_stacks_that_would_be_read_otherwise(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The environment pads an episode's first stack in another way than it says."""
    run, env = str(tmp_path / "run"), "tests.support.stacked_envs:stacked"
    small = ["--num-envs-per-worker", "4", "--train-for-env-steps", "100", "--seed", "1"]
    small += ["--env-kwargs", "says=reset", "--rollout", "16", "--serial", "--quiet"]
    assert main(["train", "appo", "--env", env, "--run-dir", run, *small]) == 0
    capsys.readouterr()
    out = str(tmp_path / "data")
    assert main(["record", run, "--trust", "--episodes", "5", "--out", out, "--quiet"]) == 2
    assert "'obs' is a stack of 4 frames" in capsys.readouterr().err


@pytest.mark.multiprocess
@pytest.mark.parametrize("algorithm", ["appo", "apex"])
def test_processes_take_no_step_after_the_end_of_the_recording(
    algorithm: str, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    small = ["--env", CODE, "--num-envs-per-worker", "8", "--num-workers", "1", "--quiet"]
    small += ["--rollout", "400", *(["--replay-capacity", "9600"] if algorithm == "apex" else [])]
    flags = ["--run-dir", str(tmp_path / "run"), "--record", str(data), "--seed", "1"]
    assert main(["train", algorithm, *small, *flags, "--train-for-env-steps", "4000"]) == 0
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert open_dataset(data).num_steps == summary["recorded_steps"] == summary["env_steps"]


@pytest.mark.long
@pytest.mark.parametrize("algorithm", ["appo", "ddppo", "apex"])
def test_a_run_shorter_than_a_rollout_is_recorded(algorithm: str, tmp_path: Path) -> None:
    """Every env step, also those of the rollouts that are in progress at the end."""
    data = tmp_path / "data"
    small = ["--env", CODE, "--num-envs-per-worker", "4", "--num-splits", "1", "--rollout", "200"]
    apex = ["--replay-capacity", "4000"] if algorithm == "apex" else []
    flags = ["--run-dir", str(tmp_path / "run"), "--record", str(data), "--seed", "1", *apex]
    stop = ["--train-for-env-steps", "100", "--serial", "--quiet"]
    assert main(["train", algorithm, *small, *flags, *stop]) == 0
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    episodes = list(open_dataset(data).episodes())
    assert sum(map(len, episodes)) == summary["env_steps"] >= 100
    assert summary["env_steps"] < 200 * 4, "it is one rollout at most"
    for episode in episodes:
        check_code(episode)


def test_a_folder_of_a_dataset_is_no_file_and_the_difference_of_another_environment_is_named(
    tmp_path: Path,
) -> None:
    (tmp_path / "file").write_text("mine")
    for name in ("file", "file/data"):
        with pytest.raises(ConfigError, match="file is a file"):
            check_folder(tmp_path / name, SPEC)
    DatasetWriter(tmp_path / "set", DatasetFormat(SPEC)).release()
    with pytest.raises(ConfigError, match=r"here \(frame_skip, max_episode_steps\); give another"):
        check_folder(
            tmp_path / "set", dataclasses.replace(SPEC, frame_skip=2, max_episode_steps=30)
        )


def test_a_dataset_has_squashed_or_unsquashed_box_actions_not_both(tmp_path: Path) -> None:
    """Its metadata have one word for all of them, which the second recording would change."""
    settings = AppoConfig(env="tests.support.envs:AimEnv", record=str(tmp_path / "data"))
    spec = spec_of(settings)
    DatasetWriter(tmp_path / "data", DatasetFormat(spec, squashed=True)).release()
    check_folder(tmp_path / "data", spec, True)
    with pytest.raises(ConfigError, match=r"was recorded with --model\.squash-actions, and the p"):
        check_folder(tmp_path / "data", spec, False)
    check_recording(settings, spec)  # an algorithm may squash them by default
    with pytest.raises(ConfigError, match=r"here has --model\.no-squash-actions"):
        Session(dataclasses.replace(settings, run_dir=str(tmp_path / "run"), serial=True)).open()
    assert not (tmp_path / "run").exists()
    DatasetWriter(tmp_path / "plain", DatasetFormat(SPEC, squashed=True)).release()
    check_folder(tmp_path / "plain", SPEC, False)


def test_a_dataset_whose_last_file_is_gone_is_not_recorded_into(tmp_path: Path) -> None:
    """A new file would have its name, and the links to the one that is gone would lead into it."""
    record(config(tmp_path, serial=True), 300)
    *_, last = sorted((tmp_path / "data").glob("part-*.hdf5"))
    last.unlink()
    with pytest.raises(ConfigError, match=f"cannot be recorded into: .*{last.name}"):
        check_folder(tmp_path, open_dataset(tmp_path).spec)
