"""Stale scores (benchmarks/staleness.py and preset_scores.py), in a small repository of its own."""

from __future__ import annotations

import importlib
import shutil
import subprocess
import sys
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sampleforge import presets
from sampleforge.presets.scores import PresetScore, digest, read_scores, write_score
from tests.support import REPO

LEARNER = '''\
"""A learner."""
from sampleforge.ops.sums import total
from sampleforge.workers.actor import act

ENCODERS = {"net": "sampleforge.models.net:Net"}


def learn(x):
    """Learn."""
    return act(total(x))
'''
FILES = {
    "sampleforge/algorithms/ppo/algorithm.py": LEARNER,
    "sampleforge/algorithms/dqn/algorithm.py": "def learn(x):\n    return x\n",
    "sampleforge/models/net.py": "class Net:\n    size = 64\n",
    "sampleforge/ops/sums.py": "def total(x):\n    return sum(x)\n",
    "sampleforge/workers/actor.py": "def act(x):\n    return x\n",
    "sampleforge/presets/appo/toy.yaml": "# A toy.\nenv: CartPole-v1\n",
    "sampleforge/presets/appo/clock.yaml": "# Too.\nenv: CartPole-v1\ntrain_for_seconds: 9\n",
    "sampleforge/presets/scores.jsonl": "",
    "envs/classic.py": "ROWS = 1\n",
    "envs/atari.py": "ROWS = 1\n",
}
SCRIPTS = ("machine", "staleness", "first_weights", "preset_scores")
BEGIN = ("sampleforge.algorithms.ppo.algorithm", "sampleforge_envs.classic")


def git(repo: Path, *words: str) -> str:
    who = ["-c", "user.name=A", "-c", "user.email=a@example.org"]
    return subprocess.check_output(["git", *who, *words], cwd=repo, text=True).strip()


def commit(repo: Path, **texts: str) -> str:
    """Commit files of these texts, __ for / in their names; return the commit."""
    for name, text in texts.items():
        path = repo / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    git(repo, "add", ".")
    git(repo, "commit", "--quiet", "--message", "One")
    return git(repo, "rev-parse", "--short", "HEAD")


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    """A repository whose first commit has `FILES` and the scripts."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "benchmarks" / "results").mkdir(parents=True)
    for script in SCRIPTS:
        shutil.copy(REPO / "benchmarks" / f"{script}.py", tmp_path / "benchmarks")
    git(tmp_path, "init", "--quiet")
    commit(tmp_path)
    return tmp_path


@pytest.fixture
def scripts(repo: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The modules preset_scores and, as its attribute, staleness, of the repository, with its
    presets."""
    monkeypatch.syspath_prepend(repo / "benchmarks")
    monkeypatch.setattr(presets, "FOLDER", repo / "sampleforge" / "presets")
    for name in SCRIPTS:
        monkeypatch.delitem(sys.modules, name, raising=False)
    script: Any = importlib.import_module("preset_scores")
    script.staleness = sys.modules["staleness"]
    assert repo == script.REPO
    script.first_weights = sys.modules["first_weights"]
    script.machine = sys.modules["machine"]
    for name in SCRIPTS:
        monkeypatch.delitem(sys.modules, name)
    return script


def measured(at: str, preset: str = "toy", seeds: int = 3, variant: str = "") -> PresetScore:
    values: dict[str, Any] = {
        **{"algo": "appo", "preset": preset, "env": "CartPole-v1", "episodes": 20},
        **{"seeds": (*range(1, 1 + seeds),), "returns": (5.0,) * seeds, "seconds": (60.0,) * seeds},
        **{"env_steps": (9,) * seeds, "protocol": "20 episodes, sampled actions", "machine": "it"},
        **{"command": f"python train.py appo --preset {preset} --env X --seed S"},
        **{"software": "torch", "commit": at, "date": "2026-01-02"},
    }
    return PresetScore(**values, settings=digest("appo", preset), variant=variant)


