"""Other weights, or the state of a checkpoint, for the learners of a running session."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from time import monotonic, time_ns
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from sampleforge.run.folder.stored_config import flat_fields
from sampleforge.workers.learner_change import LOAD, StateLoad, write_state_file

if TYPE_CHECKING:
    from sampleforge.run.session import Session
    from sampleforge.topologies.graph import PolicyGroup

LOAD_TIMEOUT = 300.0
"""Seconds in which the learners of a policy must come to the end of an update together."""


def load_into(
    session: Session,
    group: PolicyGroup,
    tensors: Mapping[str, torch.Tensor],
    plain: Mapping[str, Any],
) -> None:
    """Have the learners of a policy continue from another state, and publish its weights.

    ``tensors`` and ``plain`` are what `Learner.state` returned, or, with empty ``plain``, only the
    weights as ``model/<name>``; the caller has checked that they fit. The policy version is raised
    by more than the largest lag that is learned from. Several learners load it after their next
    update; meanwhile the workers work. Raises TimeoutError if they make none within `LOAD_TIMEOUT`
    s.
    """
    number = time_ns() // 1000  # exact as a float64, in which learners compare it
    load = StateLoad(
        number, session.folder.scratch / f"load-{number}", (group.max_policy_lag or 0) + 1
    )
    write_state_file(load.file, dict(tensors), dict(plain))
    deadline = monotonic() + LOAD_TIMEOUT
    try:
        while not all([_ask(session, group, load, deadline, index) for index in _indices(group)]):
            if monotonic() > deadline or session.graph.progress.done:
                raise TimeoutError(
                    f"the learners of {group.id} have made no update within {LOAD_TIMEOUT:.0f} s "
                    "after which they could have loaded the weights together, or have ended"
                )
            session.work()
    finally:
        load.file.unlink(missing_ok=True)


def with_given(session: Session, state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the plain values of a learner's state from elsewhere, with the hyperparameters that
    the session's run was given: only those that it was not given are the state's. The run's config
    has those of the newest such state, and so has config.yaml."""
    given, defaults = flat_fields(session.opened.asked), flat_fields(type(session.asked)())
    stored = dict(state["hyperparameters"])
    own = {n: getattr(session.resolved, n) for n in stored if given[n] != defaults[n]}
    used = {**stored, **own}
    session.resolved = dataclasses.replace(session.resolved, **used)
    session.write_config()
    return {**state, "hyperparameters": used}


def _indices(group: PolicyGroup) -> range:
    return range(len(group.learners))


def _ask(
    session: Session, group: PolicyGroup, load: StateLoad, deadline: float, index: int
) -> bool:
    timeout = max(1.0, deadline - monotonic())
    return bool(session.runner.ask(group.learners[index], LOAD, load, timeout))


def fitting_weights(
    weights: Mapping[str, Any], own: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Return ``weights``, by name as arrays or tensors, as tensors like those of ``own``. Raises
    ValueError, which names the difference, if they are not those of this model, or not finite."""
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
