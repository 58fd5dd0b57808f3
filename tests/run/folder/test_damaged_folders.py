"""Damaged and hostile run folders: a sample of benchmarks/damaged_folders.py, and what it found."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import safetensors.torch
import torch

from sampleforge.config import ConfigError, from_plain
from sampleforge.run.folder.checkpoint import (
    Checkpoint,
    CheckpointError,
    decode,
    encode,
    load_weights,
)
from sampleforge.run.folder.run_folder import RunFolder
from sampleforge.run.folder.stored_config import config_values, read_yaml
from sampleforge.run.folder.trust import check_places
from sampleforge.topologies.config import AppoConfig
from tests.support import REPO
from tests.support.graphs import spec_of
from tests.support.processes import RunCli


@pytest.mark.multiprocess(timeout=240)
def test_damaged_folders_run_no_code_and_load_nothing_else(run_cli: RunCli) -> None:
    command = str(REPO / "benchmarks" / "damaged_folders.py")
    ended = run_cli(command, "--count", "40", timeout=220)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    none = "0 code executions, 0 wrong, 0 accesses outside, 0 files outside"
    assert none in ended.stdout


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_checkpoint_with_values_that_are_not_finite_is_refused(value: float) -> None:
    good = encode(Checkpoint({"w": torch.zeros(3)}, {}), {})
    header = {"format": "1", "state": "{}", "about": "{}"}
    bad = safetensors.torch.save({"w": torch.tensor([0.0, value, 0.0])}, header)
    assert decode(good).tensors["w"].tolist() == [0.0] * 3
    with pytest.raises(CheckpointError, match="'w' holds"):
        decode(bad)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.int32, torch.bool])
def test_weights_of_another_dtype_are_refused(dtype: torch.dtype) -> None:
    model = torch.nn.Linear(2, 2)
    tensors = {name: tensor.to(dtype) for name, tensor in model.state_dict().items()}
    with pytest.raises(RuntimeError, match=r"is torch\.\w+, but must be torch\.float32"):
        load_weights(model, tensors)


@pytest.mark.parametrize(
    "text",
    ["a: &a [*a, *a]", "a: " + "[" * 2000, "a: " + "[" * 100 + "]" * 100],
    ids=["endless", "deep and cut", "deep"],
)
def test_yaml_without_end_is_refused_with_a_reason(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(ConfigError, match=r"config\.yaml cannot be read: \w+"):
        read_yaml(tmp_path / "config.yaml")


def test_yaml_that_grows_when_it_is_read_is_refused(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x]", *(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, 40))]
    (tmp_path / "config.yaml").write_text("\n".join(lines))
    with pytest.raises(ConfigError, match="or more than 100,000"):
        read_yaml(tmp_path / "config.yaml")


def test_a_link_to_itself_is_refused_with_a_reason(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").symlink_to(tmp_path / "config.yaml")
    with pytest.raises(ConfigError, match="is a link"):
        check_places(tmp_path, ("config.yaml",))


def test_left_open_that_is_no_mapping_is_refused_with_a_reason(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("algo: appo\nformat: 1\nversions: {}\nleft_open: cut")
    with pytest.raises(ConfigError, match="left_open must hold key: value lines"):
        config_values(path, "appo")


def test_a_spec_with_another_value_is_refused(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    spec = spec_of(AppoConfig(env="CartPole-v1"))
    folder.write_spec(spec)
    assert folder.read_spec() == spec
    plain = json.loads(folder.spec_file.read_text())
    folder.spec_file.write_text(json.dumps({**plain, "mask_in_info": True}))
    with pytest.raises(ConfigError, match="its checksum is wrong"):
        folder.read_spec()
    del plain["sha256"]
    folder.spec_file.write_text(json.dumps(plain))
    with pytest.raises(ConfigError, match="its checksum is wrong"):
        folder.read_spec()


@pytest.mark.parametrize(
    ("text", "key", "where"),
    [
        ("env: X\nlearning_rate: 1\nlearning_rate: 2", "learning_rate", "lines 2 and 3"),
        ("env: X\n'env': Y", "env", "lines 1 and 2"),
        ("model: {core: gru, core: lstm}", "core", "line 1"),
        ("env_kwargs:\n  a: [{b: 1, c: 2,\n  b: 3}]", "b", "lines 2 and 3"),
    ],
)
def test_a_key_that_is_given_twice_is_refused(
    tmp_path: Path, text: str, key: str, where: str
) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        config_values(path, "appo")
    assert str(caught.value) == f"{path}: {key} is given twice ({where}); leave out one"


def test_a_key_may_be_in_several_mappings_and_override_a_merged_one(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text("a: &a {x: 1, y: 2}\nb: {<<: *a, x: 3}")
    assert read_yaml(path) == {"a": {"x": 1, "y": 2}, "b": {"x": 3, "y": 2}}


def test_a_setting_that_is_given_in_two_spellings_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text("learning-rate: 1\nlearning_rate: 2")
    with pytest.raises(ConfigError) as caught:
        from_plain(AppoConfig, config_values(path, "appo"), str(path))
    said = "learning_rate is given twice (as learning-rate and as learning_rate); leave out one"
    assert str(caught.value) == f"{path}: {said}"
