"""The first 20 losses of a serial run, as they were: a change that moves them was meant, or is a
bug.

After a change that was meant: ``python -m tests.test_golden`` writes them anew.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sampleforge.models.config import ModelConfig
from sampleforge.topologies.config import AppoConfig
from tests.harness import updates

FILE = Path(__file__).parent / "golden" / "appo_serial.json"
COLUMNS = ("loss", "policy_loss", "value_loss", "entropy", "grad_norm")
UPDATES = 20


def losses() -> list[dict[str, float]]:
    config = AppoConfig(
        env="CartPole-v1",
        num_workers=2,
        num_envs_per_worker=8,
        batch_size=512,
        async_rl=True,
        rollout=32,
        num_epochs=1,
        advantage="vtrace",
        learning_rate=1e-3,
        adam_eps=1e-6,
        max_grad_norm=4.0,
        clip_ratio=0.1,
        value_clip=1.0,
        exploration_coeff=0.003,
        model=ModelConfig(hidden_sizes=(32,), core="gru", core_size=16),
    )
    return [{name: m[name] for name in COLUMNS} for _, m in updates(config, UPDATES, seed=7)]


def test_the_losses_are_those_that_were_recorded() -> None:
    """To 1 part in 1000, which leaves room for another processor's order of additions."""
    recorded = json.loads(FILE.read_text())
    assert len(recorded) == UPDATES
    for now, then in zip(losses(), recorded, strict=True):
        assert now == pytest.approx(then, rel=1e-3, abs=1e-5)


if __name__ == "__main__":
    FILE.write_text(json.dumps(losses(), indent=1) + "\n")
