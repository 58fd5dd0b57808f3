"""A run begins with the weights of another one, of which parts may stay as they are."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from sampleforge.api import Trainer, train
from sampleforge.config import ConfigError
from sampleforge.models.config import ModelConfig
from sampleforge.models.parts import part_of
from sampleforge.topologies.config import AppoConfig
from tests.support.callbacks import Warnings
from tests.support.product import SMALL, small
from tests.support.runs import newest

Trained = Callable[[str], Path]


def beginning(config: Any) -> dict[str, torch.Tensor]:
    """The weights of a run that has not learned yet."""
    with Trainer(config) as trainer:
        return {name: torch.as_tensor(value) for name, value in trainer.get_weights().items()}


def model(run: Path) -> dict[str, torch.Tensor]:
    return {n.removeprefix("model/"): t for n, t in newest(run).items() if n.startswith("model/")}


@pytest.mark.long
@pytest.mark.parametrize("algo", SMALL)
def test_a_frozen_encoder_of_another_run_stays_and_the_rest_learns(
    algo: str, trained: Trained, data: Path, tmp_path: Path
) -> None:
    before = newest(trained(algo))
    run = tmp_path / "run"
    train(small(algo, run, data, init_from=str(trained(algo)), freeze=("encoder",)))
    after = newest(run)
    names = [name for name in before if name.startswith("model/")]
    frozen = [name for name in names if part_of(name.removeprefix("model/")) == "encoder"]
    assert frozen and all(torch.equal(before[name], after[name]) for name in frozen)
    rest = [name for name in names if name not in frozen]
    assert any(not torch.equal(before[name], after[name]) for name in rest)


class Normed(torch.nn.Module):
    """An encoder with statistics of its own."""

    def __init__(self, observations: Any, config: ModelConfig) -> None:
        super().__init__()
        (size,) = observations["obs"].shape
        self.layers = torch.nn.Sequential(torch.nn.Linear(size, 16), torch.nn.BatchNorm1d(16))
        self.out_features = 16

    def forward(self, obs: Any) -> torch.Tensor:
        out: torch.Tensor = self.layers(obs["obs"].float().flatten(0, -2))
        return out.unflatten(0, obs["obs"].shape[:-1])


@pytest.mark.long
@pytest.mark.parametrize("until", [None, 10**6])
@pytest.mark.parametrize("algo", SMALL)
def test_statistics_of_a_frozen_encoder_of_the_users_own_stay(
    algo: str, until: int | None, data: Path, tmp_path: Path
) -> None:
    own = {"model": ModelConfig(encoder=f"{__name__}:Normed")}
    for folder, more in (
        ("free", {}),
        ("frozen", {"freeze": ("encoder",), "unfreeze_after": until}),
    ):
        train(small(algo, tmp_path / folder, data, **own, **more))
    free, frozen = model(tmp_path / "free"), model(tmp_path / "frozen")
    names = [name for name in frozen if "running_" in name and part_of(name) == "encoder"]
    assert names
    for name in names:
        assert torch.equal(frozen[name], torch.full_like(frozen[name], "var" in name)), name
        assert not torch.equal(free[name], frozen[name]), name


def values_of(run: Path) -> torch.Tensor:
    """The weights and the bias of the value head, in the unit of returns."""
    tensors = model(run)
    head = torch.cat([tensors["value_weight"], tensors["value_bias"]])
    return head * tensors["value_scale"]


@pytest.mark.long
@pytest.mark.parametrize("algo", ["appo", "ddppo"])
def test_a_frozen_critic_keeps_its_values(algo: str, data: Path, tmp_path: Path) -> None:
    """Also where it comes from an algorithm without a scale of returns, and is new to its own."""
    source, run = tmp_path / "source", tmp_path / "run"
    train(small("marwil", source, data))
    train(small(algo, run, data, init_from=str(source), freeze=("critic",)))
    assert model(run)["value_scale"] != model(source)["value_scale"]
    assert torch.allclose(values_of(run), values_of(source), rtol=1e-4)


def is_multiple(one: torch.Tensor, of: torch.Tensor) -> bool:
    """A value head is divided by the scale of the returns, whether it is trained or not."""
    return torch.allclose(one * (of.norm() / one.norm()), of, rtol=1e-5, atol=1e-7)


@pytest.mark.long
@pytest.mark.parametrize("algo", SMALL)
def test_all_parts_but_one_of_the_policy_may_be_frozen(
    algo: str, trained: Trained, data: Path, tmp_path: Path
) -> None:
    before = {name: each for name, each in model(trained(algo)).items() if "weight" in name}
    parts = {part_of(name) for name in before}
    for learns in parts - {"critic"}:
        run, held = tmp_path / learns, tuple(parts - {learns})
        train(small(algo, run, data, init_from=str(trained(algo)), freeze=held))
        after = model(run)
        moved = {part_of(n) for n, tensor in before.items() if not is_multiple(after[n], tensor)}
        assert moved == {learns}
    held = tuple(parts - {"critic"})
    with pytest.raises(ConfigError, match="no part of the policy would be trained"):
        train(small(algo, tmp_path / "run", data, freeze=held))
    assert not (tmp_path / "run").exists()


@pytest.mark.long
@pytest.mark.parametrize("algo", SMALL)
def test_a_frozen_encoder_is_trained_after_some_env_steps_also_when_resumed(
    algo: str, trained: Trained, data: Path, tmp_path: Path
) -> None:
    """The first part of the run ends before, the second one after them, a third one goes on."""
    run, before = tmp_path / "run", newest(trained(algo))
    steps = {"freeze": ("encoder",), "unfreeze_after": 1600}
    encoder = [
        name
        for name in before
        if name.startswith("model/") and part_of(name.removeprefix("model/")) == "encoder"
    ]
    weights = [name for name in encoder if ".encoder." in name]

    def after(env_steps: int) -> dict[str, torch.Tensor]:
        more = {**steps, "init_from": str(trained(algo)), "train_for_env_steps": env_steps}
        train(small(algo, run, data, **more))
        return newest(run)

    first = after(1200)
    assert encoder and all(torch.equal(before[name], first[name]) for name in encoder)
    rest = [name for name in before if name.startswith("model/") and name not in encoder]
    assert any(not torch.equal(before[name], first[name]) for name in rest)
    second = after(2400)
    assert weights and any(not torch.equal(first[name], second[name]) for name in weights)
    third = after(3200)
    assert any(not torch.equal(second[name], third[name]) for name in weights)


@pytest.mark.long
@pytest.mark.parametrize("algo", ["appo", "apex", "sac", "ddppo"])
def test_the_actors_begin_with_the_same_weights(
    algo: str, trained: Trained, data: Path, tmp_path: Path
) -> None:
    source = trained(algo)
    own = beginning(small(algo, tmp_path / "own", data, train_for_env_steps=10**9))
    taken = beginning(
        small(algo, tmp_path / "run", data, init_from=str(source), train_for_env_steps=10**9)
    )
    learned = model(source)
    assert taken.keys() == learned.keys()
    weights = [name for name in learned if ".encoder.weight" in name]
    assert weights and not any(torch.equal(own[name], learned[name]) for name in weights)
    assert all(torch.equal(taken[name], learned[name]) for name in weights)


@pytest.mark.long
def test_what_was_cloned_from_data_is_trained_further(
    trained: Trained, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The recipe of docs/fine_tuning.md: behaviour cloning, then APPO."""
    cloned = trained("marwil")
    run = tmp_path / "run"
    monkeypatch.chdir(cloned.parent)  # workers have a working directory of their own
    train(small("appo", run, data, init_from=f"{cloned.name}@best", learning_rate=1e-9))
    learned, after = model(cloned), model(run)
    for name in ("actor.encoder.weight_0", "policy_weight"):
        assert torch.allclose(learned[name], after[name], atol=1e-5), name
    log = (run / "log.txt").read_text()
    assert f"The weights are those of {cloned.name}@best at the beginning" in log
    stored = yaml.safe_load((run / "config.yaml").read_text())
    assert "init_from" not in stored, "no file of a folder has a path"
    train(small("appo", run, data, init_from=str(cloned), learning_rate=1e-9))
    assert "this run goes on from its own checkpoint" in (run / "log.txt").read_text()