@pytest.mark.parametrize(
    ("texts", "found"),
    [
        ({"sampleforge__algorithms__ppo__algorithm": LEARNER.replace("Learn", "# It l")}, {}),
        ({"sampleforge__algorithms__ppo__algorithm": "\n# No change.\n" + LEARNER}, {}),
        ({"sampleforge__algorithms__dqn__algorithm": "x = 1\n"}, {}),
        ({"sampleforge__workers__actor": "x = 1\n"}, {}),
        ({"envs__atari": "ROWS = 2\n"}, {}),
        ({"envs__classic": "ROWS = 2\n"}, {"envs/classic.py": 2}),
        (
            {"sampleforge__ops__sums": "def total(x):\n    return 0\n"},
            {"sampleforge/ops/sums.py": 2},
        ),
        (
            {"sampleforge__models__net": "class Net:\n    size = 64\n    depth = 2\n"},
            {"sampleforge/models/net.py": 1},
        ),
    ],
)
def test_changes_of_the_code_that_decides_are_found(
    repo: Path, scripts: Any, texts: dict[str, str], found: dict[str, int]
) -> None:
    first = git(repo, "rev-parse", "HEAD")
    commit(repo, **texts)
    assert scripts.staleness.changes(repo, first, BEGIN) == found
    assert scripts.staleness.changes(repo, f"{first}-dirty", BEGIN) == found
    assert scripts.staleness.changes(repo, "HEAD", BEGIN) == {}


def test_a_moved_file_is_no_change(repo: Path, scripts: Any) -> None:
    first = git(repo, "rev-parse", "HEAD")
    git(repo, "mv", "sampleforge/ops/sums.py", "sampleforge/ops/totals.py")
    commit(repo, sampleforge__algorithms__ppo__algorithm=LEARNER.replace("ops.sums", "ops.totals"))
    assert scripts.staleness.changes(repo, first, BEGIN) == {}
    commit(repo, sampleforge__ops__totals="def total(x):\n    return sum(x) + 1\n")
    assert list(scripts.staleness.changes(repo, first, BEGIN)) == ["sampleforge/ops/totals.py"]


def test_the_code_that_decides_follows_from_the_registry(scripts: Any) -> None:
    appo = scripts.staleness.decisive_modules("appo", "CartPole-v1")
    names = (
        "algorithms.ppo.algorithm topologies.slots.wire topologies.slots.plan "
        "topologies.pairings.ppo_defaults"
    )
    assert {*(f"sampleforge.{name}" for name in names.split()), "sampleforge_envs.classic"} <= appo
    assert not any("dqn" in name or "replay.wire" in name or "atari" in name for name in appo)
    sac = scripts.staleness.decisive_modules("sac", "Reacher-v5")
    names = "sampleforge.topologies.replay.wire sampleforge_envs.mujoco sampleforge.replay.config"
    assert set(names.split()) <= sac


def test_what_git_cannot_tell_is_said(
    repo: Path, scripts: Any, tmp_path_factory: pytest.TempPathFactory, monkeypatch: Any
) -> None:
    staleness, first = scripts.staleness, git(repo, "rev-parse", "HEAD")
    last = commit(repo, envs__classic="ROWS = 2\n")
    staleness.check_repository(repo, [first, "1234567"])
    assert staleness.changes(repo, "1234567", BEGIN) is None
    shallow, elsewhere = (tmp_path_factory.mktemp(name) for name in ("shallow", "elsewhere"))
    git(shallow, "clone", "--quiet", "--depth", "1", f"file://{repo}", ".")
    staleness.check_repository(shallow, [last])
    with pytest.raises(SystemExit, match=f"shallow clone and lacks {first}.*git fetch --unshallow"):
        staleness.check_repository(shallow, [first, last])
    with pytest.raises(SystemExit, match=r"not a git repository.*use a clone"):
        staleness.code_commit(elsewhere)
    monkeypatch.setenv("PATH", str(elsewhere))
    with pytest.raises(SystemExit, match=r"git is not installed.*install git"):
        staleness.code_commit(repo)


