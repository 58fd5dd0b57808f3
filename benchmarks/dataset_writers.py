"""The processor time of recording: of each step of a rollout, and of writing an episode.

    python benchmarks/dataset_writers.py

It compares SampleForge's writer with the HDF5 and the Arrow writer of Minari, for episodes of
several shapes, and measures the way of rollouts of 32 x 32 Atari frames from slot to disk. Times
are those of this process (`process_time`): other programs disturb them little.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from time import process_time
from typing import Any

import gymnasium as gym
import numpy as np
from minari.data_collector.episode_buffer import EpisodeBuffer
from minari.dataset.minari_storage import MinariStorage

from sampleforge.env.adapter import env_spec
from sampleforge.offline.assembler import EnvRow, EpisodeAssembler, RecordedEpisode
from sampleforge.offline.rollout_queue import RecordedRollout, Rollout, RolloutQueue
from sampleforge.offline.writer import DatasetFormat, DatasetWriter
from sampleforge.rollouts.slots import SlotShape, TrajectorySlots
from sampleforge.shared.wakeup import Wakeup
from sampleforge.spec import EnvSpaces

ACTIONS = gym.spaces.Discrete(6)
CASES: dict[str, tuple[gym.spaces.Box, int, int]] = {
    "300 steps of 84 x 84 bytes": (gym.spaces.Box(0, 255, (84, 84), np.uint8), 300, 40),
    "20 steps of 4 floats": (gym.spaces.Box(-1.0, 1.0, (4,), np.float32), 20, 500),
}


def seconds(act: Callable[..., Any], *args: Any) -> float:
    started = process_time()
    act(*args)
    return process_time() - started


def columns(steps: int) -> dict[str, Any]:
    """The arrays of an episode but for its observations."""
    return {
        "action/action": np.zeros(steps, np.int64),
        "reward": np.zeros(steps, np.float32),
        "terminated": np.zeros(steps, np.bool_),
        "truncated": np.zeros(steps, np.bool_),
        "version": np.zeros(steps, np.int64),
        "log_prob": np.zeros(steps, np.float32),
        "parameters": np.zeros((steps, 6), np.float32),
    }


def writers(space: gym.spaces.Box, steps: int, episodes: int) -> dict[str, float]:
    """Return the milliseconds per episode of each writer."""
    observations = np.stack([space.sample()] * (steps + 1))
    own = columns(steps)
    row, policy = EnvRow(0, 0, 0, 0), np.zeros(steps, np.int64)
    episode = RecordedEpisode(row, 0, True, {"obs": observations}, own, policy, {})
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        spec = env_spec("measured", EnvSpaces(space, ACTIONS))
        writer = DatasetWriter(Path(folder) / "data", DatasetFormat(spec))

        def write() -> None:
            for _ in range(episodes):
                writer.add(episode)
            writer.close_segment()

        found["SampleForge"] = seconds(write)
    buffer = EpisodeBuffer(
        observations=observations,
        actions=own["action/action"],
        rewards=own["reward"],
        terminations=own["terminated"],
        truncations=own["truncated"],
        infos={n: np.pad(own[n], ((0, 1), *[(0, 0)] * (own[n].ndim - 1))) for n in _INFOS},
    )
    for kind in ("hdf5", "arrow"):
        with tempfile.TemporaryDirectory() as folder:
            storage = MinariStorage.new(
                Path(folder) / "data", space, ACTIONS, data_format=kind, jpeg_encoding=False
            )
            buffers = [buffer] * episodes
            found[f"Minari {kind}"] = seconds(storage.update_episodes, buffers)
    return {name: each / episodes * 1e3 for name, each in found.items()}


def _collect(
    assembler: EpisodeAssembler, rollout: RecordedRollout, done: list[RecordedEpisode]
) -> None:
    done.extend(assembler.add(rollout))


_INFOS = ("log_prob", "version", "parameters")


def stages(rollouts: int = 40) -> dict[str, float]:
    """Return the microseconds per env step of the stages of a recording of Atari frames."""
    stacks = gym.spaces.Box(0, 255, (4, 84, 84), np.uint8)
    metadata = {"frame_stack": {"obs": "zero"}}
    spec = env_spec("measured", EnvSpaces(stacks, ACTIONS), metadata=metadata)
    shape = SlotShape(32, 32, spec, 0, parameters=6)
    slots, queue = TrajectorySlots(1, shape), RolloutQueue(shape, 1, 8, Wakeup())
    slots.valid[:] = True
    slots.obs["obs"][:] = stacks.sample()
    spent = dict.fromkeys(("actor: copy", "recorder: assemble", "recorder: write"), 0.0)
    with tempfile.TemporaryDirectory() as folder:
        writer = DatasetWriter(Path(folder) / "data", DatasetFormat(spec))
        assembler = EpisodeAssembler(spec, 256 << 20)
        done: list[RecordedEpisode] = []
        for number in range(rollouts):  # episodes of 320 steps
            slots.first[0, 0], slots.terminated[0, -1] = number % 10 == 0, number % 10 == 9
            about = Rollout(0, 0, 0, number, 0, 32)
            spent["actor: copy"] += seconds(queue.send, 0, slots, 0, about)
            rollout = queue.take(0)
            assert rollout is not None
            spent["recorder: assemble"] += seconds(_collect, assembler, rollout, done)
            queue.done(0)
            for episode in done:
                spent["recorder: write"] += seconds(writer.add, episode)
            done.clear()
        spent["recorder: write"] += seconds(writer.close_segment)
    return {name: each / (rollouts * 1024) * 1e6 for name, each in spent.items()}


def main() -> None:
    for name, case in CASES.items():
        each = ", ".join(f"{writer} {ms:.2f} ms" for writer, ms in writers(*case).items())
        print(f"an episode of {name}: {each}")
    found = stages()
    each = ", ".join(f"{name} {us:.1f} us" for name, us in found.items())
    print(f"an env step of Atari: {each}; together {sum(found.values()):.1f} us")


if __name__ == "__main__":
    main()
