"""A recorder that cannot keep up: whole episodes are left out, chosen before they begin."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sampleforge.data.dataset import open_dataset
from sampleforge.data.minari_format import Dropped
from sampleforge.data.rollout_queue import KeptEpisodes
from sampleforge.topologies.config import AppoConfig
from sampleforge.workers.actor import ActorWorker
from tests.support.envs import episode_length
from tests.support.offline import run_slowly, wired
from tests.support.recordings import check_code, config


def test_episodes_are_kept_or_dropped_as_their_rollout_decides() -> None:
    """Against a literal account, step by step."""
    rng = np.random.default_rng(0)
    kept, fate = KeptEpisodes(5), [None] * 5
    for number in range(200):
        admits = bool(rng.random() < 0.5)
        steps = int(rng.integers(0, 4))
        first = rng.random((steps, 5)) < (0.2 if number else 1.0)
        valid = rng.random((steps, 5)) < 0.9
        some, episodes, missing = any(fate), 0, 0
        for t in range(steps):
            for row in range(5):
                if first[t, row]:
                    fate[row] = admits  # type: ignore[call-overload]
                    episodes += not admits
                missing += bool(valid[t, row] and fate[row] is False)
                some |= bool(fate[row])
        kept.begin(admits=admits)
        assert kept.admits == admits
        assert kept.take(first, valid) == (some, episodes, missing)


def slow(folder: Path, longest: int = 60) -> AppoConfig:
    """Half of the queue holds 96 steps of each row."""
    return config(folder, serial=True, env_kwargs={"longest": longest}, decorrelate=False)


@pytest.mark.long
def test_what_is_kept_does_not_depend_on_how_long_episodes_are(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The lengths of the kept episodes have the mean of all. Were single rollouts dropped, those of
    the complete ones would be half of it."""
    graph, _ = wired(slow(tmp_path / "data"))
    assert graph.recording is not None
    with caplog.at_level(logging.WARNING):
        run_slowly(graph, 4000)
    episodes = list(open_dataset(tmp_path / "data").episodes())
    dropped = graph.recording.queue.dropped
    assert dropped.cut_episodes == 0 and 100 < len(episodes) < dropped.episodes
    assert sum(map(len, episodes)) + dropped.steps == graph.total("env_steps")
    assert sum(not episode.ends for episode in episodes) <= 4, "one of each row, at the end"
    for episode in episodes:
        check_code(episode)
    seen = {int(e.observations["obs"][0, 0]) for e in episodes}
    last = {env: max(_number(e) for e in episodes if _env(e) == env) for env in seen}
    every = [episode_length(env, n, 60) for env in seen for n in range(last[env] + 1)]
    lengths = [len(episode) for episode in episodes if episode.ends]
    error = np.std(every) * (1 / len(lengths) + 1 / len(every)) ** 0.5
    assert abs(np.mean(lengths) - np.mean(every)) < 3 * error
    assert 0 <= dropped.episodes + len(episodes) - graph.total("episodes") <= 4, "are going on"
    assert "whole episodes are left out, chosen before they begin" in caplog.text
    metadata = json.loads((tmp_path / "data" / "data" / "metadata.json").read_text())
    assert metadata["dropped"] == dropped._asdict()


def _env(episode: Any) -> int:
    return int(episode.observations["obs"][0, 0])


def _number(episode: Any) -> int:
    return int(episode.observations["obs"][0, 1])


@pytest.mark.long
def test_an_actor_waits_for_the_episodes_that_are_being_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The recorder goes on only while an actor waits: nothing is cut."""
    monkeypatch.setattr("sampleforge.data.rollout_queue.sleep", lambda _: None)
    graph, _ = wired(slow(tmp_path / "data", longest=400))
    assert graph.recording is not None
    queue, recorder = graph.recording.queue, graph.recording.node.worker
    queue.patience = 60.0
    beat, waits = ActorWorker._beat, 0

    def beating(self: ActorWorker) -> None:
        nonlocal waits
        beat(self)
        if queue.rings.size(0) == queue.depth:
            waits += 1
            recorder.step()

    monkeypatch.setattr(ActorWorker, "_beat", beating)
    run_slowly(graph, 3000, every=10**9)
    episodes = list(open_dataset(tmp_path / "data").episodes())
    assert waits > 10 and queue.dropped.cut_episodes == 0
    assert sum(map(len, episodes)) + queue.dropped.steps == graph.total("env_steps")


@pytest.mark.long
def test_a_recorder_that_stands_still_does_not_hold_the_training(tmp_path: Path) -> None:
    """Its episodes are cut and counted, apart from those that were left out as a whole."""
    graph, _ = wired(slow(tmp_path / "data", longest=400))
    assert graph.recording is not None
    queue = graph.recording.queue
    queue.patience = 0.02
    run_slowly(graph, 600, every=10**9)
    episodes = list(open_dataset(tmp_path / "data").episodes())
    cut = sum(not episode.ends for episode in episodes)
    assert 0 < queue.dropped.cut_episodes <= 4 and cut <= queue.dropped.cut_episodes
    assert queue.dropped.episodes > cut
    assert sum(map(len, episodes)) + queue.dropped.steps == graph.total("env_steps")


@pytest.mark.long
def test_the_dataset_counts_what_all_its_recordings_have_dropped(tmp_path: Path) -> None:
    total = Dropped()
    for _ in range(2):
        graph, _ = wired(slow(tmp_path / "data"))
        assert graph.recording is not None
        run_slowly(graph, 700, every=40)
        total = total.plus(graph.recording.queue.dropped)
        assert total.episodes > 0 and open_dataset(tmp_path / "data").dropped == total
