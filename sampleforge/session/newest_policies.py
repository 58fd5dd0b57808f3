"""The policies of a session, with the newest weights that its learners have published."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sampleforge.algos.policy import FrozenPolicy
from sampleforge.loaded_policy import LoadedPolicy

if TYPE_CHECKING:
    import torch

    from sampleforge.session.session import Session
    from sampleforge.topologies.graph import PolicyGroup


class NewestPolicies:
    """The trained policies of ``session``, which is open, or has ended: weights are in shared
    memory. Each policy has the model of the agents that it plays."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._kept: dict[str, tuple[LoadedPolicy, int]] = {}
        """By id: a policy, and the number of the publication that its weights are of."""

    def group(self, policy: int | str) -> PolicyGroup:
        """Return the policy group of a number, from 0, or of an id. Raises ValueError if there is
        none."""
        groups = self._session.graph.groups
        for number, group in enumerate(groups):
            if policy in (number, group.id):
                return group
        known = ", ".join(f"{number}: {group.id!r}" for number, group in enumerate(groups))
        raise ValueError(f"there is no policy {policy!r} that this run trains; there are {known}")

    def copy(self, group: PolicyGroup) -> LoadedPolicy:
        """Return the policy of a group with a copy of its newest weights."""
        model = self._session.new_model_of(group.id)
        group.weights.read(model.state_dict())
        return LoadedPolicy(model, self._session.agents_of(group.id).spec)

    def newest(self, group: PolicyGroup) -> LoadedPolicy:
        """Return the policy of a group with its newest weights: the same object each time, whose
        weights the next call renews."""
        policy, published = self._kept.get(group.id, (None, -1))
        if policy is None:
            policy = self.copy(group)
        if published != group.weights.published:
            published, _ = group.weights.read(policy.model.state_dict())
            self._kept[group.id] = (policy, published)
        return policy

    def own_tensors(self, group: PolicyGroup) -> dict[str, torch.Tensor]:
        """Return tensors with the names, shapes and dtypes of a policy's weights."""
        return self._session.new_model_of(group.id).state_dict()

    def frozen(self, group: PolicyGroup) -> tuple[dict[int, FrozenPolicy], int]:
        """Return the policy that plays each agent group, by its index, in an evaluation of
        ``group``: of the other agent groups the first policy that plays them. Return also the
        policy version of the weights of ``group``."""
        session = self._session
        model = session.new_model_of(group.id).eval()
        _, version = group.weights.read(model.state_dict())
        playing = {session.agent_group(group.id): FrozenPolicy(model)}
        for other in session.graph.groups:
            if (index := session.agent_group(other.id)) not in playing:
                playing[index] = FrozenPolicy(self.copy(other).model)
        for fixed in session.graph.frozen:
            if (index := session.agent_group(fixed.id)) not in playing:
                model = fixed.new_model()
                fixed.pool.read(0, model.state_dict())
                playing[index] = FrozenPolicy(model)
        return playing, version
