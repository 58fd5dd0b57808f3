"""Runs that learn from recorded data: one command from a dataset to a policy, resumed bit by bit,
and what is refused."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sampleforge.algorithms.marwil.algorithm import MARWIL
from sampleforge.api import load_policy, train
from sampleforge.config import ConfigError
from sampleforge.data.stored_steps import StoredBatches
from sampleforge.env.config import EnvConfig
from sampleforge.evaluation import evaluate
from sampleforge.models.config import ModelConfig
from sampleforge.models.encoder_registry import resolve_encoder
from sampleforge.runtime.machine import Machine, assumed
from sampleforge.topologies.config import MarwilConfig
from sampleforge.topologies.pairings.marwil_defaults import resolve_defaults
from sampleforge.topologies.starts import ResumePoint
from sampleforge.topologies.stored import wire as stored
from tests.support.graphs import one_policy, spec_of
from tests.support.pairings import plan_of
from tests.support.recorded import recorded, write_dataset
from tests.support.runs import newest

ENV = "CartPole-v1"
"""Four numbers to observe, two actions."""


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Episodes in which the pole's angular velocity and angle say the action, as an expert would
    choose it; half of the episodes are truncated."""
    spec, rng = spec_of(EnvConfig(env=ENV)), np.random.default_rng(0)
    episodes = []
    for episode in recorded([40] * 20, spec.actions, truncated=tuple(range(0, 20, 2))):
        obs = rng.uniform(-0.2, 0.2, (41, 4)).astype(np.float32)
        chosen = (3.0 * obs[:-1, 2] + obs[:-1, 3] > 0).astype(np.int64)
        episodes.append(
            dataclasses.replace(episode, observations={"obs": obs}, actions={"action": chosen})
        )
    return write_dataset(tmp_path_factory.mktemp("data") / "expert", spec, episodes)


def config(run: Path, dataset: Path, **more: Any) -> MarwilConfig:
    settings: dict[str, Any] = {
        "env": ENV,
        "input": (str(dataset),),
        "run_dir": str(run),
        "serial": True,
        "quiet": True,
        "seed": 3,
        "batch_size": 80,
        "train_for_env_steps": 8_000,
        "evaluate_interval": 80,
        "evaluate_episodes": 2,
        "learner_threads": 1,
        "model": ModelConfig(hidden_sizes=(16,), core_size=8),
    }
    return MarwilConfig(**{**settings, **more})


@pytest.mark.long
def test_a_checkpoint_is_written_at_each_milestone(dataset: Path, tmp_path: Path) -> None:
    more: dict[str, Any] = {"evaluate_interval": None, "milestone_interval": 1000}
    train(config(tmp_path / "run", dataset, train_for_env_steps=3500, keep_checkpoints=1, **more))
    manifest = json.loads((tmp_path / "run" / "checkpoints" / "manifest.json").read_text())
    kept = [entry for entry in manifest["entries"] if "milestone" in entry["kinds"]]
    assert [entry["env_steps"] // 1000 for entry in kept] == [1, 2, 3]


@pytest.mark.long
@pytest.mark.parametrize("exponent", [0.0, 1.0])
def test_a_policy_is_learned_from_data_and_evaluated(
    dataset: Path, tmp_path: Path, exponent: float
) -> None:
    run = tmp_path / "run"
    result = train(config(run, dataset, advantage_exponent=exponent))
    assert result.summary["env_steps"] == 8_000 and result.summary["updates"] == 100
    lines = (run / "metrics.jsonl").read_text().splitlines()
    reports = [json.loads(line) for line in lines]
    learned = [report for report in reports if "data_passes" in report]
    assert 8 < learned[-1]["data_passes"] <= 10, "a mean over the last report interval"
    assert ("value_loss" in learned[-1]) == (exponent > 0)
    assert reports[-1]["eval_policy_version"] == 100, "the last weights"
    policy = load_policy(run)
    assert policy.act(np.array([0.0, 0.0, 0.1, 0.5], np.float32))[0] == 1
    assert policy.act(np.array([0.0, 0.0, -0.1, -0.5], np.float32))[0] == 0
    assert evaluate(run, episodes=2)["env_steps"] == 8_000


@pytest.mark.long
@pytest.mark.parametrize("core", ["none", "gru"])
def test_a_resumed_run_is_the_same_as_an_uninterrupted_one(
    dataset: Path, tmp_path: Path, core: Any
) -> None:
    more: dict[str, Any] = {"evaluate_interval": None}
    if core != "none":
        more |= {"model": ModelConfig(hidden_sizes=(16,), core="gru", core_size=8)}
        more |= {"sequence_length": 8}
    train(config(tmp_path / "whole", dataset, **more))
    train(config(tmp_path / "parts", dataset, **more, train_for_env_steps=4_000))
    train(config(tmp_path / "parts", dataset, **more))
    whole, parts = newest(tmp_path / "whole"), newest(tmp_path / "parts")
    assert whole.keys() == parts.keys()
    for name, tensor in whole.items():
        assert tensor.equal(parts[name]), name


def test_a_run_resumed_with_another_batch_size_goes_on_in_the_same_pass(
    dataset: Path, tmp_path: Path
) -> None:
    more: dict[str, Any] = {"evaluate_interval": None}
    for env_steps, size in ((2_000, 80), (4_000, 400), (4_400, 80)):  # of 800
        train(config(tmp_path, dataset, **more, batch_size=size, train_for_env_steps=env_steps))
        reports = map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines())
        passes = [report["data_passes"] for report in reports if "data_passes" in report]
        assert env_steps / 800 - 2.5 < passes[-1] <= env_steps / 800


