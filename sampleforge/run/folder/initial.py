"""The weights of another run, with which a new run begins (--init-from)."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

import torch

from sampleforge.algorithms.learning import Learner
from sampleforge.config import ConfigError
from sampleforge.models.actor_critic import ActorCritic
from sampleforge.models.parts import check_parts, has_actor, part_of
from sampleforge.run.folder.checkpoint import (
    Checkpoint,
    CheckpointStore,
    ResumeCheckpoint,
    model_tensors,
)
from sampleforge.run.folder.files import writing
from sampleforge.run.folder.meaning import other_meanings
from sampleforge.run.folder.run_folder import RunFolder
from sampleforge.run.folder.stored_config import read_yaml
from sampleforge.runtime.config import Part

if TYPE_CHECKING:
    from sampleforge.spec import EnvSpec
    from sampleforge.topologies.graph import FrozenGroup

Which = Literal["latest", "best"]
OF_ONE_LEARNER = re.compile(r"model/|rng|rnd/|\w*optimiser/")
"""How the names of a learner's tensors begin that are not taken: what is new to a policy is so in
its own training."""

CRITICS = "critics"
OF_CRITICS = frozenset({CRITICS, "target"})
"""Networks of a learner that are taken together."""


class InitialWeights:
    """The checkpoint of ``run`` whose weights a new run begins with, and which ``parts`` of them it
    takes (`sampleforge.models.parts`; empty: all). ``mismatch``: whether a weight that one of the
    two networks has not, or in another shape, is refused, or left as it is made."""

    def __init__(
        self,
        run: RunFolder,
        store: CheckpointStore,
        which: Which,
        parts: Collection[str],
        mismatch: str,
    ) -> None:
        self._run = run
        self._store = store
        self._which = which
        self._parts = frozenset(parts)
        self._mismatch = mismatch

    def weights(self, model: torch.nn.Module) -> tuple[list[str], list[str]]:
        """Load the weights into ``model``; return the names of those that are left as they are
        made, and those of the checkpoint's that it does not have. Raises ConfigError for weights
        that do not fit."""
        own = model.state_dict()
        there = [name for name, _ in model.named_parameters()]
        if isinstance(model, ActorCritic):
            there.append("critic.")  # also where the critics are networks beside it
        check_parts("init_parts", self._parts, there)
        parts = self._parts_of(model)
        wanted = {name: tensor for name, tensor in own.items() if part_of(name) in parts}
        theirs = model_tensors(self._tensors())
        found = _fitting(theirs, wanted)
        # Statistics belong together: a mean of another shape has another count, too.
        apart = {_leaf(name) for name in wanted if name not in found} - {""}
        found = {name: tensor for name, tensor in found.items() if _leaf(name) not in apart}
        left = [name for name in wanted if name not in found]
        learned = wanted.keys() & {name for name, _ in model.named_parameters()}
        if learned and learned <= set(left):
            raise ConfigError(
                f"--init-from: no weight that is learned here ({_listed(sorted(learned))}) is in "
                f"the checkpoint in {self._store.folder}, or all have another shape there, so "
                "that nothing would be taken over; begin with a run of an algorithm with the same "
                "kind of network (appo, ddppo and marwil; apex and pqn; sac and crossq; td3), and "
                "with the same encoder and sizes"
            )
        if left and (self._mismatch == "refuse" or not found):
            raise ConfigError(
                f"--init-from: {_listed(left)} of the network here {'are' if left[1:] else 'is'} "
                f"not in the checkpoint in {self._store.folder}, or of another shape there; name "
                "the --init-parts that both have, leave the rest new with --init-mismatch new, or "
                "use the same network"
            )
        extra = [name for name in theirs if part_of(name) in parts and name not in own]
        if extra and self._mismatch == "refuse":
            raise ConfigError(
                f"--init-from: the network here has no {_listed(extra)} of the checkpoint in "
                f"{self._store.folder}, without which the other weights compute something else; "
                "use the same network, name the --init-parts that both have, or do without them "
                "with --init-mismatch new"
            )
        model.load_state_dict({**own, **found})
        return left, extra

    def other_meanings(self, config: Any, spec: EnvSpec) -> list[str]:
        """Return a warning for each setting of a policy's resolved ``config`` that makes its
        network compute something else with the same weights than the run that they are from.
        ``spec``: of what the policy sees and does."""
        stored = read_yaml(self._run.config_file)
        network = stored.get("model") or {}
        theirs = stored | {f"model.{name}": value for name, value in network.items()}
        return other_meanings(theirs, config, spec, self._parts)

    def learner(self, learner: Learner) -> None:
        """Load what the learner has beside its model: critics and their targets, and the scales of
        returns and rewards, as far as the checkpoint has them and the critic is taken. A network
        is taken as a whole: the layers of one that normalises its inputs are of no use to one that
        does not. Copies of the model, such as the target network of Q-learning, stay copies."""
        if "critic" not in self._parts_of(learner.model):
            return
        own, plain = learner.state()
        beside = {name: t for name, t in own.items() if _network(name) not in learner.copies}
        found, _ = self._beside_the_model(beside)
        learner.load({**own, **found}, plain)

    @property
    def has_actor(self) -> bool:
        """Whether the policy's heads are among what is taken."""
        return has_actor(self._parts)

    def leaves_critics(self, state: Mapping[str, torch.Tensor]) -> bool:
        """Return whether `learner` leaves the critics as they are made, though the critic is taken,
        of a learner that has the tensors ``state``."""
        takes_critics = not self._parts or "critic" in self._parts
        return takes_critics and CRITICS in self._beside_the_model(state)[1]

    def check_more_than_critics(self) -> None:
        """Raise ConfigError if nothing but critics was to be taken."""
        if self._parts == {"critic"}:
            raise ConfigError(
                f"--init-parts critic: the checkpoint in {self._store.folder} has no critics that "
                "fit those here, so nothing would be taken; name other parts, or leave out "
                "--init-from"
            )

    def _beside_the_model(
        self, own: Mapping[str, torch.Tensor]
    ) -> tuple[dict[str, torch.Tensor], set[str]]:
        """Return those of the checkpoint's tensors that take the place of a learner's ``own``
        beside its model, and the networks and other parts of which it has none."""
        theirs = self._tensors()
        beside = {name: tensor for name, tensor in own.items() if not OF_ONE_LEARNER.match(name)}
        found = _fitting(theirs, beside)
        parts = {_network(name) for name in beside}
        apart = {_network(name) for name in beside.keys() - found.keys()}
        apart |= {_network(name) for name in theirs.keys() - own.keys()} & parts
        if apart & OF_CRITICS:
            apart |= OF_CRITICS & parts
        found = {name: tensor for name, tensor in found.items() if _network(name) not in apart}
        return found, apart

    def _parts_of(self, model: torch.nn.Module) -> frozenset[str]:
        """Return the parts of ``model`` that are taken. A Q-network has no critic: the scale of its
        values, without which they are all 0, is taken with its heads."""
        if "actor" in self._parts and not isinstance(model, ActorCritic):
            return self._parts | {"critic"}
        return self._parts or frozenset(get_args(Part))

    def _tensors(self) -> dict[str, torch.Tensor]:
        loaded = self._store.load(self._which, log=lambda text: None)
        assert loaded is not None, "it was found before"
        return loaded[0].tensors


