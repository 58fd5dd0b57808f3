"""Other weights, or the state of a checkpoint, for the learners of a session while its workers
train."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from sampleforge.algorithms.learning import check_names
from sampleforge.config import ConfigError, typed
from sampleforge.run.folder.checkpoint import CheckpointStore, model_tensors
from sampleforge.run.folder.run_folder import RunFolder
from sampleforge.run.folder.stored_config import flat_fields
from sampleforge.run.hyperparameters import check_effect, checked_value
from sampleforge.runtime.interrupts import DeferredInterrupt
from sampleforge.workers.learner_change import LOAD, ChangeRequest, write_state_file

if TYPE_CHECKING:
    from sampleforge.run.session import Session
    from sampleforge.topologies.graph import Node, PolicyGroup

LOAD_TIMEOUT = 300.0
"""Seconds in which the learners of a policy must come to the end of an update together."""


class LearnerStates:
    """What the learners of ``session``, whose workers work, are given in the place of their own
    state. Ctrl-C interrupts a change only where nothing is half done."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def set_weights(self, group: PolicyGroup, weights: Mapping[str, Any]) -> None:
        """Have a policy's learners continue from ``weights``, by name as arrays or tensors. Raises
        ValueError, which names the difference, if they are not those of its model, or not
        finite."""
        tensors = self._fitting(group, weights)
        with DeferredInterrupt():
            self._load(group, {f"model/{name}": tensor for name, tensor in tensors.items()}, {})

    def restore(self, path: str | Path, with_: Mapping[str, Any]) -> None:
        """Have every policy continue from the newest checkpoint in the run folder ``path``, with
        the values ``with_`` of some hyperparameters. Raises ConfigError if there is none of each
        policy, or of another algorithm, or for a value that no learner can have or that has no
        effect, ValueError if it is of another model or has no such hyperparameter, and
        CheckpointError if it is damaged."""
        session, folder = self._session, RunFolder.existing(path)
        self._check_restorable(path)
        if folder.algo != session.config.algo:
            raise ConfigError(
                f"{path} is a run of {folder.algo}, and its state is none of {session.config.algo}"
            )
        groups, found = session.graph.groups, []
        for group in groups:
            where = folder.policy_checkpoints(group.id if len(groups) > 1 else None)
            loaded = CheckpointStore(where, 1).load(log=session.note)
            if loaded is None:
                raise ConfigError(f"{path} has no checkpoint yet; train it first")
            self._fitting(group, model_tensors(loaded[0].tensors))
            stored = loaded[0].state["learner"]["hyperparameters"]
            check_names(stored, with_)
            for name, value in with_.items():
                given = f"restore(..., with_={{{name!r}: {value!r}}})"
                checked_value(session, given, name, value)
                check_effect(session, given, name, [{**stored, **with_}])
            found.append(loaded[0])
        with DeferredInterrupt():
            for group, checkpoint in zip(groups, found, strict=True):
                plain = self._with_given(checkpoint.state["learner"], with_)
                self._load(group, checkpoint.tensors, plain)
        for name, value in with_.items():
            session.note(f"Changed from here on: {typed(name, value)}")

    def _check_restorable(self, path: str | Path) -> None:
        """Raise ConfigError in a run whose hyperparameters are not the user's: its lineage and its
        next changes would not know of those of another state."""
        obstacles = {
            "the members of a population have hyperparameters of their own (--pbt)": getattr(
                self._session.config, "pbt", False
            ),
            "hyperparameters follow --schedule": self._session.schedule is not None,
        }
        for reason, holds in obstacles.items():
            if holds:
                raise ConfigError(
                    f"restore({str(path)!r}): {reason}; begin a new run with --init-from {path}, "
                    "which takes the weights alone"
                )

    def _with_given(self, state: Mapping[str, Any], with_: Mapping[str, Any]) -> dict[str, Any]:
        """Return the plain values of a learner's state from elsewhere, with the hyperparameters
        ``with_``, and those that the session's run was given: only those that it was not given are
        the state's. The run's config has those of the newest such state, and so has config.yaml."""
        session = self._session
        given, defaults = flat_fields(session.opened.asked), flat_fields(type(session.asked)())
        stored = dict(state["hyperparameters"])
        own = {n: getattr(session.resolved, n) for n in stored if given[n] != defaults[n]}
        used = {**stored, **own, **with_}
        session.resolved = dataclasses.replace(session.resolved, **used)
        session.write_config()
        in_use = {name: value for name, value in with_.items() if name in state}
        return {**state, **in_use, "hyperparameters": used}

    def _load(
        self, group: PolicyGroup, tensors: Mapping[str, torch.Tensor], plain: Mapping[str, Any]
    ) -> None:
        """Have the learners of a policy continue from another state, and publish its weights.

        ``tensors`` and ``plain`` are what `Learner.state` returned, or, with empty ``plain``, only
        the weights as ``model/<name>``. The policy version is raised by more than the largest lag
        that is learned from. Several learners load it after their next update; meanwhile the
        workers work. Raises TimeoutError if they make none within `LOAD_TIMEOUT` s."""
        session = self._session
        number = session.next_request()
        file = session.folder.scratch / f"load-{number}"
        load = ChangeRequest(number, file, (group.max_policy_lag or 0) + 1)
        write_state_file(file, dict(tensors), dict(plain))
        deadline = time.monotonic() + LOAD_TIMEOUT

        def ask(learner: Node) -> bool:
            timeout = max(1.0, deadline - time.monotonic())
            return bool(session.runner.ask(learner, LOAD, load, timeout))

        try:
            while not all([ask(learner) for learner in group.learners]):
                if time.monotonic() > deadline or session.graph.progress.done:
                    raise TimeoutError(
                        f"the learners of {group.id} have made no update within "
                        f"{LOAD_TIMEOUT:.0f} s after which they could have loaded the weights "
                        "together, or have ended"
                    )
                session.work()
        finally:
            file.unlink(missing_ok=True)

    def _fitting(self, group: PolicyGroup, weights: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """Return ``weights`` as tensors like those of a policy; see `set_weights`."""
        own = self._session.run_plan.new_model(group.id).state_dict()
        missing, unknown = own.keys() - weights.keys(), weights.keys() - own.keys()
        if missing or unknown:
            listed = [
                *(f"{name} is missing" for name in sorted(missing)),
                *(f"{name} is unknown" for name in sorted(unknown)),
            ]
            raise ValueError(
                f"the weights are of another model: {', '.join(listed[:8])}"
                f"{', ...' if len(listed) > 8 else ''}; get_weights() returns those of this one"
            )
        return {name: _fitting(name, weights[name], tensor) for name, tensor in own.items()}


def _fitting(name: str, value: Any, own: torch.Tensor) -> torch.Tensor:
    given = (
        value.detach().cpu() if isinstance(value, torch.Tensor) else torch.tensor(np.asarray(value))
    )
    if given.shape != own.shape or given.is_floating_point() != own.is_floating_point():
        raise ValueError(
            f"the weights are of another model: {name} is {given.dtype} {list(given.shape)}, "
            f"expected {own.dtype} {list(own.shape)}"
        )
    if not bool(torch.isfinite(given).all()):
        raise ValueError(f"the weights hold values that are not finite, in {name}")
    return given.to(own.dtype)
