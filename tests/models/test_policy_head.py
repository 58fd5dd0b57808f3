"""Policy heads of the user's own: other layers, and another distribution of actions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sampleforge.api import train
from sampleforge.cli import main
from sampleforge.config import ConfigError
from sampleforge.loaded_policy import load_policy
from sampleforge.models.config import ModelConfig
from sampleforge.models.policy_head import PolicyHead, make_head
from sampleforge.ops.distributions import ActionDistribution, action_layout
from sampleforge.run.onnx_policy import OnnxPolicy
from sampleforge.spec import ActionSpec
from sampleforge.tools.export.write import export_policy
from sampleforge.topologies.config import ALGOS
from tests.support import REPO
from tests.support.runs import newest

BOX = {"action": ActionSpec("box", (2,), "float32", low=(-1.0, -2.0), high=(1.0, 3.0))}
BETA = "own_distribution:BetaHead"
RUN: dict[str, Any] = {
    **{"env": "Pendulum-v1", "serial": True, "quiet": True, "seed": 1, "num_workers": 1},
    **{"batch_size": 256, "minibatch_size": 128, "rollout": 32, "train_for_env_steps": 1536},
}


class Deep(PolicyHead):
    """Other layers, the usual distributions."""

    def new_layers(self, features: int) -> nn.Module:
        return nn.Sequential(nn.Linear(features, 8), nn.Tanh(), nn.Linear(8, self.num_parameters))


class TooWide(PolicyHead):
    def new_layers(self, features: int) -> nn.Module:
        return nn.Linear(features, self.num_parameters + 1)


class NoDistribution(PolicyHead):
    def distribution(self, parameters: Tensor, mask: Tensor | None) -> Any:
        return torch.distributions.Normal(0.0, 1.0)


class FlatLogProb(PolicyHead):
    def distribution(self, parameters: Tensor, mask: Tensor | None) -> ActionDistribution:
        class Wrong(ActionDistribution):
            def log_prob(self, actions: Any) -> Tensor:
                return super().log_prob(actions).unsqueeze(-1)

        return Wrong(self.layout, parameters, mask)


class Masked(PolicyHead):
    """With a constant that no checkpoint may hold."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.register_buffer("penalty", torch.tensor([0.0, -torch.inf]))


