"""The learners of Ape-X: what each is made of, in its own process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from sampleforge.algos.averaging import Averaging
from sampleforge.algos.dqn_learner import DqnLearner
from sampleforge.algos.experience import Share
from sampleforge.algos.windows import MakeWindows
from sampleforge.replay.compressed import CompressedFrames
from sampleforge.replay.device_frames import DeviceFrames
from sampleforge.replay.exchange import SampleRelay
from sampleforge.replay.sample_source import SampleSource
from sampleforge.replay.sequences import SequenceReader
from sampleforge.replay.transitions import TransitionReader
from sampleforge.rollouts.slots import TrajectorySlots
from sampleforge.shared.counters import Progress
from sampleforge.topologies.builders import NetworkMaker, PolicyStart, make_learner
from sampleforge.topologies.config import ReplayRunConfig
from sampleforge.topologies.cuda_graphs import graphs_of
from sampleforge.topologies.members import begin_with
from sampleforge.topologies.replay.channels import ReplayChannels
from sampleforge.topologies.replay.plan import ReplayPlan
from sampleforge.topologies.sampling import GroupChannels
from sampleforge.workers.callback import RunHooks
from sampleforge.workers.replay_follower import ReplayFollowerWorker
from sampleforge.workers.replay_learner import ReplayLearnerWorker
from sampleforge.workers.replay_metrics import ReplayMetrics
from sampleforge.workers.sample_update import SampleUpdate


@dataclass(frozen=True)
class ApexLearners:
    """Makes the learners of one policy, which learn on ``devices``, and their workers; see
    `sampleforge.topologies.learner_group.LearnerMaker`. ``relay``: from learner 0 to the others.
    ``hooks``: of the run's callbacks."""

    config: ReplayRunConfig
    plan: ReplayPlan
    devices: list[str]
    new_network: NetworkMaker
    policy: PolicyStart
    replay: ReplayChannels
    channels: GroupChannels
    progress: Progress
    relay: SampleRelay | None
    make_reader: Callable[[str], TransitionReader | SequenceReader]
    hooks: RunHooks

    def new_learner(self, index: int, averaging: Averaging) -> Any:
        learner = make_learner(
            self.new_network,
            self.plan,
            self.policy.start,
            averaging,
            share=Share(index, self.config.num_learners),
            device=self.devices[index],
        )
        graphs = graphs_of(self.config, self.devices[index])
        if graphs is not None:
            learner.use_graphs(graphs)
        begin_with(learner, self.policy)
        return learner

    def new_worker(
        self,
        index: int,
        counter_row: int,
        *,
        make_learner: Callable[[], DqnLearner],
        **options: Any,
    ) -> ReplayLearnerWorker | ReplayFollowerWorker:
        update = partial(self._new_update, index)
        wakeup, threads = self.channels.learner_wakeups[index], self.plan.learner_threads
        callbacks = self.hooks.of_worker(index, [self.policy.id])
        if index:
            assert self.relay is not None
            return ReplayFollowerWorker(
                make_learner,
                update,
                index,
                self.relay,
                self.progress,
                wakeup,
                counter_row,
                threads=threads,
                callbacks=callbacks,
                **options,
            )
        config, limiter = self.config, self.replay.limiter
        return ReplayLearnerWorker(
            make_learner,
            update,
            self._new_source(),
            self.channels.weights,
            self.progress,
            self.policy.save,
            wakeup,
            counter_row,
            ReplayMetrics(limiter, self.plan.item_steps, config.replay_capacity),
            self.relay,
            publish_interval=max(1, config.weights_refresh_interval // 2),
            threads=threads,
            callbacks=callbacks,
            **options,
        )

    def take_over(self, index: int) -> None:
        """Do nothing: a learner finds its requests when it starts."""

    def _new_source(self) -> SampleSource:
        start, replay, shard_choice = self.policy.start, self.replay, None
        if start.resume is not None and replay.archive.where.saved is not None:
            shard_choice = start.resume.plain()["shard_choice"]
        seed = [start.seed, start.resumes]
        return SampleSource(replay.sample_requests, replay.limiter, seed, shard_choice)

    def _new_update(self, index: int, learner: DqnLearner) -> SampleUpdate:
        config, replay = self.config, self.replay
        return SampleUpdate(
            partial(self.make_reader, self.devices[index]),
            replay.sample_requests,
            config,
            Share(index, config.num_learners),
            learner,
        )


def make_reader(
    config: Any,
    plan: ReplayPlan,
    slots: TrajectorySlots,
    frames: CompressedFrames | None,
    device: str,
) -> TransitionReader | SequenceReader:
    """Return the reader that copies drawn transitions, or sequences, out of the slots, for a
    learner on ``device``."""
    copies = None
    if plan.frame_places:
        copies = DeviceFrames(slots, plan.frame_places, torch.device(device))
    if slots.shape.sequences is None:
        return TransitionReader(slots, frames, copies)
    windows = MakeWindows(config, slots.shape.drops_truncated)
    return SequenceReader(slots, windows, frames, copies)
