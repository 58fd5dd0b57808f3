"""Several learners of one policy: the rate of training when gradients are slow.

The encoder sleeps for each row of a backward pass, as a gradient that takes long on a device of its
own would; so the rate with K learners shows what their averaging costs, on a machine with fewer
cores than learners, too.

    python benchmarks/learners.py --learners 1 2 4
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping
from pathlib import Path
from time import sleep
from typing import Any

import torch
from machine import describe, table
from torch import nn

from sampleforge.api import train
from sampleforge.models.config import ModelConfig
from sampleforge.run.reports.metrics_file import read_metrics
from sampleforge.spec import ArraySpec
from sampleforge.topologies.config import ApexConfig, AppoConfig

ROW_S = 1e-3
"""Seconds that the gradient of a row takes."""


def _slow(gradient: torch.Tensor) -> None:
    sleep(ROW_S * len(gradient))


class SlowEncoder(nn.Module):
    """A layer whose gradient takes `ROW_S` for each row."""

    out_features = 16

    def __init__(self, observations: Mapping[str, ArraySpec], config: ModelConfig) -> None:
        super().__init__()
        (self._name,) = observations
        self.layer = nn.Linear(observations[self._name].shape[0], self.out_features)

    def forward(self, obs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        features: torch.Tensor = self.layer(obs[self._name].float())
        if features.requires_grad:
            features.register_hook(_slow)  # type: ignore[no-untyped-call]
        return features


RUN: dict[str, Any] = {
    "env": "CartPole-v1",
    "device": "cpu",
    "num_workers": 2,
    "num_envs_per_worker": 16,
    "model": ModelConfig(encoder="learners:SlowEncoder"),
    "report_interval": 1.0,
    "quiet": True,
    "seed": 1,
}


def config_of(algo: str, **kwargs: Any) -> AppoConfig | ApexConfig:
    """The configuration of a run whose learners are never short of experience."""
    if algo == "apex":
        replay: dict[str, Any] = {
            "batch_size": 256,
            "learning_starts": 1000,
            "samples_per_insert": None,
        }
        return ApexConfig(**RUN, **replay, **kwargs)
    batches: dict[str, Any] = {
        "batch_size": 1024,
        "minibatch_size": 512,
        "num_epochs": 1,
        "rollout": 16,
    }
    return AppoConfig(**RUN, **batches, async_rl=True, max_policy_lag=None, **kwargs)


def trained_per_second(algo: str, learners: int, seconds: float) -> float:
    """Return the env steps that are learned from per second, in the second half of a run."""
    with tempfile.TemporaryDirectory() as folder:
        run = str(Path(folder) / "run")
        config = config_of(algo, num_learners=learners, train_for_seconds=seconds, run_dir=run)
        result = train(config)
        reports = [r for r in read_metrics(result.run_dir / "metrics.jsonl") if r.get("updates")]
    late = [float(r["trained_per_s"]) for r in reports[len(reports) // 2 :]]
    return sum(late) / len(late)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--learners", nargs="+", type=int, default=[1, 2, 4])
    parser.add_argument("--algos", nargs="+", choices=("appo", "apex"), default=["appo", "apex"])
    parser.add_argument("--seconds", type=float, default=20.0)
    args = parser.parse_args()
    print(describe("torch"), end="\n\n")
    rows = []
    for algo in args.algos:
        rates = [trained_per_second(algo, k, args.seconds) for k in args.learners]
        for learners, rate in zip(args.learners, rates, strict=True):
            scale = rate / rates[0] / (learners / args.learners[0])
            rows.append(
                [algo, f"{learners}", f"{rate:,.0f}", f"{rate * ROW_S:.2f}", f"{scale:.0%}"]
            )
    header = ["topology", "learners", "trained env steps/s", "of one gradient", "efficiency"]
    print(table(header, rows))


if __name__ == "__main__":
    main()
