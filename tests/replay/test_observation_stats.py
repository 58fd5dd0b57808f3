"""Ape-X's observation statistics: every observation that goes into the replay, exactly once."""

from __future__ import annotations

from functools import reduce
from typing import Any

import numpy as np
import pytest
import torch

from sampleforge.models.config import ModelConfig
from sampleforge.models.normaliser import LeafNormaliser
from sampleforge.ops.running_stats import Moments, merge
from sampleforge.replay.observation_stats import ObservationStats, packed_size, unpack
from sampleforge.rollouts.slots import SlotShape, TrajectorySlots, length
from sampleforge.spec import ActionSpec, ArraySpec, EnvSpec
from tests.support.apex_graphs import (
    LONGEST,
    apex_config,
    build_apex,
    learner_worker,
    serial_rounds,
)
from tests.support.envs import episode_length

NORMALISED: dict[str, Any] = {"encoder": "mlp", "hidden_sizes": (8,)}
COUNTING = "tests.support.envs:CountingVectorEnv"
STACKED = "tests.support.stacked_envs:stacked"
DISCRETE = ActionSpec("discrete", (), "int64", (2,))


@pytest.mark.long
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
    exchange: Any = graph.groups[0].exchange
    take_ready, slots = exchange.take_ready, exchange.slots
    seen: list[Any] = []

    def watch(shard: int, actor: int) -> int | None:
        slot: int | None = take_ready(shard, actor)
        if slot is not None:
            new_steps = min(plan.rollout, length(slots, slot))
            at = np.full(new_steps, slot), np.arange(new_steps)
            if slots.stacks:
                seen.extend(slots.stacks["obs"].read_rows(*at).numpy().copy())
            else:
                seen.extend(slots.obs["obs"][at].reshape(-1, 4).copy())
        return slot

    exchange.take_ready = watch
    shards: Any = [node.worker for node in graph.nodes if node.worker.name.startswith("replay ")]
    for i in serial_rounds(graph, 150):
        if i == 149:
            learner = learner_worker(graph)
            learner._source.samples._take_answers()
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


def test_take_returns_all_moments_and_empties_the_statistics() -> None:
    observations = {"a": ArraySpec((2, 3), "float32"), "b.c": ArraySpec((), "float32")}
    spec = EnvSpec("fake", observations, {"action": DISCRETE})
    slots = TrajectorySlots(2, SlotShape(5, 4, spec, 0))
    shapes = {name: leaf.shape for name, leaf in observations.items()}
    rng = np.random.default_rng(0)
    for leaf in slots.obs.values():
        leaf[:] = rng.normal(3.0, 2.0, leaf.shape)
    slots.valid[:] = True
    slots.valid[0, 2, 1] = False
    slots.obs["a"][0, 2, 1], slots.obs["b.c"][0, 2, 1] = 0.0, np.nan  # of a dropped step
    seen, packed = ObservationStats(slots, shapes), np.zeros(packed_size(shapes))
    for slot in (0, 1):
        seen.add(slot)
    seen.take(packed)
    found = unpack(packed, shapes)
    for name in ("a", "b.c"):
        real = slots.obs[name][:, :5][slots.valid].astype(np.float64)
        assert found[name].count == len(real) == 39
        np.testing.assert_allclose(found[name].mean, real.mean(0), rtol=1e-12)
        np.testing.assert_allclose(found[name].var, real.var(0), rtol=1e-12)
    seen.take(packed)
    assert torch.tensor(packed).eq(0).all(), "nothing is counted twice"


def test_of_images_one_in_61_counts() -> None:
    spec = EnvSpec(
        "fake",
        {"image": ArraySpec((3, 40, 40), "uint8"), "vector": ArraySpec((2,), "float32")},
        {"action": DISCRETE},
    )
    slots = TrajectorySlots(1, SlotShape(20, 10, spec, 0))
    shapes = {name: leaf.shape for name, leaf in spec.observations.items()}
    slots.valid[:] = True
    slots.obs["image"][:] = np.random.default_rng(0).integers(0, 256, slots.obs["image"].shape)
    seen, packed = ObservationStats(slots, shapes), np.zeros(packed_size(shapes))
    seen.add(0)
    seen.take(packed)
    found = unpack(packed, shapes)
    assert found is not None and found["vector"].count == 200
    images = slots.obs["image"][0, :20].reshape(200, 3, 40, 40)[[0, 61, 122, 183]]
    assert found["image"].count == 4
    np.testing.assert_allclose(found["image"].mean, images.mean(0), rtol=1e-12)
    np.testing.assert_allclose(found["image"].var, images.astype(float).var(0), rtol=1e-12)


def test_final_observations_count_and_those_of_dropped_steps_do_not() -> None:
    """Column by column: what happens to a row in the six steps of its rollout."""
    spec = EnvSpec("fake", {"a": ArraySpec((), "float32")}, {"action": DISCRETE})
    columns = {  # valid, first: steps 0 to 5, and 6; which observations count
        "an end at 1, the reset at 2": ("110111", "0001000", "111111"),
        "the reset at 0": ("011111", "0100000", "111111"),
        "dropped from 2 on, an end at 3, the reset at 4": ("110001", "0000010", "110001"),
        "dropped from 4 on": ("111100", "0000000", "111100"),
        "dropped at 2, where the row begins again": ("110111", "0001000", "111111"),
        "a zeroed first observation at 2, an end at 3": ("110001", "0010010", "110001"),
        "a zeroed first observation at 2, an end in the same step": ("110111", "0011000", "110111"),
    }
    slots = TrajectorySlots(1, SlotShape(6, len(columns), spec, 0))
    for row, (valid, first, _) in enumerate(columns.values()):
        slots.valid[0, :, row] = [sign == "1" for sign in valid]
        slots.first[0, :, row] = [sign == "1" for sign in first]
    found = ObservationStats(slots, {"a": ()})._real(0).reshape(6, -1)
    for row, (name, (_, _, counts)) in enumerate(columns.items()):
        assert "".join("01"[int(x)] for x in found[:, row]) == counts, name


@pytest.mark.long
def test_zeroed_observations_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that cannot be reset alone go on with zeros in the place of what is not finite, here the
    number of the step."""
    counted: list[Any] = []
    taken = LeafNormaliser.moments

    def watch(leaf: LeafNormaliser, x: torch.Tensor) -> Moments:
        counted.extend(x.numpy().astype(int))
        return taken(leaf, x)

    monkeypatch.setattr(LeafNormaliser, "moments", watch)
    given = {"after": 5, "every": 9, "longest": 20}
    chosen = apex_config(
        env="tests.support.not_finite_envs:NotFiniteVectorEnv",
        env_kwargs=given,
        num_workers=1,
        num_splits=1,
        model=ModelConfig(**NORMALISED),
    )
    graph, _ = build_apex(chosen)
    for _ in serial_rounds(graph, 150):
        pass
    steps = [tuple(obs[:3]) for obs in counted]
    assert len(set(steps)) == len(steps) > 200, "a zero for the step makes it the first one again"
