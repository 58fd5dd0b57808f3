"""What `sampleforge check-env` advises, and that its figures were measured."""

from __future__ import annotations

import importlib
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

import pytest

from sampleforge.cli.train import parse_command
from sampleforge.env.config import EnvConfig
from sampleforge.presets.scores import read_scores
from sampleforge.tools.check_env import measured
from sampleforge.tools.check_env.advice import USUAL_ROLLOUT, Advice, advise
from sampleforge.tools.check_env.check import check_env
from sampleforge.tools.check_env.measured import (
    FURTHER,
    TABLE,
    Measured,
    by_defaults,
    measured_in,
)
from sampleforge.tools.check_env.verdicts import human_time
from sampleforge.topologies.registry import pairing
from tests.support import REPO
from tests.support.goal_envs import BIT_FLIP, GOAL_CODE
from tests.support.graphs import spec_of

BOX, CODE = "tests.support.box_code:BoxCodeEnv", "tests.support.envs:CodeEnv"
GROUPS = "tests.support.multi_agent:MixedGoals"
ROWS = [*FURTHER, *(row for rows in TABLE.values() for row in rows)]


def advice(env: str, per_s: float = 1e5, cores: int = 2, **values: float) -> Advice:
    config = EnvConfig(env=env)
    numbers = {"env_steps_per_s": per_s, "episodes": 5.0, **values}
    return advise(config, spec_of(config), numbers, cores)


def commands(env: str, **values: Any) -> list[str]:
    return [each.command for each in advice(env, **values).suggestions]


@pytest.mark.parametrize(
    ("env", "values", "first"),
    [
        ("CartPole-v1", {}, "--preset cartpole"),
        ("FrozenLake-v1", {}, "appo --env FrozenLake-v1 --train-for-env-steps 200000"),
        (CODE, {}, f"appo --env {CODE} --train-for-env-steps 200000"),
        (CODE, {"hidden_state": 0.1}, "--model.core gru --train-for-env-steps 200000"),
        (CODE, {"hidden_state": 0.1, "steps_back": 20.0}, "--train-for-env-steps 200000"),
        (CODE, {"hidden_state": 0.1, "steps_back": 50.0}, "200000 --rollout 64"),
        (CODE, {"waiting": 0.97, "per_s": 33.0}, "--num-workers 16 --num-envs-per-worker 1"),
        (CODE, {"episodes": 0.0}, "--max-episode-steps 1000"),
        (BOX, {}, f"appo --env {BOX} --train-for-env-steps 200000"),
        (BOX, {"per_s": 200.0}, f"crossq --env {BOX} --learning-starts 500"),
        (BOX, {"per_s": 200.0, "observation_size": 1e5}, "--model.normalise-observations"),
        (BOX, {"per_s": 200.0, "reward_min": -2e5, "reward_max": 3.0}, "--reward-scale 5e-06"),
        (BOX, {"per_s": 33.0, "waiting": 0.97}, "crossq --env"),
        ("tests.support.goal_envs:GoalCodeEnv", {}, "--her --no-decorrelate"),
        (
            "tests.support.goal_envs:GoalCodeEnv",
            {"cut_after": 50.0},
            "--max-episode-steps 50 --her --no-decorrelate",
        ),
        (
            CODE,
            {"return_spread": 0.0, "reward_min": -1.0, "reward_max": -1.0},
            f"appo --env {CODE} --train-for-env-steps 200000 --rnd-coeff 1",
        ),
        (
            "MountainCar-v0",
            {"return_spread": 0.0, "reward_min": -1.0, "reward_max": -1.0},
            "appo --env MountainCar-v0 --rnd-coeff 1 --train-for-env-steps 200000",
        ),
        (
            "tests.support.deep_sea:DeepSea",
            {"return_spread": 0.0, "reward_min": 0.0, "reward_max": 0.0},
            "--rnd-coeff 0.5",
        ),
        ("tests.support.envs:MixedActionEnv", {}, "appo --env tests.support.envs:MixedActionEnv"),
        ("PaddleDuel-v0", {}, "appo --env PaddleDuel-v0"),
        (GROUPS, {}, f"appo --env {GROUPS} --num-policies 2"),
    ],
)
def test_the_quickest_measured_training_comes_first_with_its_flags(
    env: str, values: dict[str, float], first: str
) -> None:
    assert first in commands(env, **values)[0]


