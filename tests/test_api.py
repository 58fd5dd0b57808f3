"""SampleForge from Python: scripts, as users write them, and the trainer."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import sampleforge as sf
from tests.support.processes import RunCli
from tests.support.runs import summary
from tests.support.variants import slow

SCRIPT = """
import gymnasium as gym
import sampleforge as sf

gym.register("Mine-v0", "gymnasium.envs.classic_control:CartPoleEnv", max_episode_steps=20)

def make():
    return gym.make("Mine-v0")

def config(env):
    return sf.AppoConfig(
        env=env, run_dir=env.strip("_").replace(":", "-"), train_for_env_steps=2000,
        num_workers=1, num_envs_per_worker=4, num_splits=1, quiet=True,
    )
"""


def script(run_cli: RunCli, folder: Path, text: str) -> subprocess.CompletedProcess[str]:
    (folder / "mine.py").write_text(SCRIPT + text)
    return run_cli("mine.py", timeout=100)


@pytest.mark.multiprocess(timeout=120)
def test_a_script_may_register_its_own_env_or_hold_its_factory(
    run_cli: RunCli, tmp_path: Path
) -> None:
    done = script(
        run_cli,
        tmp_path,
        'if __name__ == "__main__":\n'
        '    for env in ("Mine-v0", "__main__:make"):\n'
        "        print(sf.train(config(env)).summary['status'])\n",
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("finished\n") == 2
    assert summary(tmp_path / "Mine-v0")["return_mean"] <= 20


@pytest.mark.multiprocess(timeout=120)
def test_a_script_without_a_main_guard_is_told_so(run_cli: RunCli, tmp_path: Path) -> None:
    """And does not start itself for ever."""
    done = script(run_cli, tmp_path, 'sf.train(config("Mine-v0"))\n')
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("mine.py starts a run") and "if __name__ == '__main__':" in line
    assert {path.name for path in tmp_path.iterdir()} == {"mine.py"}


@pytest.mark.multiprocess(timeout=120)
def test_a_daemonic_process_is_told_to_train_elsewhere_or_serially(
    run_cli: RunCli, tmp_path: Path
) -> None:
    """Such as a worker of a pool: it can start no processes. Nothing is written before."""
    done = script(
        run_cli,
        tmp_path,
        "from dataclasses import replace\nfrom multiprocessing import get_context\n"
        "from pathlib import Path\n"
        "def trained(serial):\n"
        "    try:\n"
        "        asked = replace(config('Mine-v0'), serial=serial)\n"
        "        return sf.train(asked).summary['status']\n"
        "    except sf.ConfigError as error:\n"
        "        return f'{error} {Path(\"Mine-v0\").exists()}'\n"
        'if __name__ == "__main__":\n'
        "    with get_context('forkserver').Pool(1) as pool:\n"
        "        for said in pool.map(trained, [False, True]):\n"
        "            print(said)\n",
    )
    assert done.returncode == 0, done.stderr
    refused, status = done.stdout.splitlines()
    assert refused.startswith("this process (ForkServerPoolWorker-1) is a daemonic one")
    assert "ProcessPoolExecutor" in refused and refused.endswith("(--serial) False")
    assert status == "finished"


@pytest.mark.multiprocess(timeout=120)
def test_a_program_may_come_through_standard_input(tmp_path: Path) -> None:
    """As in containers and on clusters, and the cells of a notebook; the environment and callbacks
    may be objects of it, with what they need."""
    program = (
        "import gymnasium as gym\nimport sampleforge as sf\n\nFACTOR = 2\n\n"
        "def twice(number):\n    return FACTOR * number\n\n"
        "class Mine(sf.Callback):\n    def on_episode_end(self, episode):\n"
        "        episode.custom_metrics['twice'] = twice(21)\n\n"
        "sf.train(sf.AppoConfig(env=lambda: gym.make('CartPole-v1'), train_for_env_steps=1000, "
        "num_workers=1, num_envs_per_worker=2, run_dir='run'), callbacks=[Mine()])\n"
    )
    command = [sys.executable, "-"]
    done = subprocess.run(command, input=program, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert summary(tmp_path / "run")["env_steps"] >= 1000
    reports = map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
    assert {row["custom_twice_mean"] for row in reports if "custom_twice_mean" in row} == {42.0}


@pytest.mark.multiprocess(timeout=120)
def test_a_package_may_train_in_its_main_module(tmp_path: Path) -> None:
    """By ``python -m package``: multiprocessing imports no ``__main__.py`` in a child process."""
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__main__.py").write_text(
        "import sampleforge as sf\n\nclass Mine(sf.Callback):\n"
        "    def on_episode_end(self, episode):\n        pass\n\n"
        "if __name__ == '__main__':\n    sf.train(sf.AppoConfig(env='CartPole-v1', num_workers=1,"
        " train_for_env_steps=500, run_dir='run'), callbacks=[Mine()])\n"
    )
    command = [sys.executable, "-m", "package"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


NOTEBOOK = """
import contextlib, dataclasses, functools, gymnasium, multiprocessing, threading
from dataclasses import dataclass
from typing import ClassVar
import sampleforge as sf, torch
from sampleforge.algorithms.ppo.algorithm import PPO
from sampleforge.topologies.pairings.ppo_defaults import APPO

