"""`sampleforge card`: what model hubs read, and a folder that plays."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from sampleforge.api import load_policy, train
from sampleforge.cli import main
from sampleforge.cli.train import parse_config
from sampleforge.config import ConfigError
from sampleforge.evaluation import evaluate
from sampleforge.run.folder.trust import Trust
from sampleforge.tools import card
from sampleforge.topologies.config import AppoConfig

ENV = "tests.support.picture_envs:PictureEnv"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("card") / "run"
    train(
        AppoConfig(
            env=ENV,
            run_dir=str(folder),
            seed=3,
            serial=True,
            quiet=True,
            num_envs_per_worker=4,
            report_interval=0.02,
            train_for_env_steps=200,
            learning_rate=0.002,
        )
    )
    return folder


@pytest.mark.long
def test_a_card_has_what_hubs_read_and_is_a_run_folder(
    run: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "card"
    words = ["card", str(run), "--out", str(out), "--episodes", "20", "--repo", "me/pictures"]
    assert main(words) == 2
    assert "names code" in capfd.readouterr().err and not out.exists()
    assert main([*words, "--trust"]) == 0
    printed = capfd.readouterr().out
    last = json.loads(printed.splitlines()[-1])
    assert last["upload"] == f"hf upload me/pictures {out}" and last["upload"] in printed
    assert last["return_low"] <= last["return_mean"] <= last["return_high"]
    assert last["return_mean"] == 3.2, "16 rows, four of which play a second, longer episode"
    assert 3 <= last["return_low"] < last["return_high"] <= 4

    _, front, text = (out / "README.md").read_text().split("---\n", 2)
    card = yaml.safe_load(front)
    assert card["library_name"] == "sampleforge" and {"appo", ENV} <= set(card["tags"])
    (model,) = card["model-index"]
    (result,) = model["results"]
    assert result["task"]["type"] == "reinforcement-learning" and result["dataset"]["type"] == ENV
    (metric,) = result["metrics"]
    assert metric["type"] == "mean_reward"
    assert metric["value"] == f"{last['return_mean']:.2f} +/- {last['return_std']:.2f}"
    for name in ("curve.png", "replay.mp4"):
        assert f"({name})" in text and (out / name).stat().st_size > 1000
    assert "sampleforge eval run --trust" in text and f"`env: {ENV}`" in text
    assert 'sf.load_policy("run")' in text, "that needs no environment"
    interval = f"{last['return_low']:,.2f} to {last['return_high']:,.2f}"
    assert interval in text and "me/pictures" in text

    (command,) = (line for line in text.splitlines() if line.startswith("sampleforge train"))
    config = parse_config("appo", command.split()[3:])
    assert (config.env, config.seed, config.learning_rate) == (ENV, 3, 0.002)

    found = []
    for folder in (run, out):
        assert main(["eval", str(folder), "--trust", "--episodes", "4", "--quiet"]) == 0
        found.append(json.loads(capfd.readouterr().out))
    assert found[0] == found[1], "the card plays as the run does"


@pytest.mark.long
def test_a_card_of_a_run_that_trains_has_the_weights_that_its_score_is_of(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    trains, out = Path(shutil.copytree(run, tmp_path / "run")), tmp_path / "card"

    def evaluated(*args: Any, **how: Any) -> dict[str, Any]:
        score = evaluate(*args, **how)
        config = parse_config("appo", ["--env", ENV, "--seed", "3", "--serial", "--quiet"])
        assert isinstance(config, AppoConfig)
        more = dataclasses.replace(config, run_dir=str(trains), train_for_env_steps=1000)
        train(dataclasses.replace(more, num_envs_per_worker=4, learning_rate=0.002))
        return score

    monkeypatch.setattr(card, "evaluate", evaluated)
    words = ["card", str(trains), "--trust", "--no-video", "--episodes", "2", "--quiet"]
    assert main([*words, "--out", str(out)]) == 0
    scored = json.loads(capfd.readouterr().out.splitlines()[-1])["env_steps"]
    (shipped,) = (out / "checkpoints").glob("*.safetensors")
    (*_, newest) = sorted((trains / "checkpoints").glob("*.safetensors"))
    assert int(shipped.name[:12]) == scored < int(newest.name[:12])
    said, summary = (out / "README.md").read_text(), json.loads((out / "summary.json").read_text())
    assert f"| env steps | {summary['env_steps']:,} |" in said
    assert "--train-for-env-steps 200 " in said.replace("\n", " "), "as config.yaml beside it says"


def test_the_name_of_a_model_is_one_that_hubs_take() -> None:
    class Own(AppoConfig):
        algo = "my_package.mine:OwnConfig"

    assert card.default_name(Own(env="ALE/Pong-v5")) == "ALE-Pong-v5-my_package.mine-OwnConfig"


@pytest.mark.long
def test_a_curve_that_cannot_be_drawn_leaves_none_of_an_earlier_card(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "card"
    words = ["card", str(run), "--out", str(out), "--episodes", "1", "--no-video", "--trust"]
    assert main(words) == 0 and (out / "curve.png").is_file()

    def full(*_: Any) -> None:
        raise ConfigError("curve.png cannot be written: No space left on device")

    monkeypatch.setattr(card, "draw", full)
    assert main(words) == 0 and not (out / "curve.png").exists()


@pytest.mark.long
def test_a_card_is_written_anew_but_never_over_other_files(
    run: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["card", str(run), "--trust", "--no-video", "--episodes", "2", "--quiet", "--out"]
    (tmp_path / "mine.txt").write_text("mine")
    assert main([*words, str(tmp_path)]) == 2
    assert "holds other files" in capfd.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
    (tmp_path / "README.md").write_bytes("---\nof an older editor: \xe9\n".encode("latin-1"))
    assert main([*words, str(tmp_path)]) == 2
    assert "holds other files" in capfd.readouterr().err
    for file in ("mine.txt", "mine.txt/card"):
        assert main([*words, str(tmp_path / file)]) == 2
        assert "mine.txt is a file; give " in capfd.readouterr().err
    for _ in range(2):
        assert main([*words, str(tmp_path / "card")]) == 0
        assert "replay.mp4" not in (tmp_path / "card" / "README.md").read_text()
    written = tmp_path / "card"
    before = {path: path.read_bytes() for path in written.rglob("*") if path.is_file()}
    words[1] = str(written)  # it is a run folder itself
    assert main([*words, str(written)]) == 2
    assert "is the run itself" in capfd.readouterr().err
    assert before == {path: path.read_bytes() for path in before} and len(before) >= 5


@pytest.mark.long
@pytest.mark.parametrize("full", ["out", "the temporary folder"])
def test_a_card_that_cannot_be_written_is_said_in_one_line(
    full: str,
    run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    copy = shutil.copyfile

    def copied(source: Path, target: Path) -> None:
        if target.is_relative_to(tmp_path) == (full == "out"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "spec.json")
        copy(source, target)

    monkeypatch.setattr(shutil, "copyfile", copied)
    words = ["card", str(run), "--trust", "--no-video", "--quiet", "--episodes", "1"]
    assert main([*words, "--out", str(tmp_path)]) == 2
    error = capfd.readouterr().err
    failed = f"--out {tmp_path}: the card is not complete"
    if full != "out":
        failed = f"the run in {run} cannot be copied into a temporary folder"
        assert "--out" not in error and "TMPDIR" in error
    assert f"{failed}: [Errno 28] No space left" in error
    assert error.count("\n") == 1


@pytest.mark.long
def test_what_is_wrong_with_the_run_is_said_of_its_own_folder(
    run: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Not of the copy that is played."""
    words = ["--no-video", "--episodes", "1", "--out", str(tmp_path / "card")]
    assert main(["card", str(run), *words]) == 2
    assert f"{run}/config.yaml names code" in capfd.readouterr().err
    assert main(["card", str(run), "--trust", "--policy", "policy_9", *words]) == 2
    assert f"{run} has one policy, and none called 'policy_9'" in capfd.readouterr().err
    changed = Path(shutil.copytree(run, tmp_path / "changed"))
    config = yaml.safe_load((changed / "config.yaml").read_text())
    config["model"] |= {"core": "gru"}
    (changed / "config.yaml").write_text(yaml.safe_dump(config))
    assert main(["card", str(changed), "--trust", *words]) == 2
    assert f"{changed}: the weights of " in capfd.readouterr().err
    for path in (changed / "checkpoints").iterdir():
        path.unlink()
    assert main(["card", str(changed), "--trust", *words]) == 2
    assert f"{changed} has no checkpoint yet; train it first" in capfd.readouterr().err
    assert not (tmp_path / "card").exists()


