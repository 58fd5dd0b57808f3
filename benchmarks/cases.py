"""The cases that the micro-benchmarks measure, with the parts that a run would have."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import numpy as np
import torch

from sampleforge.env.registry import make_vector
from sampleforge.models.config import ModelConfig
from sampleforge.models.encoder_registry import resolve_encoder
from sampleforge.rollouts.slots import SlotShape, TrajectorySlots
from sampleforge.spec import EnvSpec
from sampleforge.topologies.config import AppoConfig
from sampleforge.topologies.pairings.ppo_defaults import resolve_defaults

CPU = torch.device("cpu")


def asynchronous(env: str, core: Literal["none", "gru"] = "none") -> AppoConfig:
    """Return the config of all recorded figures, independent of the environment's defaults:
    asynchronous, one pass over whole batches with V-trace, one trunk."""
    return AppoConfig(
        env=env,
        async_rl=True,
        rollout=32,
        num_epochs=1,
        advantage="vtrace",
        value_clip=1.0,
        exploration_coeff=0.003,
        model=ModelConfig(core=core, separate_critic=False, normalise_images=False),
    )


CASES = {
    "cartpole": asynchronous("CartPole-v1"),
    "halfcheetah": asynchronous("HalfCheetah-v5"),
    "minatar": asynchronous("MinAtar/Breakout"),
    "breakout": asynchronous("ALE/Breakout-v5"),
    "breakout-gru": asynchronous("ALE/Breakout-v5", core="gru"),
}
"""Observations of 16 bytes, 68 bytes, 400 bytes, 28 KB; MLP, MLP, small CNN, Nature CNN."""


def chosen(parser: argparse.ArgumentParser, names: list[str]) -> list[str]:
    """Return the cases named on the command line, or all."""
    unknown = [name for name in names if name not in CASES]
    if unknown:
        parser.error(f"no case {unknown[0]!r}; there are {', '.join(CASES)}")
    return names or list(CASES)


def prepared(case: str) -> tuple[AppoConfig, EnvSpec]:
    """Return what `resolved` returns for a case."""
    return resolved(CASES[case])


def resolved(asked: AppoConfig) -> tuple[AppoConfig, EnvSpec]:
    """Return the resolved config, with the encoder chosen, and the spec of its environment."""
    vector = make_vector(asked, 1, [0])
    vector.close()
    config, spec = resolve_defaults(asked, vector.spec), vector.spec
    assert isinstance(config, AppoConfig)
    encoder = resolve_encoder(config.model, spec.observations)
    return replace(config, model=encoder, minibatch_size=None), spec


def filled_slots(config: AppoConfig, spec: EnvSpec, rows: int, count: int) -> TrajectorySlots:
    """Return ``count`` slots of random experience, with the same observations in every step; every
    step is valid, and an episode has 100 steps."""
    assert config.rollout is not None, "resolved"
    slots = TrajectorySlots(count, SlotShape(config.rollout, rows, spec, config.model.state_size))
    random = np.random.default_rng(0)
    for leaf in slots.obs.values():
        leaf[...] = random.integers(0, 256 if leaf.dtype == np.uint8 else 2, leaf.shape[2:])
    for name, action in spec.actions.items():
        high = action.categories[0] if action.categories else 1
        slots.actions[name][...] = random.integers(0, high, slots.actions[name].shape)
    for columns in (*slots.extras.values(), slots.reward, slots.state):
        columns[...] = random.normal(size=columns.shape)
    slots.extras["log_prob"][...] = -1.0
    slots.first[...] = random.random(slots.first.shape) < 0.01
    slots.valid[...] = True
    return slots


def seconds_of(work: Callable[[], object], seconds: float, device: torch.device = CPU) -> float:
    """Seconds of one call, of so many that they take ``seconds``, after a warm-up: of processor
    time, or on a CUDA device of wall time, which the device's work is waited for in."""
    on_cpu = device.type == "cpu"
    clock = time.process_time if on_cpu else time.perf_counter
    warm = clock() + seconds / 5
    calls, begun = 0, float("inf")
    while (now := clock()) < begun + seconds:
        if begun > now and now >= warm:
            calls, begun = 0, now
        work()
        if not on_cpu:
            torch.cuda.synchronize(device)
        calls += 1
    return (now - begun) / calls
