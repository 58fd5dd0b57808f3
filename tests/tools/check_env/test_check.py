"""What `sampleforge check-env` finds in good environments and in broken ones."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sampleforge.cli import main
from sampleforge.env.config import EnvConfig
from sampleforge.env.family import Family
from sampleforge.env.registry import families
from sampleforge.spec import EnvSpec
from sampleforge.tools.check_env import examination, verdicts
from sampleforge.tools.check_env.check import check_env
from sampleforge.tools.check_env.examination import examine
from sampleforge.tools.check_env.played import Played, Speed, Spread
from sampleforge.tools.check_env.verdicts import Finding
from tests.support.broken_envs import CarelessEnv
from tests.support.graphs import spec_of

BROKEN = "tests.support.broken_envs"
Examine = Callable[..., dict[str, list[Finding]]]


@pytest.fixture
def examined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Examine:
    """`examined(env, seconds, **env_kwargs)` -> the findings of the child process by name, made in
    this one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(examination, "LEAST_STEPS", 1000)  # also where there is no time for them

    def examined(env: str, seconds: float, **kwargs: Any) -> dict[str, list[Finding]]:
        told: list[dict[str, Any]] = []
        examine(EnvConfig(env=env, env_kwargs=kwargs), told.append, seconds=seconds)
        assert any("progress" in message for message in told)
        found: dict[str, list[Finding]] = {}
        for message in told:
            if "finding" in message:
                finding = Finding(**json.loads(json.dumps(message["finding"])))
                found.setdefault(finding.name, []).append(finding)
        return found

    return examined


