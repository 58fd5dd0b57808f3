"""What a learner is to the processes around it, and what all learners have in common."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from sampleforge.algorithms.annealing import annealings
from sampleforge.algorithms.averaging import Averaging
from sampleforge.algorithms.experience import WHOLE, Share
from sampleforge.algorithms.flat_parameters import (
    FlatParameters,
    Frozen,
    Optimiser,
    flatten,
    load_optimiser,
    optimiser_tensors,
)
from sampleforge.models.actor_critic import ActorCritic
from sampleforge.models.forward import compile_passes
from sampleforge.models.parts import Parted, part_of
from sampleforge.ops.masked import MOMENTS, explained_variance
from sampleforge.ops.running_stats import Gather, Moments, alone
from sampleforge.shared.staging import wait_for_copies
from sampleforge.spec import EnvSpec

Config = TypeVar("Config", bound="Any")
"""`LearnerConfig`, `DqnConfig`, `ImitationConfig`, or another with their ``learning_rate``,
``lr_schedule``, ``anneal`` and ``max_grad_norm``."""


def values(config: Any, names: tuple[str, ...]) -> dict[str, Any]:
    """Return the current values of these hyperparameters, by name."""
    return {name: getattr(config, name) for name in names}


def changed(config: Config, names: tuple[str, ...], new: Mapping[str, Any]) -> Config:
    """Return the config with the ``new`` values of the fields ``names``. Raises ConfigError for a
    value that is out of range."""
    changes: Config = replace(config, **{n: v for n, v in new.items() if n in names})
    return changes


def check_names(known: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    """Raise ValueError if ``new`` names a hyperparameter that cannot change during the training."""
    unknown = sorted(set(new) - set(known))
    if unknown:
        raise ValueError(
            f"{', '.join(unknown)} cannot change during the training; hyperparameters that can: "
            f"{', '.join(sorted(known))}"
        )


Tensors = dict[str, torch.Tensor]
RELEASED = "released"
"""In the tag of a learner: parts of its model were held, and are trained since."""
TRAINED = "trained"
"""In the tag of a learner: its policy began with what another run had trained."""


class Update(NamedTuple):
    """The result of an update."""

    metrics: dict[str, float]
    trained: int
    """Number of env steps that this learner has learned from."""
    errors: npt.NDArray[np.float32] | None = None
    """[B] of the items of a sample, from which new priorities are made; None if the step was
    skipped, or there are no priorities."""


@dataclass(frozen=True)
class LearnerPlace:
    """Where a learner learns, beside which others. ``noise_seed``: of the noise that its passes
    draw; ``seed``: of all else. ``averaging`` connects it with the learners of the same policy in
    other processes. ``batch_size``: the nominal env steps of a batch whose size varies (None: it
    does not). ``share``: the part of each batch that it has, if there are several. ``spec``: of the
    environment, or of the agents for which it learns, for networks of the learner alone."""

    device: torch.device
    precision: str = "fp32"
    seed: int = 0
    noise_seed: int = 0
    averaging: Averaging = field(default_factory=Averaging)
    batch_size: int | None = None
    share: Share = WHOLE
    spec: EnvSpec | None = None


class Learner(Protocol):
    """A learner of one policy, as an object without a process.

    ``version``: the policy version, which never goes back. ``env_steps``: those that have led to
    its weights. ``tag``: plain values that others keep with its state. ``model``: the network that
    is published. ``copies``: the names, in the state, of the networks that hold older weights of
    ``model``, and get other weights with it. ``averaging`` connects it with the learners of the
    same policy in other processes. ``held_until``: env steps of the run after which `release` is
    due (None: nothing is held).
    """

    version: int
    env_steps: int
    held_until: int | None
    tag: dict[str, Any]
    averaging: Averaging
    copies: tuple[str, ...]

    @property
    def model(self) -> nn.Module: ...

    def update(self, batch: Any, progress: float) -> Update:
        """Learn from a batch of the kind that the topology gives. ``progress`` (0 to 1) is the
        fraction of the training that is done; it drives the schedules. A gradient step that is not
        finite is skipped and counted."""

    def hyperparameters(self) -> dict[str, Any]:
        """Return the values that `change` can change, by name."""

    def change(self, new: Mapping[str, Any], *, relative: bool = False) -> None:
        """Change hyperparameters, from the next update on. ``relative``: a learning rate that the
        learner has adapted is multiplied as its initial one is, in place of beginning at the new
        one. Raises ValueError for a name that cannot change, ConfigError for a value out of
        range."""

    def release(self) -> None:
        """Train all parts of the model from the next update on."""

    def reseed(self, seed: int) -> None:
        """Seed anew the random numbers that the learner draws, if it draws any."""

    def state(self) -> tuple[Tensors, dict[str, Any]]:
        """Return the complete state of learning: tensors (clones on the CPU) and plain values."""

    def load(self, tensors: Tensors, plain: dict[str, Any]) -> None:
        """Restore a `state`. Raises ValueError if it is of another model."""


Model = TypeVar("Model", bound=nn.Module)


class GradientLearner(Generic[Model, Config]):
    """What all learners have that take gradient steps: networks, optimisers, the learning rate and
    its schedule, hyperparameters, and the state of all this. A subclass adds its `update`.

    ``model`` is the network that is published; ``others`` are the networks of the learner alone, by
    name. The constructor of the subclass calls `_add_optimiser` for those that are trained.
    ``changeable``: the fields of ``config`` that `change` can change.

    ``version``, the policy version, is the number of gradient steps, skipped ones included.
    ``env_steps`` and ``tag``: see `Learner`; the process around the learner sets them. A subclass
    with copies of ``model`` among the ``others`` names them in ``copies``.
    """

    copies: tuple[str, ...] = ()
    held_until: int | None = None

    def __init__(
        self,
        model: Model,
        config: Config,
        changeable: tuple[str, ...],
        place: LearnerPlace,
        others: Mapping[str, nn.Module] | None = None,
    ) -> None:
        assert config.learning_rate is not None, "resolve_defaults comes first"
        self.model = model
        self.version = 0
        self.env_steps = 0
        self.tag: dict[str, Any] = {}
        self.averaging = place.averaging
        self._config = config
        self._changeable = changeable
        self._device = place.device
        self._precision = place.precision
        self._networks: dict[str, nn.Module] = {"model": model, **(others or {})}
        for network in self._networks.values():
            network.to(place.device)
        self._frozen: list[Frozen] = []
        self._optimisers: dict[str, Optimiser] = {}
        self._learning_rate: float = config.learning_rate
        self._annealings = annealings(config)
        # Of what follows a schedule, the config has the present value, and this its own.
        self._own_values = values(config, tuple(self._annealings))
        self._scheduled: dict[str, float] = {}
        self._gather: Gather = alone if self.averaging.solo else self.averaging.all_gather

    def _add_optimiser(
        self, name: str, network: nn.Module, new: Callable[[FlatParameters], Optimiser]
    ) -> Optimiser:
        """Return an optimiser of the trainable parameters of ``network``, which are flat from now
        on; several networks are one `torch.nn.ModuleList`. ``name``: in the state."""
        assert name not in self._networks | self._optimisers
        flat = flatten(network)
        self.averaging.follow(flat)
        self._frozen.append(Frozen(network))
        self._optimisers[name] = new(flat)
        return self._optimisers[name]

    def hold(self, parts: Collection[str], env_steps: int) -> None:
        """Leave these parts of ``model`` as they are, and the statistics of its observations with
        the encoder (`sampleforge.models.parts`), until `release`, which is due after so many env
        steps of the run."""
        held = [p for name, p in self.model.named_parameters() if part_of(name) in parts]
        for optimiser in self._optimisers.values():
            optimiser.flat.hold(held)
        self._freeze(parts)
        self.held_until = env_steps

    def release(self) -> None:
        """Train all parts of ``model`` from the next update on. It is part of the state."""
        for optimiser in self._optimisers.values():
            optimiser.flat.release()
        self._freeze(())
        self.held_until = None
        self.tag[RELEASED] = True

    def _freeze(self, parts: Collection[str]) -> None:
        """Have these parts of ``model``, and of its copies, keep their statistics."""
        for name in ("model", *self.copies):
            network = self._networks[name]
            if isinstance(network, Parted):
                network.freeze(parts)

    def compile(self) -> None:
        """Have the passes of ``model`` compiled when they are first used."""
        assert isinstance(self.model, ActorCritic), "the config refuses --compile for others"
        compile_passes(self.model)

    def _check_frozen(self) -> None:
        """Raise RuntimeError if other parameters are trained than when the learner was made."""
        for frozen in self._frozen:
            frozen.check()

    def _follow_schedules(self, progress: float) -> None:
        """Set what follows a schedule for the next update, at ``progress`` (0 to 1) of the
        training."""
        new = {name: at(progress, self._own_values[name]) for name, at in self._annealings.items()}
        self._learning_rate = new.pop("learning_rate", self._learning_rate)
        if new:
            self._set_scheduled(new)

    def _set_scheduled(self, new: dict[str, float]) -> None:
        """Set the present values of other hyperparameters than the learning rate. They were checked
        before the training, because a check of the whole config takes 0.4 ms."""
        self._scheduled = new
        self._config = copy.copy(self._config)
        for name, value in new.items():
            object.__setattr__(self._config, name, value)

    def _clip_gradient(self, optimiser: Optimiser) -> torch.Tensor:
        """Scale the optimiser's gradient down to ``max_grad_norm``; return the norm [] that it had,
        without waiting for the device."""
        return optimiser.flat.clip_gradient(self._config.max_grad_norm)

    def _count_observations(self, seen: Mapping[str, Moments]) -> None:
        """Merge the moments of new observations, by leaf, into the statistics that normalise
        them, if the model has any."""
        normaliser = getattr(self.model, "normaliser", None)
        if normaliser is not None:
            normaliser.merge(
                {
                    name: Moments(*(part.to(self._device) for part in (of.mean, of.var, of.count)))
                    for name, of in seen.items()
                }
            )

    def _step_unless(
        self, skipped: bool, optimisers: Iterable[Optimiser] | None = None
    ) -> dict[str, float]:
        """Take the step of the ``optimisers`` (None: of all), unless it is ``skipped`` because a
        gradient is not finite, and count it in any case; return what there is to report."""
        if not skipped:
            for optimiser in self._optimisers.values() if optimisers is None else optimisers:
                optimiser.step(self._learning_rate)
        self.version += 1
        rates = {"learning_rate": self._learning_rate, **self._scheduled}
        return {**rates, "skipped_steps": float(skipped)}

    def hyperparameters(self) -> dict[str, Any]:
        """Return the values that `change` can change, by name; of what follows a schedule, those
        that it follows."""
        return values(self._config, self._changeable) | self._own_values

    def change(self, new: Mapping[str, Any], *, relative: bool = False) -> None:
        """Change hyperparameters, from the next update on; see `Learner`. Raises ValueError for a
        name that cannot change, ConfigError for a value out of range."""
        check_names(self.hyperparameters(), new)
        self._config = changed(self._config, self._changeable, new)
        self._learning_rate = new.get("learning_rate", self._learning_rate)
        self._own_values |= {name: new[name] for name in self._own_values if name in new}

    def reseed(self, seed: int) -> None:
        """Do nothing, for a learner that draws no random numbers."""

    def state(self) -> tuple[Tensors, dict[str, Any]]:
        """Return the complete state of learning: tensors (clones on the CPU) and plain values.

        The weights of a network are ``<network>/<name>``, what an optimiser keeps of each parameter
        is ``<optimiser>/<index>/<name>``."""
        tensors = {
            f"{network}/{name}": tensor
            for network, module in self._networks.items()
            for name, tensor in module.state_dict().items()
        }
        for name, optimiser in self._optimisers.items():
            tensors |= optimiser_tensors(optimiser, name)
        tensors |= self._other_tensors()
        plain = {
            "version": self.version,
            "env_steps": self.env_steps,
            "hyperparameters": self.hyperparameters(),
            **({"tag": dict(self.tag)} if self.tag else {}),
        }
        return {n: t.detach().cpu().clone() for n, t in tensors.items()}, plain

    def _other_tensors(self) -> Tensors:
        """Return the tensors of the state beside those of networks and optimisers, on any
        device."""
        return {}

    def load(self, tensors: Tensors, plain: dict[str, Any]) -> None:
        """Restore a `state`, but for hyperparameters that cannot change here: the config has them.
        Raises ValueError if it is of another model."""
        for network, module in self._networks.items():
            prefix = f"{network}/"
            own = {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}
            try:
                module.load_state_dict(own)
            except RuntimeError as error:
                raise ValueError(f"the checkpoint is of another model: {error}") from error
        for name, optimiser in self._optimisers.items():
            load_optimiser(optimiser, tensors, name)
        self.version = plain["version"]
        self.env_steps = plain["env_steps"]
        self.tag = dict(plain.get("tag", {}))
        if self.held_until is not None and self.tag.get(RELEASED):
            self.release()
        known = self.hyperparameters()
        self.change({n: value for n, value in plain["hyperparameters"].items() if n in known})


def release_when_due(learner: Learner, env_steps: float) -> None:
    """Have a learner train all parts of its model, if it holds some and the run has so many
    ``env_steps`` that it should not."""
    if learner.held_until is not None and env_steps >= learner.held_until:
        learner.release()


def to_floats(metrics: Mapping[str, torch.Tensor]) -> dict[str, float]:
    """Return all metrics as floats, copied to the CPU at once. The moments of `value_moments`, if
    they are among them, become ``explained_variance``; it is left out where the targets do not
    vary."""
    stacked = torch.stack([m.detach() for m in metrics.values()])
    wait_for_copies(stacked.device)
    floats = dict(zip(metrics, stacked.tolist(), strict=True))
    if MOMENTS[0] in floats:
        explained = explained_variance({name: floats.pop(name) for name in MOMENTS})
        if explained is not None:
            floats["explained_variance"] = explained
    return floats