class Unknown(PolicyHead):
    """With a weight that was never given a value."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.bonus = nn.Parameter(torch.full((4,), torch.nan))


class Unclamped(PolicyHead):
    """A density of actions within the bounds, and of no others."""

    def distribution(self, parameters: Tensor, mask: Tensor | None) -> ActionDistribution:
        class Bounded(ActionDistribution):
            def log_prob(self, actions: Any) -> Tensor:
                inside = actions["action"].abs().amax(-1) < 1.0
                return torch.where(inside, super().log_prob(actions), torch.nan)

        return Bounded(self.layout, parameters, mask)


@pytest.fixture(autouse=True)
def _examples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(REPO / "examples"))


def head(name: str, leaves: dict[str, ActionSpec] = BOX) -> PolicyHead:
    made = make_head(ModelConfig(head=name), 5, action_layout(leaves))
    assert made is not None
    return made


def test_the_beta_distribution_is_within_the_bounds_and_has_its_density() -> None:
    parameters = torch.randn(1000, 4, generator=torch.Generator().manual_seed(0))
    found = head(BETA).distribution(parameters, None)
    actions = found.sample(torch.Generator().manual_seed(1))["action"]
    low, high = torch.tensor([-1.0, -2.0]), torch.tensor([1.0, 3.0])
    assert bool(((actions >= low) & (actions <= high)).all())
    alpha, beta = (1 + torch.nn.functional.softplus(parameters)).chunk(2, -1)
    expected = torch.distributions.Beta(alpha, beta)
    transformed = torch.distributions.TransformedDistribution(
        expected, torch.distributions.AffineTransform(low, high - low)
    )
    density = transformed.log_prob(actions).sum(-1)
    torch.testing.assert_close(found.log_prob({"action": actions}), density, rtol=1e-3, atol=1e-3)
    mean = expected.mean * (high - low) + low
    assert (actions - mean).mean(0).abs().max() < 0.1
    again = found.sample(torch.Generator().manual_seed(1))["action"]
    assert torch.equal(again, actions), "the numbers are those of the generator"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("own_distribution:Missing", "importing it fails"),
        ("own_distribution:Beta", "it is no class derived from sampleforge.models.policy_head"),
        (f"{__name__}:TooWide", r"forward returned \(2, 5\), but must return \(2, 4\)"),
        (f"{__name__}:NoDistribution", "distribution returned a Normal"),
        (f"{__name__}:FlatLogProb", r"log_prob returned \(2, 1\), but must return \(2,\)"),
        (f"{__name__}:Masked", r"Masked: the buffer penalty holds .* not finite, .*persistent=F"),
        (f"{__name__}:Unknown", "Unknown: the parameter bonus holds .* make them finite"),
    ],
)
def test_a_head_that_does_not_work_is_refused(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        head(name)


def test_unbounded_actions_are_no_place_for_a_beta_distribution() -> None:
    free = {"action": ActionSpec("box", (1,), "float32", low=(-np.inf,), high=(np.inf,))}
    with pytest.raises(ConfigError, match="need finite bounds"):
        head(BETA, free)


def small(algo: str, folder: Path, head: str, **more: Any) -> Any:
    model = ModelConfig(hidden_sizes=(16,), head=head)
    return ALGOS[algo](**{**RUN, "run_dir": str(folder), "model": model, **more})


@pytest.mark.parametrize(
    ("head", "more"),
    [
        (BETA, {"advantage": "gae"}),
        (BETA, {"advantage": "vtrace"}),
        (f"{__name__}:Deep", {"exploration": "symmetric_kl", "lr_schedule": "kl_adaptive"}),
    ],
)
def test_a_run_with_a_head_of_ones_own_is_repeated_bit_by_bit(
    head: str, more: dict[str, Any], tmp_path: Path
) -> None:
    first, again = (tmp_path / name for name in ("first", "again"))
    for folder in (first, again):
        train(small("appo", folder, head, **more))
    found, other = newest(first), newest(again)
    assert found.keys() == other.keys() and any("model/head." in name for name in found)
    assert all(torch.equal(found[name], other[name]) for name in found)


def test_it_learns_recorded_actions_or_says_which_it_cannot(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """MARWIL: the actions are those of another run, whose normal distribution leaves the bounds."""
    data = tmp_path / "data"
    train(ALGOS["appo"](**RUN, run_dir=str(tmp_path / "recorded"), record=str(data)))
    settings = "--env Pendulum-v1 --serial --quiet --seed 1 --learning-rate 0.01 --batch-size 64"
    command = f"train marwil {settings} --train-for-env-steps 2500 --input {data}"
    for head, exponent in ((BETA, "1"), (f"{__name__}:Deep", "0")):
        run = tmp_path / exponent
        flags = ["--model.head", head, "--advantage-exponent", exponent, "--run-dir", str(run)]
        assert main([*command.split(), *flags]) == 0
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        losses = [line["policy_loss"] for line in lines if "policy_loss" in line]
        assert losses[-1] < losses[0] - 0.05
        assert any("model/head." in name for name in newest(run))
    capsys.readouterr()
    flags = ["--model.head", f"{__name__}:Unclamped", "--run-dir", str(tmp_path / "refused")]
    assert main([*command.split(), *flags]) == 1, "the training has begun"
    assert "Unclamped: log_prob of the recorded action {'action': [" in capsys.readouterr().err


@pytest.mark.long
def test_it_is_evaluated_and_exported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = train(small("appo", tmp_path / "run", BETA)).run_dir
    arguments = ["eval", str(run), "--episodes", "1", "--quiet"]
    assert main(arguments) == 2, "a run folder names code"
    assert main([*arguments, "--model.head", BETA]) == 0
    assert '"episodes": 1' in capsys.readouterr().out
    policy = load_policy(run, trust=True)
    export_policy(policy, tmp_path / "policy.onnx")
    exported = OnnxPolicy(tmp_path / "policy.onnx")
    obs = np.stack([gym.make("Pendulum-v1").observation_space.sample() for _ in range(8)])
    state = exported.initial_state(8)
    theirs = exported.act({"obs": obs}, state, np.ones(8, bool))[0]["action"]
    np.testing.assert_allclose(theirs, policy.act(obs)[0], rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("algo", "more", "message"),
    [
        ("sac", {}, "sac, crossq and td3 compute the gradient"),
        ("pqn", {"env": "CartPole-v1", "batch_size": 1024}, "has no policy head"),
        ("appo", {"lr_schedule": "kl_adaptive"}, "Beta has no kl of its own"),
        ("appo", {"exploration": "symmetric_kl"}, "Beta has no symmetric_kl_to_uniform of its own"),
        ("appo", {"record": "data"}, "--model.head own_distribution:BetaHead --record data: "),
    ],
)
def test_what_cannot_be_combined_is_refused(
    algo: str, more: dict[str, Any], message: str, tmp_path: Path
) -> None:
    given = {n: v for n, v in RUN.items() if algo != "sac" or n != "minibatch_size"}
    with pytest.raises(ConfigError, match=message):
        model = ModelConfig(hidden_sizes=(16,), head=BETA)
        train(ALGOS[algo](**{**given, "run_dir": str(tmp_path / "run"), "model": model, **more}))
