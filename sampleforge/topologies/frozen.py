"""The policies of a graph that act but are not trained."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sampleforge.env.seeding import FROZEN_STREAM, row_seeds
from sampleforge.models.actor_critic import ActorCritic
from sampleforge.models.q_network import QNetwork
from sampleforge.shared.newest import SharedWeights
from sampleforge.shared.snapshots import SnapshotPool
from sampleforge.topologies.graph import FrozenGroup
from sampleforge.topologies.starts import FrozenStart
from sampleforge.workers.frozen import FrozenInference, FrozenPort


def frozen_port(group: FrozenGroup, policy: int, actor: int) -> FrozenPort:
    """Return the port of an actor to a frozen policy."""
    (seed,) = row_seeds(group.seed, actor, FROZEN_STREAM, 1)
    return FrozenPort(policy, FrozenInference(group.pool, group.new_model, seed))


def frozen_group(
    start: FrozenStart,
    new_model: Callable[[], ActorCritic | QNetwork],
    latest: Mapping[str, SharedWeights],
) -> FrozenGroup:
    """Return a frozen policy with the weights that it begins with. ``latest``: the weights of each
    trained policy, by its id."""
    model = new_model()
    follows = None if start.follows is None else latest[start.follows]
    pool = SnapshotPool(model.state_dict(), start.snapshots, follows)
    if follows is None:
        if start.start.resume is not None:
            start.start.resume.weights(model)
        pool.put(0, model.state_dict(), 0)
    return FrozenGroup(start.id, pool, new_model, start.start.seed)
