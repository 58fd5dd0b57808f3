"""The ViZDoom family: the scenarios as the original has them, and no engine left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from sampleforge.config import ConfigError
from sampleforge.env.config import EnvConfig
from sampleforge.env.interface import description_of
from sampleforge.env.probe import probe
from sampleforge.env.registry import families, make_single, make_vector
from sampleforge.env.vector import Episode
from sampleforge.env.wrapped import make as within_wrappers
from tests.support.env_vectors import rollout
from tests.support.litter import holds, living
from tests.support.processes import StartCli, session_members
from tests.support.variants import slow

pytest.importorskip("vizdoom.gymnasium_wrapper")  # which registers the ids

pytestmark = pytest.mark.usefixtures("only_engines")

BASIC = EnvConfig(env="VizdoomBasic-v1", decorrelate=False)
LEFT, ATTACK = 3, 1


def engines(among: list[psutil.Process] | None = None) -> list[psutil.Process]:
    """The running engines, of this process unless ``among`` says otherwise."""
    found = psutil.Process().children(recursive=True) if among is None else among
    return [process for process in found if process.name() == "vizdoom"]


@pytest.fixture(autouse=True)
def own_temporary_folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Temporary folders of engines that other programs start are not in it."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        monkeypatch.setenv("TMPDIR", folder)
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield


def litter() -> set[str]:
    """Names in /dev/shm and temporary folders of engines, but for those of other programs."""
    shared = [name for name in Path("/dev/shm").glob("ViZDoom*") if not is_used_elsewhere(name)]
    temporary = Path(tempfile.gettempdir()).glob("sampleforge-doom-*")
    return {str(path) for path in (*shared, *temporary)}


def is_used_elsewhere(name: Path) -> bool:
    """Whether a process that is none of ours has the name open or mapped."""
    ours = living()
    return any(holds(pid, name) for pid in psutil.pids() if pid not in ours)


def wait_until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


# ---- the environment ----


def test_within_wrappers_it_is_known_as_without() -> None:
    wrappers = ["gymnasium.wrappers:RecordEpisodeStatistics"]
    env = within_wrappers("VizdoomBasic-v1", wrappers, frame_skip=2)
    described = description_of(env)
    assert (described.frame_skip, described.max_episode_steps) == (2, 150)
    assert "frame skip 2" in described.protocol and "cut at 150 steps" in described.protocol
    env.close()


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")  # pygame's own
@pytest.mark.parametrize(
    "env_id", ["VizdoomBasic-v1", "VizdoomHealthGatheringSupreme-MultiBinary-v1"]
)
def test_a_scenario_plays_as_in_vizdooms_gymnasium_wrapper(
    env_id: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Screens (but for the resizing), game variables, rewards and ends, from the same seed."""
    monkeypatch.chdir(tmp_path)  # theirs leaves files there
    import gymnasium as gym
    import vizdoom.gymnasium_wrapper  # noqa: F401

    theirs = gym.make(
        env_id, frame_skip=4, screen_resolution="RES_160X120", disable_env_checker=True
    )
    kwargs: dict[str, Any] = {"width": 160, "height": 120}
    ours = make_single(EnvConfig(env=env_id, env_kwargs=kwargs))
    assert ours.action_space == theirs.action_space
    ours.action_space.seed(3)
    expected, _ = theirs.reset(seed=7)
    found, _ = ours.reset(seed=7)
    for _ in range(120):
        for name in ("screen", "gamevariables"):
            assert np.array_equal(found[name], expected[name])
        action = ours.action_space.sample()
        expected, their_reward, ended, out_of_time, _ = theirs.step(action)
        found, reward, terminated, truncated, _ = ours.step(action)
        assert reward == their_reward
        assert (terminated or truncated) == (ended or out_of_time)
        if ended or out_of_time:
            expected, _ = theirs.reset()
            found, _ = ours.reset()
    theirs.close()
    ours.close()


def test_every_id_is_one_of_vizdooms_gymnasium_wrapper() -> None:
    import gymnasium as gym

    family = next(family for family in families() if family.name == "vizdoom")
    for env_id in family.ids():
        assert env_id in gym.registry
        make_single(EnvConfig(env=env_id))  # the configuration loads; no engine is started
    assert not engines()


