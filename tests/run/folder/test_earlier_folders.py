"""Run folders of earlier versions, and those of today: the same command resumes both, with the
settings that they began with."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from sampleforge.api import train
from sampleforge.cli import main
from sampleforge.cli.flags import parse
from sampleforge.cli.pbt import PbtFlags, population_settings, split
from sampleforge.cli.train import parse_config
from sampleforge.models.config import ModelConfig
from sampleforge.run.folder.stored_config import (
    MAY_CHANGE,
    OF_A_RANK,
    config_values,
    flat_fields,
)
from sampleforge.run.folder.versions import FORMAT
from sampleforge.tools.pbt.across_runs import Population
from sampleforge.topologies.config import AppoConfig, DdppoConfig
from sampleforge.topologies.pairings.ppo_defaults import resolve_defaults
from tests.support.graphs import spec_of
from tests.support.jobs import JobsAtOnce
from tests.support.stored_runs import COMMANDS, command
from tests.support.variants import slow

pytestmark = pytest.mark.long

STORED = Path(__file__).parent / "stored"
"""The folders that `tests.support.stored_runs` made with the version before this one."""
RUNS = [kind for kind in COMMANDS if (STORED / kind / "config.yaml").exists()]


def test_asynchronous_runs_go_on_with_the_minibatch_that_they_had(tmp_path: Path) -> None:
    """It was the batch where it was left open; for images it is 256 now."""
    file = tmp_path / "config.yaml"
    fields = {"env": "ALE/Pong-v5", "async_rl": True, "batch_size": 2048, "minibatch_size": None}
    stored = {"algo": "appo", "format": FORMAT, "versions": {}, **fields}
    opened = {"batch_size": None, "minibatch_size": None}
    file.write_text(yaml.safe_dump({**stored, "left_open": opened}))
    assert config_values(file, "appo")["minibatch_size"] == 2048
    opened |= {"model.normalise_images": None}
    file.write_text(yaml.safe_dump({**stored, "left_open": opened}))
    assert config_values(file, "appo")["minibatch_size"] is None, "of this version"


@pytest.fixture
def copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the stored folders, in which commands are given."""
    copy = tmp_path / "stored"
    shutil.copytree(STORED, copy)
    monkeypatch.chdir(copy)
    return copy


def summary(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "summary.json").read_text())
    return found


def is_evaluated(run: Path, capfd: pytest.CaptureFixture[str], *more: str) -> None:
    assert main(["eval", str(run), "--episodes", "1", "--quiet", *more]) == 0
    assert json.loads(capfd.readouterr().out.splitlines()[-1])["episodes"] == 1


@pytest.mark.parametrize("kind", RUNS)
def test_an_earlier_run_is_evaluated_and_resumed_by_its_command(
    copied: Path, capfd: pytest.CaptureFixture[str], kind: str
) -> None:
    run = copied / kind
    if kind == "self-play":
        pytest.importorskip("openskill")
    policy = ("--policy", "policy_1") if kind == "pbt" else ()
    is_evaluated(run, capfd, *policy)
    before = summary(run)
    assert main(command(kind, 700)) == 0
    told = capfd.readouterr().err
    after = summary(run)
    assert after["env_steps"] >= 700 > before["env_steps"]
    assert after["updates"] > before["updates"] and after["wall_s"] > before["wall_s"]
    assert after.get("episodes", 0) >= before.get("episodes", 0)
    assert "replay" not in told, "that of Ape-X is restored, and none is missed elsewhere"
    is_evaluated(run, capfd, *policy)


