"""Every pair plays its games, from both sides, each game to its end; the results are right."""

from __future__ import annotations

import dataclasses
from collections import Counter

import numpy as np
import pytest
import torch
from gymnasium import spaces

from sampleforge.cli import main
from sampleforge.config import typed
from sampleforge.env.config import EnvConfig
from sampleforge.env.multi_agent import MultiAgentRows
from sampleforge.run.folder.run_folder import RunFolder
from sampleforge.spec import ACTION, OBSERVATION, EnvSpaces
from sampleforge.tools.tournament.games import GamePlayer, Standings, round_robin
from sampleforge.tools.tournament.tournament import snapshot_names
from sampleforge.topologies.config import AppoConfig


class HighestNumber(MultiAgentRows):
    """Agents call a number in each step; in the last step of an episode, which has 2 + action of
    the first agent steps, the highest number wins 1 point, the lowest loses 1, all else is 0.
    Observation: row, step (-1 in the last one). ``leaves``: the second agent leaves after
    the first step, with its result. ``absent``: this agent never joins, and the others get 5 points
    more."""

    def __init__(
        self, rows: int, agents: int = 2, leaves: bool = False, absent: int | None = None
    ) -> None:
        own = EnvSpaces(spaces.Box(-1, 1e6, (2,), np.float32), spaces.Discrete(10))
        names = [f"agent_{i}" for i in range(agents)]
        super().__init__(
            EnvConfig(env="highest", decorrelate=False), dict.fromkeys(names, own), rows, limit=50
        )
        self._steps = np.zeros(rows)
        self._leaves = leaves
        self._joins = np.arange(agents)[:, None] != (-1 if absent is None else absent)
        self._bonus = 0.0 if absent is None else 5.0

    def _look(self) -> None:
        for obs in self.obs:
            obs[OBSERVATION][:, 0] = np.arange(self.num_rows)
            obs[OBSERVATION][:, 1] = self._steps
        for seat in np.flatnonzero(~self._joins):
            self.obs[seat][OBSERVATION][:, 1] = -1

    def reset_rows(self) -> None:
        self.present[:] = self._joins
        self._look()

    def step_rows(self, actions, over) -> None:
        called = np.stack([own[ACTION] for own in actions])
        self._steps += 1
        self._steps[over] = 0
        ends = (self._steps >= 2 + called[0]) & ~over
        best, worst = called.max(axis=0), called.min(axis=0)
        result = (called == best).astype(np.float32) - (called == worst) + self._bonus
        self.truncated[:] = False
        self.terminated[:] = ends & self.present
        self.reward[:] = np.where(ends, result, 0.0)
        if self._leaves:
            first = (self._steps == 1) & ~over
            self.reward[1, ends] = 0.0
            self.reward[1, first] = result[1, first]
            self.terminated[1] = first
        self.present[:] = np.where(over, self._joins, self.present & ~self.terminated)
        self._look()
        for obs in self.obs:
            obs[OBSERVATION][~self.present.any(axis=0), 1] = -1

    def close(self) -> None:
        pass


class Caller:
    """Always calls the same number. Its recurrent state counts the steps of the episode, which
    must be those that the observation shows."""

    def __init__(self, number: int) -> None:
        self._number = number
        self.steps = 0

    def initial_state(self, rows):
        return torch.zeros(rows, 1)

    def act(self, obs, state, is_first, *, stochastic=False, generator=None):
        state = torch.where(torch.from_numpy(is_first)[:, None], 0.0, state)
        steps = obs[OBSERVATION][:, 1]
        assert ((state[:, 0].numpy() == steps) | (steps < 0)).all()
        self.steps += len(is_first)
        return {ACTION: np.full(len(is_first), self._number)}, state + 1.0


def play(numbers, episodes, rows=4, **kwargs):
    envs = HighestNumber(rows, **kwargs).seats[0]
    games = round_robin(len(numbers), episodes)
    player = GamePlayer(envs, [Caller(n) for n in numbers], games, stochastic=True, seed=0)
    for _ in range(10_000):
        if player.done:
            return player.played
        player.step()
    raise AssertionError("the games do not end")