SIZE, LOCK = 24, contextlib.nullcontext()

@functools.cache
def width():
    return SIZE

def layers(size):
    return torch.nn.Sequential(torch.nn.Linear(size, width()), torch.nn.Tanh())

def factory():
    class Mine(torch.nn.Module):
        def __init__(self, observations, config):
            super().__init__()
            self.net, self.out_features = layers(observations["obs"].shape[0]), self.size

        @functools.cached_property
        def size(self):
            return SIZE

        def forward(self, obs):
            with LOCK:
                return self.net(obs["obs"])

    return Mine

Mine = factory()

@dataclass(frozen=True)
class MyConfig(sf.AppoConfig):
    algo: ClassVar[str] = "__main__:MyConfig"
    pairing: ClassVar[str] = "__main__:MINE"

def new_learner(config, network, place):
    assert isinstance(network.actor.encoder, Mine) and type(config) is MyConfig
    if multiprocessing.parent_process():
        print("a learner of the cell", flush=True)
    return PPO.new_learner(config, network, place)

MINE = dataclasses.replace(APPO, algorithm=dataclasses.replace(PPO, new_learner=new_learner))

rate = lambda progress: 1e-3 * (1 - progress)

def make():
    return gymnasium.make("CartPole-v1")

train = functools.partial(sf.train, MyConfig(
    env="__main__:make", train_for_env_steps=1000, num_workers=1, run_dir="run", quiet=True,
    anneal={"learning_rate": "__main__:rate"}, model=sf.ModelConfig(encoder="__main__:Mine"),
))
"""


def cell(folder: Path, then: str) -> subprocess.CompletedProcess[str]:
    """Run a notebook's first cell, and another one."""
    command = [sys.executable, "-"]
    return subprocess.run(
        command, input=NOTEBOOK + then, cwd=folder, capture_output=True, text=True
    )


@pytest.mark.multiprocess(timeout=120)
def test_networks_losses_and_schedules_of_a_notebook_reach_the_workers(tmp_path: Path) -> None:
    """Also those that are made in a function, and what functools has decorated."""
    policy = "sf.load_policy('run', trust=True)"
    done = cell(tmp_path, f"train(); print(type({policy}.model.actor.encoder) is Mine)")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["a learner of the cell", "True"]


REDEFINED = """
import os
config = dataclasses.replace(train.args[0], train_for_env_steps=10**9, report_interval=0.5)

class Told(sf.Callback):
    def on_episode_end(self, episode):
        episode.custom_metrics["told"] = 1

trainer = sf.Trainer(config, [Told()])
while "custom_told_mean" not in trainer.train():
    pass
first = trainer.get_policy().model.actor.encoder

class Told(sf.Callback):
    pass

class Mine(torch.nn.Module):
    pass

class MyConfig:
    pass

for name, pid in trainer.session.runner.pids().items():
    if name in ("actor 0", "learner"):
        os.kill(pid, 9)
trainer.train_until(lambda report: report["restarts"] >= 2, seconds=60)
print(type(trainer.get_policy().model.actor.encoder) is type(first), type(first) is not Mine)
print(trainer.evaluate(episodes=1)["return_mean"] > 0, "on_episode_end" not in vars(Told))
print(trainer.stop().summary["status"])
"""


@pytest.mark.multiprocess(timeout=120)
def test_a_cell_that_defines_a_class_anew_changes_no_training(tmp_path: Path) -> None:
    """Neither that of workers that take the place of killed ones, nor how its policy is played."""
    done = cell(tmp_path, REDEFINED)
    assert done.returncode == 0, done.stderr
    said = [line for line in done.stdout.splitlines() if "learner" not in line]
    assert said == ["True True", "True True", "finished"]