@pytest.mark.multiprocess
def test_a_good_environment_is_trainable_with_its_speed_in_one_line_of_json(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["CartPole-v1", "--seconds", "1", "--json", "--max-episode-steps", "40"]
    assert main(["check-env", *words]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    found = json.loads(line)
    assert found["trainable"] and found["errors"] == found["warnings"] == 0
    assert found["env"] == "CartPole-v1" and found["values"]["env_steps_per_s"] > 100
    assert found["values"]["max_episode_steps"] == 40
    assert 0 < found["values"]["step_median_s"] <= found["values"]["step_p99_s"]
    names = {finding["name"] for finding in found["findings"]}
    assert names >= {"start", "observations", "bounds", "NaN and inf", "actions", "autoreset"}
    assert names >= {"determinism", "rewards", "episodes", "step time", "throughput", "memory"}
    assert names >= {"processes", "closing"}
    assert found["commands"] == [each["command"] for each in found["advice"]]
    assert all(
        each["seconds"] and "--max-episode-steps 40" in each["command"] for each in found["advice"]
    )
    assert found["commands"] and found["notes"][0].startswith(
        "Algorithms that can train in it: appo"
    )


@pytest.mark.long
@pytest.mark.parametrize(
    ("env", "kwargs", "autoreset"),
    [
        ("tests.support.envs:CodeEnv", {}, "single environments"),
        ("tests.support.envs:CountingVectorEnv", {"mode": "same_step"}, "AutoresetMode.SAME_STEP"),
        ("tests.support.envs:CountingVectorEnv", {"mode": "disabled"}, "AutoresetMode.DISABLED"),
        ("tests.support.envs:MaskedEnv", {"where": "obs"}, "single environments"),
        ("tests.support.envs:MixedActionEnv", {}, "single environments"),
        ("PaddleDuel-v0", {}, "after no agent is left"),
        ("CartPole-v1", {}, "SampleForge's own"),
    ],
)
def test_every_kind_of_environment_is_played_without_an_error(
    examined: Examine, env: str, kwargs: dict[str, Any], autoreset: str
) -> None:
    found = examined(env, 0.3, **kwargs)
    every = [finding for findings in found.values() for finding in findings]
    assert not [finding for finding in every if finding.verdict in ("warning", "error")]
    assert autoreset in found["autoreset"][0].text
    assert found["determinism"][0].text.startswith("the same seed gave the same")
    (episodes,) = found["episodes"]
    assert episodes.values["episodes"] and not episodes.text.startswith("none")
    assert ("action mask" in found) == ("Masked" in env)


def test_faults_after_a_hundred_steps_are_errors_with_row_value_and_remedy(
    examined: Examine,
) -> None:
    found = examined(f"{BROKEN}:LateFaultsEnv", 1.0)
    (bounds,), (finite,), (errors,) = found["bounds"], found["NaN and inf"], found["errors"]
    assert (bounds.verdict, finite.verdict, errors.verdict) == ("warning", "error", "error")
    assert "row 0: observation leaf 'obs' must be in [-1000, 1000] at [3]" in bounds.text
    assert "but is 2000" in bounds.text and bounds.remedy.startswith("correct the space or")
    assert "row 0: observation leaf 'obs' holds nan at [2]" in finite.text
    assert "ValueError: deliberate: late error" in errors.text
    assert "Traceback" in errors.detail and "correct the environment" in errors.remedy


def test_agents_that_have_ended_but_stay_listed_are_named(examined: Examine) -> None:
    env = "tests.support.multi_agent:StayingParallelEnv"
    (agents,) = examined(env, 0.3, agents=3, length=6, shorter=2)["agents"]
    assert agents.verdict == "warning" and "out of `agents`" in agents.remedy
    assert agents.text.endswith("were truncated: a_1, a_2"), agents.text


@pytest.fixture
def careless() -> Iterator[str]:
    """The name of the environment; what its instances keep is dropped at the end."""
    yield f"{BROKEN}:CarelessEnv"
    CarelessEnv.kept, CarelessEnv.num_kept = np.zeros(CarelessEnv.kept.size, np.uint8), 0
    for engine in CarelessEnv.engines:
        engine.kill()
        engine.wait()
    CarelessEnv.engines.clear()


@pytest.mark.long
def test_a_careless_environment_gets_a_warning_for_each_fault(
    examined: Examine, careless: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(examination, "END_S", 0.1)
    found = examined(careless, 1.5)
    (determinism,), (episodes,), (rewards,) = (
        found[name] for name in ("determinism", "episodes", "rewards")
    )
    assert determinism.verdict == "warning"
    assert "differ from step 1 on, in observation leaf 'obs'" in determinism.text
    assert episodes.verdict == "warning" and "no time limit" in episodes.text
    assert "--max-episode-steps" in episodes.remedy
    assert rewards.verdict == "warning" and rewards.text.startswith("none in")
    (memory,) = found["memory"]
    assert memory.verdict == "warning" and "grew steadily" in memory.text
    per_step = memory.values["growth_bytes_per_step"]
    assert per_step is not None and 10_000 < per_step < 40_000, "20,000 are kept"
    assert found["processes"][0].text == "1 of its own per row"
    (closing,) = found["closing"]
    assert "processes sleep" in closing.text and "careless-" in closing.text
    assert found["files"][0].text == "1 in its working directory"
    for name in ("determinism", "episodes", "rewards", "memory", "closing"):
        assert found[name][0].remedy, name


@pytest.mark.multiprocess
@pytest.mark.parametrize(
    ("how", "cause"), [("hangs", "--env-timeout"), ("killed", "with signal SIGSEGV")]
)
def test_an_environment_that_hangs_or_crashes_after_the_probe_is_an_error_that_says_so(
    how: str, cause: str
) -> None:
    config = EnvConfig(env=f"{BROKEN}:EndingEnv", env_kwargs={"how": how}, env_timeout=5.0)
    *before, last = [found for found in check_env(config, 1.0) if isinstance(found, Finding)]
    assert [finding.verdict for finding in before] == ["ok"]
    assert (last.verdict, last.name) == ("error", "play")
    assert cause in last.text and "in step" in last.detail, "the stacks"


@pytest.mark.multiprocess
@pytest.mark.parametrize("raises", ["SystemExit", "exit", "hang"])
def test_a_close_that_fails_does_not_change_the_verdict(raises: str) -> None:
    kwargs: dict[str, Any] = {"raises": raises, "where": "close"}
    config = EnvConfig("tests.support.ending_envs:EndingEnv", kwargs)
    found = [found for found in check_env(config, 1.0) if isinstance(found, Finding)]
    assert {"throughput", "memory"} <= {finding.name for finding in found}, "all is measured"
    assert not [finding for finding in found if finding.verdict == "error"]
    assert {f.verdict for f in found if f.name == "closing"} == {"warning"}


@pytest.mark.multiprocess
def test_what_the_probe_refuses_is_refused_in_its_words(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["check-env", "tests.support.envs:WrongDtypeEnv", "--env-kwargs", "wrong=shape"]
    assert main(words) == 1
    line, result = capsys.readouterr().out.splitlines()
    assert (
        line.startswith("error   start")
        and "row 0: observation leaf 'obs' must be float32 of shape (4,)" in line
    )
    assert json.loads(result)["trainable"] is False
    assert main(["check-env"]) == 2
    assert "sampleforge check-env CartPole-v1" in capsys.readouterr().err


# ---- what measurements mean ----


def played(step_s: float, *, slow_s: float = 0.0, cpu: float = 1.0) -> Played:
    """A play of 1,000 steps of ``step_s``, of which 20 take ``slow_s``, if it is given. ``cpu``:
    the fraction of the time in which a processor was used."""
    steps = [step_s] * 980 + [slow_s or step_s] * 20
    used = Spread(cpu * seconds for seconds in steps)
    return Played(steps=Spread(steps), cpu=used, waited_s=(1 - cpu) * sum(steps))


def test_steps_that_take_uneven_times_are_told_apart_from_those_of_a_busy_machine() -> None:
    assert verdicts.uneven(played(1e-3, slow_s=0.1)) == pytest.approx(100.0, rel=0.01)
    assert verdicts.uneven(played(1e-3, slow_s=0.1, cpu=0.1)) == pytest.approx(100.0, rel=0.01)
    assert verdicts.uneven(played(1e-3)) is None
    busy = played(1e-3, slow_s=0.1)
    busy.cpu = Spread([1e-3] * 1000)
    assert verdicts.uneven(busy) is None, "it computed for as long in every step"
    seldom = played(1e-5, slow_s=0.02)
    seldom.cpu, seldom.waited_s = Spread([1e-5] * 1000), 20 * 0.02
    assert verdicts.waiting(seldom) == pytest.approx(0.4 / 0.4098), "it waits in 2% of its steps"
    assert verdicts.uneven(seldom) == pytest.approx(2000.0, rel=0.01)


@pytest.mark.long
def test_only_what_was_seen_before_tells_a_hidden_state_from_chance(examined: Examine) -> None:
    (found,) = examined("CartPoleNoVel-v1", 1.0)["hidden state"]
    assert "something like a speed" in found.text and "--model.core gru" in found.remedy
    (found,) = examined("tests.support.envs:MemoryTMaze", 0.5)["hidden state"]
    assert found.verdict == "note" and "--model.core gru" in found.remedy
    assert 0.05 < (found.values["hidden_state"] or 0.0) < 0.2, "a half of each sixth step"
    shown = "CartPole-v1", "Pendulum-v1", "Hopper-v5"
    for env in ("FrozenLake-v1", "CliffWalking-v1", "tests.support.envs:PushEnv", *shown):
        assert "hidden state" not in examined(env, 0.5)


def test_a_family_may_say_that_its_environments_need_memory() -> None:
    popgym = find_family("popgym")
    found = verdicts.hidden_state(Played(), popgym)
    assert found is not None and found.values["hidden_state"] == 1.0
    assert "popgym" in found.text and "--model.core gru" in found.remedy
    assert verdicts.hidden_state(Played(), None) is None
    assert verdicts.hidden_state(Played(), find_family("minigrid")) is None


def find_family(name: str) -> Family:
    (found,) = (family for family in families() if family.name == name)
    return found


def test_other_programs_that_slow_it_down_are_named() -> None:
    speed = Speed(1000.0, 32, 0.4)
    noted = verdicts.throughput(speed, 2, played(1e-3))
    assert noted.verdict == "note" and "had its processor for 60% of the time" in noted.text
    waits = verdicts.throughput(speed, 2, played(1e-3, cpu=0.4))
    assert waits.verdict == "ok" and "16.7 min there, where its rows wait one after" in waits.text


def limited(limit: int | None) -> EnvSpec:
    return spec_of(EnvConfig(env="tests.support.envs:CodeEnv", max_episode_steps=limit))


@pytest.mark.parametrize(
    ("lengths", "ends", "limit", "verdict", "text"),
    [
        ([10, 20, 30], (3, 0), 50, "ok", "3 ended, 3 terminated, 0 truncated; 10 to 30 steps"),
        ([10, 20, 50], (2, 1), 50, "ok", "time limit 50"),
        ([10, 20, 30], (3, 0), None, "note", "no time limit"),
        ([10, 20, 64], (2, 1), None, "ok", "the time limit is not declared"),
        ([50, 50, 50], (3, 0), None, "note", "all ended by terminated=True after the same"),
        ([], (0, 0), 500, "note", "none ended in 0 env steps; time limit 500"),
        ([], (0, 0), None, "warning", "there is no time limit"),
    ],
)
def test_the_ends_of_episodes_are_judged(
    lengths: list[int], ends: tuple[int, int], limit: int | None, verdict: str, text: str
) -> None:
    terminated, truncated = ends
    seen = Played(lengths=Spread(lengths), terminated=terminated, truncated=truncated)
    found = verdicts.episodes(limited(limit), seen)
    assert found.verdict == verdict and text in found.text
    assert bool(found.remedy) == (verdict != "ok")


def test_a_spread_keeps_extremes_mean_and_quantiles_in_constant_memory() -> None:
    spread = Spread(float(i) for i in range(100_000))
    assert (spread.low, spread.high, spread.count) == (0, 99_999, 100_000)
    assert spread.total / spread.count == 49_999.5 and spread.nonzero == 99_999
    assert spread.quantile(0.99) == pytest.approx(99_000, rel=0.001)
    assert spread._kept.size == Spread.SIZE
