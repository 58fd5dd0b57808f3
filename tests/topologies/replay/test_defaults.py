"""What Ape-X chooses for what is left open, and that runs from before keep what they had."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from sampleforge.algorithms.dqn.learner import DqnLearner
from sampleforge.algorithms.learning import LearnerPlace
from sampleforge.models.config import ModelConfig
from sampleforge.models.q_heads import Streams
from sampleforge.presets import preset_values
from sampleforge.run.folder.run_folder import RunFolder
from sampleforge.spec import ActionSpec, ArraySpec, EnvSpec
from sampleforge.topologies.config import AnyConfig, ApexConfig, DdppoConfig
from sampleforge.topologies.pairings.dqn_defaults import resolve_defaults
from tests.support.pairings import network_maker

ACTION = {"action": ActionSpec("discrete", (), "int64", (6,))}
IMAGE = EnvSpec("Images", {"obs": ArraySpec((4, 84, 84), "uint8")}, ACTION)
PLANES = EnvSpec("Planes", {"obs": ArraySpec((10, 10, 4), "bool")}, ACTION)
VECTOR = EnvSpec("Vectors", {"obs": ArraySpec((4,), "float32")}, ACTION)
PAPER = {
    "reward_clip": 1.0,
    "head_size": 512,
    "optimiser": "rmsprop",
    "learning_rate": 6.25e-5,
    "optimiser_eps": 3.9e-4,
    "priority_alpha": 0.6,
    "priority_beta": 0.4,
}
R2D2 = {
    "reward_clip": None,
    "head_size": 512,
    "optimiser": "adam",
    "learning_rate": 1e-4,
    "optimiser_eps": 1e-3,
    "priority_alpha": 0.9,
    "priority_beta": 0.6,
}
OURS = {
    "reward_clip": None,
    "head_size": 0,
    "optimiser": "adam",
    "learning_rate": 5e-4,
    "optimiser_eps": 1e-6,
    "priority_alpha": 0.6,
    "priority_beta": 0.4,
}
DENSE = {**OURS, "learning_rate": 2e-3}


@pytest.mark.parametrize(
    ("spec", "core", "given", "wanted"),
    [
        (IMAGE, "none", {}, PAPER),
        (IMAGE, "lstm", {}, R2D2),
        (VECTOR, "none", {}, DENSE),
        (PLANES, "none", {}, OURS),
        (VECTOR, "gru", {}, OURS),
        (IMAGE, "none", {"value_rescaling": True}, {**PAPER, "reward_clip": None}),
        (IMAGE, "lstm", {"value_rescaling": False}, {**R2D2, "reward_clip": 1.0}),
        (IMAGE, "none", {"optimiser": "adam"},
         {**PAPER, "optimiser": "adam", "optimiser_eps": 1.5e-4}),
        (IMAGE, "none", {"reward_clip": None, "head_size": 0, "priority_alpha": 0.0},
         {**PAPER, "reward_clip": None, "head_size": 0, "priority_alpha": 0.0}),
        (VECTOR, "none", {"reward_clip": 5.0}, {**DENSE, "reward_clip": 5.0}),
    ],
)  # fmt: skip
def test_settings_that_are_left_open_are_those_of_the_papers(
    spec: EnvSpec, core: Any, given: dict[str, Any], wanted: dict[str, Any]
) -> None:
    fitted = resolve_defaults(
        ApexConfig(env=spec.env_id, model=ModelConfig(core=core), **given), spec
    )
    assert {name: getattr(fitted, name) for name in wanted} == wanted
    assert resolve_defaults(fitted, spec) == fitted


def test_images_have_a_layer_of_512_in_each_stream() -> None:
    config = resolve_defaults(
        ApexConfig(env="Images", model=ModelConfig(encoder="nature_cnn")), IMAGE
    )
    network = network_maker(config, IMAGE, 0)()
    assert isinstance(network.heads, Streams)
    assert [layer.in_features for layer in network.heads.out] == [512, 512]


def test_rmsprop_takes_no_longer_steps_than_the_papers() -> None:
    """The paper's: g / sqrt(var + 1.5e-7). Torch adds its eps beside the root; ours may be shorter
    by sqrt(2), where the deviation is about eps. (With 1.5e-7 there: up to 2,600 times as long.)"""
    config = resolve_defaults(ApexConfig(env="Images"), IMAGE)
    assert config.optimiser_eps is not None
    deviation = torch.logspace(-8, 0, 200, dtype=torch.float64)
    papers = 1 / (deviation.square() + 1.5e-7).sqrt()
    ours = 1 / (deviation + config.optimiser_eps)
    assert ((ours < 1.001 * papers) & (ours > 0.7 * papers)).all()
    model = ModelConfig(encoder="mlp", hidden_sizes=(4,))
    config = resolve_defaults(ApexConfig(env="Images", model=model), IMAGE)
    network = network_maker(config, IMAGE, 0)()
    learner = DqnLearner(network, config, LearnerPlace(torch.device("cpu")))
    assert learner._optimiser.eps == 3.9e-4


FORMER: dict[str, tuple[AnyConfig, dict[str, float | None]]] = {
    "apex": (
        ApexConfig(env="E"),
        {"reward_clip": None, "head_size": 0, "priority_alpha": 0.6, "priority_beta": 0.4},
    ),
    "ddppo": (DdppoConfig(env="E"), {"adam_eps": 1e-6}),
}


@pytest.mark.parametrize("algo", FORMER)
def test_the_same_command_resumes_a_run_from_before_with_what_it_had(
    algo: str, tmp_path: Path
) -> None:
    asked, had = FORMER[algo]
    folder = RunFolder(tmp_path / "run")
    folder.create()
    try:
        folder.write_config(asked, asked)
        stored = {**yaml.safe_load(folder.config_file.read_text()), **had}
        del stored["rescale_actions"]
        folder.config_file.write_text(yaml.safe_dump(stored))
        resumed = folder.check_resume(asked).used
        assert {name: getattr(resumed, name) for name in had} == had
        folder.write_config(resumed, asked)
        assert folder.check_resume(asked).used == resumed, "and again"
        stored["rescale_actions"] = False  # by this version, so that the values were asked for
        stored["left_open"] = {}
        folder.config_file.write_text(yaml.safe_dump(stored))
        kept = folder.check_resume(asked)
        assert {name: getattr(kept.asked, name) for name in had} == had
        assert all(note.startswith("As in the run before: --") for note in kept.notes)
    finally:
        folder.close()


def test_presets_keep_what_they_were_measured_with() -> None:
    pong = preset_values("apex", "pong")
    assert (pong["head_size"], pong["reward_clip"]) == (0, 1.0)
    for name in ("cartpole", "halfcheetah"):
        assert preset_values("ddppo", name)["adam_eps"] == 1e-6
