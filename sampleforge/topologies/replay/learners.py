"""What the learners of a replay learn from."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from sampleforge.algorithms.windows import MakeWindows
from sampleforge.env.goals import GoalRule
from sampleforge.env.registry import make_single
from sampleforge.replay.compressed import CompressedFrames
from sampleforge.replay.device_frames import DeviceFrames
from sampleforge.replay.exchange import SampleRelay
from sampleforge.replay.hindsight import Hindsight
from sampleforge.replay.limiter import ReplayMetrics
from sampleforge.replay.sample_batches import SampleBatches, SampleSource
from sampleforge.replay.samples import ItemReader, SequenceReader, TransitionReader
from sampleforge.rollouts.slots import TrajectorySlots
from sampleforge.shared.wakeup import Wakeup
from sampleforge.topologies.config import ReplayRunConfig
from sampleforge.topologies.devices import learner_devices
from sampleforge.topologies.replay.plan import ReplayPlan
from sampleforge.topologies.starts import ResumePoint
from sampleforge.workers.replay import ReplayChannels


def sample_batches(
    config: ReplayRunConfig,
    plan: ReplayPlan,
    start: ResumePoint,
    replay: ReplayChannels,
    wakeups: Sequence[Wakeup],
) -> list[SampleBatches]:
    """Return what each of the learners with these ``wakeups`` learns from. Learner 0 relays the
    samples to the others."""
    devices, followers = learner_devices(config, plan.device), wakeups[1:]
    relay = SampleRelay(followers, config.prefetch_batches) if followers else None
    shard_choice = None
    if start.resume is not None and replay.archive.where.saved is not None:
        shard_choice = start.resume.plain()["shard_choice"]
    requests, seed = replay.sample_requests, [start.seed, start.resumes]
    samples = SampleSource(requests, replay.limiter, seed, shard_choice)
    metrics = ReplayMetrics(replay.limiter, plan.item_steps, plan.capacity)
    new_reader = partial(make_reader, config, plan, replay.exchange.slots, replay.frames, seed=seed)
    return [
        SampleBatches(
            requests,
            new_reader,
            config,
            torch.device(device),
            samples,
            metrics,
            relay,
            learner,
            len(devices),
        )
        for learner, device in enumerate(devices)
    ]


def make_reader(
    config: Any,
    plan: ReplayPlan,
    slots: TrajectorySlots,
    frames: CompressedFrames | None,
    device: str,
    *,
    seed: Sequence[int],
) -> ItemReader:
    """Return the reader that copies drawn transitions, or sequences, out of the slots, for a
    learner on ``device``. ``seed``: of the goals that transitions are relabelled with."""
    copies = None
    if plan.frame_places:
        copies = DeviceFrames(slots, plan.frame_places, torch.device(device))
    windows = MakeWindows(config, slots.shape.drops_truncated)
    if slots.shape.sequences is None:
        relabel = None
        if config.her:
            rule = GoalRule(make_single(config), config.env)
            relabel = Hindsight(
                slots, rule, windows, k=config.her_k, n_step=config.n_step, seed=seed
            )
        return TransitionReader(slots, frames, copies, relabel=relabel)
    return SequenceReader(slots, windows, frames, copies)
