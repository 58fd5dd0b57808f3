"""episodes.csv: a line for each training episode, which readers of Monitor files take."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from sampleforge.api import train
from sampleforge.run.reports.due import ReportTimes
from sampleforge.run.reports.episodes import COLUMNS, EpisodesFile, mean_returns, read_rows
from sampleforge.run.reports.metrics import read_metrics
from sampleforge.shared.records import EpisodeRecord
from sampleforge.topologies.config import ApexConfig, AppoConfig
from tests.support.full_disk import full_disk


class Sums(gym.Env[Any, Any]):
    """Its episodes last 3 steps, or 4, and end with a return of 30 or 40, a success where it is 40,
    and with two statistics."""

    observation_space = gym.spaces.Box(-1, 1, (2,))
    action_space = gym.spaces.Discrete(2)
    episodes = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t, self.length = 0, 3 + self.episodes % 2
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.t += 1
        ended = self.t == self.length
        self.episodes += ended
        of_end = {"is_success": self.length == 4, "episode_extra_stats": {"a,b": 0.5, "k": self.t}}
        return np.zeros(2, np.float32), 10.0, ended, False, of_end if ended else {}


class Uneven(Sums):
    """The episodes of every second row last 40 steps, the others 4."""

    def __init__(self, worker_index: int, vector_index: int) -> None:
        self.of_row = 4 if vector_index % 2 else 40

    def reset(self, *, seed=None, options=None):
        found = super().reset(seed=seed)
        self.length = self.of_row
        return found


class NamedAsTheRuns(Sums):
    """Its statistics have the names of metrics that every run has."""

    def step(self, action):
        *step, info = super().step(action)
        own = {"steps": 7, "frames": 8, "restarts": 9, "steps_per_s": 10}
        return *step, {"episode_extra_stats": own} if info else {}


def run(folder: Path, cls: type[Any] = AppoConfig, **more: Any) -> dict[str, Any]:
    given = {"env": f"{__name__}:Sums", "num_workers": 1, "num_envs_per_worker": 4, "seed": 1}
    given |= {"serial": True, "run_dir": str(folder), "decorrelate": False, **more}
    return train(cls(**given)).summary


def test_a_line_for_each_episode_through_a_resume(tmp_path: Path) -> None:
    """Steps that a resumed run does again have their episodes once."""
    pandas = pytest.importorskip("pandas")
    run(tmp_path, train_for_env_steps=2000)
    file = tmp_path / "episodes.csv"
    with file.open("a") as more:  # a later episode, as of a run that was killed, and half a line
        more.write("1,1,9.0,9999999,9999,0,0,,\n1,1,9")
    summary = run(tmp_path, train_for_env_steps=4000)
    header, rows = read_rows(file)
    assert [int(row["episode"]) for row in rows] == [*range(1, summary["episodes"] + 1)]
    assert {row["env"] for row in rows} == {*"0123"} and {row["actor"] for row in rows} == {"0"}
    for row in rows:
        length = int(row["l"])
        assert float(row["r"]) == 10 * length and length in (3, 4)
        assert row["env_success"] == str(length - 3) and row["env_k"] == row["l"]
        assert row["env_a,b"] == "0.5"
    for name in ("t", "env_steps"):
        values = [float(row[name]) for row in rows]
        assert values == sorted(values)
    assert int(rows[-1]["env_steps"]) <= summary["env_steps"]
    # As load_results of Stable-Baselines3 reads a Monitor file:
    with file.open() as opened:
        assert json.loads(opened.readline()[1:]) == header
        table = pandas.read_csv(opened, index_col=None)
    assert list(table.columns[:7]) == list(COLUMNS) and len(table) == len(rows)


def test_policies_and_rows_that_explore_have_a_column(tmp_path: Path) -> None:
    run(tmp_path / "two", num_policies=2, rollout=16, train_for_env_steps=2000)
    rows = read_rows(tmp_path / "two" / "episodes.csv")[1]
    assert {row["policy"] for row in rows} == {"policy_0", "policy_1"}
    run(tmp_path / "apex", ApexConfig, train_for_env_steps=1500)
    rows = read_rows(tmp_path / "apex" / "episodes.csv")[1]
    thirds = {float(row["epsilon"]): row["third"] for row in rows}
    assert [thirds[epsilon] for epsilon in sorted(thirds)] == ["0", "0", "1", "1"]


def curve(folder: Path, window: int = 100, policy: str = "") -> Mapping[str, Any]:
    return mean_returns(*read_rows(folder / "episodes.csv"), window, policy)


def assert_curve_is_that_of_reports(folder: Path, summary: Mapping[str, Any]) -> None:
    """At each report but one that comes between a resume and the next episode."""
    found = curve(folder)
    assert (np.diff(found["env_steps"]) >= 0).all() and (np.diff(found["wall_s"]) >= 0).all()
    reports = read_metrics(folder / "metrics.jsonl", print)
    known = [each for each in reports if each.get("return_mean") is not None]
    for report in known:
        at = np.searchsorted(found["env_steps"], report["env_steps"], side="right") - 1
        assert found["return_mean"][at] == pytest.approx(report["return_mean"])
    assert found["return_mean"][-1] == pytest.approx(summary["return_mean"])
    assert found["env_steps"][0] <= known[0]["env_steps"] if known else summary["return_is_early"]


@pytest.mark.long
def test_the_mean_of_the_episodes_is_that_of_the_reports(tmp_path: Path) -> None:
    """While none counts, with as many of each row, and as they end; in a run that is resumed within
    each of these, at last with fewer rows."""
    more: dict[str, Any] = {"env": f"{__name__}:Uneven"}
    early, few, many = 100, 600, 6000
    for steps in (early, few, few + 200, many):
        summary = run(tmp_path, train_for_env_steps=steps, **more)
        assert summary["return_is_early"] == (steps == early)
        assert_curve_is_that_of_reports(tmp_path, summary)
        if steps == few:
            assert 100 < summary["return_mean"] < 300, "of both kinds of rows"
    more["num_envs_per_worker"] = 2
    assert_curve_is_that_of_reports(tmp_path, run(tmp_path, train_for_env_steps=8000, **more))


@pytest.mark.long
def test_the_mean_of_the_episodes_goes_on_after_a_resume_with_other_epsilons(
    tmp_path: Path,
) -> None:
    more: dict[str, Any] = {"env": f"{__name__}:Uneven", "num_envs_per_worker": 6}
    for steps, base in ((1500, 0.1), (5000, 0.9)):
        summary = run(tmp_path, ApexConfig, train_for_env_steps=steps, epsilon_base=base, **more)
        assert_curve_is_that_of_reports(tmp_path, summary)
    assert curve(tmp_path)["env_steps"][-1] > 4800


def test_the_episodes_of_one_policy_are_those_of_its_reports(tmp_path: Path) -> None:
    more: dict[str, Any] = {"env": f"{__name__}:Uneven", "num_policies": 2, "rollout": 16}
    summary = run(tmp_path, train_for_env_steps=3000, **more)
    for policy in ("policy_0", "policy_1"):
        found = curve(tmp_path, policy=policy)["return_mean"][-1]
        assert found == pytest.approx(summary["policies"][policy]["return_mean"])


HEAD = '#{"t_start": 0.0, "env_id": "E", "every": EVERY}\nr,l,t,env_steps,episode,actor,env'


def written(path: Path, head: str, lines: list[str]) -> Path:
    path.write_text("\n".join([head, *lines, ""]))
    return path


def test_the_file_of_an_earlier_version_is_read_as_before(tmp_path: Path) -> None:
    """All episodes count as they end; of rows that explore differently those of the lowest third of
    their epsilons. Also where this version has gone on with it."""
    head = HEAD.replace("EVERY", "1") + ",epsilon"
    lines = [f"{n},1,{n},{10 * n},{n},0,{n % 3},{0.1 + n % 3 / 10:.1f}" for n in range(1, 10)]
    path = written(tmp_path / "episodes.csv", head, lines)
    found = mean_returns(*read_rows(path), 2)
    assert found["env_steps"].tolist() == [30, 60, 90]
    assert found["return_mean"].tolist() == [3, 4.5, 7.5]
    parts = '"every": 1, "parts": [{"env_steps": 90, "rows": 2, "window": 2}]'
    head = head.replace('"every": 1', parts) + ",third"
    lines = [f"{line}," for line in lines]
    lines += [f"{n},1,{n},{10 * n},{n},0,0,0.9,{n % 2}" for n in range(10, 15)]
    lines += ["0,1,15,150,15,0,1,0.9,0"]
    found = mean_returns(*read_rows(written(path, head, lines)), 2)
    assert found["env_steps"].tolist() == [30, 60, 90, 150, 150]
    assert found["return_mean"].tolist() == [3, 4.5, 7.5, 9.5, 5]


def test_statistics_do_not_stand_in_the_place_of_the_runs_own_metrics(tmp_path: Path) -> None:
    run(tmp_path, env=f"{__name__}:NamedAsTheRuns", train_for_env_steps=2000)
    report = json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[-1])
    assert report["env_steps"] == report["env_frames"] == 2000
    assert report["env_restarts"] == 0
    own = {"env_own_steps": 7, "env_own_frames": 8, "env_own_restarts": 9}
    assert report.items() >= {**own, "env_own_steps_per_s": 10}.items()
    row = read_rows(tmp_path / "episodes.csv")[1][0]
    assert row["env_own_steps"] == "7" and row["env_steps"] != "7"


def test_a_row_of_which_a_thinned_file_has_no_episode_is_not_waited_for(tmp_path: Path) -> None:
    """As where the rows end in turn, and every second episode is that of the same rows."""
    lines = [f"{n},1,{n},{10 * n},{2 * n},0,1" for n in (1, 2, 3, 4)]
    for every, expected in ((1, [1, 1.5, 2, 2.5]), (2, [1, 1.5, 2.5, 3.5])):  # of all; of two
        part = {"env_steps": 0, "rows": 2, "window": 100}
        head = HEAD.replace("EVERY", f'{every}, "parts": [{json.dumps(part)}]')
        path = written(tmp_path / "episodes.csv", head, lines)
        assert mean_returns(*read_rows(path), 2)["return_mean"].tolist() == expected


def test_the_mean_after_a_copy_is_not_over_episodes_of_the_weights_before(tmp_path: Path) -> None:
    """It begins with the tenth episode since, or with the last one, if there are fewer; what an
    earlier version has written counts as without copies."""
    head = HEAD.replace("EVERY", "1") + ",policy,copies"
    copies = {"a": ["", "", *"0" * 8, *"1" * 12, *"2" * 3], "b": ["0"] * 25}
    lines = [
        f"{n if policy == 'a' else -1},1,{n},{10 * n},{2 * n + i},0,0,{policy},{copies[policy][n]}"
        for n in range(25)
        for i, policy in enumerate("ab")
    ]
    path = written(tmp_path / "episodes.csv", head, lines)
    found = mean_returns(*read_rows(path), 4, "a")
    counted = [*range(10), *range(13, 22), 24]  # a window of 4 has no tenth episode
    assert found["env_steps"].tolist() == [10 * n for n in counted]
    for n, mean in zip(counted, found["return_mean"].tolist(), strict=True):
        begins = 0 if n < 10 else 10 if n < 22 else 22
        assert mean == pytest.approx(np.mean(range(max(begins, n - 3), n + 1)))
    found = mean_returns(*read_rows(path), 100, "a")
    assert found["return_mean"].tolist()[-4:] == pytest.approx([14.5, 15.0, 15.5, 23.0])
    assert mean_returns(*read_rows(path), 100, "b")["return_mean"].tolist() == [-1.0] * 25
    assert len(mean_returns(*read_rows(path), 100)["env_steps"]) == 50, "of all policies"


def test_a_member_of_a_population_of_runs_forgets_what_waits_of_other_weights(
    tmp_path: Path,
) -> None:
    """Its runs wait for as many episodes of each row; those that wait when it copies are not its
    own."""
    parts = [{"env_steps": n, "rows": 2, "window": 100} for n in (0, 50)]
    head = HEAD.replace("EVERY", f'1, "parts": {json.dumps(parts)}') + ",copies"
    rows = [(0, 1.0, ""), (1, 3.0, ""), (0, 50.0, ""), (0, 7.0, "1"), (1, 9.0, "1")]
    lines = [f"{r},1,{n},{15 * n},{n},0,{row},{c}" for n, (row, r, c) in enumerate(rows, 1)]
    found = mean_returns(*read_rows(written(tmp_path / "episodes.csv", head, lines)), 100)
    assert found["return_mean"].tolist()[-1] == 8.0


def fake(rows: int = 2) -> Any:
    group = SimpleNamespace(id="policy", exploration=None)
    progress = SimpleNamespace(env_steps=7, wall_s=1.0)
    graph = SimpleNamespace(groups=[group], progress=progress)
    config, plan = SimpleNamespace(env="E"), SimpleNamespace(rows=rows, envs=2 * rows)
    resolved = SimpleNamespace(metrics_window=100)
    statistics = SimpleNamespace(policies=[SimpleNamespace(copies=0)])
    return SimpleNamespace(
        graph=graph, config=config, resolved=resolved, plan=plan, statistics=statistics
    )


def test_a_file_that_is_too_large_is_thinned(tmp_path: Path) -> None:
    """Also by a run that goes on with it: the number of each episode is a multiple of ``every``."""
    path, limit = tmp_path / "episodes.csv", 4000
    for first in (0, 1000):
        file = EpisodesFile(path, fake(), first_step=100, limit=limit)
        for number in range(first, first + 1000):
            file.take([EpisodeRecord(0, 1, 1, float(number), 5)], number)
            if number % 20 == 0:
                file.flush()
        file.flush()
        file.close()
        header, rows = read_rows(path)
        assert path.stat().st_size <= limit and len(rows) > 20
        kept = [int(row["episode"]) for row in rows]
        assert kept == [*range(header["every"], first + 1001, header["every"])]
        assert [float(row["r"]) for row in rows] == [number - 1 for number in kept]
        assert {row["env"] for row in rows} == {"3"}


def test_a_statistic_that_comes_later_has_an_empty_column_before(tmp_path: Path) -> None:
    path = tmp_path / "episodes.csv"
    file = EpisodesFile(path, fake(), first_step=100)
    for number, stats in enumerate([{}, {"env_k": 1.5}, {}, {"env_k": 2.0, "env_a,b": 0.25}]):
        file.take_stats(number, stats)
        file.take([EpisodeRecord(0, 0, 0, 1.0, 5, stats=number)], number)
        file.flush()
    file.close()
    found = [(row["env_k"], row["env_a,b"]) for row in read_rows(path)[1]]
    assert found == [("", ""), ("1.5", ""), ("", ""), ("2", "0.25")]


def test_the_line_of_a_game_has_the_statistics_of_all_its_agents(tmp_path: Path) -> None:
    """The mean of those that several agents have, whichever of them come first."""
    path = tmp_path / "episodes.csv"
    file = EpisodesFile(path, fake(), first_step=100)
    file.take_stats(1, {"env_wolf": 3.0, "env_success": 1.0, "custom_k": 7.0})
    file.take_stats(2, {"env_sheep": -12.0, "env_success": 0.0})
    agents = [EpisodeRecord(0, 0, 0, 1.0, 5, seat=seat, more=2 - seat) for seat in range(3)]
    game = [record._replace(stats=number) for record, number in zip(agents, (1, 0, 2), strict=True)]
    file.take(game, 0)
    file.flush()
    file.close()
    (row,) = read_rows(path)[1]
    found = {name: value for name, value in row.items() if name not in COLUMNS}
    assert found == {"env_wolf": "3", "env_sheep": "-12", "env_success": "0.5"}


def test_a_full_disk_ends_the_file_and_not_the_run(tmp_path: Path) -> None:
    path = tmp_path / "episodes.csv"
    file = EpisodesFile(path, fake(), first_step=100)
    with full_disk(300):
        for number in range(100):
            file.take([EpisodeRecord(0, 0, 0, 1.0, 5)], number)
        with pytest.raises(OSError, match=r"episodes\.csv"):
            file.flush()
    file.close()
    assert [row["episode"] for row in read_rows(path)[1]][:3] == ["1", "2", "3"]
    (tmp_path / "run" / "episodes.csv").mkdir(parents=True)  # which cannot be replaced by a file
    summary = run(tmp_path / "run", train_for_env_steps=1500)
    assert summary["status"] == "finished"
    log = (tmp_path / "run" / "log.txt").read_text()
    assert log.count("episodes.csv gets nothing more from this run") == 1


BAD_PARTS = '#{"t_start": 0, "every": 1, "parts": [{"rows": 2}]}\n'


@pytest.mark.parametrize("text", ["", "x", "#{}\n", "#{\n\0\n", "#[1]\nr,l\n1,2\n", BAD_PARTS])
def test_a_damaged_file_is_begun_anew(tmp_path: Path, text: str) -> None:
    path = tmp_path / "episodes.csv"
    path.write_text(text)
    file = EpisodesFile(path, fake(), first_step=100)
    file.take([EpisodeRecord(0, 0, 0, 1.0, 5)], 0)
    file.flush()
    file.close()
    assert [row["r"] for row in read_rows(path)[1]] == ["1"]


def test_reports_are_dense_at_the_beginning() -> None:
    """And as far apart as the interval later, also for a run that is resumed there."""
    progress: Any = SimpleNamespace(env_steps=0, wall_s=0.0)

    def due(start: int, end: int, interval: float = 5.0) -> list[int]:
        times = ReportTimes(progress, interval, by_env_steps=True)
        found = []
        for progress.env_steps in range(start, end, 10):
            if times.is_due():
                found.append(progress.env_steps)
        return found

    steps = due(0, 40_000)
    assert steps[:4] == [250, 500, 750, 1000] and len([s for s in steps if s <= 20_000]) == 17
    gaps = np.diff(steps)
    assert (np.diff(gaps) >= -10).all() and gaps.max() == 5000
    progress.env_steps = 40_000
    assert due(40_000, 51_000) == [45_000, 50_000]
    progress.env_steps = 0
    assert {100, 110} >= {*np.diff(due(0, 2001, 0.1))}
