"""`sampleforge export`, and `sampleforge eval --onnx` with the file that it has written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch

from sampleforge.api import load_policy, train
from sampleforge.cli import main
from sampleforge.models.config import ModelConfig
from sampleforge.run.onnx_policy import OnnxPolicy
from sampleforge.tools.export.program import PolicyProgram
from sampleforge.topologies.config import AppoConfig
from tests.support import recorded_envs


def run_of(env: str, run: Path, **more: Any) -> Path:
    """The folder of a short recurrent run in an environment of `tests.support.recorded_envs`."""
    train(
        AppoConfig(
            env="tests.support.recorded_envs:make",
            env_kwargs={"name": env},
            run_dir=str(run),
            seed=3,
            serial=True,
            quiet=True,
            rollout=8,
            num_envs_per_worker=4,
            learning_rate=0.01,
            train_for_env_steps=400,
            model=ModelConfig(hidden_sizes=(16,), core="gru", core_size=8),
            **more,
        )
    )
    return run


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder, and beside it policy.onnx."""
    run = run_of("memory", tmp_path_factory.mktemp("trained") / "run")
    words = ["export", str(run), "--format", "onnx", "--out", str(run.parent / "policy.onnx")]
    assert main(words) == 0
    return run


def last_line(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return found


def played(run: Path, *more: str) -> list[recorded_envs.Step]:
    """What passed through the environment while `sampleforge eval` played."""
    recorded_envs.STEPS.clear()
    assert main(["eval", str(run), "--trust", "--quiet", "--episodes", "4", *more]) == 0
    return list(recorded_envs.STEPS)


@pytest.mark.long
def test_an_onnx_file_plays_the_episodes_of_its_checkpoint(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(trained.parent / "policy.onnx")
    steps = played(trained)
    expected = last_line(capsys)
    again = played(trained, "--onnx", file)
    assert last_line(capsys) == expected
    assert [step.action for step in again] == [step.action for step in steps]
    assert len(steps) > 4


@pytest.mark.long
def test_the_last_line_says_what_was_written(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "policy.pt2"
    assert main(["export", str(trained), "--format", "torch", "--out", str(out)]) == 0
    found = last_line(capsys)
    assert found["file"] == str(out) and out.is_file()
    assert found["max_error"] <= 1e-5 and found["observations"] == 1000
    assert found["env_steps"] >= 400 and found["checkpoint"] == "latest"
    assert [column["name"] for column in found["inputs"]] == ["obs", "state"]
    assert "spec" not in found


@pytest.mark.long
def test_a_policy_of_several_is_exported_by_its_id(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, out = run_of("tuple", tmp_path / "run", num_policies=2), tmp_path / "policy.onnx"
    assert main(["export", str(run), "--out", str(out), "--policy", "policy_1"]) == 0
    found = last_line(capsys)
    assert found["max_error"] <= 1e-5 and found["policy"] == "policy_1"
    exported, obs = OnnxPolicy(out), torch.ones(2, 4)
    state = exported.initial_state(2)
    written = exported.act({"obs": obs.numpy()}, state, np.ones(2, np.bool_))[1]
    other, same = (
        PolicyProgram(load_policy(run, trust=True, policy=policy))({"obs": obs, "state": state})
        for policy in ("policy_0", "policy_1")
    )
    assert torch.allclose(written, same["next_state"], atol=1e-5)
    assert not torch.allclose(written, other["next_state"], atol=1e-3)
    assert main(["export", str(run), "--out", str(tmp_path / "p.onnx")]) == 2
    assert "say which of them: --policy policy_0" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--stochastic"], "--stochastic --onnx FILE: such a file has the most likely actions"),
        (["--policy", "a"], "--policy a --onnx FILE: such a file has one policy"),
        (["--checkpoint", "best"], "such a file has the weights that it was exported with"),
        (["--onnx", "missing.onnx"], "--onnx missing.onnx: No such file or directory"),
    ],
)
def test_flags_that_do_not_fit_an_onnx_file_are_refused(
    trained: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    file = str(trained.parent / "policy.onnx")
    assert main(["eval", str(trained), "--trust", "--onnx", file, *words]) == 2
    assert message.replace("FILE", file) in capsys.readouterr().err


@pytest.mark.long
def test_a_file_of_other_spaces_is_refused_with_the_difference(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = run_of("box of one number", tmp_path / "run")
    file = str(trained.parent / "policy.onnx")
    assert main(["eval", str(other), "--trust", "--quiet", "--onnx", file]) == 2
    said = capsys.readouterr().err
    assert "does not fit" in said and "Box(2.0, 3.0, (), float64)" in said


def test_a_file_without_metadata_or_that_is_no_onnx_is_refused(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = onnx.load(trained.parent / "policy.onnx")
    del model.metadata_props[:]
    onnx.save(model, tmp_path / "foreign.onnx")
    (tmp_path / "text.onnx").write_text("no protobuf")
    for name, message in [("foreign", "no metadata of an export"), ("text", "cannot load it")]:
        file = str(tmp_path / f"{name}.onnx")
        assert main(["eval", str(trained), "--trust", "--quiet", "--onnx", file]) == 2
        assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--out", "policy.pt2"], "a file of --format onnx must end in .onnx"),
        (["--format", "torch", "--out", "policy.onnx"], "must end in .pt2"),
        (["--out", "nowhere/policy.onnx"], "there is no folder nowhere"),
    ],
)
def test_files_that_cannot_be_written_are_refused(
    trained: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert main(["export", str(trained), *words]) == 2
    assert message in capsys.readouterr().err
