"""`sampleforge eval` and the policy that was trained."""

from __future__ import annotations

import dataclasses
import faulthandler
import io
import itertools
import json
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from rich.console import Console

from sampleforge.api import load_policy, train
from sampleforge.cli import main
from sampleforge.config import ConfigError
from sampleforge.env.vector import EnvVector
from sampleforge.evaluation import Observers, evaluate
from sampleforge.models.config import ModelConfig
from sampleforge.models.encoder_registry import register_encoder
from sampleforge.run.folder.trust import Trust
from sampleforge.run.screen.evaluating import EvaluationDisplay
from sampleforge.runtime.watch import HangWatch
from sampleforge.topologies.config import AppoConfig
from sampleforge.workers.episode_player import evaluation_envs
from tests.support.processes import RunCli


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a short run."""
    run = tmp_path_factory.mktemp("trained") / "run"
    train(
        AppoConfig(
            env="CartPole-v1",
            run_dir=str(run),
            seed=5,
            serial=True,
            quiet=True,
            train_for_env_steps=3000,
            num_envs_per_worker=8,
            model=ModelConfig(core="gru", core_size=8),
        )
    )
    return run


@pytest.mark.parametrize("how", [[], ["--stochastic"]])
def test_the_last_line_is_json_and_repeats_with_the_seed(
    capsys: pytest.CaptureFixture[str], trained: Path, how: list[str]
) -> None:
    """Twenty episodes on sixteen rows; nothing is left in the current directory."""
    results = []
    for seed in "778":
        assert main(["eval", str(trained), "--episodes", "20", "--seed", seed, *how]) == 0
        results.append(json.loads(capsys.readouterr().out.splitlines()[-1]))
    first, again, other = results
    assert first["episodes"] == 20 and first["return_std"] > 0
    assert 8 < first["return_mean"] == first["length_mean"] <= 500
    assert again == first
    assert other["return_mean"] != first["return_mean"]


def test_runs_that_cannot_be_evaluated_are_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, trained: Path
) -> None:
    assert main(["eval", str(trained.parent / "rum")]) == 2
    assert f"Did you mean {trained}?" in capsys.readouterr().err
    (tmp_path / "config.yaml").write_bytes((trained / "config.yaml").read_bytes())
    assert main(["eval", str(tmp_path)]) == 2
    assert "has no checkpoint yet" in capsys.readouterr().err


def test_a_run_folder_does_not_name_its_place(trained: Path) -> None:
    """Nothing in its folder names where it was."""
    texts = [*trained.glob("*.yaml"), *trained.glob("*.json"), *trained.glob("checkpoints/*.json")]
    assert all(str(trained) not in path.read_text() for path in texts)


def test_the_loaded_policy_carries_its_state(trained: Path) -> None:
    policy = load_policy(trained)
    obs = np.zeros(4, np.float32)
    action, state = policy.act(obs)
    assert action in (0, 1) and state.shape == (1, 8)
    (_, later), (_, anew) = policy.act(obs, state), policy.act(obs)
    assert state is not None and later is not None and anew is not None
    assert not torch.equal(state, later), "the second step goes on from the first"
    assert torch.equal(anew, state), "without a state an episode begins"
    with pytest.raises(ValueError, match=r"is \(3,\), expected \(4,\)"):
        policy.act(obs[:3])


# ---- how many episodes, how long, and what is said of it ----


class Said(EvaluationDisplay):
    """Remembers what an evaluation says."""

    def __init__(self) -> None:
        super().__init__(quiet=True)
        self.messages: list[tuple[str, str]] = []
        self.looks: list[tuple[int, int, float | None]] = []

    def message(self, text: str, level: str) -> None:
        self.messages.append((level, text))

    def progress(self, done: int, total: int, return_mean: float | None) -> None:
        self.looks.append((done, total, return_mean))


@pytest.mark.long
def test_a_hundred_episodes_are_played_by_default(
    capsys: pytest.CaptureFixture[str], trained: Path
) -> None:
    assert main(["eval", str(trained)]) == 0
    found = capsys.readouterr()
    assert json.loads(found.out)["episodes"] == 100
    assert "100 episodes of CartPole-v1 (the first 16" in found.err
    assert "--episodes sets the number" in found.err
    assert main(["eval", str(trained), "--quiet"]) == 0
    again = capsys.readouterr()
    assert (again.out, again.err) == (found.out, "")


def test_twenty_episodes_are_played_where_one_takes_minutes(trained: Path) -> None:
    """By a clock that goes 0.1 s on at each step, then 100 s: before or after every row has ended
    an episode."""
    said = {}
    for tick in (0.1, 100.0):
        time = itertools.count(0.0, tick)
        said[tick] = Said()
        observers = Observers(said[tick], clock=partial(next, time))
        found = evaluate(trained, seed=3, observers=observers)
        assert found["episodes"] == (100 if tick == 0.1 else 20)
    ((_, text),) = said[100.0].messages
    assert text.startswith("20 episodes of CartPole-v1 rather than 100, because one takes minutes")
    assert said[100.0].looks[-1][:2] == (20, 20) and said[0.1].looks[-1][:2] == (100, 100)
    time = itertools.count(0, 100)
    chosen = evaluate(trained, seed=3, observers=Observers(clock=lambda: next(time)))
    assert chosen == evaluate(trained, seed=3, episodes=20)


@pytest.fixture(scope="module", params=["CodeEnv", "CountingVectorEnv"])
def endless(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run in an environment whose episodes never end."""
    run = tmp_path_factory.mktemp("endless") / request.param
    train(
        AppoConfig(
            env=f"tests.support.envs:{request.param}",
            env_kwargs={"length": 1_000_000},
            run_dir=str(run),
            seed=5,
            serial=True,
            quiet=True,
            train_for_env_steps=500,
            num_envs_per_worker=4,
        )
    )
    return run