def test_a_result_that_was_added_does_not_make_its_code_changed(repo: Path, scripts: Any) -> None:
    (repo / "benchmarks" / "results" / "defaults.jsonl").write_text("")
    first = commit(repo)
    (repo / "benchmarks" / "results" / "defaults.jsonl").write_text("{}\n")
    assert scripts.machine.commit() == first
    (repo / "envs" / "classic.py").write_text("ROWS = 2\n")
    assert scripts.machine.commit() == f"{first}-dirty"


def test_the_list_and_the_table_say_which_scores_are_stale(
    repo: Path, scripts: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    first = git(repo, "rev-parse", "--short", "HEAD")
    write_score(measured(first, variant="fresh"))
    write_score(measured(first, "clock", seeds=1))
    write_score(measured("1234567"))
    scripts.write_table()
    table = (repo / "benchmarks/results/presets.md").read_text()
    assert "| appo `toy` fresh " in table and "| appo `toy` (unknown code) " in table
    assert "| appo `clock` (1 seed) " in table
    commit(repo, envs__classic="ROWS = 2\n", sampleforge__ops__sums="x = 1\n" * 9)
    (repo / "sampleforge/presets/appo/clock.yaml").write_text("# T.\nenv: CartPole-v1\n")
    scripts.write_table()
    table = (repo / "benchmarks/results/presets.md").read_text()
    assert "| appo `toy` fresh (older code) " in table
    assert "| appo `clock` (older settings, older code, 1 seed) " in table
    capsys.readouterr()
    scripts.show_stale(scripts.stale_scores())
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "3 of 3 scores are stale: about 0.1 h to measure"
    assert f"appo toy fresh: 5 of 3 seeds, commit {first}; about 3 min" in lines
    most = "sampleforge/ops/sums.py (11 lines), envs/classic.py (2 lines)"
    assert f"    2 files changed since, the most {most}." in lines
    assert "    It rests on 1 seed, fewer than 3." in lines


def test_stale_scores_are_measured_again_as_before(
    repo: Path, scripts: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_score(measured("1234567", "clock", seeds=1))
    write_score(measured("1234567", variant="one", seeds=1))
    write_score(measured("1234567", variant="four", seeds=4))
    asked = list[Namespace]()

    def measure(algo: str, preset: str, args: Namespace) -> PresetScore:
        asked.append(args)
        if args.variant == "four":
            raise scripts.CommandFailed("no memory")
        found = measured(scripts.code_commit(repo), preset, len(args.seeds), args.variant)
        return replace(found, machine="busy", seconds=(99.0,) * len(args.seeds))

    monkeypatch.setattr(scripts, "measure", measure)
    args = Namespace(keep=repo / "kept", note="", minutes=60)
    failed = scripts.run_again(list(scripts.stale_scores()), args)
    assert failed == ["appo toy four: no memory"]
    now = git(repo, "rev-parse", "--short", "HEAD")
    assert [(a.seeds, a.long, a.stochastic, a.flags, a.keep) for a in asked] == [
        ([1, 2, 3], True, True, "--env X", repo / "kept" / now / "appo-toy-one"),
        ([1, 2, 3, 4], True, True, "--env X", repo / "kept" / now / "appo-toy-four"),
    ]
    scores = read_scores()
    assert [score.commit for score in scores.values()] == ["1234567", "1234567", now]
    assert scores["appo", "toy", "one"].seconds == (99.0,) * 3, "there was a time for one seed"
    printed = capsys.readouterr().out
    assert "left out, for quiet cores: appo clock" in printed and "[1/2] about 3 min" in printed

    write_score(measured("1234567", variant="one"))
    scripts.run_again([read_scores()["appo", "toy", "one"]], args)
    again = read_scores()["appo", "toy", "one"]
    assert again.seconds == (60.0,) * 3 and again.machine == (
        "busy; its times are those of commit 1234567, it"
    )
    scripts.run_again([again], args)
    assert read_scores()["appo", "toy", "one"] == again, "the times are still the first ones"
    write_score(replace(again, seconds=(999.0,) * 3))
    scripts.run_again([read_scores()["appo", "toy", "one"]], args)
    faster = read_scores()["appo", "toy", "one"]
    assert (faster.seconds, faster.machine) == ((99.0,) * 3, "busy")
    write_score(again)
    args.minutes = 2
    scripts.run_again([again], args)
    assert "appo toy one would take about 3 min, more than is left" in capsys.readouterr().out
    assert len(asked) == 5
    (repo / "envs/classic.py").write_text("ROWS = 3\n")
    with pytest.raises(SystemExit, match="not committed"):
        scripts.run_again([again], args)


def test_a_score_is_fresh_as_long_as_the_code_computes_the_same(
    repo: Path, scripts: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first = git(repo, "rev-parse", "--short", "HEAD")
    for variant in ("same", "other", "broken"):
        write_score(measured(first, variant=variant))
    now = commit(repo, envs__classic="ROWS = 2\n")
    assert len(scripts.stale_scores()) == 3

    def same_weights(_repo: Path, score: PresetScore, at: str) -> bool:
        assert (score.commit, at) == (first, now)
        if score.variant == "broken":
            raise scripts.NotComparable("it does not train")
        return score.variant == "same"

    monkeypatch.setattr(scripts, "same_weights", same_weights)
    scripts.compare(scripts.stale_scores())
    printed = capsys.readouterr().out
    assert f"appo toy same, {first}: the same weights" in printed
    assert "other weights" in printed and "not compared: it does not train" in printed
    assert sorted(score.variant for score in scripts.stale_scores()) == ["broken", "other"]
    kept = read_scores()["appo", "toy", "same"]
    assert (kept.commit, kept.same_at) == (first, now)
    commit(repo, envs__classic="ROWS = 3\n")
    assert len(scripts.stale_scores()) == 3, "the code was changed again"


@pytest.mark.long
def test_the_first_weights_tell_whether_a_change_matters(
    repo: Path, scripts: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """With the real package: a comment changes nothing, another number of epochs does."""
    whole = tmp_path_factory.mktemp("whole")
    for name in ("sampleforge", "envs"):
        shutil.copytree(REPO / name, whole / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(REPO / "train.py", whole)
    git(whole, "init", "--quiet")
    first = commit(whole)
    path = "sampleforge/topologies/pairings/ppo_defaults.py"
    text = (whole / path).read_text()
    comment = commit(whole, **{path[:-3].replace("/", "__"): f"# More.\n{text}"})
    assert '"num_epochs": 10' in text
    changed = text.replace('"num_epochs": 10', '"num_epochs": 9')
    other = commit(whole, **{path[:-3].replace("/", "__"): changed})
    command = "python train.py appo --preset cartpole --seed S"
    score = replace(measured(first), preset="cartpole", command=command)
    weights = [scripts.first_weights.first_weights(whole, score, at) for at in (first, comment)]
    assert weights[0] == weights[1] and len(weights[0]) > 4
    assert weights[0] != scripts.first_weights.first_weights(whole, score, other)


def test_what_cannot_be_compared_is_said(repo: Path, scripts: Any) -> None:
    first, found = git(repo, "rev-parse", "--short", "HEAD"), scripts.first_weights
    for score, reason in (
        (replace(measured(first), settings="x"), "settings of the preset were changed"),
        (measured(f"{first}-dirty"), f"no commit has the code of {first}-dirty"),
        (measured(first, "clock"), "follow the clock"),
    ):
        with pytest.raises(found.NotComparable, match=reason):
            found.same_weights(repo, score, first)
