"""The learners of APPO: what each is made of, in its own process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from sampleforge.algos.averaging import Averaging
from sampleforge.algos.experience import Share
from sampleforge.models.compiled import compile_passes
from sampleforge.rollouts.batch_source import SlotBatches
from sampleforge.rollouts.exchange import SlotExchange
from sampleforge.shared.counters import Progress
from sampleforge.topologies.builders import NetworkMaker, PolicyStart, make_learner
from sampleforge.topologies.config import SlotsRunConfig
from sampleforge.topologies.cuda_graphs import graphs_of
from sampleforge.topologies.members import begin_with
from sampleforge.topologies.sampler_plan import Plan
from sampleforge.topologies.sampling import GroupChannels
from sampleforge.workers.callback import RunHooks
from sampleforge.workers.learner import LearnerWorker


@dataclass(frozen=True)
class AppoLearners:
    """Makes the learners of one policy, which learn on ``devices``, and their workers; see
    `sampleforge.topologies.learner_group.LearnerMaker`. ``prefetch``: a thread gathers the next
    batch. ``hooks``: of the run's callbacks."""

    config: SlotsRunConfig
    plan: Plan
    devices: list[str]
    new_model: NetworkMaker
    policy: PolicyStart
    exchange: SlotExchange
    channels: GroupChannels
    progress: Progress
    prefetch: bool
    hooks: RunHooks

    def new_learner(self, index: int, averaging: Averaging) -> Any:
        config = self.config
        learner = make_learner(
            self.new_model,
            self.plan,
            self.policy.start,
            averaging,
            share=Share(index, config.num_learners),
            device=self.devices[index],
        )
        if config.compile:
            compile_passes(learner.model, torch.device(self.devices[index]))
        graphs = graphs_of(config, self.devices[index])
        if graphs is not None:
            learner.use_graphs(graphs)
        begin_with(learner, self.policy)
        return learner

    def new_worker(
        self,
        index: int,
        counter_row: int,
        *,
        make_learner: Callable[[], Any],
        **options: Any,
    ) -> LearnerWorker:
        config, plan, channels = self.config, self.plan, self.channels
        return LearnerWorker(
            make_learner,
            SlotBatches(
                self.exchange,
                plan.slots_per_batch // config.num_learners,
                torch.device(self.devices[index]),
                synchronous=plan.synchronous,
                prefetch=self.prefetch,
                learner=index,
            ),
            channels.weights if index == 0 else None,
            self.progress,
            self.policy.save,
            channels.learner_wakeups[index],
            counter_row,
            threads=plan.learner_threads,
            counts_updates=index == 0,
            callbacks=self.hooks.of_worker(index, [self.policy.id]),
            **options,
        )

    def take_over(self, index: int) -> None:
        """Give back the slots that the previous process was reading: their steps are not learned
        from."""
        self.exchange.give_back_all(index)
