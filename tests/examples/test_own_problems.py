"""Problems of one's own, each of which takes a few lines beyond the environment. `examples/` has a
loss, an algorithm, an encoder, a distribution, a curriculum."""

from __future__ import annotations

import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import nn

import sampleforge as sf
from sampleforge.cli import main
from sampleforge.config import ConfigError
from sampleforge.env.wrapped import make
from sampleforge.run.folder.checkpoint import CheckpointStore
from tests.support.processes import RunCli

SMALL: dict[str, Any] = {
    **{"env": "CartPole-v1", "serial": True, "quiet": True, "seed": 1, "num_workers": 1},
    **{"train_for_env_steps": 3000, "batch_size": 512, "report_interval": 1.0},
}


def reports(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


class Pretrained(nn.Module):
    """A network that was trained elsewhere and stays as it is, and a layer that learns."""

    def __init__(self, observations: Mapping[str, Any], config: sf.ModelConfig) -> None:
        super().__init__()
        self.known = nn.Linear(4, 16)
        self.known.load_state_dict({"weight": torch.ones(16, 4), "bias": torch.arange(16.0)})
        self.known.requires_grad_(False)
        self.learned = nn.Linear(16, 8)
        self.out_features = 8

    def forward(self, obs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        features: torch.Tensor = self.learned(self.known(obs["obs"]).tanh())
        return features


def test_a_pretrained_network_stays_as_it_is(tmp_path: Path) -> None:
    model = sf.ModelConfig(encoder=f"{__name__}:Pretrained")
    sf.train(sf.AppoConfig(**SMALL, run_dir=str(tmp_path), model=model))
    loaded = CheckpointStore(tmp_path / "checkpoints", 1).load(log=print)
    assert loaded is not None
    weights = {n: x for n, x in loaded[0].tensors.items() if n.startswith("model/actor.encoder.")}
    assert torch.equal(weights["model/actor.encoder.known.weight"], torch.ones(16, 4))
    assert len(weights) == 4


def warmup(progress: float) -> float:
    """Rise over the first half of the training, then stay."""
    return 1e-3 * min(1.0, 2 * progress)


def test_a_schedule_of_ones_own_is_followed(tmp_path: Path) -> None:
    schedule = {"learning_rate": f"{__name__}:warmup", "gamma": "linear:0.9:0.99"}
    sf.train(sf.AppoConfig(**SMALL, run_dir=str(tmp_path), anneal=schedule))
    found = [report for report in reports(tmp_path) if "gamma" in report]
    assert found[0]["learning_rate"] < found[-1]["learning_rate"] == 1e-3
    assert 0.9 < found[0]["gamma"] < found[-1]["gamma"] < 0.99


class Fuel(gym.Wrapper[Any, Any, Any, Any]):
    """Tells in its info how much is left."""

    def step(self, action: Any) -> Any:
        *step, info = self.env.step(action)
        self.left = getattr(self, "left", 100.0) - 0.5
        return *step, {**info, "fuel": self.left}

    def reset(self, **kwargs: Any) -> Any:
        self.left = 100.0
        return self.env.reset(**kwargs)


class FuelLeft(sf.Callback):
    def on_episode_end(self, episode: sf.EpisodeHandle) -> None:
        episode.custom_metrics["fuel"] = episode.info["fuel"]
        assert episode.custom_metrics["fuel"] == 100.0 - 0.5 * episode.length


class Half(gym.RewardWrapper[Any, Any]):
    def __init__(self, env: Any, factor: float = 0.5) -> None:
        super().__init__(env)
        self.factor = factor

    def reward(self, reward: Any) -> float:
        return float(reward) * self.factor


def test_wrappers_by_name_and_metrics_from_the_info(tmp_path: Path) -> None:
    wrappers = [{f"{__name__}:Half": {"factor": 0.25}}, f"{__name__}:Fuel"]
    given: dict[str, Any] = {"id": "CartPole-v1", "wrappers": wrappers}
    setting = {**SMALL, "env": "sampleforge.env.wrapped:make", "env_kwargs": given}
    sf.train(sf.AppoConfig(**setting, run_dir=str(tmp_path)), [FuelLeft()])
    last = reports(tmp_path)[-1]
    assert last["return_mean"] == pytest.approx(0.25 * last["length_mean"])
    assert (
        0.0 < last["custom_fuel_min"] < last["custom_fuel_mean"] < last["custom_fuel_max"] < 100.0
    )


def test_wrappers_that_are_none_are_refused() -> None:
    with pytest.raises(ConfigError, match="has no function 'Missing'"):
        make("CartPole-v1", ["gymnasium.wrappers:Missing"])
    with pytest.raises(ConfigError, match="returned a str, but must return a gymnasium Env"):
        make("CartPole-v1", ["builtins:str"])
    env = make("CartPole-v1", ["gymnasium.wrappers:TimeAwareObservation"], sutton_barto_reward=True)
    assert env.observation_space.shape == (5,)
    assert np.asarray(env.reset(seed=1)[0]).shape == (5,)


def test_it_is_evaluated_in_another_environment(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On the command line, as everything else here can be."""
    flags = "--serial --quiet --seed 1 --num-workers 1 --train-for-env-steps 2000"
    other = "--evaluate-interval 1000 --evaluate-episodes 2 --evaluate-env-kwargs"
    command = f"train appo --env CartPole-v1 {flags} {other} sutton_barto_reward=true"
    assert main([*command.split(), "--run-dir", str(tmp_path)]) == 0
    evaluated = [r["eval_return_mean"] for r in reports(tmp_path) if "eval_return_mean" in r]
    assert evaluated and set(evaluated) == {-1.0}, "only the last step has a reward there"


class Sides(gym.Env[Any, Any]):
    """A target from -1 to 1 is shown in the way asked for; the reward is 1 less the distance of the
    action, a number of a Box or one of two sides, from it. Episodes of ``length`` steps."""

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012
    LEAVES: dict[str, Any] = {  # noqa: RUF012
        "camera": gym.spaces.Box(0, 255, (24, 24, 3), np.uint8),
        "vector": gym.spaces.Box(-np.inf, np.inf, (3,), np.float64),
    }

    def __init__(
        self, shown: Any = "vector", steer: bool = True, units: Any = None, length: int = 8
    ) -> None:
        self.shown, self.length = shown, length
        self.units = {"offset": 0.0, "scale": 1.0, "reward": 1.0, **(units or {})}
        names = shown if isinstance(shown, list) else [shown]
        several = gym.spaces.Dict({name: self.LEAVES[name] for name in names})
        self.observation_space = several if isinstance(shown, list) else several[shown]
        self.action_space = gym.spaces.Box(-1, 1, (1,)) if steer else gym.spaces.Discrete(2)

    def look(self) -> Any:
        side = 0.7 if self.np_random.random() < 0.5 else -0.7
        self.target = side
        camera = np.zeros((24, 24, 3), np.uint8)
        camera[:, 12:] = 255 * (side > 0)
        vector = self.units["offset"] + self.units["scale"] * np.array([side, 1.0, -1.0])
        leaves = {"camera": camera, "vector": vector}
        return (
            {n: leaves[n] for n in self.shown}
            if isinstance(self.shown, list)
            else leaves[self.shown]
        )

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return self.look(), {}

    def step(self, action: Any) -> Any:
        pointed = float(action[0]) if np.ndim(action) else (-0.7, 0.7)[int(action)]
        reward = self.units["reward"] * (1 - abs(pointed - self.target))
        self.steps += 1
        return self.look(), reward, self.steps == self.length, False, {}


SIDES = f"{__name__}:Sides"


def learned(folder: Path, **more: Any) -> float:
    """Train as the settings say; return the mean return at the end."""
    quick = {"gamma": 0.5, "learning_rate": 3e-3, "batch_size": 256, "num_epochs": 2}
    sf.train(sf.AppoConfig(**{**SMALL, **quick, "env": SIDES, **more}, run_dir=str(folder)))
    return float(reports(folder)[-1]["return_mean"])


def test_a_dict_of_an_image_and_a_vector(tmp_path: Path) -> None:
    shown = ["camera", "vector"]
    more = {"env_kwargs": {"shown": shown, "steer": False}, "train_for_env_steps": 2000}
    assert learned(tmp_path, **more) > 5.0, "random play has about 2.4 of 8"


def test_pixels_and_continuous_actions(tmp_path: Path) -> None:
    more = {"env_kwargs": {"shown": "camera"}, "train_for_env_steps": 2000}
    assert learned(tmp_path, **more) > 3.2


def test_scales_far_from_one(tmp_path: Path) -> None:
    """Both by default, as by these: observations and returns are measured in their own units."""
    units = {"offset": 3e4, "scale": 2e2, "reward": 1e5}
    assert learned(tmp_path, env_kwargs={"units": units}) > 3.5e5


def test_kwargs_that_are_dicts_and_lists(tmp_path: Path) -> None:
    flags = ["train", "appo", "--env", SIDES, "--serial", "--quiet", "--train-for-env-steps", "500"]
    given = ["--env-kwargs", "shown=[vector]", "units={reward: 100.0}", "steer=false"]
    assert main([*flags, *given, "--run-dir", str(tmp_path)]) == 0
    assert 0.0 < reports(tmp_path)[-1]["return_mean"] < 800.0


PACKAGE = """
import json
from pathlib import Path
import gymnasium as gym
from gymnasium.envs.classic_control import CartPoleEnv


class Pole(CartPoleEnv):
    def __init__(self, settings):
        super().__init__()
        self.gravity = json.loads(Path(settings).read_text())["gravity"]


gym.register("Pole-v0", Pole, max_episode_steps=20)
"""


@pytest.mark.multiprocess
def test_an_id_of_a_package_and_a_file_by_its_relative_path(
    tmp_path: Path, run_cli: RunCli
) -> None:
    (tmp_path / "pole_games").mkdir()
    (tmp_path / "pole_games" / "__init__.py").write_text(PACKAGE)
    (tmp_path / "moon.json").write_text('{"gravity": 1.6}')
    (tmp_path / "run.yaml").write_text("env_kwargs: {settings: moon.json}\nnum_workers: 1\n")
    before = {path.name for path in tmp_path.iterdir()}
    flags = "--config run.yaml --train-for-env-steps 2000 --run-dir run --quiet"
    check = "--env-kwargs settings=moon.json --seconds 0.2"
    done = run_cli("train", "appo", "--env", "pole_games:Pole-v0", *flags.split())
    assert done.returncode == 0, done.stderr
    assert reports(tmp_path / "run")[-1]["length_mean"] <= 20
    assert run_cli("eval", "run", "--episodes", "1", "--quiet", "--trust").returncode == 0
    assert run_cli("check-env", "pole_games:Pole-v0", *check.split()).returncode == 0
    assert {path.name for path in tmp_path.iterdir()} == before | {"run"}, "nothing is left here"


def test_four_threads_train_beside_each_other(tmp_path: Path) -> None:
    def run(seed: int) -> Any:
        own = {**SMALL, "seed": seed, "train_for_env_steps": 1024}
        return sf.train(sf.AppoConfig(**own, run_dir=str(tmp_path / str(seed)))).summary

    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(run, range(4)))
    assert [summary["status"] for summary in found] == ["finished"] * 4
    assert len({summary["return_mean"] for summary in found}) == 4, "each has its own seed"


@pytest.mark.parametrize("kind", ["instance", "vector"])
def test_an_existing_instance_and_an_existing_vector(kind: str, tmp_path: Path) -> None:
    alone, rows = (
        gym.make("CartPole-v1", max_episode_steps=9),
        gym.make_vec("CartPole-v1", 2, "sync"),
    )
    given: Any = alone if kind == "instance" else rows
    result = sf.train(sf.AppoConfig(**{**SMALL, "env": given}, run_dir=str(tmp_path)))
    assert result.summary["status"] == "finished"
    assert reports(tmp_path)[-1]["length_mean"] <= 9 or kind == "vector"


def test_a_parallel_game_of_ones_own(tmp_path: Path) -> None:
    """Two policies; the second one always loses."""
    game = {**SMALL, "env": "tests.support.multi_agent:zero_sum", "num_policies": 2}
    mapping: dict[str, Any] = {"policy_mapping": f"{__name__}:by_seat", "async_rl": True}
    sf.train(sf.AppoConfig(**game, **mapping, run_dir=str(tmp_path)))
    last = reports(tmp_path)[-1]
    assert last["policy_0/return_mean"] == 1.0 and last["policy_1/return_mean"] == -1.0


def by_seat(seat: Any, rollout: int) -> str:
    return f"policy_{seat.agent[-1]}"