def other(run: Path, source: Path, **more: Any) -> AppoConfig:
    return AppoConfig(
        env="Acrobot-v1",
        run_dir=str(run),
        init_from=str(source),
        serial=True,
        num_workers=1,
        num_envs_per_worker=8,
        train_for_env_steps=10**9,
        **{"model": ModelConfig(hidden_sizes=(16,)), **more},
    )


@pytest.mark.long
def test_weights_that_do_not_fit_are_named_and_left_new_on_demand(
    trained: Trained, data: Path, tmp_path: Path
) -> None:
    """Acrobot has six numbers and three actions, CartPole four and two."""
    source, run = trained("appo"), tmp_path / "run"
    with pytest.raises(
        ConfigError, match=r"--init-from: policy_weight, .* --init-parts .* --init-"
    ):
        beginning(other(run, source))
    with pytest.raises(ConfigError, match=r"--init-from: normaliser.*weight_0 of the network"):
        beginning(other(run, source, init_parts=("encoder",)))
    assert not run.exists()
    taken = beginning(other(run, source, init_mismatch="new"))
    learned = model(source)
    assert torch.equal(taken["value_weight"], learned["value_weight"])
    assert taken["actor.encoder.weight_0"].shape == (16, 6)
    assert float(taken["normaliser.leaves.obs.count"]) < 1, "statistics are taken together"
    assert "--init-from: new are policy_weight, " in (run / "log.txt").read_text()
    smaller = ModelConfig(hidden_sizes=())
    beginning(
        small(
            "appo",
            tmp_path / "smaller",
            data,
            init_from=str(source),
            init_mismatch="new",
            model=smaller,
            train_for_env_steps=10**9,
        )
    )
    log = (tmp_path / "smaller" / "log.txt").read_text()
    assert "the network here has no actor.encoder.bias_0, " in log


