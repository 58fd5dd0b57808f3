"""Returns of trainings whose environments give one absurd finite number each, next to undisturbed
ones: serial runs with fixed seeds, judged by 100 episodes of the last weights, undisturbed.

    python benchmarks/robustness.py [--seeds 3] [--algos appo apex] [--env-steps 40000]

The task is `tests.support.spike_envs:SpikeEnv`: random 6.7, the best 20. The number comes at the
500th step of each of 32 environments, or at the third, which is in the first batch.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import tempfile
from pathlib import Path
from typing import Any

from machine import describe, table

from sampleforge.api import Trainer
from sampleforge.models.config import ModelConfig
from sampleforge.topologies.config import ApexConfig, AppoConfig, DdppoConfig

COMMON: dict[str, Any] = {
    **{"env": "tests.support.spike_envs:SpikeEnv", "serial": True, "device": "cpu"},
    **{"num_envs_per_worker": 32, "evaluation_env_kwargs": {"where": ""}},
    "evaluate_interval": 10**9,
}
ALGOS: dict[str, tuple[type[Any], dict[str, Any]]] = {
    "appo": (AppoConfig, {"num_workers": 1, "batch_size": 1024, "minibatch_size": 256}),
    "appo, V-trace": (AppoConfig, {"num_workers": 1, "async_rl": True, "batch_size": 1024}),
    "ddppo": (DdppoConfig, {"num_ranks": 1, "batch_size": 1024, "minibatch_size": 256}),
    "apex": (ApexConfig, {"num_workers": 1, "learning_starts": 2000, "samples_per_insert": 4.0}),
}
SPIKES: dict[str, dict[str, Any]] = {
    "none": {},
    "obs 1e8": {"where": "obs", "value": 1e8},
    "obs 1e38": {"where": "obs", "value": 1e38},
    "reward 1e8": {"where": "reward", "value": 1e8},
    "reward 1e38": {"where": "reward", "value": 1e38},
}


def score(
    algo: str, seed: int, env_steps: int, normalise: bool, env_kwargs: dict[str, Any]
) -> float:
    """Evaluate a training in the undisturbed environment, by 100 episodes of its last weights."""
    kind, more = ALGOS[algo]
    model = ModelConfig(hidden_sizes=(32,), normalise_observations=normalise)
    with tempfile.TemporaryDirectory() as folder:
        config = kind(
            **COMMON,
            **more,
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
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--env-steps", type=int, default=40_000)
    parser.add_argument("--algos", nargs="*", default=list(ALGOS))
    given = parser.parse_args()
    print(describe("torch"))
    rows = []
    for algo, normalise, bounded in itertools.product(given.algos, (True, False), (False, True)):
        of_rewards = [name for name in SPIKES if name.startswith("reward")]
        for (name, spike), at in itertools.product(SPIKES.items(), (3, 500)):
            # Where the space has bounds, the probe refuses a number that comes at once.
            if at == 3 and (bounded or "value" not in spike or spike["value"] != 1e8):
                continue
            if bounded and (name in of_rewards or name == "obs 1e38"):
                continue
            kwargs = {**spike, "at": at, "bounded": bounded}
            seeds = range(1, given.seeds + 1)
            found = [score(algo, seed, given.env_steps, normalise, kwargs) for seed in seeds]
            words = ["no", "yes"]
            cells = [algo, words[normalise], words[bounded], name, str(at) if spike else ""]
            rows.append([*cells, f"{statistics.mean(found):.2f}"])
            print(*rows[-1], flush=True)
    header = ["algorithm", "normalised", "bounded", "number", "step", "return"]
    print(table(header, rows))


if __name__ == "__main__":
    main()