def test_every_pair_plays_its_games_from_both_sides():
    counts = Counter(round_robin(3, 4))
    assert set(counts.values()) == {2} and len(counts) == 6


@pytest.mark.parametrize("rows", [1, 3, 16])
def test_the_higher_number_wins_every_game(rows):
    played = play([3, 1, 1, 5], 10, rows)
    assert Counter(each.game for each in played) == Counter(round_robin(4, 10))
    numbers = [3, 1, 1, 5]
    for (first, second), score in played:
        expected = (np.sign(numbers[first] - numbers[second]) + 1) / 2
        assert score == expected


def test_long_games_are_counted_as_often_as_short_ones():
    """The games of the player who calls 9 take 11 steps when it sits first, and 2 otherwise."""
    played = play([0, 9], 100, rows=16)
    assert Counter(game for game, _ in played) == {(0, 1): 50, (1, 0): 50}


def test_an_agent_that_leaves_early_keeps_its_result():
    for (first, second), score in play([2, 7], 20, rows=3, leaves=True):
        assert score == (1.0 if (first, second) == (1, 0) else 0.0)


def test_the_agents_of_more_than_two_seats_are_shared():
    assert {(tuple(game), score) for game, score in play([4, 2], 6, agents=4)} == {
        ((0, 1), 1.0),
        ((1, 0), 0.0),
    }


@pytest.mark.parametrize("absent", [0, 1, 2, 3])
def test_an_agent_that_never_joins_is_not_in_the_mean_of_its_side(absent):
    assert {score for _, score in play([3, 3], 6, agents=4, absent=absent)} == {0.5}


def test_a_folder_that_is_given_twice_is_refused(tmp_path, capsys):
    (tmp_path / "link").symlink_to(tmp_path / "duel")
    assert main(["tournament", str(tmp_path / "duel"), str(tmp_path / "link")]) == 2
    assert "link is given twice, and would play against itself" in capsys.readouterr().err


@pytest.mark.parametrize(
    "other",
    [
        {"max_episode_steps": 3},
        {"action_repeat": 2},
        {"rescale_actions": False},
        {"clip_observations": True},
        {"env_kwargs": {"points": 3}},
    ],
)
def test_runs_of_other_games_are_refused_in_either_order(tmp_path, capsys, other):
    """The games would be those of the first folder, and the ratings depend on the order."""
    plain = AppoConfig(env="PaddleDuel-v0")
    for name, config in (("a", plain), ("b", dataclasses.replace(plain, **other))):
        folder = RunFolder(tmp_path / name)
        folder.create()
        folder.write_config(config, config)
        folder.close()
    paths = [str(tmp_path / name) for name in "ab"]
    ((name, value),) = other.items()
    for pair in (paths, paths[::-1]):
        assert main(["tournament", *pair]) == 2
        said = capsys.readouterr().err
        assert typed(name, value) in said and typed(name, getattr(plain, name)) in said
        assert "policies can only play each other on one environment, with the same" in said


def test_snapshots_whose_short_numbers_are_the_same_are_told_apart():
    assert snapshot_names("duel", [5_000, 10_000_000, 10_040_000, 20_000_000]) == [
        "duel@5k",
        "duel@10,000,000",
        "duel@10,040,000",
        "duel@20M",
    ]


def test_the_standings_rank_the_players():
    pytest.importorskip("openskill")
    standings = Standings("highest", ["three", "one", "five"])
    for played in play([3, 1, 5], 10):
        standings.add(played)
    plain = standings.plain()
    assert plain["players"] == ["five", "three", "one"] and plain["games"] == 30
    assert plain["win_rate"] == {"five": 1.0, "three": 0.5, "one": 0.0}
    assert plain["win_rates"]["three"] == {"five": 0.0, "one": 1.0}
    assert plain["elo"]["five"] > plain["elo"]["three"] > plain["elo"]["one"]
    assert plain["openskill"]["five"]["mu"] > plain["openskill"]["one"]["mu"]
    assert list(standings.drawn().players) == ["five", "three", "one"]