@pytest.mark.long
def test_a_checkpoint_that_stands_in_for_the_one_that_was_named_is_told(
    trained: Trained, data: Path, tmp_path: Path
) -> None:
    """The best of a run without a rated one, and what comes before a damaged one."""
    source = tmp_path / "source"
    for env_steps in (300, 600):
        train(small("appo", source, data, train_for_env_steps=env_steps))

    def begins(name: str, place: str) -> list[str]:
        beginning(small("appo", tmp_path / name, data, init_from=place, train_for_env_steps=10**9))
        lines = (tmp_path / name / "log.txt").read_text().splitlines()
        return [line for line in lines if f"warning --init-from {source}" in line]

    assert begins("latest", str(source)) == []
    (text,) = begins("best", f"{source}@best")
    assert "no checkpoint in" in text and text.endswith("using the latest")
    newest_file = max((source / "checkpoints").glob("*.safetensors"))
    newest_file.write_bytes(newest_file.read_bytes()[:-1])
    refused, used = begins("damaged", str(source))
    assert f"checkpoint {newest_file.name} is refused" in refused and "using checkpoint" in used


@pytest.mark.long
def test_a_network_of_another_kind_is_refused_whatever_may_be_left_new(
    trained: Trained, data: Path, tmp_path: Path
) -> None:
    """Only the statistics of observations have the same names in both."""
    source, run = trained("appo"), tmp_path / "run"
    apex = small("apex", run, data, init_from=str(source), init_mismatch="new")
    with pytest.raises(ConfigError, match=r"no weight that is learned .* apex and pqn"):
        beginning(apex)
    assert not run.exists()


@pytest.mark.long
def test_weights_that_would_compute_something_else_are_refused_or_warned_of(
    trained: Trained, data: Path, tmp_path: Path
) -> None:
    """Without the statistics that the inputs were divided by, or with another activation, shapes
    are the same, but the policy is another one."""
    source, run = trained("appo"), tmp_path / "run"
    own = small("appo", run, data, init_from=str(source))
    bare = dataclasses.replace(own.model, normalise_observations=False)
    with pytest.raises(ConfigError, match=r"here has no normaliser\..* --init-mismatch new"):
        beginning(dataclasses.replace(own, model=bare))
    assert not run.exists()
    beginning(dataclasses.replace(own, model=bare, init_mismatch="new"))
    cases: list[tuple[str, Any, bool]] = [("other", "relu", True), ("same", "tanh", False)]
    for name, activation, warns in cases:
        acting = dataclasses.replace(own.model, activation=activation)
        told = Warnings()
        chosen = dataclasses.replace(own, run_dir=str(tmp_path / name), model=acting)
        with Trainer(chosen, [told]):
            pass
        assert [text for text in told.warnings if "compute something else" in text] == (
            [
                "--init-from: the weights were learned with --model.activation tanh, and compute "
                "something else with --model.activation relu; give the same, unless that is meant"
            ]
            if warns
            else []
        )