def places_of(config: Any, trained: Collection[str]) -> dict[str, str]:
    """Return the place of the weights of ``config.init_from`` for each policy that has one;
    ``trained``: ids of the policies that are trained."""
    given = config.init_from
    if given is None or isinstance(given, dict):
        return dict(given or {})
    return dict.fromkeys(trained, given)


def initial_weights(config: Any, place: str, log: Callable[[str], None]) -> InitialWeights:
    """Return the weights at a place that ``config.init_from`` names: RUN, RUN@best, RUN:POLICY or
    RUN:POLICY@best. ``log``: as in `CheckpointStore.load`. Raises ConfigError if there is no such
    checkpoint."""
    run, which = _cut(place, "@")
    if (which or "latest") not in get_args(Which):
        raise ConfigError(
            f"--init-from {place}: {which!r} must be latest or best, the checkpoint of the run"
        )
    run_dir, policy = _cut(run, ":")
    try:  # absolute, because workers have a directory of their own
        folder = RunFolder.existing(Path(run_dir).absolute())
    except ConfigError as error:
        raise ConfigError(
            f"--init-from {place}: {error}; give the folder that a run has written"
        ) from error
    source = folder.policy_checkpoints(policy or None, "--init-from RUN:{0}")
    store = CheckpointStore(source, 1)
    chosen = cast("Which", which or "latest")
    if store.load(chosen, log=lambda text: log(f"--init-from {place}: {text}")) is None:
        raise ConfigError(f"--init-from {place}: there is no checkpoint yet; train it first")
    return InitialWeights(folder, store, chosen, config.init_parts, config.init_mismatch)


def _cut(place: str, mark: str) -> tuple[str, str]:
    """Return what is before and after the last ``mark`` of a place; but all of it, and nothing, if
    the mark is of a folder's own path."""
    before, found, after = place.rpartition(mark)
    own = not found or "/" in after or (mark == "@" and ":" in after)
    own = own or os.path.isdir(place)  # False also for a path that may not be looked at
    return (place, "") if own else (before, after)


def _of_frozen(folder: RunFolder, policy: str) -> CheckpointStore:
    return CheckpointStore(folder.snapshots / policy, 1)


def keep_weights(folder: RunFolder, policy: FrozenGroup) -> None:
    """Write the weights that a frozen policy acts with into the folder of its run: the run that
    they are from may go on, or go away. Raises CannotWrite, as on a full disk."""
    weights = policy.new_model().state_dict()
    policy.pool.read(0, weights)
    tensors = {f"model/{name}": tensor for name, tensor in weights.items()}
    state = {"env_steps": 0, "learner": {"version": 0, "hyperparameters": {}}}
    with writing(folder.snapshots / policy.id):
        folder.snapshots.mkdir(exist_ok=True)
        store = _of_frozen(folder, policy.id)
        store.save(Checkpoint(tensors, state), env_steps=0, version=0, return_mean=None)


def kept_weights(
    folder: RunFolder, policy: str, log: Callable[[str], None]
) -> ResumeCheckpoint | None:
    """Return the weights that `keep_weights` has written of the frozen policy with this id; None if
    an earlier version has made the folder, which wrote none. ``log``: as in
    `CheckpointStore.load`."""
    store = _of_frozen(folder, policy)
    return None if store.load(log=log) is None else ResumeCheckpoint(store)


def _listed(names: Sequence[str]) -> str:
    return f"{', '.join(names[:6])}{', ...' if names[6:] else ''}"


def _leaf(name: str) -> str:
    """Return the observation leaf whose statistics a weight is of; empty for any other weight."""
    return name.rpartition(".")[0] if name.startswith("normaliser.") else ""


def _network(name: str) -> str:
    """Return the network of a learner that the tensor of this name is of."""
    return name.partition("/")[0]


def _fitting(
    found: Mapping[str, torch.Tensor], own: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Return those of ``found`` that have the name, shape and dtype of one of ``own``."""
    return {
        name: found[name]
        for name, tensor in own.items()
        if name in found and (found[name].shape, found[name].dtype) == (tensor.shape, tensor.dtype)
    }
