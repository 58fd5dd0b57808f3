"""Runs with self-play: snapshots, opponents, results, resume. Serial, so that they are exact."""

from __future__ import annotations

import json
import re
import shutil
from typing import Any

import pytest
import torch

from sampleforge.api import train
from sampleforge.cli import main
from sampleforge.config import ConfigError
from sampleforge.populations.self_play import SnapshotFiles, load_snapshots
from sampleforge.run.folder.checkpoint import CheckpointError
from sampleforge.run.folder.run_folder import RunFolder
from sampleforge.run.folder.trust import Trust, trusted_config
from sampleforge.tools.tournament.tournament import load_players
from sampleforge.topologies.config import ApexConfig, AppoConfig
from tests.support.runs import newest
from tests.support.variants import slow

pytest.importorskip("openskill")
SETTING: dict[str, Any] = {
    **{"env": "PaddleDuel-v0", "serial": True, "quiet": True, "seed": 3, "report_interval": 2.0},
    **{"num_envs_per_worker": 8, "opponent_pool": 3, "opponent_interval": 2000},
}


def run(folder, steps, **more):
    config = AppoConfig(**{**SETTING, **more}, train_for_env_steps=steps, run_dir=str(folder))
    return train(config)


def stored(folder):
    return json.loads((folder / "self_play.json").read_text())


@pytest.mark.long
def test_a_run_takes_snapshots_plays_them_and_reports_it(tmp_path):
    folder = tmp_path / "run"
    summary = run(folder, 9000).summary
    plain = stored(folder)
    steps = [snapshot["env_steps"] for snapshot in plain["snapshots"]]
    assert len(steps) == 3 and steps[0] == 0 and steps == sorted(steps)
    assert plain["games"] > 20 and plain["results"]["players"][0] == "now"
    reports = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert reports[-1]["self_play_snapshots"] == 3
    assert reports[-1]["self_play_games"] == summary["self_play"]["self_play_games"] > 20
    numbers = {snapshot["number"] for snapshot in plain["snapshots"]}
    assert numbers <= {int(path.stem) for path in (folder / "snapshots").iterdir()}


def test_a_benchmark_measures_the_games_against_snapshots_and_keeps_none(tmp_path):
    league: dict[str, Any] = {"opponent_latest": 0.0, "opponent_interval": 200}
    setting = {**SETTING, **league, "benchmark": True, "benchmark_seconds": 0.5}
    summary = train(AppoConfig(**setting, run_dir=str(tmp_path))).summary
    assert summary["self_play"]["self_play_snapshots"] == 3
    assert summary["self_play"]["self_play_games"] > 0
    assert (tmp_path / "benchmark.json").exists()
    assert not (tmp_path / "snapshots").exists() and not (tmp_path / "self_play.json").exists()


@pytest.mark.long
def test_policies_of_ape_x_play_their_snapshots_and_those_of_other_algorithms(tmp_path, capfd):
    apex, appo = tmp_path / "apex", tmp_path / "appo"
    settings = {**SETTING, "train_for_env_steps": 4500}
    train(ApexConfig(**settings, run_dir=str(apex)))
    train(AppoConfig(**settings, run_dir=str(appo)))
    assert stored(apex)["games"] > 10 and len(stored(apex)["snapshots"]) == 3
    assert main(["tournament", str(apex), str(appo), "--episodes", "6", "--quiet"]) == 0
    result = json.loads(capfd.readouterr().out.splitlines()[-1])
    assert set(result["players"]) == {"apex", "appo"} and result["games"] == 6


@pytest.mark.long
@pytest.mark.parametrize("draw", [slow("uniform"), "hard", slow("even")])
def test_two_serial_runs_are_bit_identical(tmp_path, draw):
    folders = [tmp_path / "one", tmp_path / "other"]
    for folder in folders:
        run(folder, 6000, opponent_draw=draw, opponent_window=2)
    one, other = map(newest, folders)
    assert one.keys() == other.keys() and all((one[name] == other[name]).all() for name in one)
    assert stored(folders[0]) == stored(folders[1])


@pytest.mark.long
def test_a_resumed_run_continues_with_the_same_pool(tmp_path):
    folder = tmp_path / "run"
    run(folder, 5000)
    before = stored(folder)
    run(folder, 7500)
    after = stored(folder)
    kept = [snapshot["env_steps"] for snapshot in after["snapshots"]]
    assert set(kept[:2]) <= {snapshot["env_steps"] for snapshot in before["snapshots"]}
    assert after["games"] > before["games"] > 0
    assert max(s["number"] for s in after["snapshots"]) == 3


