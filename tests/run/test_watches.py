"""What a session watches: the user is told of environments that start late, of memory that grows,
of a policy that is never picked, of a learner that computes other probabilities than its actors,
and of a run that learns nothing."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from sampleforge.models.config import ModelConfig
from sampleforge.run import watches
from sampleforge.run.callback import Callback, Message
from sampleforge.run.session import Session
from sampleforge.run.watches import MemoryGrowth, Starting
from sampleforge.shared.counters import Counters
from sampleforge.spec import ArraySpec
from sampleforge.topologies.config import (
    AnyConfig,
    ApexConfig,
    AppoConfig,
    DdppoConfig,
    MarwilConfig,
    PqnConfig,
)
from sampleforge.topologies.sampler_plan import SamplerPlan
from sampleforge.workers.metrics import DivergedError
from sampleforge.workers.policy_mapping import StreamId
from tests.support.callbacks import Warnings
from tests.support.graphs import build, spec_of
from tests.support.recorded import recorded, write_dataset
from tests.support.runs import summary


def test_until_the_first_env_step_it_is_said_how_many_rows_have_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Resets of many Atari rows, one after the other, take seconds."""
    clock = [100.0]
    monkeypatch.setattr(watches, "monotonic", lambda: clock[0])
    counters, said = Counters(["started_rows", "env_steps", "updates"], 2), list[str]()
    session: Any = SimpleNamespace(
        graph=SimpleNamespace(counters=counters),
        plan=SamplerPlan(2, 4, 8, 1, 16, "inline", 0, "cpu", "fp32", "fp32", ()),
        message=said.append,
    )
    starting = Starting()
    starting.on_start(session)
    looks = [(104, 4, 0), (106, 10.5, 0), (107, 12, 0), (112, 64, 0)]
    for clock[0], started, env_steps in looks:
        counters.row(1)["started_rows"][0] = started
        counters.row(1)["env_steps"][0] = env_steps
        starting.on_poll(session)
    assert said == ["Waiting for the environments: 10 of 64 have started"]
    counters.row(1)["started_rows"][0] = 0  # a replaced actor, later in the run
    counters.row(1)["env_steps"][0] = 1
    for clock[0] in (120, 130):
        starting.on_poll(session)
    assert len(said) == 1