@pytest.mark.long
def test_rows_are_reproducible_and_timeouts_show_the_last_screen() -> None:
    actions = np.full((80, 2), LEFT)
    runs = []
    for _ in range(2):
        vector = make_vector(BASIC, 2, [1, 2])
        runs.append(rollout(vector, actions))
        vector.close()
    for one, other in zip(*runs, strict=True):
        assert np.array_equal(one.obs["screen"], other.obs["screen"])
        assert np.array_equal(one.reward, other.reward)
    steps = runs[0]
    assert [out.truncated.tolist() for out in steps].index([True, True]) == 75
    assert not any(out.terminated.any() for out in steps[1:])
    assert (steps[75].obs["screen"].max(axis=(1, 2, 3)) > 50).all()
    assert steps[76].first.all() and not steps[76].valid.any()


def test_game_variables_are_a_leaf_of_their_own() -> None:
    vector = make_vector(BASIC, 1, [1])
    ammunition = [
        out.obs["gamevariables"][0, 0] for out in rollout(vector, np.full((6, 1), ATTACK))
    ]
    vector.close()
    assert ammunition[0] == 50 and ammunition[-1] < 50
    bare = make_vector(
        replace(BASIC, env_kwargs={"game_variables": False, "grayscale": True}), 1, [1]
    )
    bare.close()
    assert {n: leaf.shape for n, leaf in bare.spec.observations.items()} == {"screen": (72, 128, 1)}
    assert "grey" in bare.spec.protocol and "variables none" in bare.spec.protocol


def test_settings_are_in_the_protocol_and_checked() -> None:
    kwargs: dict[str, Any] = {"frame_skip": 2, "resolution": "256x144"}
    vector = make_vector(replace(BASIC, env_kwargs=kwargs), 1, [0])
    vector.close()
    assert vector.spec.frame_skip == 2 and vector.spec.max_episode_steps == 150
    assert "256x144 to 128x72 RGB" in vector.spec.protocol
    with pytest.raises(ConfigError, match="unknown env_kwargs 'frameskip'; there is frame_skip"):
        make_vector(replace(BASIC, env_kwargs={"frameskip": 2}), 1, [0])
    with pytest.raises(ConfigError, match="env_kwargs: width: 'wide' must be a whole number"):
        make_vector(replace(BASIC, env_kwargs={"width": "wide"}), 1, [0])
    with pytest.raises(ConfigError, match="'1x1', but must be one of 160x120"):
        make_vector(replace(BASIC, env_kwargs={"resolution": "1x1"}), 1, [0])
    with pytest.raises(ConfigError, match="Did you mean VizdoomBasic-v1"):
        make_vector(replace(BASIC, env="VizdoomBasik-v1"), 1, [0])


@pytest.mark.long
def test_rises_of_health_are_rewarded_and_returns_are_reported_without_it() -> None:
    """Beside the same game without the reward."""
    plain = EnvConfig(env="VizdoomHealthGatheringSupreme-v1", decorrelate=False)
    shaped = replace(plain, env_kwargs={"health_reward": 30})
    actions = np.random.default_rng(0).integers(4, size=(300, 2))
    steps, returns = [], []
    for config in (plain, shaped):
        vector = make_vector(config, 2, [1, 2])
        assert vector.spec.reward_shaping == ({"health_reward": 30} if config is shaped else {})
        assert ("+30 in training when HEALTH rises" in vector.spec.protocol) == (config is shaped)
        episodes: list[Episode] = []
        steps.append(rollout(vector, actions, episodes))
        returns.append([(episode.row, episode.ret) for episode in episodes])
        vector.close()
    health = np.array([out.obs["gamevariables"][:, 0] for out in steps[0]])
    rewards = [np.array([out.reward for out in run[1:]]) for run in steps]
    goes_on = np.array([out.valid & ~out.terminated for out in steps[0][1:]])
    rises = goes_on & (np.diff(health, axis=0) > 0)
    assert rises.sum() >= 2
    assert (rewards[1] - rewards[0] == 30 * rises).all()
    assert len(returns[0]) >= 4 and returns[0] == returns[1]
    with pytest.raises(ConfigError, match="does not tell HEALTH; its game variables are AMMO2"):
        make_vector(replace(BASIC, env_kwargs={"health_reward": 1}), 1, [0])