@pytest.mark.long
def test_a_resume_keeps_the_snapshots_of_earlier_checkpoints(tmp_path):
    """One of them is used if the newest is damaged."""
    folder = tmp_path / "run"
    run(folder, 5000)
    files = {path.name for path in (folder / "snapshots").iterdir()}
    run(folder, 12_000)
    assert files <= {path.name for path in (folder / "snapshots").iterdir()}


@pytest.mark.long
def test_a_lost_snapshot_leaves_the_pool_with_a_warning(tmp_path):
    folder = tmp_path / "run"
    run(folder, 5000)
    (folder / "snapshots" / "1.safetensors").write_bytes(b"damaged")
    run(folder, 5500)
    assert "goes on without the snapshot" in (folder / "log.txt").read_text()
    assert 1 not in [snapshot["number"] for snapshot in stored(folder)["snapshots"]]


@pytest.mark.long
def test_the_snapshots_of_a_run_play_a_tournament(tmp_path, capfd):
    folder = tmp_path / "run"
    run(folder, 5000)
    args = ["--snapshots", "--episodes", "4", "--quiet"]
    assert main(["tournament", str(folder), *args]) == 0
    result = json.loads(capfd.readouterr().out.splitlines()[-1])
    assert len(result["players"]) == 4 and result["games"] == 24
    assert set(result["players"]) >= {"run", "run@0"} and result["episodes"] == 4


@pytest.mark.long
def test_a_damaged_snapshot_is_named_and_one_that_training_removes_is_left_out(
    tmp_path, monkeypatch
):
    folder = RunFolder(tmp_path)
    files, model = SnapshotFiles(folder.snapshots), torch.nn.Linear(2, 1)
    for number in (0, 1):
        files.write(number, 1000 * number, model.state_dict())
    monkeypatch.setattr(SnapshotFiles, "numbers", [0, 1, 2])
    assert [env_steps for env_steps, _ in load_snapshots(folder, model)] == [0, 1000]
    damaged = folder.snapshots / "1.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:100])
    message = f"{re.escape(str(damaged))}: it is truncated, .*; remove it to play without this"
    with pytest.raises(CheckpointError, match=message):
        list(load_snapshots(folder, model))


def test_a_snapshot_has_the_weights_that_the_policy_had(tmp_path):
    folder = RunFolder(tmp_path / "run")
    run(folder.path, 4000)
    config = trusted_config(folder, Trust())
    players = load_players([folder], [config], "latest", snapshots=True)
    states = [player.model.state_dict() for player in players]
    assert [player.name for player in players][:2] == ["run", "run@0"]
    for name in states[0]:
        assert states[0][name].shape == states[1][name].shape
    assert any((states[0][name] != states[1][name]).any() for name in states[0])


@pytest.mark.long
def test_win_rates_of_self_play_are_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    folder, out = tmp_path / "run", tmp_path / "out.svg"
    run(folder, 5000)
    assert main(["plot", str(folder), "--out", str(out)]) == 0
    assert "the policy against its snapshots" in out.read_text()
    assert main(["plot", str(folder), "--out", str(out), "--figure", "curves"]) == 0
    assert "throughput" in out.read_text()


def test_flags_of_self_play_need_a_pool():
    with pytest.raises(ConfigError, match="--opponent-draw hard: there is no self-play"):
        AppoConfig(env="PaddleDuel-v0", opponent_draw="hard")


@pytest.mark.long
def test_a_tournament_needs_two_players_and_several_agents(tmp_path, capfd):
    one = tmp_path / "one"
    run(one, 2500)
    assert main(["tournament", str(one)]) == 2
    assert "a tournament needs two" in capfd.readouterr().err
    for name in ("a", "b"):
        train(
            AppoConfig(
                env="CartPole-v1",
                serial=True,
                quiet=True,
                train_for_env_steps=500,
                run_dir=str(tmp_path / name),
            )
        )
    assert main(["tournament", str(tmp_path / "a"), str(tmp_path / "b"), "--quiet"]) == 2
    assert "has one agent" in capfd.readouterr().err
    assert main(["tournament", str(one), str(tmp_path / "b"), "--quiet"]) == 2
    assert "policies can only play each other on one environment" in capfd.readouterr().err
    shutil.rmtree(one / "snapshots")
    assert main(["tournament", str(one), "--snapshots", "--quiet"]) == 2
    said = capfd.readouterr().err
    assert f"no file in {one / 'snapshots'}, where those of self-play are" in said
