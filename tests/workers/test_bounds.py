"""A space that is wrong about the observations is named in training, where the probe has not seen
it."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from sampleforge.api import train
from sampleforge.topologies.config import AppoConfig
from sampleforge.workers.actor import looks_at_bounds
from tests.support.callbacks import Warnings


@pytest.mark.long
@pytest.mark.parametrize("wrong", ["bounds", ""])
def test_an_observation_outside_its_bounds_is_a_warning_with_env_row_and_remedy(
    wrong: str, tmp_path: Path
) -> None:
    told = Warnings()
    config = AppoConfig(
        env="tests.support.envs:WrongDtypeEnv",
        env_kwargs={"wrong": "bounds", "after": 6 if wrong else 60, "length": 50},
        num_workers=1,
        num_envs_per_worker=2,
        rollout=16,
        serial=True,
        seed=1,
        train_for_env_steps=2000,
        run_dir=str(tmp_path / "run"),
    )
    result = train(config, callbacks=[told])
    assert result.summary["status"] == "finished"
    said = [text for text in told.warnings if "observation_space" in text]
    assert len(said) == bool(wrong), "once per actor"
    if wrong:
        assert said[0].startswith("actor 0, split 0, tests.support.envs:WrongDtypeEnv, row ")
        assert "observation leaf 'obs' must be in [-1000, 1000] at [0]" in said[0]
        assert "correct the space or what the environment returns" in said[0]
        assert "`sampleforge check-env`" in said[0]


def test_few_rollouts_are_looked_at_so_that_it_takes_no_time() -> None:
    looked = [n for n in range(1, 10_000) if looks_at_bounds(n)]
    assert looked[:5] == [1, 2, 4, 8, 16] and len(looked) < 30
    assert max(b - a for a, b in itertools.pairwise(looked)) <= 1024