@pytest.mark.multiprocess(timeout=120)
def test_what_of_a_notebook_cannot_be_sent_is_refused(tmp_path: Path) -> None:
    done = cell(tmp_path, "LOCK = threading.Lock()\ntrain()")
    assert done.returncode == 1
    assert "ConfigError: Mine, MyConfig, new_learner, rate: defined in an inter" in done.stderr
    assert "cannot pickle '_thread.lock' object" in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.multiprocess(timeout=120)
def test_a_script_may_read_its_arguments_and_files_where_it_is_imported(
    run_cli: RunCli, tmp_path: Path
) -> None:
    """By relative paths, also for a simulator, which is tried out in a directory of its own."""
    (tmp_path / "more.txt").write_text("500")
    (tmp_path / "mine.py").write_text(
        "import sys\nimport sampleforge as sf\n\n"
        "steps = int(sys.argv[1]) + int(open('more.txt').read())\n\n"
        "if __name__ == '__main__':\n"
        "    sf.train(sf.AppoConfig(env='CartPole-v1', train_for_env_steps=steps, run_dir='run'))\n"
    )
    done = run_cli("mine.py", "500", timeout=100)
    assert done.returncode == 0, done.stderr


def test_the_public_names_are_listed_and_there() -> None:
    assert [name for name in dir(sf) if not name.startswith("_")] == sorted(sf.__all__)
    assert all(getattr(sf, name) is not None for name in sf.__all__)


@pytest.mark.long
def test_the_trainer_step_by_step(tmp_path: Path) -> None:
    config = sf.AppoConfig(
        env="CartPole-v1",
        run_dir=str(tmp_path / "run"),
        serial=True,
        quiet=True,
        train_for_env_steps=4000,
        num_envs_per_worker=8,
        report_interval=1.0,
    )
    with sf.Trainer(config) as trainer:
        steps = [report["env_steps"] for report in trainer]
        assert len(steps) >= 4 and steps == sorted(steps)
        trainer.save()
        obs = [0.0, 0.0, 0.2, 3.0]
        chosen = trainer.compute_action(obs)
        exported = trainer.export(tmp_path / "policy.pt2")
        assert exported["max_error"] <= 1e-5 and exported["env_steps"] >= 4000
        program = torch.export.load(tmp_path / "policy.pt2").module()
        assert program({"obs": torch.tensor([obs])})["action"].tolist() == [chosen]
        assert trainer.run_dir == tmp_path / "run"
    assert sf.load_policy(trainer.run_dir).act(obs)[0] == chosen
    assert summary(tmp_path / "run")["status"] == "finished"


@pytest.mark.long
@pytest.mark.parametrize("algo", ["appo", slow("apex"), slow("ddppo")])
def test_training_again_and_again_holds_no_more_descriptors(tmp_path: Path, algo: str) -> None:
    make = {"appo": sf.AppoConfig, "apex": sf.ApexConfig, "ddppo": sf.DdppoConfig}[algo]

    def descriptors_after(name: str) -> int:
        few = {"num_ranks": 1} if algo == "ddppo" else {"num_workers": 1}
        sf.train(
            make(
                env="CartPole-v1",
                run_dir=str(tmp_path / name),
                serial=True,
                quiet=True,
                train_for_env_steps=600,
                num_envs_per_worker=4,
                **few,
            )
        )
        gc.collect()
        return len(os.listdir("/proc/self/fd"))

    descriptors_after("imports what it needs")
    assert descriptors_after("second") == descriptors_after("third")


def test_an_exception_of_the_caller_ends_the_run_in_order(tmp_path: Path) -> None:
    config = sf.AppoConfig(
        env="CartPole-v1", run_dir=str(tmp_path / "run"), serial=True, quiet=True, seed=1
    )
    with pytest.raises(ZeroDivisionError), sf.Trainer(config) as trainer:
        next(iter(trainer))
        raise ZeroDivisionError
    written = summary(tmp_path / "run")
    assert written["status"] == "failed" and "ZeroDivisionError" in written["error"]
    assert written["env_steps"] >= 250


def test_no_env_is_a_config_error() -> None:
    with pytest.raises(sf.ConfigError, match="no environment"):
        sf.Trainer(sf.AppoConfig())