@pytest.mark.long
def test_a_best_checkpoint_that_is_not_there_is_said_of_the_run(
    run: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["card", str(run), "--trust", "--no-video", "--episodes", "1", "--checkpoint", "best"]
    assert main([*words, "--out", str(tmp_path)]) == 0
    told = capfd.readouterr()
    assert (told.out + told.err).count(f"no checkpoint in {run}/checkpoints has a mean") == 1
    assert (told.out + told.err).count("has a mean return yet") == 1


@pytest.mark.long
@pytest.mark.parametrize("env", ["Walkers", "MixedGoals"])
def test_a_card_has_the_policies_that_are_not_trained(env: str, tmp_path: Path) -> None:
    """With agents of different spaces, the policy that is trained does not play without them."""
    run, out = tmp_path / "run", tmp_path / "card"
    config = AppoConfig(
        env=f"tests.support.multi_agent:{env}",
        run_dir=str(run),
        serial=True,
        quiet=True,
        num_policies=2,
        policies_to_train=("policy_0",),
        train_for_env_steps=200,
    )
    train(config)
    flags = ["--trust", "--no-video", "--episodes", "4", "--quiet", "--out", str(out)]
    for policy in ("policy_1", "policy_0"):
        assert main(["card", str(run), "--policy", policy, *flags]) == 0
        expected, found = (
            evaluate(each, episodes=4, policy=policy, trust=Trust(everything=True))
            for each in (run, out)
        )
        assert found == expected
    weights = load_policy(out, policy="policy_1").model.state_dict()
    for name, tensor in load_policy(run, policy="policy_1").model.state_dict().items():
        assert torch.equal(weights[name], tensor), name
