"""`sampleforge estimate`: from a run folder and a dataset to estimates that its last line holds."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sampleforge.api import load_policy
from sampleforge.cli import main
from sampleforge.loaded_policy import LoadedPolicy
from sampleforge.offline.dataset import Episode
from tests.support.recorded import recorded, write_dataset
from tests.support.serial_runs import run_serially


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("estimate") / "run"
    run_serially(folder, 1, train_for_env_steps=500)
    return folder


@pytest.fixture(scope="module")
def data(run: Path) -> Path:
    """Episodes of 5 random steps whose behaviour is the policy's own, but for the actions of one
    episode, which it never takes as often as they were taken."""
    policy = load_policy(run)
    episodes = [
        dataclasses.replace(each, log_probs=log_probs(policy, each))
        for each in recorded_in(policy, 60)
    ]
    episodes.append(dataclasses.replace(episodes[0], begins=False))
    episodes.append(dataclasses.replace(episodes[0], shortened=True))
    return write_dataset(run.parent / "data", policy.spec, episodes)


def recorded_in(policy: LoadedPolicy, count: int) -> list[Episode]:
    rng = np.random.default_rng(0)
    return [
        dataclasses.replace(
            episode, observations={"obs": rng.normal(0, 0.1, (6, 4)).astype(np.float32)}
        )
        for episode in recorded([5] * count, policy.spec.actions)
    ]


def log_probs(policy: LoadedPolicy, episode: Episode) -> np.ndarray[Any, Any]:
    """Log-probabilities under the policy itself."""
    obs = {"obs": torch.from_numpy(episode.observations["obs"][:-1])}
    with torch.no_grad():
        output = policy.model.step(obs, torch.zeros(5, 0), torch.ones(5, dtype=torch.bool))
        distribution = policy.model.distribution(output.parameters, obs)
        taken = {"action": torch.from_numpy(episode.actions["action"])}
        return distribution.log_prob(taken).numpy()  # type: ignore[union-attr]


def test_on_the_policys_own_episodes_every_estimate_but_one_is_their_mean(
    run: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "estimates.png"
    assert main(["estimate", str(run), str(data), "--out", str(out)]) == 0
    printed = capsys.readouterr()
    *table, last = printed.out.splitlines()
    result = json.loads(last)
    for name in ("is", "wis", "pdis"):
        assert result[name]["value"] == pytest.approx(result["behaviour_return"], rel=1e-4)
        assert result[name]["low"] < result[name]["value"] < result[name]["high"]
    assert result["dr"]["low"] < result["behaviour_return"] < result["dr"]["high"]
    assert result["episodes"] == 60 and result["episodes_left_out"] == 2
    assert result["episodes_effective"] == pytest.approx(60, rel=1e-4)
    assert "2 episodes were left out" in printed.err
    assert any("doubly robust" in line and "60.0 of 60" in line for line in table)
    assert out.read_bytes().startswith(b"\x89PNG")


def test_json_alone_a_discount_and_clipped_ratios(
    run: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = [
        "--json",
        "--no-doubly-robust",
        "--gamma",
        "0.5",
        "--max-ratio",
        "1.0",
        "--level",
        "0.8",
    ]
    assert main(["estimate", str(run), str(data), *flags]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    result = json.loads(line)
    assert "dr" not in result and result["gamma"] == 0.5 and result["level"] == 0.8
    rewards = np.stack([e.rewards for e in recorded_in(load_policy(run), 60)])
    expected = (rewards * 0.5 ** np.arange(5)).sum(1).mean()
    assert result["behaviour_return"] == pytest.approx(expected, rel=1e-5)
    assert any("clipped to 1" in text for text in result["warnings"])


def test_a_greedy_policy_says_so_where_the_episodes_do_not_fit_it(
    run: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["estimate", str(run), str(data), "--greedy", "--no-doubly-robust"]) in (0, 2)
    printed = capsys.readouterr()
    assert "never takes" in printed.err or "count as" in printed.err


def test_data_without_log_probabilities_are_refused_with_the_reason(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    policy = load_policy(run)
    bare = [dataclasses.replace(each, log_probs=None) for each in recorded_in(policy, 3)]
    folder = write_dataset(tmp_path / "bare", policy.spec, bare)
    assert main(["estimate", str(run), str(folder)]) == 2
    assert "no log-probabilities of its actions: they were not recorded" in capsys.readouterr().err
    metadata = folder / "data" / "metadata.json"
    plain = json.loads(metadata.read_text())
    del plain["sampleforge"]
    metadata.write_text(json.dumps(plain))
    assert main(["estimate", str(run), str(folder)]) == 2
    assert "it is from elsewhere" in capsys.readouterr().err