def test_the_screen_can_be_rendered() -> None:
    env = make_single(BASIC, render_mode="rgb_array")
    env.reset(seed=0)
    image = env.render()
    env.close()
    assert image.shape == (120, 160, 3) and image.dtype == np.uint8 and image.max() > 50


# ---- its processes ----


def test_an_engine_leaves_our_signal_handlers_in_place() -> None:
    """ViZDoom would take Ctrl-C for itself, and leave the default handler behind."""
    received: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: received.append(number))
    try:
        env = make_single(BASIC)
        env.reset(seed=0)
        os.kill(os.getpid(), signal.SIGINT)
        engines()[0].send_signal(signal.SIGINT)
        env.step(LEFT)
        env.close()
        os.kill(os.getpid(), signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)
    assert received == [signal.SIGINT] * 2


@pytest.mark.long
def test_a_dead_engine_is_replaced() -> None:
    vector = make_vector(BASIC, 2, [1, 2])
    rollout(vector, np.zeros((2, 2), np.int64))
    engines()[0].kill()
    found = rollout(vector, np.zeros((3, 2), np.int64))
    assert vector.rebuilt == 1 and len(engines()) == 2
    assert found[1].valid.tolist().count(False) == 1 and found[3].valid.all()
    vector.close()
    assert not engines()


@pytest.mark.long
def test_the_probe_leaves_nothing() -> None:
    before = litter()
    assert probe(BASIC).observations["screen"].shape == (72, 128, 3)
    assert litter() <= before and not engines()


HOLDER = """
import sys
import numpy as np
from sampleforge.env.config import EnvConfig
from sampleforge.env.registry import make_vector
vector = make_vector(EnvConfig(env="VizdoomBasic-v1"), 2, [0, 1])
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.mark.multiprocess
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_engines_die_with_a_killed_process(how: signal.Signals) -> None:
    before = litter()
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with holder:
        assert holder.stdout is not None and holder.stdout.readline() == "ready\n"
        left = engines()
        assert len(left) == 2
        assert litter() <= before, "nothing is there that would have to be cleaned up"
        holder.send_signal(how)
    _, alive = psutil.wait_procs(left, timeout=20)
    assert not alive
    assert litter() <= before


TRAIN = (
    "train appo --env VizdoomBasic-v1 --num-workers 2 --num-envs-per-worker 2 --rollout 8 "
    "--batch-size 64 --device cpu --model.cnn-features 16 --train-for-seconds 300 --run-dir run "
    "--report-interval 0.2 --max-worker-restarts 0"
)


@pytest.mark.multiprocess(timeout=100)
@pytest.mark.parametrize(
    "end", ["killed at its start", slow("killed"), "actor killed", slow("Ctrl-C")]
)
def test_a_run_that_ends_takes_its_engines_along(
    end: str, start_cli: StartCli, tmp_path: Path
) -> None:
    """`start_cli` fails if any process of the command outlives it."""
    before = litter()
    driver = start_cli(*TRAIN.split())
    metrics = tmp_path / "run" / "metrics.jsonl"
    if end == "killed at its start":
        wait_until(lambda: bool(litter() - before and engines(session_members(driver.pid))), 60)
    else:
        wait_until(lambda: metrics.exists() and metrics.read_text().count("\n") > 2, 60)
        wait_until(lambda: len(engines(session_members(driver.pid))) == 4)
        wait_until(lambda: litter() <= before)  # once all have started, nothing is left of it
    if end == "actor killed":
        engines(session_members(driver.pid))[0].parent().kill()
    elif end == "Ctrl-C":
        os.killpg(driver.pid, signal.SIGINT)
    else:
        driver.kill()
    stdout, stderr = driver.communicate(timeout=30)
    code = {"actor killed": 1, "Ctrl-C": 130}.get(end, -signal.SIGKILL)
    assert driver.returncode == code, stdout + stderr
    wait_until(lambda: not session_members(driver.pid) and litter() <= before)
