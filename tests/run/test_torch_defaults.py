"""A script of the user that sets torch's default dtype or device loads, acts and trains alike."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sampleforge.api import load_policy
from sampleforge.evaluation import evaluate
from sampleforge.models.config import ModelConfig
from sampleforge.run.folder.trust import Trust
from sampleforge.topologies.config import ApexConfig, AppoConfig
from tests.support.runs import newest
from tests.support.serial_runs import run_serially

RUNS: dict[str, Any] = {
    "recurrent": (AppoConfig, {"model": ModelConfig(core="gru", core_size=8), "batch_size": 256}),
    "q-network": (ApexConfig, {"learning_starts": 200, "batch_size": 32}),
}


@pytest.fixture
def of_user(request: pytest.FixtureRequest) -> Iterator[None]:
    """The settings of a user's script."""
    dtype, device = request.param
    torch.set_default_dtype(dtype)
    torch.set_default_device(device)
    yield
    torch.set_default_dtype(torch.float32)
    torch.set_default_device(None)


OF_USER = pytest.mark.parametrize(
    "of_user",
    [(torch.float64, None), (torch.float16, None), (torch.float32, "meta")],
    ids=["float64", "float16", "device"],
    indirect=True,
)


@pytest.fixture(scope="module", params=RUNS)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    make, more = RUNS[request.param]
    folder = tmp_path_factory.mktemp("run")
    run_serially(folder, 1, make=make, train_for_env_steps=600, num_envs_per_worker=4, **more)
    return folder


def acted(run: Path) -> list[Any]:
    """Actions, and sums of the states, in three steps."""
    policy, rng, state, found = load_policy(run), np.random.default_rng(0), None, []
    for _ in range(3):
        action, state = policy.act(rng.normal(size=4).astype(np.float32), state)
        found += [action, None if state is None else float(state.sum())]
    return found


@pytest.fixture(scope="module")
def expected(run: Path) -> Any:
    return acted(run), evaluate(run, episodes=2, trust=Trust(everything=True))["returns"]


@pytest.mark.long
@OF_USER
@pytest.mark.usefixtures("of_user")
def test_a_policy_acts_and_is_evaluated_as_ever(run: Path, expected: Any) -> None:
    found = acted(run), evaluate(run, episodes=2, trust=Trust(everything=True))["returns"]
    assert found == expected


@pytest.mark.long
@OF_USER
@pytest.mark.parametrize("name", RUNS)
def test_a_serial_training_learns_the_same(name: str, tmp_path: Path, of_user: None) -> None:
    make, more = RUNS[name]
    settings: dict[str, Any] = {"train_for_env_steps": 600, "num_envs_per_worker": 4, **more}
    run_serially(tmp_path / "own", 1, make=make, **settings)
    dtype = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    torch.set_default_device(None)
    run_serially(tmp_path / "usual", 1, make=make, **settings)
    torch.set_default_dtype(dtype)
    own, usual = newest(tmp_path / "own"), newest(tmp_path / "usual")
    assert all(torch.equal(own[tensor], usual[tensor]) for tensor in usual)
