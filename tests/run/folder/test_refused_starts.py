"""A start that is refused, or fails before anything was learned, leaves the folder as it was; and a
resumed run uses what was given, else what it had."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import yaml

from sampleforge.api import Trainer, load_policy, train
from sampleforge.config import ConfigError
from sampleforge.run.folder.checkpoint import CheckpointError
from sampleforge.run.folder.run_folder import RESERVE, RunFolder, differences
from sampleforge.spec import EnvSpaces, EnvSpec, action_specs, observation_specs
from sampleforge.topologies.config import ApexConfig, AppoConfig
from tests.support.folders import contents
from tests.support.runs import SMALL

OWN = """
import gymnasium as gym
import numpy as np
from gymnasium import spaces

OBSERVATION = spaces.Box(-1, 1, (3,), np.float32)
ACTION = spaces.Box(-1, 1, (2,), np.float32)

class Own(gym.Env):
    observation_space, action_space = OBSERVATION, ACTION
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation_space.sample(), {}
    def step(self, action):
        return self.observation_space.sample(), 0.0, False, self.np_random.random() < 0.1, {}
"""
CHANGES = {
    "shape": ("(3,), np.float32)", "(4,), np.float32)", "observation obs: Box(-1.0, 1.0, (3,)"),
    "kind": (
        "ACTION = spaces.Box(-1, 1, (2,), np.float32)",
        "ACTION = spaces.Discrete(4)",
        "Discrete(4)",
    ),
    "bounds": ("ACTION = spaces.Box(-1, 1,", "ACTION = spaces.Box(-5, 50,", "Box(-5.0, 50.0, (2,)"),
    "number": ("(2,), np.float32)", "(3,), np.float32)", "action action: Box(-1.0, 1.0, (2,)"),
}


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module of its own in the working directory, whose environment a test changes: compiled anew
    each time, as Python takes a change of equal length within the same second for none."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    file = tmp_path / "own_env.py"
    file.write_text(OWN)
    return file


def command(*more: str) -> list[str]:
    words = ("train", "appo", "--env", "own_env:Own", "--serial", "--run-dir", "run", "--quiet")
    return [*words, *SMALL, *more]


@pytest.mark.multiprocess(timeout=120)
def test_a_changed_environment_is_refused_and_the_run_stays_usable(
    own: Path, run_cli: Any, tmp_path: Path
) -> None:
    done = run_cli(*command("--train-for-env-steps", "1500"), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    before = contents(tmp_path / "run")
    for old, new, named in CHANGES.values():
        own.write_text(OWN.replace(old, new))
        done = run_cli(*command("--train-for-env-steps", "3000"), cwd=tmp_path)
        assert done.returncode == 2, (named, done.stderr)
        assert "was trained in another environment" in done.stderr and named in done.stderr
        assert "Traceback" not in done.stderr
        assert contents(tmp_path / "run") == before
    own.write_text(OWN)
    done = run_cli("eval", "run", "--episodes", "1", "--trust", cwd=tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.multiprocess(timeout=120)
def test_the_command_that_is_printed_evaluates_an_environment_of_ones_own(
    own: Path, run_cli: Any, tmp_path: Path
) -> None:
    """It ended with exit code 2, because the folder names code."""
    words = [word for word in command("--train-for-env-steps", "1500") if word != "--quiet"]
    done = run_cli(*words, cwd=tmp_path)
    printed = re.search(r"^To evaluate: sampleforge (.*)$", done.stdout, re.MULTILINE)
    assert printed is not None, done
    done = run_cli(*shlex.split(printed[1]), "--episodes", "1", cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def spec(observation: gym.Space[Any], action: gym.Space[Any], **more: Any) -> EnvSpec:
    spaces = EnvSpaces(observation, action)
    return EnvSpec("E", observation_specs(observation), action_specs(action), spaces=spaces, **more)


def test_every_leaf_that_differs_is_named_also_where_its_text_is_the_same() -> None:
    big = np.zeros(5000, np.float32)
    low = big.copy()
    low[2000] = -0.5
    two = gym.spaces.Discrete(2)
    box = gym.spaces.Box
    one = spec(gym.spaces.Dict(a=box(big - 1, big + 1), b=two), two)
    other = spec(gym.spaces.Dict(a=box(low - 1, big + 1), c=two), gym.spaces.Discrete(2, start=1))
    lines = differences(one, other)
    assert [line.split(":")[0] for line in lines] == [
        *("observation a", "observation b", "action action", "observation c")
    ]
    assert lines[1] == "observation b: Discrete(2) -> none"
    assert differences(one, replace(one, max_episode_steps=9, protocol="p")) == []
    assert differences(one, replace(one, frame_skip=4)) == ["frame skip: 1 -> 4"]
    games = [replace(one, agents=("a", "b")), replace(one, agents=("a", "c"))]
    assert differences(*games) == ["agents: a, b -> a, c"]


def config(run: Path, env_steps: int = 1500, **more: Any) -> AppoConfig:
    fixed: dict[str, Any] = {"num_envs_per_worker": 8, "async_rl": True, "serial": True}
    fixed |= {"env": "tests.support.envs:CodeEnv", "quiet": True, **more}
    return AppoConfig(run_dir=str(run), train_for_env_steps=env_steps, **fixed)


@pytest.mark.long
def test_what_fails_while_the_run_is_wired_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    train(config(run))
    before = contents(run)

    def fails(*_: object, **__: object) -> None:
        raise RuntimeError("no memory for the graph")

    monkeypatch.setattr("sampleforge.run.session.Session._follow_graph", fails)
    for folder in (run, tmp_path / "new"):
        with pytest.raises(RuntimeError, match="no memory"):
            train(config(folder, 3000))
    assert contents(run) == before
    assert not (tmp_path / "new").exists()


@pytest.mark.long
def test_a_resume_whose_workers_fail_at_once_leaves_all_but_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    train(config(run, keep_checkpoints=5))
    before = contents(run)

    def fails(*_: object, **__: object) -> None:
        raise ValueError("deliberate")

    monkeypatch.setattr("sampleforge.workers.actor.ActorWorker.step", fails)
    with pytest.raises(Exception, match="deliberate"):
        train(config(run, 3000, keep_checkpoints=2))
    after, changing = contents(run), {"log.txt", "workers.json"}
    assert before is not None and after is not None
    assert {name for name in after if after[name] != before.get(name)} <= changing
    assert after.keys() == before.keys()


@pytest.mark.long
def test_a_refused_start_in_an_empty_folder_leaves_it_empty(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--resume must"):
        train(config(tmp_path, resume="must"))
    assert list(tmp_path.iterdir()) == []


def test_an_environment_that_fails_is_told_on_the_screen_where_the_folder_has_a_run(
    tmp_path: Path, run_cli: Any
) -> None:
    train(config(tmp_path / "run"))
    before = contents(tmp_path / "run")
    words = ["train", "appo", "--env", "tests.support.envs:CodeEnv", "--run-dir", "run"]
    done = run_cli(*words, "--env-kwargs", "no_such_argument=1")
    assert done.returncode == 1 and "no_such_argument" in done.stderr
    assert "Traceback" in done.stderr
    assert contents(tmp_path / "run") == before


def test_a_run_without_a_valid_checkpoint_is_told_in_a_sentence(
    tmp_path: Path, run_cli: Any
) -> None:
    run = tmp_path / "run"
    train(config(run))
    for path in (run / "checkpoints").glob("*.safetensors"):
        path.write_bytes(path.read_bytes()[:100])
    before = contents(run)
    with pytest.raises(CheckpointError):
        train(config(run, 3000))
    words = ["train", "appo", "--env", "tests.support.envs:CodeEnv", "--run-dir", "run"]
    done = run_cli(*words, "--async-rl", "--serial", "--num-envs-per-worker", "8")
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "no valid checkpoint" in done.stderr.splitlines()[-1]
    assert contents(run) == before


# ---- one precedence ----


def stored(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((run / "config.yaml").read_text())
    return found


@pytest.mark.long
def test_a_resumed_run_keeps_what_it_was_given_again_and_again(tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(config(run, keep_checkpoints=5, learning_rate=0.003, gamma=0.9, metrics_window=7))
    for env_steps in (2000, 2500):
        train(config(run, env_steps))
        found = stored(run)
        assert (found["keep_checkpoints"], found["metrics_window"]) == (5, 7)
        assert (found["learning_rate"], found["gamma"]) == (0.003, 0.9)
    log = (run / "log.txt").read_text()
    assert "As in the run before: --keep-checkpoints 5" in log
    train(config(run, 3000, keep_checkpoints=2))
    assert stored(run)["keep_checkpoints"] == 2
    assert (
        "Changed for this part of the run: --keep-checkpoints 2 (was 5)"
        in (run / "log.txt").read_text()
    )
    before = contents(run)
    with pytest.raises(ConfigError, match=r"action_repeat: 1 -> 2"):
        train(config(run, 3500, action_repeat=2))
    assert contents(run) == before


@pytest.mark.long
@pytest.mark.parametrize("make", [AppoConfig, ApexConfig])
def test_restore_keeps_what_was_given_and_takes_the_rest(tmp_path: Path, make: Any) -> None:
    more: dict[str, Any] = {"env": "CartPole-v1", "serial": True, "quiet": True, "num_workers": 1}
    more |= {"num_envs_per_worker": 4, "train_for_env_steps": 1500}
    more |= {"learning_starts": 200, "replay_capacity": 2000} if make is ApexConfig else {}
    old = make(**more, learning_rate=0.01, max_grad_norm=3.0, run_dir=str(tmp_path / "old"))
    train(old)
    new = make(**more, learning_rate=0.0002, run_dir=str(tmp_path / "new"))
    with Trainer(new) as trainer:
        trainer.restore(tmp_path / "old")
        found = stored(tmp_path / "new")
        assert (found["learning_rate"], found["max_grad_norm"]) == (0.0002, 3.0)
        trainer.save()
    policy = json.loads(next((tmp_path / "new").glob("checkpoints/manifest.json")).read_text())
    assert policy["entries"]
    state = newest_state(tmp_path / "new")["hyperparameters"]
    assert (state["learning_rate"], state["max_grad_norm"]) == (0.0002, 3.0)
    again = replace(new, train_for_env_steps=3000)
    train(again)  # the same command resumes it, with what was restored
    assert stored(tmp_path / "new")["max_grad_norm"] == 3.0


def newest_state(run: Path) -> dict[str, Any]:
    """The plain state of the learner in the newest checkpoint."""
    from sampleforge.run.folder.checkpoint import CheckpointStore

    found = CheckpointStore(run / "checkpoints", 1).load(log=print)
    assert found is not None
    learner: dict[str, Any] = found[0].state["learner"]
    return learner


# ---- the files of a resumed run ----


def reported(run: Path) -> list[int]:
    """The env steps of the reports."""
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["env_steps"] for line in lines]


@pytest.mark.long
def test_reports_after_the_checkpoint_are_dropped_by_a_resume(tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(config(run, 1500, report_interval=0.2))
    train(config(run, 3000, report_interval=0.2))
    before = reported(run)
    newest = sorted((run / "checkpoints").glob("*.safetensors"))[-1]
    newest.write_bytes(b"damaged")
    with Trainer(config(run, 4000)) as trainer:
        begins = trainer.session.graph.progress.env_steps
        assert 0 < begins < before[-1]
        trainer.train()
        kept = [steps for steps in before if steps <= begins]
        assert reported(run)[: len(kept)] == kept and len(reported(run)) == len(kept) + 1
        for _ in trainer:
            pass
    assert reported(run) == sorted(reported(run)) and reported(run)[-1] >= 4000


FULL = """
import sys
from pathlib import Path
from sampleforge.run.folder.files import CannotWrite
from sampleforge.run.folder.run_folder import RunFolder
folder = RunFolder(Path(sys.argv[1]) / "run")
folder.create()
folder.prepare()
with open(folder.path / "filler", "wb", buffering=0) as filler:
    try:
        while filler.write(b"x" * 4096):
            pass
    except OSError:
        pass
try:
    folder.write_workers({"a": "x" * 9000})
except CannotWrite as error:
    print(error)
folder.write_summary({"status": "failed", "text": "x" * 9000})
print(folder.summary_file.read_text()[:30])
folder.close()
"""


@pytest.mark.multiprocess
def test_a_full_disk_still_takes_the_summary(tmp_path: Path) -> None:
    script = f"mount -t tmpfs -o size={4 * RESERVE} none '{tmp_path}'; exec \"$@\""
    words = ["unshare", "--mount", "bash", "-c", f"set -e; {script}", "bash"]
    if subprocess.run([*words, "true"], capture_output=True).returncode:
        pytest.skip("this user may not mount")
    done = subprocess.run(
        [*words, sys.executable, "-c", FULL, str(tmp_path)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "workers.json" in done.stdout and '"status": "failed"' in done.stdout


@pytest.mark.long
def test_nothing_of_the_reserve_is_left(tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(config(run))
    assert not RunFolder(run).reserve.exists()
    assert load_policy(run, trust=True) is not None
