"""Returns of trainings whose environments give one absurd finite number each, next to undisturbed
ones: serial runs with fixed seeds, judged by 100 episodes of the last weights, undisturbed.

    python benchmarks/robustness.py [--seeds 1 2 3] [--algos appo apex] [--env-steps 20000]

The task is `tests.support.spike_envs:HardSpikeEnv`, for SAC and TD3 `HardBoxSpikeEnv`: random 6.7,
the best 20. Each of 16 environments gives the number at its third step, which is in the first
batch, or at the 105th or 505th. "no limits": the same with the limits of SampleForge switched off.
"""

from __future__ import annotations

import argparse
import math
import statistics
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from machine import describe, table

from sampleforge.api import Trainer
from sampleforge.models import normaliser
from sampleforge.models.config import ModelConfig
from sampleforge.ops import far_values
from sampleforge.topologies.config import (
    ApexConfig,
    AppoConfig,
    CrossqConfig,
    DdppoConfig,
    SacConfig,
    Td3Config,
)

COMMON: dict[str, Any] = {
    **{"env": "tests.support.spike_envs:HardSpikeEnv", "serial": True, "device": "cpu"},
    **{"num_envs_per_worker": 16, "evaluate_env_kwargs": {"where": ""}},
    "evaluate_interval": 10**9,
}
CRITICS: dict[str, Any] = {
    **{"env": "tests.support.spike_envs:HardBoxSpikeEnv", "num_workers": 1, "rollout": 10},
    **{"batch_size": 64, "learning_rate": 1e-3, "learning_starts": 500},
    **{"replay_capacity": 20_000, "updates_per_env_step": 0.5},
}
ALGOS: dict[str, tuple[type[Any], dict[str, Any]]] = {
    "appo": (AppoConfig, {"num_workers": 1, "batch_size": 1024, "minibatch_size": 256}),
    "appo, V-trace": (AppoConfig, {"num_workers": 1, "async_rl": True, "batch_size": 1024}),
    "ddppo": (DdppoConfig, {"num_ranks": 1, "batch_size": 1024, "minibatch_size": 256}),
    "apex": (
        ApexConfig,
        {
            **{"num_workers": 1, "rollout": 10, "batch_size": 64, "learning_rate": 1e-3},
            **{"learning_starts": 500, "replay_capacity": 20_000, "samples_per_insert": 8.0},
            "target_update_interval": 50,
        },
    ),
    "sac": (SacConfig, CRITICS),
    "crossq": (CrossqConfig, CRITICS),
    "td3": (Td3Config, CRITICS),
}
SPIKES: tuple[tuple[str, float, tuple[int, ...]], ...] = (
    ("obs", 1e3, (3, 105)),
    ("obs", 1e8, (3, 105, 505)),
    ("obs", 1e38, (505,)),
    ("reward", 1e3, (3, 105, 505)),
    ("reward", 1e4, (105,)),
    ("reward", 1e8, (3, 105, 505)),
    ("reward", 1e38, (505,)),
)
"""Where the number comes, the number, and the steps, none of which ends an episode."""
UNLIMITED = (("obs", 1e3, 3), ("obs", 1e8, 105), ("reward", 1e3, 105), ("reward", 1e8, 105))
"""The same for the trainings without limits."""


def cases() -> Iterator[tuple[str, bool, bool, dict[str, Any]]]:
    """Yield name, whether observations are normalised, whether there are limits, env kwargs."""
    yield "none", True, True, {}
    for where, value, steps in SPIKES:
        for at in steps:
            given = {"where": where, "value": value, "at": at}
            yield f"{where} {value:g}, step {at}", True, True, given
    given = {"where": "obs", "value": 1e8, "at": 105}  # the probe refuses what comes at once
    yield "obs 1e+08, step 105, Box with bounds", True, True, {**given, "bounded": True}
    yield "none, not normalised", False, True, {}
    yield "obs 1e+08, step 105, not normalised", False, True, given
    for where, value, at in UNLIMITED:
        given = {"where": where, "value": value, "at": at}
        yield f"{where} {value:g}, step {at}, no limits", True, False, given


@contextmanager
def limits(on: bool) -> Iterator[None]:
    """Switch all limits off for a while, unless ``on``."""
    names = ((far_values, "FAR"), (far_values, "FIRST_FAR"), (far_values, "UNUSUAL"))
    places = (*names, (normaliser, "FAR"))
    before = [getattr(module, name) for module, name in places]
    for module, name in places if not on else ():
        setattr(module, name, math.inf)
    try:
        yield
    finally:
        for (module, name), value in zip(places, before, strict=True):
            setattr(module, name, value)


def score(
    algo: str, seed: int, env_steps: int, normalise: bool, env_kwargs: dict[str, Any]
) -> float:
    """Evaluate a training in the undisturbed environment, by 100 episodes of its last weights."""
    kind, more = ALGOS[algo]
    model = ModelConfig(hidden_sizes=(32,), normalise_observations=normalise)
    with tempfile.TemporaryDirectory() as folder:
        config = kind(
            **{**COMMON, **more},
            seed=seed,
            train_for_env_steps=env_steps,
            model=model,
            env_kwargs=env_kwargs,
            run_dir=str(Path(folder) / "run"),
        )
        with Trainer(config) as trainer:
            for _ in trainer:
                pass
            return float(trainer.evaluate(episodes=100)["return_mean"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", nargs="*", type=int, default=[1, 2, 3])
    parser.add_argument("--env-steps", type=int, default=20_000)
    parser.add_argument("--algos", nargs="*", default=list(ALGOS))
    parser.add_argument("--cases", default="", help="only those whose names hold this, and none")
    given = parser.parse_args()
    print(describe("torch"))
    columns: dict[str, list[str]] = {}
    for algo in given.algos:
        undisturbed: dict[bool, float] = {}
        for name, normalise, on, kwargs in cases():
            if given.cases not in name and not name.startswith("none"):
                continue
            with limits(on):
                found = [score(algo, s, given.env_steps, normalise, kwargs) for s in given.seeds]
            mean = statistics.mean(found)
            control = undisturbed.setdefault(normalise, mean)
            cell = f"{mean:.2f} ({mean / control - 1:+.0%})"
            columns.setdefault(name, []).append(cell)
            print(algo, name, cell, [round(each, 2) for each in found], flush=True)
    print(table(["number", *given.algos], [[name, *cells] for name, cells in columns.items()]))


if __name__ == "__main__":
    main()