@pytest.mark.multiprocess
def test_the_learner_runs_in_a_process_of_its_own(
    dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It finds a dataset that is given by a relative path, in another working directory."""
    monkeypatch.chdir(dataset.parent)
    result = train(config(tmp_path / "run", Path(dataset.name), serial=False))
    assert result.summary["status"] == "finished" and result.summary["env_steps"] == 8_000
    assert load_policy(tmp_path / "run").act(np.array([0, 0, 0.1, 0.5], np.float32))[0] == 1


def test_on_a_gpu_the_data_are_wired_to_a_device_with_a_number(
    dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`torch.cuda.set_device` refuses "cuda"; each run on a machine with a GPU died of it."""
    devices = []

    def batches(*args: Any) -> StoredBatches:
        made = StoredBatches(*args)
        devices.append(made.device)
        return made

    monkeypatch.setattr(stored, "StoredBatches", batches)
    chosen = config(tmp_path / "run", dataset, evaluate_interval=None)
    spec = spec_of(chosen)
    chosen = resolve_defaults(chosen, spec)
    with assumed(Machine(4, 2, lambda index: (8, 0))):
        plan = plan_of(chosen, spec, "cuda")
        resolved = dataclasses.replace(
            chosen, model=resolve_encoder(chosen.model, spec.observations)
        )
        stored.wire_stored(MARWIL, resolved, plan, spec, *one_policy(ResumePoint(3)))
    assert devices == [torch.device("cuda:0")]


@pytest.mark.long
@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"input": ()}, "--input is missing"),
        ({"input": ("nowhere",)}, "nowhere: there is no such folder"),
        ({"env": "Acrobot-v1"}, r"does not fit Acrobot-v1.*expected float32 \[6\].*found .*\[4\]"),
        ({"batch_size": 81, "model": ModelConfig(core="gru")}, "nearest: 64 or 96"),
    ],
)
def test_data_that_do_not_fit_are_refused(
    dataset: Path, tmp_path: Path, more: dict[str, Any], text: str
) -> None:
    with pytest.raises(ConfigError, match=text):
        train(config(tmp_path / "run", dataset, **more))
    assert not (tmp_path / "run").exists(), "no folder of a run that cannot begin"


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"input": ("live", "data")}, "recorded data only"),
        ({"benchmark": True}, "no actors"),
        ({"sequence_length": 4}, "without a recurrent core"),
        ({"max_advantage_weight": 0.5}, "max-advantage-weight"),
    ],
)
def test_settings_that_make_no_sense_are_refused(more: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        MarwilConfig(**more)
