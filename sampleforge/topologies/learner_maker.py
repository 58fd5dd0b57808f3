"""What makes the learners of a policy, each in its own process."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from sampleforge.algorithms.averaging import Averaging
from sampleforge.algorithms.captured import CudaGraphs
from sampleforge.algorithms.config import LearnerConfig
from sampleforge.algorithms.experience import WHOLE, Share
from sampleforge.algorithms.flat_parameters import FlatParameters
from sampleforge.algorithms.learning import TRAINED, Learner, LearnerPlace, Tensors
from sampleforge.config import ConfigError, typed
from sampleforge.models.parts import Parted, check_parts, part_of
from sampleforge.rollouts.batch import Batches
from sampleforge.runtime.config import InitConfig
from sampleforge.runtime.torch_settings import limit_threads, usual_torch
from sampleforge.spec import ENV_PREFIX
from sampleforge.topologies.builders import NetworkMaker, policy_seed, seeded
from sampleforge.topologies.config import ReplayRunConfig, SlotsRunConfig
from sampleforge.topologies.devices import uses_cuda_graphs
from sampleforge.topologies.sampler_plan import SamplerPlan
from sampleforge.topologies.starts import PolicyStart, ResumePoint


def make_learner(
    maker: NetworkMaker,
    plan: Any,
    start: ResumePoint,
    averaging: Averaging | None = None,
    *,
    varies: bool = False,
    share: Share = WHOLE,
    device: str | None = None,
) -> Any:
    """Return the learner of the network that ``maker`` makes, with its initial state, or that of
    the checkpoint. ``varies``: the number of env steps of a batch varies. ``share``: the part of
    each batch that this learner has, if there are several; ``device``: this learner's (default:
    the plan's)."""
    config = maker.config
    if isinstance(config, LearnerConfig):
        config = dataclasses.replace(config, max_policy_lag=plan.lag.limit)
    # The seed of noise is the one after those of all actors and policy workers.
    after = plan.num_workers + plan.num_policy_workers if isinstance(plan, SamplerPlan) else 0
    place = LearnerPlace(
        torch.device(device or plan.device),
        plan.precision,
        start.seed,
        policy_seed(after, start),
        averaging or Averaging(),
        plan.batch_size if varies else None,
        share,
        maker.spec,
    )
    network = maker()
    if start.resume is None and start.initial is not None:
        start.initial.weights(network)
    until = config.unfreeze_after
    freeze(network, config.freeze if until is None else ())
    with seeded(start.seed + 1), usual_torch():  # what the learner alone has is drawn apart
        learner: Any = maker.algorithm.new_learner(config, network, place)
    if until is not None:
        learner.hold(config.freeze, until)
    if start.resume is not None:
        start.resume.learner(learner)
    elif start.initial is not None:
        start.initial.learner(learner)
        if start.initial.has_actor:
            learner.tag[TRAINED] = True
    return learner


def check_frozen(config: InitConfig, network: torch.nn.Module) -> None:
    """Raise ConfigError for a part in ``config.freeze`` that the network has not, and if nothing of
    the policy would ever be trained."""
    names = [name for name, _ in network.named_parameters()]
    check_parts("freeze", config.freeze, names)
    trained = {part_of(name) for name in names} - {"critic", *config.freeze}
    if not trained and config.freeze and config.unfreeze_after is None:
        raise ConfigError(
            f"{typed('freeze', config.freeze)}: no part of the policy would be trained; leave one "
            "out, or give --unfreeze-after N"
        )


def freeze(network: Parted, parts: Collection[str]) -> None:
    """Have the learner that is made next leave these parts of a network as they are."""
    for name, parameter in network.named_parameters():
        if part_of(name) in parts:
            parameter.requires_grad_(False)
    network.freeze(parts)


def new_state(maker: NetworkMaker, plan: Any, start: ResumePoint) -> Tensors:
    """Return the tensors of the state of a new learner: those of any later state are as large."""
    start = dataclasses.replace(start, resume=None, initial=None)
    tensors: Tensors = make_learner(maker, plan, start, device="cpu").state()[0]
    return tensors


class _Measuring(Averaging):
    """Counts the bytes of the gradients that a learner would exchange with others."""

    nbytes = 0

    def follow(self, flat: FlatParameters) -> None:
        self.nbytes += sum(chunk.gradient.nbytes for chunk in flat.chunks)


def gradient_bytes(maker: NetworkMaker, plan: Any, start: ResumePoint) -> int:
    """Return the bytes of the gradients of all networks that a learner trains."""
    measuring = _Measuring()
    make_learner(
        maker, plan, dataclasses.replace(start, resume=None, initial=None), measuring, device="cpu"
    )
    return measuring.nbytes


@dataclass(frozen=True)
class LearnerMaker:
    """Makes one of the learners of a policy, in its own process.

    ``plan``: the topology's. ``batches``: what it learns from, on its device. ``share``: its part
    of each batch. ``varies``: the number of env steps of a batch varies. ``fit(learner, batches)``:
    called with a new learner, unless it resumes (None: nothing is).
    """

    network: NetworkMaker
    plan: Any
    policy: PolicyStart
    batches: Batches
    share: Share = WHOLE
    varies: bool = False
    fit: Callable[[Any, Any], None] | None = None

    def __call__(self, averaging: Averaging) -> Any:
        """Return the learner with its initial state, or that of the checkpoint."""
        start, device = self.policy.start, self.batches.device
        learner = make_learner(
            self.network,
            self.plan,
            start,
            averaging,
            varies=self.varies,
            share=self.share,
            device=str(device),
        )
        if getattr(self.network.config, "compile", False):
            limit_threads(self.plan.learner_threads)  # compiled code is for that number
            learner.compile()
        _use_graphs(self.network.config, learner, device)
        if start.resume is None:
            if self.fit is not None:
                self.fit(learner, self.batches)
            begin_with(learner, self.policy.hyperparameters)
        return learner

    def new_state(self) -> Tensors:
        """Return the tensors of the state of a new learner."""
        return new_state(self.network, self.plan, self.policy.start)

    def gradient_bytes(self) -> int:
        """Return the bytes of the gradients of all networks that the learner trains."""
        return gradient_bytes(self.network, self.plan, self.policy.start)


def learner_makers(
    network: NetworkMaker, plan: Any, policy: PolicyStart, batches: Sequence[Batches]
) -> list[LearnerMaker]:
    """Return what makes the learners of a policy, one for each of ``batches``, of which each is an
    equal part of every batch."""
    return [
        LearnerMaker(network, plan, policy, own, Share(index, len(batches)))
        for index, own in enumerate(batches)
    ]


def _use_graphs(config: Any, learner: Any, device: torch.device) -> None:
    """Have a learner launch its work by graphs if it can: one of the user's own need not. Raises
    ConfigError if it is asked for and cannot."""
    runs = isinstance(config, SlotsRunConfig | ReplayRunConfig)
    if not runs or not uses_cuda_graphs(config, str(device)):
        return
    if hasattr(learner, "use_graphs"):
        learner.use_graphs(CudaGraphs(device))
    elif config.cuda_graphs:
        raise ConfigError(
            f"--cuda-graphs: {type(learner).__name__} has no method use_graphs(graphs); leave it "
            "out"
        )


def begin_with(learner: Learner, own: Mapping[str, Any]) -> None:
    """Give a new learner its ``own`` hyperparameters, those in which it differs from the config."""
    if not own:
        return
    shaping = {name: value for name, value in own.items() if name.startswith(ENV_PREFIX)}
    learner.change({name: value for name, value in own.items() if name not in shaping})
    if shaping:
        learner.tag["shaping"] = shaping
