"""Ape-X's observation statistics: every observation that goes into the replay, exactly once."""

from __future__ import annotations

from functools import reduce
from typing import Any

import numpy as np
import pytest
import torch

from sampleforge.models.config import ModelConfig
from sampleforge.ops.running_stats import Moments, merge
from sampleforge.replay.observation_stats import ObservationStats, packed_size, unpack
from sampleforge.rollouts.slots import SlotShape, TrajectorySlots
from sampleforge.spec import ActionSpec, ArraySpec, EnvSpec
from tests.apex_harness import LONGEST, apex_config, build_apex, serial_rounds
from tests.fakes.envs import episode_length

NORMALISED: dict[str, Any] = {"encoder": "mlp", "hidden_sizes": (8,)}
COUNTING = "tests.fakes.envs:CountingVectorEnv"
STACKED = "tests.fakes.stacked:stacked"


@pytest.mark.parametrize(
    "change",
    [
        {"inference": "inline"},
        {"inference": "worker", "num_replay_shards": 3, "samples_per_insert": 8.0},
        {"priority_alpha": 0.0, "samples_per_insert": 0.2},
        {"env": STACKED},
        {"env": STACKED, "replay_compression": "lz4", "replay_compression_ratio": 1.0},
        {"env": COUNTING, "env_kwargs": {"mode": "same_step"}, "num_workers": 1, "num_splits": 1},
        {
            "model": ModelConfig(**NORMALISED, core="gru", core_size=6),
            **{"sequence_length": 10, "sequence_overlap": 4, "burn_in": 3, "rollout": 12},
        },
    ],
)
def test_each_observation_is_counted_once(change: dict[str, Any]) -> None:
    """However often it is drawn; mean and variance are those of all of them."""
    if "replay_compression" in change:
        pytest.importorskip("lz4")
    chosen = apex_config(**{"model": ModelConfig(**NORMALISED), **change})
    graph, plan = build_apex(chosen)
    exchange: Any = graph.group.exchange
    take_ready, slots = exchange.take_ready, exchange.slots
    new_steps = plan.rollout
    seen: list[Any] = []

    def watch(shard: int, actor: int) -> int | None:
        slot: int | None = take_ready(shard, actor)
        if slot is not None:
            at = np.full(new_steps, slot), np.arange(new_steps)
            if slots.stacks:
                seen.extend(slots.stacks["obs"].read_rows(*at).numpy().copy())
            else:
                seen.extend(slots.obs["obs"][at].reshape(-1, 4).copy())
        return slot

    exchange.take_ready = watch
    learner: Any = graph.group.learner.worker
    shards: Any = [node.worker for node in graph.nodes if node.worker.name.startswith("replay ")]
    for i in serial_rounds(graph, 150):
        if i == 149:
            learner._take_answers()
            leaf = learner._learner.model.normaliser.leaves["obs"]
            arrived = Moments(*(x.clone() for x in (leaf.total_mean, leaf.total_var, leaf.count)))
            waiting = [shard._seen._seen["obs"] for shard in shards]
    assert arrived.count > 0.8 * len(seen) > 400, "they come with the samples"
    total, everything = reduce(merge, waiting, arrived), np.stack(seen).astype(np.float64)
    assert total.count == len(seen), "drawn observations do not count again"
    np.testing.assert_allclose(total.mean, everything.mean(0), rtol=1e-9)
    np.testing.assert_allclose(total.var, everything.var(0), rtol=1e-9, atol=1e-12)
    steps = [tuple(obs.reshape(-1, 4)[-1, :3].astype(int)) for obs in seen]
    assert len(set(steps)) == len(steps), "each one once"
    last = 0 if "env_kwargs" in change else 1  # a same-step environment's final ones lie apart
    for env, newest in {(env, episode): step for env, episode, step in steps}.items():
        if (env[0], env[1] + 1, 0) in set(steps):
            assert newest == episode_length(*env, LONGEST) + last - 1, "and none left out"


def test_moments_travel_whole_and_leave_nothing_behind() -> None:
    observations = {"a": ArraySpec((2, 3), "float32"), "b.c": ArraySpec((), "float32")}
    spec = EnvSpec("fake", observations, {"action": ActionSpec("discrete", (), "int64", (2,))})
    slots = TrajectorySlots(2, SlotShape(5, 4, spec, 0))
    shapes = {name: leaf.shape for name, leaf in observations.items()}
    rng = np.random.default_rng(0)
    for leaf in slots.obs.values():
        leaf[:] = rng.normal(3.0, 2.0, leaf.shape)
    slots.obs["b.c"][0, 2, 1] = np.nan  # a broken final observation
    seen, packed = ObservationStats(slots, shapes), np.zeros(packed_size(shapes))
    for slot in (0, 1):
        seen.add(slot)
    seen.take(packed)
    found = unpack(packed, shapes)
    a, b = (slots.obs[name][:, :5].astype(np.float64) for name in ("a", "b.c"))
    assert (found["a"].count, found["b.c"].count) == (40, 39)
    np.testing.assert_allclose(found["a"].mean, a.mean((0, 1, 2)), rtol=1e-12)
    np.testing.assert_allclose(found["a"].var, a.var((0, 1, 2)), rtol=1e-12)
    np.testing.assert_allclose(found["b.c"].mean, np.nanmean(b), rtol=1e-12)
    np.testing.assert_allclose(found["b.c"].var, np.nanvar(b), rtol=1e-12)
    seen.take(packed)
    assert torch.tensor(packed).eq(0).all(), "nothing is counted twice"
