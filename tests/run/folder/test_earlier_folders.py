"""Run folders of versions whose defaults were the same for all environments, and those of today:
the same command resumes both, with the settings that they began with."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from sampleforge.api import train
from sampleforge.cli.train import parse_config
from sampleforge.config import ConfigError
from sampleforge.models.config import ModelConfig
from sampleforge.run.folder.run_folder import RunFolder
from sampleforge.run.folder.stored_config import HEADER, MAY_CHANGE, flat_fields, read_config
from sampleforge.topologies.appo.plan import plan_appo
from sampleforge.topologies.config import ALGOS, AnyConfig, ApexConfig, AppoConfig, DdppoConfig
from sampleforge.topologies.ddppo.plan import plan_ddppo
from sampleforge.topologies.population_config import PbtConfig
from sampleforge.topologies.ppo_defaults import resolve_defaults
from sampleforge.workers.config import PoliciesConfig
from tests.support.graphs import spec_of
from tests.support.variants import slow

STORED = Path(__file__).parent / "stored"
"""config.yaml as `sampleforge train ALGO --env CartPole-v1` wrote it then (ddppo: on two cores)."""
COMMANDS = {"appo": "--env CartPole-v1", "ddppo": "--env CartPole-v1 --num-ranks 2"}


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[RunFolder]:
    found = RunFolder(tmp_path / "run")
    found.create()
    yield found
    found.close()


def earlier(folder: RunFolder, algo: str, **changed: Any) -> dict[str, Any]:
    """Put such a config.yaml into the folder; returns its fields by dotted name."""
    shutil.copy(STORED / f"{algo}-fixed-defaults.yaml", folder.config_file)
    stored = yaml.safe_load(folder.config_file.read_text()) | changed
    folder.config_file.write_text(yaml.safe_dump(stored))
    model = {f"model.{name}": value for name, value in stored.pop("model").items()}
    gone = {*HEADER, "keep_driver_weights_in_sync"}
    return {**{name: value for name, value in stored.items() if name not in gone}, **model}


def learning(fields: dict[str, Any]) -> dict[str, Any]:
    """Those that a resumed run may not change, as YAML has them."""
    plain = {n: list(v) if isinstance(v, tuple) else v for n, v in fields.items()}
    return {n: v for n, v in plain.items() if n not in MAY_CHANGE}


def of_later_features(cls: type[AnyConfig]) -> dict[str, Any]:
    """The defaults of the fields about several policies, callbacks, variable experience, the
    schedule of the bonus, LayerNorm, normalised images and embeddings, which these folders do not
    have (of those of ranks, not the first)."""
    parts = [part for part in (PoliciesConfig, PbtConfig) if issubclass(cls, part)]
    names = {
        "callbacks",
        "variable_experience",
        "exploration_schedule",
        "model.layer_norm",
        "model.normalise_images",
        "model.embedding_size",
        *(f.name for part in parts for f in dataclasses.fields(part)),
    }
    return learning({n: value for n, value in flat_fields(cls()).items() if n in names})


def is_resumed_as_it_was(folder: RunFolder, asked: Any, stored: dict[str, Any]) -> None:
    """Today as well as when it is resumed again, from the file that is written today."""
    spec = spec_of(asked)
    whole = {} if stored["async_rl"] else {"minibatch_size": stored["batch_size"]}
    for _ in range(2):
        config = resolve_defaults(folder.check_resume(asked).used, spec)
        assert isinstance(config, AppoConfig | DdppoConfig)
        new = {
            **of_later_features(type(config)),
            "noise_correlation": 0.0,
            "advantage_floor": 0.0,
            "model.encode": None,
            "model.embed_above": None,
            "rescale_actions": False,
            **whole,
        }
        assert learning(flat_fields(config)) == {**learning(stored), **new}
        if isinstance(config, DdppoConfig):
            plan = plan_ddppo(config, spec, "cpu")
        else:
            plan = plan_appo(config, spec, "cpu")
        assert plan.batch_size == stored["batch_size"]
        folder.write_config(config, asked)


@pytest.mark.parametrize("algo", list(COMMANDS))
def test_the_same_command_resumes_an_earlier_run_as_it_was(folder: RunFolder, algo: str) -> None:
    stored = earlier(folder, algo)
    is_resumed_as_it_was(folder, parse_config(algo, COMMANDS[algo].split()), stored)


def test_an_empty_minibatch_of_an_earlier_synchronous_run_is_its_whole_batch(
    folder: RunFolder,
) -> None:
    stored = earlier(folder, "appo", async_rl=False, num_envs_per_worker=64)
    command = "--env CartPole-v1 --no-async-rl --num-envs-per-worker 64"
    is_resumed_as_it_was(folder, parse_config("appo", command.split()), stored)


def test_flags_of_an_earlier_run_need_not_be_given_again(folder: RunFolder) -> None:
    stored = earlier(folder, "appo", learning_rate=0.01, clip_ratio=0.3)
    resumed = folder.check_resume(AppoConfig(env="CartPole-v1"))
    assert (resumed.used.learning_rate, resumed.used.clip_ratio) == (0.01, 0.3)
    assert "As in the run before: --learning-rate 0.01" in resumed.notes
    assert not any("num-epochs" in note for note in resumed.notes)
    command = "--env CartPole-v1 --learning-rate 0.01 --clip-ratio 0.3"
    is_resumed_as_it_was(folder, parse_config("appo", command.split()), stored)


def test_other_settings_are_refused_for_an_earlier_run(folder: RunFolder) -> None:
    earlier(folder, "appo")
    asked = AppoConfig(env="CartPole-v1", async_rl=False, learning_rate=0.5, num_epochs=3)
    with pytest.raises(ConfigError) as refusal:
        folder.check_resume(asked)
    for line in ("async_rl: True -> False", "learning_rate: 0.0001 -> 0.5", "num_epochs: 1 -> 3"):
        assert line in str(refusal.value)


@pytest.mark.parametrize("algo", list(COMMANDS))
def test_an_earlier_config_file_means_what_it_meant(folder: RunFolder, algo: str) -> None:
    stored = earlier(folder, algo)
    config = parse_config(algo, ["--config", str(folder.config_file)])
    found = learning(flat_fields(resolve_defaults(config, spec_of(config))))
    whole = None if stored["async_rl"] else stored["batch_size"]
    since: dict[str, Any] = {"noise_correlation": 0.0, "advantage_floor": 0.0}
    since |= {"rescale_actions": False, "model.encode": None, "model.embed_above": None}
    since |= of_later_features(ALGOS[algo])
    assert found == learning({**stored, **since, "minibatch_size": whole})


def test_an_earlier_run_of_apex_resumes_with_its_settings(folder: RunFolder) -> None:
    """Its config has none of these fields but the critic's, which it never uses."""
    asked = ApexConfig(env="CartPole-v1")
    then = dataclasses.replace(asked.model, separate_critic=False)
    folder.write_config(
        dataclasses.replace(asked, model=then), dataclasses.replace(asked, model=then)
    )
    stored = yaml.safe_load(folder.config_file.read_text())
    del stored["rescale_actions"]  # as it was then
    folder.config_file.write_text(yaml.safe_dump(stored))
    assert folder.check_resume(asked).used.rollout == asked.rollout
    assert parse_config("apex", ["--config", str(folder.config_file)]).env == "CartPole-v1"


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
    assert learning(found) == learning(stored), "nothing that shapes the learning is left open"
    train(dataclasses.replace(repeated, run_dir=str(tmp_path / "other")))


def test_a_setting_that_no_longer_exists_is_left_out_with_a_notice(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stored = Path(__file__).parent / "stored" / "ddppo-fixed-defaults.yaml"
    assert "keep_driver_weights_in_sync" in stored.read_text()
    config, left_open = read_config(stored, DdppoConfig)
    assert isinstance(config, DdppoConfig) and "keep_driver_weights_in_sync" not in left_open
    assert "keep_driver_weights_in_sync no longer exists and is ignored" in caplog.text
