"""A preset that is used for an environment of another kind is warned of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sampleforge.presets.fit import PresetFit, kind_of
from sampleforge.run.callback import Callback, Message
from sampleforge.run.session import Session
from sampleforge.topologies.config import AppoConfig
from tests.support.processes import RunCli


class Told(Callback):
    def __init__(self) -> None:
        self.warnings: list[str] = []
        self.wired: list[bool] = []

    def on_message(self, session: Session, message: Message) -> None:
        if message.level == "warning":
            self.warnings.append(message.text)
            self.wired.append(hasattr(session, "graph"))


def warned(folder: Path, preset: str, env: str) -> list[str]:
    settings: dict[str, Any] = {"env": env, "run_dir": str(folder), "serial": True, "device": "cpu"}
    told = Told()
    with Session(AppoConfig(**settings, num_envs_per_worker=2), [told, PresetFit("appo", preset)]):
        return [text for text in told.warnings if text.startswith("--preset")]


@pytest.mark.long
@pytest.mark.parametrize("preset", ["pong", "halfcheetah", "minatar-breakout"])
def test_another_kind_is_warned_of_by_both_names(preset: str, tmp_path: Path) -> None:
    made_for = {"pong": "ALE/Pong-v5", "halfcheetah": "HalfCheetah-v5"}
    (text,) = warned(tmp_path, preset, "CartPole-v1")
    expected = made_for.get(preset, "MinAtar/Breakout")
    start = f"--preset {preset} was made for {expected}, and --env CartPole-v1 is of another kind"
    assert text.startswith(start)


@pytest.mark.long
@pytest.mark.parametrize("env", ["Acrobot-v1", "MountainCar-v0"])
def test_the_same_kind_is_what_a_preset_is_for(env: str, tmp_path: Path) -> None:
    assert warned(tmp_path, "acrobot", env) == []


def test_the_warning_comes_once_and_before_the_wiring(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"env": "CartPole-v1", "run_dir": str(tmp_path), "serial": True}
    told = Told()
    with Session(AppoConfig(**settings, num_envs_per_worker=2), [told, PresetFit("appo", "pong")]):
        pass
    wired = [
        wired
        for text, wired in zip(told.warnings, told.wired, strict=True)
        if text.startswith("--preset")
    ]
    assert wired == [False]


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("HalfCheetah-v5", "Hopper-v5", True),
        ("MountainCar-v0", "Acrobot-v1", True),
        ("HalfCheetah-v5", "LunarLander-v3", False),
        ("MinAtar/Breakout", "MinAtar/Seaquest", True),
        ("mine:One", "mine:Other", True),
        ("mine:One", "CartPole-v1", False),
        ("no-such-id", "CartPole-v1", False),
    ],
)
def test_kinds(one: str, other: str, same: bool) -> None:
    assert (kind_of(one) == kind_of(other)) is same


def test_the_command_warns(run_cli: RunCli, tmp_path: Path) -> None:
    flags = "train appo --preset halfcheetah --env CartPole-v1 --train-for-env-steps 64 --serial"
    done = run_cli(*flags.split(), "--run-dir", "run", "--num-envs-per-worker", "2")
    assert done.returncode == 0, done.stderr
    assert "--preset halfcheetah was made for HalfCheetah-v5" in done.stdout + done.stderr