@pytest.mark.parametrize(
    ("cls", "settings", "expected"),
    [
        (
            AppoConfig,
            {},
            "2,048 env steps, in about 36 s at the present 50 env steps/s; --batch-size 256",
        ),
        (AppoConfig, {"minibatch_size": 1024}, "--batch-size 1024 makes it earlier"),
        (AppoConfig, {"batch_size": 500, "rollout": 250}, None),
        (AppoConfig, {"num_policies": 2}, "4,096 env steps, in about 77 s"),
        (DdppoConfig, {"num_ranks": 2, "serial": False}, "2,048 env steps, in about 36 s"),
        (ApexConfig, {"rollout": 4, "num_envs_per_worker": 4}, "1,000 env steps, in about 15 s"),
        (
            ApexConfig,
            {"rollout": 200},
            "25,600 env steps, in about 8 min at the present 50 env steps/s",
        ),
        (
            PqnConfig,
            {"train_for_seconds": 30.0},
            ". --train-for-seconds 30.0 ends the run before that",
        ),
        (PqnConfig, {"sampler_only": True}, None),
    ],
)
def test_it_is_said_when_the_first_update_of_a_slow_environment_comes(
    cls: type[Any],
    settings: dict[str, Any],
    expected: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    common = {"env": "CartPole-v1", "run_dir": str(tmp_path), "serial": True, "device": "cpu"}
    config = cls(**{**common, **settings})
    said = list[str]()
    with Session(config, []) as session:
        monkeypatch.setattr(session, "message", lambda text, level: said.append(text))
        starting, clock = Starting(), [0.0]
        monkeypatch.setattr(watches, "monotonic", lambda: clock[0])
        starting.on_start(session)
        counters = session.graph.counters.row(0)
        for clock[0], made in ((10.0, 20), (12.0, 120), (15.0, 270), (30.0, 700)):
            counters["env_steps"][0] = made
            starting.on_poll(session)
    texts = [text for text in said if text.startswith("First update after")]
    assert len(texts) == (expected is not None), said
    assert expected is None or expected in texts[0]


def test_an_actor_says_that_it_makes_its_environments() -> None:
    graph, _ = build(AppoConfig(**SERIAL, num_workers=1, num_splits=1))
    actor: Any = graph.nodes[0].worker
    said, (make,) = list[float](), actor._make_envs

    def watched() -> Any:
        said.append(actor._count["starting"][0])
        return make()

    actor._make_envs = [watched]
    actor.start()
    actor.close()
    assert said == [1] and actor._count["starting"][0] == 0


MIB = 1 << 20


def test_an_actor_whose_memory_grows_steadily_is_named_once_with_the_command_that_measures_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [0.0]
    monkeypatch.setattr(watches, "monotonic", lambda: clock[0])
    said: list[tuple[str, str]] = []
    names = {"actor 0": 10, "actor 1": 11, "learner": 12}
    nodes = [SimpleNamespace(name=name, role=name.split()[0]) for name in names]
    session: Any = SimpleNamespace(
        config=AppoConfig(env="my_env:make", env_kwargs={"difficulty": 2}),
        graph=SimpleNamespace(nodes=nodes),
        runner=SimpleNamespace(pids=lambda: names),
        message=lambda text, level: said.append((text, level)),
    )
    metrics: Any = SimpleNamespace(private={})
    growth = MemoryGrowth(metrics)
    for second in range(0, 300, 2):
        clock[0] = float(second)
        metrics.private = {
            10: 200 * MIB + min(second, 20) * 10 * MIB,  # warms up
            11: 200 * MIB + second * MIB,
            12: 200 * MIB + second * 10 * MIB,  # the learner's own
        }
        growth.on_report(
            session, {"env_steps": 1000.0 * second, "system_memory_available_mib": 2048.0}
        )
        if second == 60:
            assert not said, "too early to tell"
    ((text, level),) = said
    assert level == "warning"
    assert text.startswith("actor 1: its memory grew steadily, by ")
    assert "3.516 GiB an hour, and there are 2 GiB left" in text
    assert "`sampleforge check-env my_env:make --env-kwargs difficulty=2 --seconds 60`" in text


PICKED = 110
"""Rollouts of each split in which both policies are picked: more than are checked at the start."""


def starving(seat: StreamId, rollout: int) -> str:
    return f"policy_{rollout % 2 if rollout < PICKED else 0}"


def fair(seat: StreamId, rollout: int) -> str:
    return f"policy_{rollout % 2}"


def warnings_of(function: str, folder: Path) -> tuple[list[str], dict[str, float]]:
    """Train 8,000 env steps, of which a split takes 32 a rollout; return the warnings and the last
    report."""
    settings: dict[str, Any] = {
        **{"num_workers": 1, "num_envs_per_worker": 4, "num_splits": 1, "rollout": 8},
        **{"batch_size": 64, "num_epochs": 1, "async_rl": True, "seed": 1, "serial": True},
        **{"train_for_env_steps": 8000, "report_interval": 0.5, "run_dir": str(folder)},
    }
    config = AppoConfig(
        env="CartPole-v1",
        num_policies=2,
        policy_mapping=f"{__name__}:{function}",
        model=ModelConfig(hidden_sizes=(8,)),
        **settings,
    )
    told = Warnings()
    with Session(config, [told]) as session:
        *_, last = session.reports()
    return told.warnings, last


@pytest.mark.long
def test_a_starved_policy_is_named_once_and_the_others_go_on(tmp_path: Path) -> None:
    texts, last = warnings_of("starving", tmp_path)
    (text,) = [text for text in texts if "has learned nothing" in text]
    assert text.startswith("policy_1 has learned nothing for")
    assert f"--policy-mapping {__name__}:starving hardly ever picks it" in text
    assert last["env_steps"] >= 8000
    assert last["policy_0/updates"] > 2 * last["policy_1/updates"] > 0
    assert (tmp_path / "checkpoints" / "policy_1").is_dir(), "it is saved as it was"


@pytest.mark.long
def test_policies_that_are_picked_in_turn_are_not_warned_of(tmp_path: Path) -> None:
    texts, _ = warnings_of("fair", tmp_path)
    assert not [text for text in texts if "has learned nothing" in text]


HUGE: dict[str, Any] = {
    "env_kwargs": {"scale": 5e30, "every_step": True},
    "normalise_returns": False,
}
"""Rewards of 1e30, which are finite, but not their squares."""
SERIAL: dict[str, Any] = {
    **{"env": "tests.support.reward_envs:CueEnv", "serial": True, "seed": 1, "device": "cpu"},
    **{"num_envs_per_worker": 8, "report_interval": 0.2},
}
PPO: dict[str, Any] = {**SERIAL, "async_rl": False, "batch_size": 128, "minibatch_size": 32}
SMALL = ModelConfig(hidden_sizes=(8,))


class Told(Callback):
    def __init__(self) -> None:
        self.reports: list[dict[str, float]] = []
        self.warnings: list[str] = []

    def on_report(self, session: Session, report: Any) -> None:
        self.reports.append(dict(report))

    def on_message(self, session: Session, message: Message) -> None:
        if message.level in ("warning", "alert"):
            self.warnings.append(message.text)


def trained(config: AnyConfig) -> Told:
    told = Told()
    with Session(config, [told]) as session:
        list(session.reports())
    return told


def appo(folder: Path, **more: Any) -> AppoConfig:
    return AppoConfig(**{**PPO, "run_dir": str(folder), "model": SMALL, **more})


@pytest.mark.parametrize("algo", ["appo", "ddppo"])
def test_a_run_whose_updates_were_not_applied_ends_with_the_cause(
    algo: str, tmp_path: Path
) -> None:
    """Three batches of four minibatches, ten passes each: too few batches to end it before."""
    more = {"train_for_env_steps": 384, **HUGE, "run_dir": str(tmp_path)}
    ranks = DdppoConfig(**{**PPO, "model": SMALL, "num_ranks": 1, **more})
    told = Told()
    config = ranks if algo == "ddppo" else appo(tmp_path, **more)
    message = (
        r"has learned nothing: none of its \d+ updates was applied: .* rewards are far too large"
    )
    with pytest.raises(DivergedError, match=message), Session(config, [told]) as session:
        list(session.reports())
    ended, updates = summary(tmp_path), 160 if algo == "ddppo" else 120
    assert ended["updates"] == ended["skipped_updates"] == updates
    assert ended["status"] == "failed"
    assert told.reports[-1]["skipped_updates"] == updates
    (warning,) = [text for text in told.warnings if "were skipped" in text]
    assert "40 of 40 gradient steps of an update were skipped" in warning
    assert "the environment's rewards are far too large (up to 1e+30): correct it" in warning


FAR: dict[str, Any] = {
    **SERIAL,
    "env": "tests.support.not_finite_envs:NotFiniteEnv",
    "env_kwargs": {"where": "all", "value": 1e30, "length": 8},
    "model": ModelConfig(hidden_sizes=(8,), activation="relu", normalise_observations=False),
}
"""Observations whose gradients have no finite norm, with every algorithm."""


@pytest.mark.long
def test_ape_x_counts_the_updates_that_were_not_applied(tmp_path: Path) -> None:
    more = {"learning_starts": 100, "rollout": 8, "batch_size": 16, "train_for_env_steps": 2000}
    message = "no gradient was finite in 10 updates.*observations are far too large .up to 1e.30"
    with pytest.raises(DivergedError, match=message):
        trained(ApexConfig(**{**FAR, "run_dir": str(tmp_path), **more}))
    assert summary(tmp_path)["updates"] == summary(tmp_path)["skipped_updates"] == 10


def test_marwil_counts_the_updates_that_were_not_applied(tmp_path: Path) -> None:
    own = ("env", "env_kwargs", "serial", "seed", "device", "report_interval", "model")
    settings: dict[str, Any] = {
        **{name: FAR[name] for name in own},
        **{"input": (str(tmp_path / "data"),), "run_dir": str(tmp_path / "run")},
        **{"batch_size": 16, "evaluate_interval": None, "train_for_env_steps": 80},
    }
    config = MarwilConfig(**settings)
    spec, far = spec_of(config), {"obs": np.full((9, 4), 1e30, np.float32)}
    episodes = [
        dataclasses.replace(each, observations=far) for each in recorded([8] * 20, spec.actions)
    ]
    write_dataset(tmp_path / "data", spec, episodes)
    with pytest.raises(DivergedError, match="none of its 5 updates was applied"):
        trained(config)
    assert summary(tmp_path / "run")["skipped_updates"] == 5


def test_ten_updates_in_a_row_without_a_step_end_the_run(tmp_path: Path) -> None:
    config = appo(tmp_path, train_for_env_steps=10**6, **HUGE)
    message = "no gradient was finite in 10 updates in a row.*rewards are far too large.*1e.30"
    with pytest.raises(DivergedError, match=message):
        trained(config)
    assert summary(tmp_path)["skipped_updates"] == 400


def test_skipped_updates_go_on_after_a_resume(tmp_path: Path) -> None:
    config = appo(tmp_path, train_for_env_steps=384, **HUGE)
    for updates in (120, 240):
        with pytest.raises(DivergedError, match="none of its 120 updates"):
            trained(config)
        assert summary(tmp_path)["skipped_updates"] == updates
        config = appo(tmp_path, train_for_env_steps=768, **HUGE)


def test_a_run_that_learns_has_no_skipped_updates_and_no_warning(tmp_path: Path) -> None:
    told = trained(appo(tmp_path, train_for_env_steps=384))
    assert summary(tmp_path)["skipped_updates"] == 0 and summary(tmp_path)["updates"] == 120
    assert told.reports[-1]["skipped_updates"] == 0 and not told.warnings


def same_returns(config: AnyConfig) -> list[str]:
    return [text for text in trained(config).warnings if text.startswith("All of the first 200 ")]


def test_returns_that_never_differ_are_named_once_with_the_flag_that_helps(tmp_path: Path) -> None:
    """Of a mountain car that is stopped after 5 steps, and so never comes to its goal."""
    config = appo(tmp_path, env="MountainCar-v0", max_episode_steps=5, train_for_env_steps=2048)
    assert same_returns(config) == [
        "All of the first 200 episodes had the return -5, whatever the policy did: --rnd-coeff 1 "
        "also pays for what is new, from the start of a run; `sampleforge check-env "
        "MountainCar-v0` says what else may help"
    ]
    more = dataclasses.replace(config, train_for_env_steps=4096)
    assert not same_returns(more), "the policy has learned before"


def test_returns_that_never_differ_with_a_bonus_are_told_without_the_flag(tmp_path: Path) -> None:
    sizes = {"max_episode_steps": 5, "train_for_env_steps": 2048, "rnd_coeff": 1.0}
    (text,) = same_returns(appo(tmp_path, env="MountainCar-v0", **sizes))
    assert "whatever the policy did: so far there is nothing to learn from; `sampleforge " in text


def endless(config: AnyConfig) -> list[str]:
    return [text for text in trained(config).warnings if " and the policy may have " in text]


@pytest.mark.long
def test_a_run_whose_episodes_never_end_says_so_once_with_the_flags_that_help(
    tmp_path: Path,
) -> None:
    end: dict[str, Any] = {"train_for_env_steps": 16384, "env": "tests.support.envs:CodeEnv"}
    sizes = {"num_workers": 2, "num_envs_per_worker": 4, "num_splits": 1}
    sizes |= {"batch_size": 1024, "num_epochs": 1}
    config = appo(tmp_path / "1", **end, **sizes, env_kwargs={"length": 10**9})
    (text,) = endless(config)
    assert re.match(r"No episode has ended in 16,[\d,]+ env steps of 8 env rows, and tests", text)
    for flag in ("--max-episode-steps 1000 ends", "--reward-clip with", "check-env tests.supp"):
        assert flag in text
    limited = dataclasses.replace(config, run_dir=str(tmp_path / "2"), max_episode_steps=1000)
    assert not endless(limited)
    (text,) = endless(dataclasses.replace(config, run_dir=str(tmp_path / "3"), reward_clip=100.0))
    assert "--reward-clip" not in text


def few_ended(ended: int, **fields: Any) -> list[str]:
    """What is said at a report of 16,384 env steps of 8 rows, after which so many episodes have
    ended."""
    told: list[str] = []
    session: Any = SimpleNamespace(
        plan=SimpleNamespace(envs=8),
        spec=SimpleNamespace(max_episode_steps=fields.pop("limit", None)),
        resolved=AppoConfig(env="X-v0"),
        message=lambda text, level: told.append(text),
    )
    watch = watches.NoSignal()
    for env_steps in (8192, 16384, 32768):
        watch.on_report(session, {"env_steps": env_steps, "episodes": ended})
    return told


def test_a_few_episodes_that_have_ended_are_told_of_as_well() -> None:
    for ended, begins in ((0, "No episode has"), (1, "Only 1 episode has ended in 16,384 env ")):
        (text,) = few_ended(ended)
        assert text.startswith(begins)
    assert not few_ended(2) and not few_ended(0, limit=1000)


def test_returns_that_differ_are_not_told_of(tmp_path: Path) -> None:
    assert not same_returns(appo(tmp_path, train_for_env_steps=8192))
    assert summary(tmp_path)["episodes"] > 200


def test_a_run_that_ends_before_its_first_update_says_so(tmp_path: Path) -> None:
    told = trained(appo(tmp_path, train_for_env_steps=64))
    text = "The run has learned nothing: there was no update in 64 env steps, because an update"
    assert any(warning.startswith(text) for warning in told.warnings)


def test_a_limit_below_the_first_update_is_warned_of_at_the_start(tmp_path: Path) -> None:
    told = trained(appo(tmp_path, train_for_env_steps=64))
    assert told.warnings[0] == (
        "--train-for-env-steps 64: nothing will be learned from the 64 env steps that are left, "
        "because an update needs a batch of 128 env steps (--batch-size); raise it"
    )


def test_ape_x_that_ends_before_learning_starts_says_so(tmp_path: Path) -> None:
    more = {"learning_starts": 500, "train_for_env_steps": 400, "rollout": 8}
    told = trained(ApexConfig(**{**SERIAL, "run_dir": str(tmp_path), "model": SMALL, **more}))
    assert told.warnings[0].startswith("--train-for-env-steps 400: nothing will be learned")
    assert all("learning begins with 500 transitions" in text for text in told.warnings)
    assert len(told.warnings) == 2, "at the start and at the end"


def test_ape_x_that_ends_before_its_first_rollout_says_so(tmp_path: Path) -> None:
    """Enough env steps for --learning-starts, and none of them in the replay yet."""
    more = {"learning_starts": 100, "train_for_env_steps": 400, "rollout": 200}
    told = trained(ApexConfig(**{**SERIAL, "run_dir": str(tmp_path), "model": SMALL, **more}))
    assert told.warnings[0].startswith("--train-for-env-steps 400: nothing will be learned")
    assert all("whole rollouts are added, of 200 steps x " in text for text in told.warnings)
    assert len(told.warnings) == 2, "at the start and at the end"


class OfItsRow(nn.Module):
    """An encoder whose features of a row are the same whatever else is in the batch."""

    def __init__(self, observations: Mapping[str, ArraySpec], _: ModelConfig) -> None:
        super().__init__()
        self.out_features = 16
        self.layer = nn.Linear(observations["obs"].shape[0], self.out_features)

    def forward(self, obs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        return self.layer(obs["obs"].float()).tanh()


class NotFinite(OfItsRow):
    def forward(self, obs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        return super().forward(obs) * torch.nan


def test_a_run_whose_steps_were_dropped_is_not_told_to_train_for_longer(tmp_path: Path) -> None:
    model = ModelConfig(encoder=f"{__name__}:{NotFinite.__name__}")
    told = trained(appo(tmp_path, train_for_env_steps=256, model=model))
    (text,) = [text for text in told.warnings if "has learned nothing" in text]
    assert "steps were dropped, because a value was not finite" in text
    assert "Train for longer" not in text


class OfItsBatch(OfItsRow):
    """One with batch normalisation, which takes other statistics in learners than in actors."""

    def __init__(self, observations: Mapping[str, ArraySpec], config: ModelConfig) -> None:
        super().__init__(observations, config)
        self.norm = nn.BatchNorm1d(self.out_features)

    def forward(self, obs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        return self.norm(super().forward(obs))


@pytest.mark.long
@pytest.mark.parametrize("cls", [AppoConfig, DdppoConfig])
def test_learners_that_compute_other_probabilities_than_the_actors_are_warned_of_once(
    cls: type[Any], tmp_path: Path
) -> None:
    """Nothing else shows it: with batch normalisation the training goes on, and learns less."""
    for encoder, times in ((OfItsBatch, 1), (OfItsRow, 0)):
        name = encoder.__name__
        config = cls(
            **PPO if cls is AppoConfig else SERIAL,
            model=ModelConfig(encoder=f"{__name__}:{name}"),
            learning_rate=1e-2,
            train_for_env_steps=3000,
            run_dir=str(tmp_path / name),
        )
        told = trained(config)
        found = [text for text in told.warnings if "computes other probabilities" in text]
        assert len(found) == times, (name, told.warnings, told.reports)
        assert all("batch normalisation" in text for text in found)