@pytest.mark.long
def test_only_the_named_parts_are_taken(trained: Trained, data: Path, tmp_path: Path) -> None:
    source = trained("appo")
    learned = model(source)
    taken = beginning(
        small("appo", tmp_path / "run", data, init_from=str(source), init_parts=("encoder",))
    )
    for name, tensor in taken.items():
        if tensor.is_floating_point() and tensor.numel() > 2 and "weight" in name:
            assert torch.equal(tensor, learned[name]) == (part_of(name) == "encoder"), name


@pytest.mark.long
@pytest.mark.parametrize("algo", ["pqn", "apex"])
def test_the_scale_of_q_values_is_taken_with_their_heads(
    algo: str, trained: Trained, data: Path, tmp_path: Path
) -> None:
    """A Q-network has no critic: with its scale left at 0 all values were 0, and every action the
    first one, until there was a reward."""
    source = str(trained(algo))
    whole, named = (
        beginning(small(algo, tmp_path / "run", data, init_from=source, init_parts=parts))
        for parts in ((), ("encoder", "actor"))
    )
    assert whole["value_scale"] > 0
    for name, tensor in whole.items():
        assert torch.equal(tensor, named[name]), name


@pytest.mark.long
def test_what_is_new_is_so_in_the_training_that_begins(
    trained: Trained, data: Path, tmp_path: Path
) -> None:
    before = newest(trained("appo"))
    train(small("appo", tmp_path / "run", data, init_from=str(trained("appo")), seed=2))
    after = newest(tmp_path / "run")
    steps = "rnd/moments"
    assert 0 < after[steps][0] < 1.5 * before[steps][0], "not those of both"
    targets = [name for name in before if name.startswith("rnd/target") and "weight" in name]
    assert targets and not any(torch.equal(before[name], after[name]) for name in targets)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"init_from": "runs/none"}, "is not a run folder|there is no"),
        ({"init_parts": ("encoder",)}, "--init-parts encoder: give --init-from, too"),
        ({"init_mismatch": "new"}, "--init-mismatch new: give --init-from, too"),
        ({"freeze": ("encoder", "actor")}, "no part of the policy would be trained"),
        ({"freeze": ("body",)}, "freeze"),
        ({"unfreeze_after": 100}, "--unfreeze-after 100: no part is frozen"),
        ({"freeze": ("encoder",), "unfreeze_after": 0}, "--unfreeze-after 0"),
    ],
)
def test_what_cannot_be_is_refused(settings: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        train(AppoConfig(env="CartPole-v1", run_dir=str(tmp_path / "run"), **settings))
    assert not (tmp_path / "run").exists()


@pytest.mark.long
@pytest.mark.parametrize(
    ("field", "algo", "part"),
    [
        ("freeze", "appo", "core"),
        ("freeze", "apex", "critic"),
        ("init_parts", "appo", "core"),
        ("init_parts", "apex", "critic"),
        ("init_parts", "pqn", "critic"),
    ],
)
def test_a_part_that_the_network_has_not_is_refused(
    field: str, algo: str, part: str, trained: Trained, data: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    settings = {"init_from": str(trained(algo)), field: (part,)}
    flag = f"--{field.replace('_', '-')} {part}"
    with pytest.raises(ConfigError, match=f"{flag}: the network has no weights of this part, only"):
        train(small(algo, run, data, **settings))
    assert not run.exists()


def test_a_checkpoint_that_is_neither_latest_nor_best_is_refused(
    trained: Trained, tmp_path: Path
) -> None:
    source = shutil.copytree(trained("appo"), tmp_path / "source")
    assert json.loads((source / "checkpoints" / "manifest.json").read_text())
    with pytest.raises(ConfigError, match="'300' must be latest or best"):
        beginning(other(tmp_path / "run", Path(f"{source}@300")))
