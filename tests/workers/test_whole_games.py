"""Returns of several agents are those of whole games: in evaluations, in training, and in what is
decided by them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sampleforge.algorithms.acting import FrozenPolicy
from sampleforge.api import Trainer, train
from sampleforge.config import ConfigError
from sampleforge.env.config import EnvConfig
from sampleforge.env.games import types_of_seats
from sampleforge.evaluation import evaluate
from sampleforge.models.config import ModelConfig
from sampleforge.run.folder.checkpoint import CheckpointStore
from sampleforge.run.folder.trust import Trust
from sampleforge.topologies.config import ApexConfig, AppoConfig
from sampleforge.workers.episode_player import EpisodePlayer, evaluation_envs, outcome
from tests.support.graphs import spec_of
from tests.support.one_weight import OneWeight

GAMES = "tests.support.multi_agent:"
MEANS = {"zero_sum": 0.0, "hunt": 0.5}
"""The mean return of the agents of each game."""
OF_TYPES = {
    "zero_sum": {"player_0": 1.0, "player_1": -1.0},
    "hunt": {"hunter": 8.0, "prey": -2.0},
}
ALL = Trust(everything=True)


def configured(env: str, folder: Path | None = None, make: Any = AppoConfig, **more: Any) -> Any:
    setting: dict[str, Any] = {
        "env": env if "/" in env else f"{GAMES}{env}",
        "num_workers": 1,
        "num_envs_per_worker": 4,
        "serial": True,
        "quiet": True,
        "seed": 5,
        "device": "cpu",
        "report_interval": 0.05,
        "train_for_env_steps": 1500,
        "metrics_window": 15,
        "model": ModelConfig(hidden_sizes=(8,)),
    }
    if make is ApexConfig:
        setting |= {"learning_starts": 100, "replay_capacity": 2000}
    if folder is not None:
        setting["run_dir"] = str(folder)
    return make(**{**setting, **more})


def types(game: str) -> dict[str, float]:
    return {f"return_mean_agents_{name}": mean for name, mean in OF_TYPES[game].items()}


@pytest.mark.parametrize("episodes", [1, 2, 3, 10, 20])
@pytest.mark.parametrize("game", list(MEANS))
def test_an_evaluation_plays_whole_games(game: str, episodes: int) -> None:
    envs = evaluation_envs(EnvConfig(env=f"{GAMES}{game}"), episodes, seed=3)
    policy: Any = FrozenPolicy(OneWeight())  # type: ignore[arg-type]
    player = EpisodePlayer(envs, policy, episodes, stochastic=False, seed=3)
    while not player.done:
        player.step()
    envs.close()
    found = outcome(player.played)
    rows = min(16, episodes)
    second = episodes - rows  # of six steps
    length = (4 * rows + 6 * second) / episodes
    expected = {"return_mean": MEANS[game], "return_std": 0.0, "length_mean": length}
    assert found["episodes"] == episodes and types(game).items() <= found.items()
    assert {name: found[name] for name in expected} == expected


@pytest.mark.long
@pytest.mark.parametrize("make", [AppoConfig, ApexConfig])
@pytest.mark.parametrize("game", list(MEANS))
def test_everything_that_a_run_reports_is_of_whole_games(
    tmp_path: Path, game: str, make: Any
) -> None:
    """A window of 15 would be cut within a game if agents were counted one by one."""
    more = {"evaluate_interval": 500, "evaluate_episodes": 3}
    with Trainer(configured(game, tmp_path / "run", make, **more)) as trainer:
        reports = list(trainer)
        for episodes in (1, 3, 10):
            found = trainer.evaluate(episodes=episodes)
            assert (found["return_mean"], found["episodes"]) == (MEANS[game], episodes)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["episodes"] == pytest.approx(1500 / (5 * len(spec_seats(game))), rel=0.2)
    known = {name: value for report in reports for name, value in report.items()}
    for name in ("return_mean", "return_best", "eval_return_mean"):
        assert {r[name] for r in reports if name in r} == {MEANS[game]} == {summary[name]}, name
    assert known["return_std"] == summary["return_std"] == known["eval_return_std"] == 0.0
    evaluated = {f"eval_{name}": value for name, value in types(game).items()}
    assert {**types(game), **evaluated}.items() <= known.items()
    assert evaluated.items() <= summary.items()
    best = CheckpointStore(tmp_path / "run" / "checkpoints", 3).load("best", log=print)
    assert best is not None and best[1].return_mean in (None, MEANS[game])
    assert best[1].eval_return_mean in (None, MEANS[game])
    for episodes in (1, 3, 10):
        found = evaluate(tmp_path / "run", episodes=episodes, trust=ALL)
        assert found["returns"] == [MEANS[game]] * episodes


def spec_seats(game: str) -> tuple[str, ...]:
    return types_of_seats(spec_of(configured(game)))


@pytest.mark.long
def test_the_return_of_a_policy_is_that_of_its_own_agents(tmp_path: Path) -> None:
    """That of the run is of all agents, each game counted once."""
    more: dict[str, Any] = {"env_kwargs": {"apart": True}, "num_policies": 2}
    config = configured("hunt", tmp_path, **more, evaluate_interval=500, evaluate_episodes=3)
    train(config)
    summary = json.loads((tmp_path / "summary.json").read_text())
    hunter, prey = (summary["policies"][name] for name in ("policy_0", "policy_1"))
    assert (hunter["return_mean"], prey["return_mean"], summary["return_mean"]) == (8.0, -2.0, 0.5)
    assert (hunter["eval_return_mean"], prey["eval_return_mean"]) == (8.0, -2.0)
    assert hunter["episodes"] == prey["episodes"] == summary["episodes"] > 20
    for policy, mean in (("policy_0", 8.0), ("policy_1", -2.0)):
        found = evaluate(tmp_path, episodes=3, policy=policy, trust=ALL)
        assert found["return_mean"] == mean
        assert types("hunt").items() <= found.items()
    train(configured("hunt", tmp_path, **more, train_for_env_steps=2000))
    again = json.loads((tmp_path / "summary.json").read_text())
    assert again["return_mean"] == 0.5 and again["episodes"] > summary["episodes"]


@pytest.mark.long
def test_a_frozen_opponents_returns_are_not_the_policys(tmp_path: Path) -> None:
    """The seat that learns changes every 8 rollouts: so does what the policy gets."""
    train(configured("zero_sum", tmp_path, opponent_pool=2, rollout=32, metrics_window=4))
    reports = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    means = {r["return_mean"] for r in reports if "return_mean" in r}
    assert means & {1.0, -1.0} and reports[-1]["return_episodes"] == 4


@pytest.mark.long
def test_a_stop_condition_waits_for_what_games_give(tmp_path: Path) -> None:
    stop = ("eval_return_mean>=0.9", "return_mean>=0.9", "eval_return_mean_agents_player_0>=2")
    more = {"evaluate_interval": 500, "evaluate_episodes": 3}
    train(configured("zero_sum", tmp_path, stop=stop, **more))
    assert json.loads((tmp_path / "summary.json").read_text())["stopped_by"] == "env_steps>=1500"
    with pytest.raises(ConfigError, match="evaluations have no metric of that name"):
        train(configured("zero_sum", tmp_path / "refused", stop=("eval_return_men>=1",), **more))


@pytest.mark.long
def test_connect_four_against_itself_has_a_mean_of_zero(tmp_path: Path) -> None:
    pytest.importorskip("pettingzoo")
    config = configured("PettingZoo/classic/connect_four-v3", tmp_path, train_for_env_steps=3000)
    train(config)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["return_mean"] == summary["return_std"] == 0.0 and summary["episodes"] > 20
    for episodes in (1, 3, 10):
        found = evaluate(tmp_path, episodes=episodes, trust=ALL)
        assert (found["return_mean"], found["return_std"]) == (0.0, 0.0)
        sides = [found[f"return_mean_agents_player_{i}"] for i in (0, 1)]
        assert sides[0] == -sides[1]


@pytest.mark.long
def test_a_game_with_a_dropped_part_does_not_count(tmp_path: Path) -> None:
    """The environment raises, and is rebuilt, before any game of it has ended."""
    kwargs = {"every": 13, "length": 5, "shorter": 2}
    more: dict[str, Any] = {"env_kwargs": kwargs, "max_env_restart_rate": 1.0}
    with Trainer(configured("RaisingParallelEnv", tmp_path / "run", **more)) as trainer:
        report = list(trainer)[-1]
    assert report["env_restarts"] > 10
    # The second agent has left the third game when it is lost, two games of five steps later.
    assert report["length_mean"] == 5.0 and report["return_std"] < 1e5
    assert report["episodes"] == pytest.approx(2 * report["env_restarts"], abs=8)


@pytest.mark.parametrize(
    ("agents", "expected"),
    [
        (["player_0", "player_1"], ("player_0", "player_1")),
        (["wolf_0", "wolf_1", "sheep_0"], ("wolf", "wolf", "sheep")),
        (["a_0", "a_1", "a_2"], ()),
        (["left paddle", "right/paddle"], ("left_paddle", "right_paddle")),
        ([f"{chr(97 + i)}x" for i in range(20)], ()),
        ([], ()),
    ],
)
def test_types_of_agents(agents: list[str], expected: tuple[str, ...]) -> None:
    spec = spec_of(configured("zero_sum"))
    assert types_of_seats(replace(spec, agents=tuple(agents))) == expected