def test_an_earlier_population_of_runs_is_evaluated_and_resumed(
    copied: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = copied / "population" / "members" / "1"
    is_evaluated(run, capfd)
    own, algo, rest = split(command("population", 320)[1:])
    assert algo is not None
    flags = parse(PbtFlags, own, "sampleforge pbt", "")
    settings = population_settings(flags, parse_config(algo, rest))
    population = Population(settings, copied / "population", JobsAtOnce())
    for _ in range(50):
        if not population.done:
            population.step()
    result = population.summary()
    assert (result["finished"], result["failed"]) == (2, 0)
    states = [member.published for member in population.members()]
    assert [s is not None and s.env_steps >= 320 and s.round >= 3 for s in states] == [True] * 2
    is_evaluated(run, capfd)


def changed(run: Path, **values: Any) -> None:
    """Change the values of a config.yaml; None: remove them."""
    stored = yaml.safe_load((run / "config.yaml").read_text()) | values
    text = yaml.safe_dump({n: v for n, v in stored.items() if v is not None})
    (run / "config.yaml").write_text(text)


@pytest.mark.parametrize("number", [0, 2])
def test_a_folder_of_a_format_that_is_not_read_is_refused_with_its_number(
    copied: Path, capfd: pytest.CaptureFixture[str], number: int
) -> None:
    """Format 0 has no number, nor the encoding of observations."""
    run = copied / "appo"
    if number == 0:
        changed(
            run, model={"hidden_sizes": [4]}, rescale_actions=None, versions={"sampleforge": "0.1"}
        )
    else:
        changed(run, format=number, versions={"sampleforge": "0.9"}, a_later_field=1)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    for words in (
        command("appo", 700),
        ["eval", str(run), "--episodes", "1"],
        ["train", "appo", "--config", str(run / "config.yaml"), "--run-dir", "other"],
    ):
        assert main(words) == 2
        told = capfd.readouterr().err
        assert f"config.yaml is of format {number}, and this version" in told
        assert "reads format 1; use SampleForge 0." in told and "--run-dir" in told
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def learning(fields: dict[str, Any]) -> dict[str, Any]:
    """Those that a resumed run may not change, as YAML has them."""
    plain = {n: list(v) if isinstance(v, tuple) else v for n, v in fields.items()}
    return {n: v for n, v in plain.items() if n not in MAY_CHANGE}


@pytest.mark.parametrize(
    ("make", "core"),
    [
        (AppoConfig, "gru"),
        (DdppoConfig, "none"),
        slow(AppoConfig, "none"),
        slow(DdppoConfig, "gru"),
    ],
)
def test_a_run_of_this_version_is_resumed_and_repeated(
    tmp_path: Path, make: Any, core: Any
) -> None:
    """By the same command, though nearly everything was left open, and by its config.yaml."""
    run = tmp_path / "run"
    asked = make(
        env="CartPole-v1",
        run_dir=str(run),
        serial=True,
        quiet=True,
        train_for_env_steps=1,
        model=ModelConfig(core=core, core_size=8, hidden_sizes=(8,)),
    )
    train(asked)
    first = yaml.safe_load((run / "config.yaml").read_text())
    left_open = first["left_open"]
    assert None not in (first["learning_rate"], first["rollout"], first["minibatch_size"])
    assert first["model"]["separate_critic"] is (core == "none")
    for name in ("learning_rate", "rollout", "minibatch_size", "batch_size", "seed", "num_epochs"):
        assert name in left_open and left_open[name] is None
    assert left_open["model.separate_critic"] is None
    train(dataclasses.replace(asked, train_for_env_steps=2))
    again = yaml.safe_load((run / "config.yaml").read_text())
    assert again == {**first, "train_for_env_steps": 2}
    repeated = parse_config(make.algo, ["--config", str(run / "config.yaml")])
    found = flat_fields(resolve_defaults(repeated, spec_of(repeated)))
    stored = flat_fields(repeated)
    if make is DdppoConfig:  # as many ranks as the machine has, and sizes to match
        stored |= {name: first[name] for name in OF_A_RANK - {"batch_size"}}
    assert learning(found) == learning(stored), "nothing that shapes the learning is left open"
    train(dataclasses.replace(repeated, run_dir=str(tmp_path / "other")))
