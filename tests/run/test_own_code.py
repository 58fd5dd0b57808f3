"""Code of the user's own reads and writes files by paths relative to the directory of the command,
in every process of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sampleforge as sf
from sampleforge.cli import main
from sampleforge.run.own_code import has_own_code
from tests.support.envs import CodeEnv

CARTPOLE: dict[str, Any] = {"env": "CartPole-v1"}
OBJECT: dict[str, Any] = {"env": CodeEnv}
SCHEDULE = {"gamma": "tests.run.test_own_code:falling"}
MODULE = """
import numpy as np, torch
import sampleforge as sf

class Scaled(torch.nn.Module):
    def __init__(self, observations, config):
        super().__init__()
        self.scale = float(np.load("scale.npy"))
        self.layer = torch.nn.Linear(4, 8)
        self.out_features = 8

    def forward(self, obs):
        return self.layer(obs["obs"] * self.scale)

class Keeps(sf.Callback):
    def on_episode_end(self, episode):
        with open("lengths.txt", "a") as file:
            file.write(f"{episode.length}\\n")

    def on_learner_update(self, update):
        torch.save(update.model.state_dict(), "mine.pt")
"""


class Mine(sf.Callback):
    """A callback of the user's."""


def falling(progress: float) -> float:
    return 1.0 - progress


@pytest.mark.parametrize(
    "config",
    [
        sf.AppoConfig(env="tests.support.envs:CodeEnv"),
        sf.AppoConfig(**OBJECT),
        sf.AppoConfig(**CARTPOLE, evaluate_env="tests.support.envs:CodeEnv", evaluate_interval=100),
        sf.AppoConfig(**CARTPOLE, callbacks=("tests.run.test_own_code:Mine",)),
        sf.AppoConfig(**CARTPOLE, model=sf.ModelConfig(encoder="mine:Encoder")),
        sf.AppoConfig(**CARTPOLE, model=sf.ModelConfig(head="mine:Head")),
        sf.AppoConfig(**CARTPOLE, evaluate_function="mine:measure", evaluate_interval=100),
        sf.AppoConfig(**CARTPOLE, anneal=SCHEDULE, train_for_env_steps=9),
        sf.AppoConfig(**CARTPOLE, num_policies=2, policy_mapping="mine:of"),
    ],
)
def test_processes_of_a_run_with_code_of_ones_own_stay_where_they_are(
    config: sf.AppoConfig,
) -> None:
    assert has_own_code(config)


def test_only_simulators_have_a_directory_of_their_own() -> None:
    config = sf.AppoConfig(**CARTPOLE, evaluate_env="Acrobot-v1", evaluate_interval=100)
    assert not has_own_code(config)
    assert has_own_code(config, [Mine()])


@pytest.mark.multiprocess
@pytest.mark.long
def test_files_of_callbacks_and_encoders_are_those_of_the_callers_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    Path("codeofmine.py").write_text(MODULE)
    np.save("scale.npy", np.float32(2))
    flags = "--num-workers 1 --train-for-env-steps 3000 --run-dir run --device cpu --quiet"
    own = "--callbacks codeofmine:Keeps --model.encoder codeofmine:Scaled"
    assert main(["train", "appo", "--env", "CartPole-v1", *flags.split(), *own.split()]) == 0
    assert sum(map(int, Path("lengths.txt").read_text().split())) > 1000
    assert Path("mine.pt").stat().st_size > 0
    assert main(["eval", "run", "--trust", "--episodes", "2", "--quiet"]) == 0
