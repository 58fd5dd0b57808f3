"""Train with an encoder of your own.

    python examples/custom_model.py

The encoder turns observations into features; normalisation, recurrent core, policy and value heads
stay SampleForge's. From the command line the same training is

    cd examples
    python ../train.py appo --env CartPole-v1 --model.encoder custom_model:ResidualMLP
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

import sampleforge as sf
from sampleforge.spec import ArraySpec

WIDTH = 64
BLOCKS = 2


class ResidualMLP(nn.Module):
    """Blocks of two layers, each added to its input, for an observation that is one vector.

    ``observations`` maps each leaf's name to its shape and dtype; a plain observation space has the
    single leaf "obs". ``config`` is the run's `ModelConfig`, with the widths that flags set.
    """

    def __init__(self, observations: Mapping[str, ArraySpec], config: sf.ModelConfig) -> None:
        super().__init__()
        (size,) = observations["obs"].shape
        self.enter = nn.Linear(size, WIDTH)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH)
            )
            for _ in range(BLOCKS)
        )
        self.out_features = WIDTH  # the width of what `forward` returns; required

    def forward(self, obs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return features [N, out_features] of normalised observations, leaf name -> [N, ...]."""
        features: torch.Tensor = self.enter(obs["obs"])
        for block in self.blocks:
            features = features + block(features)
        return features


def main() -> None:
    config = sf.AppoConfig(
        env="CartPole-v1",
        model=sf.ModelConfig(encoder="custom_model:ResidualMLP"),
        train_for_env_steps=20_000,
        seed=1,
    )
    result = sf.train(config)
    print(f"mean return of the last 100 episodes: {result.summary['return_mean']:.1f}")

    policy = sf.load_policy(result.run_dir, trust=True)  # the folder names code of yours
    weights = sum(parameter.numel() for parameter in policy.model.parameters())
    print(f"the trained model has {weights:,} weights")


if __name__ == "__main__":  # workers are processes that import this file
    main()