def test_which_training_is_the_quickest_depends_on_the_simulator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Many env steps and few updates come first while env steps are cheap, and the other way
    round, whatever the scores of today say."""
    few = Measured("sac", "Pendulum-v1", 20_000, 60, -150.0, "sac.md", "pendulum")
    many = Measured("appo", "Pendulum-v1", 200_000, 27, -155.0, "defaults.md")
    monkeypatch.setattr("sampleforge.tools.check_env.advice.measured_in", lambda env: [few, many])
    appo, sac = "appo --env Pendulum-v1 --train-for-env-steps 200000", "sac --preset pendulum"
    for per_s, order in ((1e5, [appo, sac]), (40.0, [sac, appo])):
        found = commands("Pendulum-v1", per_s=per_s)
        assert [each.removeprefix("sampleforge train ") for each in found] == order


@pytest.mark.parametrize(
    "env", ["CartPole-v1", "Pendulum-v1", BOX, CODE, "tests.support.goal_envs:GoalCodeEnv"]
)
@pytest.mark.parametrize(
    "values", [{}, {"waiting": 0.97, "hidden_state": 0.1}, {"hidden_state": 0.1, "steps_back": 40}]
)
def test_every_command_can_be_pasted(env: str, values: dict[str, float]) -> None:
    config = EnvConfig(env=env, env_kwargs={}, max_episode_steps=30, clip_observations=True)
    spec = spec_of(config)
    numbers = {"env_steps_per_s": 33.0, "episodes": 0.0, "observation_size": 1e5, **values}
    for each in advise(config, spec, numbers, 2).suggestions:
        program, verb, algo, *flags = shlex.split(each.command)
        assert len({flag for flag in flags if flag.startswith("--")}) == len(
            [flag for flag in flags if flag.startswith("--")]
        ), "no flag is given twice"
        assert (program, verb) == ("sampleforge", "train")
        given, _ = parse_command(algo, flags)
        assert (given.env, given.max_episode_steps) == (env, 30) and given.clip_observations
        resolved: Any = pairing(given).resolved(given, spec)
        if "--num-workers" in flags:  # as many rows as without
            usual: Any = pairing(given).resolved(parse_command(algo, ["--env", env])[0], spec)
            assert _rows(resolved) == _rows(usual)


def test_a_usual_rollout_is_that_of_the_defaults() -> None:
    spec = spec_of(EnvConfig(env=CODE))
    given, _ = parse_command("appo", ["--env", CODE, "--model.core", "gru"])
    resolved: Any = pairing(given).resolved(given, spec)
    assert resolved.rollout == USUAL_ROLLOUT


def _rows(config: Any) -> int:
    rows: int = config.num_workers * config.num_envs_per_worker
    return rows


def test_the_time_is_that_of_the_simulation_here_and_of_the_learning_there() -> None:
    (one,) = advice(CODE, per_s=1000.0).suggestions
    usual = {(each.algo, each.env): each for each in by_defaults()}
    learning = usual["appo", "LunarLander-v3"].seconds
    assert one.simulation == 100.0 and one.seconds == 100.0 + learning, "in turn: 200,000 / 2,000"
    (alone,) = advice(CODE, per_s=1000.0, cores=1).suggestions
    assert alone.simulation == 200.0
    appo, crossq = sorted(advice(BOX, per_s=1000.0).suggestions, key=lambda each: each.command)
    score = read_scores()["crossq", "pendulum", ""]
    assert crossq.simulation == median(score.env_steps) / 1000
    assert crossq.seconds == max(crossq.simulation, score.time), "beside each other"
    row = usual["appo", "Pendulum-v1"]
    assert appo.seconds == 100.0 + row.seconds
    assert f"about {human_time(appo.seconds)} here" in appo.text
    reached = f"a return of {row.score:,.5g} after 200,000 env steps and {human_time(row.seconds)}"
    assert reached in appo.text


def test_a_preset_is_for_its_own_environment_or_was_measured_beyond_it() -> None:
    (score,) = measured_in("ALE/Skiing-v5")
    assert (score.algo, score.preset, score.env) == ("appo", "breakout", "ALE/Freeway-v5")
    assert [each.preset for each in measured_in("ALE/Pong-v5")] == ["pong", "pong"]
    assert not measured_in("Reacher2-v5") and not measured_in(CODE)


@pytest.mark.parametrize(("better", "preset"), [(-1.0, ""), (1.0, "halfcheetah")])
def test_the_best_measurement_of_an_algorithm_is_its_advice(
    monkeypatch: pytest.MonkeyPatch, better: float, preset: str
) -> None:
    (usual,) = [
        each for each in by_defaults() if (each.algo, each.env) == ("appo", "HalfCheetah-v5")
    ]
    scores = read_scores()
    of_preset = scores["appo", "halfcheetah", ""]
    returns = (usual.score + better,) * len(of_preset.seeds)
    scores["appo", "halfcheetah", ""] = replace(of_preset, returns=returns)
    monkeypatch.setattr(measured, "read_scores", lambda: scores)
    found = {each.algo: each.preset for each in measured_in("HalfCheetah-v4")}
    assert found == {"appo": preset, "crossq": "halfcheetah", "sac": "halfcheetah"}


def test_what_else_there_is_to_know() -> None:
    notes = "\n".join(advice(BIT_FLIP, waiting=0.9, uneven=12.0).notes)
    assert "appo, pqn, apex, ddppo" in notes and "--her (apex) learns" in notes
    assert "90% of a step is waiting" in notes and "--variable-experience" in notes
    computes = "\n".join(advice("PaddleDuel-v0", uneven=12.0).notes)
    assert "appo, pqn, apex\n" in computes and "--opponent-pool" in computes
    assert "take 12x the median or longer: many workers" in computes
    groups = "\n".join(advice(GROUPS).notes)
    assert "2 kinds of spaces" in groups and "--opponent-pool" not in groups
    assert "Its action mask needs no flag" in advice("tests.support.envs:MaskedEnv").notes
    box = "\n".join(advice(BOX).notes)
    assert "appo, sac, crossq, td3, ddppo" in box and "Presets" not in box
    assert "--her (sac, crossq, td3) learns" in "\n".join(advice(GOAL_CODE).notes)


@pytest.mark.parametrize(
    ("low", "high", "told"),
    [
        (999.0, 1000.0, "--kl-coeff 0"),
        (-1000.0, -999.0, "Subtract"),
        (1.0, 1.0, ""),
        (0.5, 1.0, ""),
    ],
)
def test_a_constant_that_hides_what_an_action_changes_is_told(
    low: float, high: float, told: str
) -> None:
    notes = "\n".join(advice(CODE, reward_min=low, reward_max=high).notes)
    assert (told in notes and "have in common" in notes) if told else "in common" not in notes
    assert ("--kl-coeff" in notes) == (told == "--kl-coeff 0")


# ---- the table ----


def written(number: float) -> Iterator[str]:
    """Yield the ways in which a page may write a number."""
    yield f"{number:,.10g}"
    yield f"{number:.10g}"
    if number >= 1e6:
        yield f"{number / 1e6:g}M"
        yield f"{number / 1e6:.2f}M"
    if number % 60 == 0:
        yield f"{number / 60:g} min"


def stands(number: float, text: str) -> bool:
    return any(re.search(rf"(?<![\d.,]){re.escape(each)}(?!\d)", text) for each in written(number))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.algo} {row.env} {row.env_steps}")
def test_every_figure_stands_on_its_page(row: Measured) -> None:
    text = (REPO / "benchmarks/results" / row.page).read_text(encoding="utf-8")
    env = re.sub(r"^ALE/|-v\d+$", "", row.env)
    assert re.search(env, text, re.IGNORECASE)
    missing = [each for each in (row.env_steps, row.seconds, row.score) if not stands(each, text)]
    assert not missing, "correct sampleforge/tools/check_env/measured.py"


def test_the_figures_of_the_defaults_are_those_of_their_measurements(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(REPO / "benchmarks"))
    found = importlib.import_module("defaults")
    assert found.ADVICE.read_text(encoding="utf-8") == found.advice(), (
        "run `python benchmarks/defaults.py report`"
    )


def test_the_page_has_the_table() -> None:
    text = (REPO / "docs/recipes.md").read_text(encoding="utf-8")
    for kind, rows in TABLE.items():
        assert all(line(kind, row) in text for row in rows), line(kind, rows[0])


def line(kind: str, row: Measured) -> str:
    """Return a row of the table as docs/recipes.md has it."""
    preset = f"`{row.preset}`" if row.preset else ""
    cells: Sequence[str] = (
        kind,
        f"`{row.algo}`",
        f"{row.env}",
        preset,
        f"{row.env_steps:,}",
        f"{row.seconds:,.0f}",
        f"{row.score:,.5g}",
        f"`{row.page}`",
    )
    return f"| {' | '.join(cells)} |".replace("|  |", "| |")


@pytest.mark.long
@pytest.mark.multiprocess
@pytest.mark.parametrize(
    ("env", "wanted", "others"),
    [
        ("CliffWalking-v1", ["--rnd-coeff 0.5 (appo, ", "--reward-clip 1"], []),
        ("tests.support.deep_sea:DeepSea", ["no reward above 0"], ["--reward-clip"]),
        ("CartPole-v1", [], ["no reward above 0", "--reward-clip"]),
        ("Pendulum-v1", ["no reward above 0"], ["--reward-clip"]),
    ],
)
def test_costs_without_a_reward_are_told_with_the_flags_that_help(
    env: str, wanted: Sequence[str], others: Sequence[str]
) -> None:
    """Of real random play."""
    kwargs = {"size": 30} if "DeepSea" in env else {}
    *_, last = check_env(EnvConfig(env=env, env_kwargs=kwargs), 1.0)
    assert isinstance(last, Advice)
    notes = "\n".join(last.notes)
    assert all(text in notes for text in wanted) and not any(text in notes for text in others)