def test_an_environment_without_a_limit_does_not_play_for_ever(
    endless: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sampleforge.workers.episode_player.EPISODE_LIMIT", 50)
    said, known = Said(), Trust(everything=True)
    found = evaluate(endless, episodes=20, trust=known, observers=Observers(said))
    one_by_one = endless.name == "CodeEnv"
    played = 20 if one_by_one else 16
    assert (found["episodes"], found["episodes_cut"]) == (played, played)
    assert found["length_mean"] == 50
    level, text = said.messages[-1]
    assert level == "warning" and f"{played} of {played} episodes were cut at 50 steps" in text
    assert "has no time limit; --max-episode-steps sets another" in text
    assert ("cannot reset a single row" in text) != one_by_one
    said = Said()
    found = evaluate(
        endless, episodes=16, max_episode_steps=30, trust=known, observers=Observers(said)
    )
    assert (found["length_mean"], found["episodes_cut"], said.messages) == (30, 16, [])


@pytest.fixture(scope="module")
def hanging(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run in an environment that hangs in its 400th step."""
    run = tmp_path_factory.mktemp("hanging") / "run"
    train(
        AppoConfig(
            env="tests.support.envs:HangingEnv",
            env_kwargs={"where": "step", "after": 400, "length": 1000},
            run_dir=str(run),
            seed=5,
            serial=True,
            quiet=True,
            train_for_env_steps=300,
            num_envs_per_worker=4,
        )
    )
    return run


@pytest.mark.multiprocess(timeout=120)
def test_an_environment_that_hangs_ends_the_command_with_its_stacks(
    run_cli: RunCli, hanging: Path
) -> None:
    done = run_cli("eval", str(hanging), "--trust", "--env-timeout", "2", timeout=90)
    assert done.returncode == 1 and "in hang" in done.stderr
    last = done.stderr.rstrip().splitlines()[-1]
    assert "the environment hangs" in last and "more than 2 s" in last and "--env-timeout" in last


def test_hangs_are_watched_for_where_stderr_is_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a notebook, and in a test that captures what a command prints."""
    set_later = threading.Event()
    dump_later = faulthandler.dump_traceback_later

    def seen(*args: Any, **settings: Any) -> None:
        dump_later(*args, **settings)
        set_later.set()

    monkeypatch.setattr(faulthandler, "dump_traceback_later", seen)
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with HangWatch("a command", 0.04):
        assert set_later.wait(30)


def test_an_evaluation_uses_one_thread_and_restores_the_number(trained: Path) -> None:
    """More threads only cost time for a batch of sixteen rows."""
    seen: list[int] = []
    torch.set_num_threads(2)
    try:
        evaluate(
            trained,
            episodes=2,
            observers=Observers(alive=lambda: seen.append(torch.get_num_threads())),
        )
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
    assert len(seen) > 10 and set(seen[5:-1]) == {1}, "of both rows' starts, and of all steps"


def closing_by(close: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the environments of evaluations close by ``close``."""

    def made(*args: Any) -> EnvVector:
        envs = evaluation_envs(*args)
        monkeypatch.setattr(envs, "close", close)
        return envs

    monkeypatch.setattr("sampleforge.evaluation.evaluation_envs", made)


@pytest.mark.parametrize(
    "raised", [RuntimeError("deliberate: close raises"), SystemExit("deliberate: close raises")]
)
def test_episodes_count_though_closing_the_environments_fails(
    trained: Path, monkeypatch: pytest.MonkeyPatch, raised: BaseException
) -> None:
    def close() -> None:
        raise raised

    closing_by(close, monkeypatch)
    said = Said()
    assert evaluate(trained, episodes=2, observers=Observers(said))["episodes"] == 2
    ((level, text),) = said.messages
    assert level == "warning" and text.startswith("closing the environments failed: ")
    assert repr(raised)[:-1] in text


def test_episodes_count_though_the_environments_do_not_close(
    trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closing_by(threading.Event().wait, monkeypatch)  # type: ignore[arg-type]
    said = Said()
    found = evaluate(trained, episodes=2, observers=Observers(said, close_s=0.1))
    assert found["episodes"] == 2
    ((level, text),) = said.messages
    assert level == "warning" and text.startswith("closing the environments failed: ")
    assert "have not closed within 0.1 s: their close() hangs" in text


def test_a_registered_encoder_is_stored_as_what_other_processes_can_import(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    register_encoder("own", "tests.models.test_models:OwnEncoder")
    run = tmp_path / "run"
    config = AppoConfig(
        env="CartPole-v1",
        run_dir=str(run),
        serial=True,
        quiet=True,
        train_for_env_steps=500,
        num_envs_per_worker=4,
        model=ModelConfig(encoder="own"),
    )
    train(config)
    train(dataclasses.replace(config, train_for_env_steps=1000))  # resumes
    monkeypatch.setattr("sampleforge.models.encoder_registry._registered", {})
    found = evaluate(run, episodes=2, trust=Trust(everything=True))
    assert found["env_steps"] >= 1000
    with pytest.raises(ConfigError, match=r"tests\.models\.test_models:OwnEncoder"):
        evaluate(run, episodes=2)


def test_a_policy_plays_in_a_changed_environment(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """CartPole whose reward of a step is 0, and 1 for a fall; and one that ends after 10 steps."""
    same = evaluate(trained, episodes=8, seed=3)
    changed = evaluate(trained, episodes=8, seed=3, env_kwargs={"sutton_barto_reward": True})
    assert changed["return_mean"] == -1 and changed["length_mean"] == same["length_mean"]
    assert evaluate(trained, episodes=8, seed=3, env=f"{__name__}:short")["length_mean"] == 10
    args = ["eval", str(trained), "--episodes", "8", "--seed", "3", "--evaluate-env-kwargs"]
    assert main([*args, "sutton_barto_reward=true"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["return_mean"] == -1
    with pytest.raises(ConfigError, match=r"(?s)has other observations .* one with the same"):
        evaluate(trained, episodes=8, env="Acrobot-v1")


def test_the_path_of_an_onnx_file_is_relative_to_the_callers_directory(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Episodes of CartPole-v1 are played in a scratch directory."""
    monkeypatch.chdir(tmp_path)
    Path("policy.onnx").write_text("no protobuf")
    with pytest.raises(ConfigError, match=r"--onnx policy\.onnx: onnxruntime .* cannot load it"):
        evaluate(trained, onnx="policy.onnx")


def short() -> gym.Env[Any, Any]:
    return gym.make("CartPole-v1", max_episode_steps=10)


def test_max_episode_steps_ends_episodes_of_an_evaluation(trained: Path) -> None:
    found = evaluate(trained, episodes=20, max_episode_steps=5)
    assert (found["length_mean"], found["episodes"], found["episodes_cut"]) == (5, 20, 20)


@pytest.mark.parametrize("env", ["Pendulum-v1", f"{__name__}:pendulum"])
def test_the_own_limit_of_an_environment_cuts_no_episode(tmp_path: Path, env: str) -> None:
    """Pendulum's is 200 steps, also where it is asked for."""
    more: dict[str, Any] = {"serial": True, "quiet": True, "seed": 5, "num_envs_per_worker": 2}
    train(AppoConfig(env=env, run_dir=str(tmp_path), train_for_env_steps=100, **more))
    play = partial(evaluate, tmp_path, episodes=2, trust=Trust(everything=True))
    for limit, length, cut in ((None, 200, 0), (200, 200, 0), (30, 30, 2)):
        found = play(max_episode_steps=limit)
        assert (found["length_mean"], found["episodes_cut"]) == (length, cut)


def pendulum() -> gym.Env[Any, Any]:
    return gym.make("Pendulum-v1")


def test_a_long_evaluation_prints_its_progress() -> None:
    out, time = io.StringIO(), iter([0.0, 9.0, 11.0, 12.0, 71.0])
    console = Console(file=out, width=100)
    with EvaluationDisplay(quiet=False, console=console, clock=lambda: next(time)) as display:
        for done in range(4):
            display.progress(done, 100, 21.5 if done else None)
    first, second = out.getvalue().splitlines()
    assert first == "evaluating: 1 of 100 episodes, mean return 21.50, 0:11"
    assert second == "evaluating: 3 of 100 episodes, mean return 21.50, 1:11"


def test_on_a_terminal_the_progress_is_a_bar_that_goes_at_the_end() -> None:
    out, time = io.StringIO(), itertools.count(0.0, 5.0)
    console = Console(file=out, force_terminal=True, width=100)
    with EvaluationDisplay(quiet=False, console=console, clock=lambda: next(time)) as display:
        display.progress(40, 100, 21.5)
        assert "40/100" in out.getvalue()
    assert out.getvalue().endswith("\x1b[2K"), "the bar is gone at the end"
