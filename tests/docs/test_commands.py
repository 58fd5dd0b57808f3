"""Every command and every block of Python that a page shows works.

In CI all are read: the flags of a command by the command itself, the names that a block imports and
asks of modules by Python. The slow test runs them, page by page and in the order of the page, each
in one folder, shortened by `LIMITS`; what is not run is in `NOT_RUN`, with the reason.
"""

from __future__ import annotations

import ast
import dataclasses
import glob
import importlib
import os
import re
import subprocess
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path
from textwrap import indent
from typing import Any

import pytest

import sampleforge as sf
from sampleforge.cli import VERBS, flags, main
from sampleforge.cli.train import parse_config
from tests.support import REPO
from tests.support.pages import TEXTS, Block, arguments, blocks, commands
from tests.support.processes import RunCli

INSTALLS = "changes the installation; .ci/run does both set-ups of the README in fresh folders"
ROBOTICS = "the extra robotics needs an older mujoco than the extra all"
NOT_RUN = {
    "python3 -m venv": INSTALLS,
    ". .venv/bin/activate": INSTALLS,
    "pip install": INSTALLS,
    "pre-commit install": "writes into the checkout's .git",
    "python -m pytest": "these are the tests",
    "ruff": "a gate of .ci/run, for the checkout as it is",
    "mypy": "a gate of .ci/run, for the checkout as it is",
    "zensical": "a gate of .ci/run, for the checkout as it is",
    "python benchmarks/gpu.py": "needs a GPU",
    "docker": "needs a container engine",
    "ffmpeg": "a program of the system, which the films of the documentation were made with",
    "nft": "changes the machine's firewall",
    "torchrun --nnodes": "needs several machines; tests/end_to_end/test_torchrun.py has two hosts",
    "sampleforge serve": "serves until Ctrl-C; tests/tools/serve has its tests",
    "python train.py sac --preset fetchreach": ROBOTICS,
    "python train.py crossq --preset fetchpush": ROBOTICS,
    "python train.py sac --env PointMaze": ROBOTICS,
    "python train.py appo --env mpe2": "mpe2 is in no extra",
}
"""How a command begins, without the folders of its program -> why the slow test does not run it."""

LIMITS = {
    "sampleforge tune CartPole-v1 appo --out": "--seconds-per-trial 0.5",
    "sampleforge tune CartPole-v1 appo --for return": "--minutes 0.4 --seconds-per-trial 4",
    "sampleforge eval": "--episodes 2",
    "sampleforge record": "--episodes 8",
    "sampleforge check-env": "--seconds 1",
    "sampleforge tournament": "--episodes 4",
    "sampleforge card": "--episodes 2",
    "--benchmark": "--benchmark-seconds 1",
    "ddppo": "--train-for-env-steps 2500",
}
"""How a command begins, or a word that it has -> flags by which the test shortens it. Any other
training is serial, which several ranks cannot be, and ends after `ENV_STEPS`."""
ENV_STEPS = 2500
LAST = {
    *("--train-for-seconds", "--train-for-env-steps", "--benchmark-seconds"),
    *("--episodes", "--minutes"),
}
"""Flags of a documented command that the test's own take the place of."""

CARTPOLE = "sampleforge train appo --env CartPole-v1 --run-dir"
BEFORE = {
    "docs/export.md": [
        f"{CARTPOLE} runs/cartpole",
        "sampleforge export runs/cartpole --format torch --out policy.pt2",
    ],
    "docs/populations.md": [
        "sampleforge train appo --env CartPole-v1 --run-dir runs/population --num-policies 2 --pbt "
        "--pbt-start 500 --pbt-period 500"
    ],
    "docs/recipes.md": [f"{CARTPOLE} runs/a --record data/{name}" for name in ("expert", "mixed")],
    "docs/run_folder.md": [
        f"{CARTPOLE} runs/{name}" for name in ("cartpole", "lr-low-1", "lr-high-1")
    ],
    "docs/self_play.md": [
        "sampleforge train appo --env PaddleDuel-v0 --opponent-pool 20 --run-dir runs/other"
    ],
    "docs/sharing.md": [f"{CARTPOLE} runs/cartpole"],
}
"""Page -> commands that make what it takes for granted."""
OWN_ENV = """
from gymnasium.envs.classic_control import CartPoleEnv
class MyEnv(CartPoleEnv):
    spec = None
    def __init__(self, difficulty=1, port=0):
        super().__init__()
"""
CONTEXT = {
    "difficulty": OWN_ENV,
    "(env=lambda: MyEnv": "import sampleforge as sf",
    "class Inspect": "import sampleforge as sf",
    "class Fuel": "import sampleforge as sf",
    "class Patience": "import sampleforge as sf",
    "class Curriculum": "import sampleforge as sf",
    "def choose(seat": """
from tests.support.multi_agent import Game
def game():
    return Game({"adversary_0": 1.0, "agent_0": -1.0})
""",
    "class Maze": "import gymnasium as gym",
    "policy.act(obs)": "obs = [0.0, 0.0, 0.1, 0.0]",
    "action, state = trainer.compute_action(obs)  #": """
import numpy as np
import sampleforge as sf
obs, batch, states = np.zeros(4), np.zeros((3, 4)), np.zeros((3, 8), np.float32)
if __name__ == "__main__":
    model = sf.ModelConfig(core="gru", core_size=8)
    trainer = sf.Trainer(sf.AppoConfig(env="CartPole-v1", serial=True, model=model))
""",
}
"""A part of a block of Python -> what it takes for granted."""
AFTER = {
    "docs/config.md": [
        "python train.py appo --env my_env:make --env-kwargs difficulty=2 "
        "--evaluate-interval 1000 --evaluate-function my_evaluation:evaluate"
    ],
    "docs/environments.md": [
        "python train.py appo --env my_mapping:game --num-policies 2 --async-rl "
        "--policy-mapping my_mapping:choose"
    ],
}
"""Page -> commands that use the files of its blocks as its text says."""


def parses(page: str, program: str, words: list[str]) -> Any:
    return pytest.param(words, id=f"{page}: {program} {' '.join(words)}")


TRAININGS = [
    parses(page, "train.py", words)
    for page, text in TEXTS.items()
    for words in [
        *arguments("train.py", text),
        *(words[1:] for words in arguments("sampleforge", text) if words[0] == "train"),
    ]
]


@pytest.mark.long
@pytest.mark.parametrize("words", TRAININGS)
def test_training_commands_parse(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(REPO / "examples")  # where the page says it is run
    assert parse_config(words[0], words[1:]).env


class Parsed(Exception):
    """The flags of a command are known to it."""


OTHERS = [
    parses(page, "sampleforge", words)
    for page, text in TEXTS.items()
    for words in arguments("sampleforge", text)
    if words[0] != "train"
]


@pytest.mark.parametrize("words", OTHERS)
def test_commands_parse(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    parse = flags.parse_shown

    def stop(*args: Any) -> None:
        parse(*args)
        raise Parsed

    monkeypatch.setattr(flags, "parse_shown", stop)
    with pytest.raises(Parsed):
        main(words)


def test_the_pages_show_only_verbs_that_there_are() -> None:
    shown = {words[0] for text in TEXTS.values() for words in arguments("sampleforge", text)}
    assert {"eval", "plot", "tune", "doctor"} <= shown <= set(VERBS)


def command_text(words: list[str]) -> str:
    """A command with the plain name of its program: `python train.py ...`, `sampleforge ...`."""
    return " ".join([words[0].rpartition("/")[2], *words[1:]])


def why_not(words: list[str]) -> str | None:
    """The reason for which a command is not run, None if it is."""
    text = command_text(words)
    return next((why for start, why in NOT_RUN.items() if text.startswith(start)), None)


def test_every_command_is_run_or_not_for_a_reason() -> None:
    found = [w for text in TEXTS.values() for block in blocks(text) for w in commands(block)]
    assert len(found) > 100
    for words in found:
        runs = re.match(r"(python \S+\.py|sampleforge \w|torchrun|cd) ?", command_text(words))
        assert runs or why_not(words), (
            f"{words}: let the test run it, or name the reason in NOT_RUN"
        )
    for start in NOT_RUN:
        assert any(command_text(words).startswith(start) for words in found), f"{start} is gone"


def resolved(node: ast.expr, known: dict[str, Any]) -> Any:
    """What a dotted name of a block is; None if it begins with none that is ``known``. Raises
    AttributeError if there is no such name in a module or class."""
    if isinstance(node, ast.Name):
        return known.get(node.id)
    if isinstance(node, ast.Attribute):
        owner = resolved(node.value, known)
        return None if owner is None else getattr(owner, node.attr)
    return None


PYTHON = [
    pytest.param(block.text, id=f"{page}: {block.text.strip().splitlines()[0]}")
    for page, text in TEXTS.items()
    for block in blocks(text)
    if block.language == "python"
]


@pytest.mark.parametrize("text", PYTHON)
def test_what_a_block_of_python_names_is_there(text: str) -> None:
    known: dict[str, Any] = {"sf": sf}
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for name in node.names:
                known[name.asname or name.name.partition(".")[0]] = importlib.import_module(
                    name.name if name.asname else name.name.partition(".")[0]
                )
        elif isinstance(node, ast.ImportFrom):
            module = importlib.import_module(node.module or "")
            known |= {name.asname or name.name: getattr(module, name.name) for name in node.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            resolved(node, known)
        elif isinstance(node, ast.Call) and dataclasses.is_dataclass(resolved(node.func, known)):
            fields = {field.name for field in dataclasses.fields(resolved(node.func, known))}
            assert {keyword.arg for keyword in node.keywords} <= fields
        elif isinstance(node, ast.ClassDef):
            for base in (resolved(base, known) for base in node.bases):
                hooks = {n.name for n in node.body if isinstance(n, ast.FunctionDef)}
                assert base is not sf.Callback or hooks <= set(dir(sf.Callback))


class Shown:
    """Runs what a page shows, in a folder that has the checkout's train.py and examples."""

    def __init__(self, run_cli: RunCli, folder: Path) -> None:
        self._run_cli, self._folder, self._cwd = run_cli, folder, folder
        self._trained: Counter[str] = Counter()
        self.failures: list[str] = []
        for name in ("train.py", "examples", "benchmarks", "tests"):
            (folder / name).symlink_to(REPO / name)

    def block(self, block: Block) -> None:
        self._cwd = self._folder
        for words in commands(block):
            if words[0] == "cd":
                self._cwd = self._folder / words[1]
            elif why_not(words) is None:
                self.command(words)
        if block.language == "python":
            self._python(block.text)

    def command(self, words: list[str]) -> None:
        """Run a command, shortened; remember it if it fails."""
        given = self._shortened([words[0].rpartition("/")[2], *words[1:]])
        program, *rest = [hit for word in given for hit in self._globbed(word)]
        if program == "torchrun":
            command = [sys.executable, "-m", "torch.distributed.run", *rest]
            done = subprocess.run(command, cwd=self._cwd, capture_output=True, text=True)
        else:
            done = self._run_cli(*rest, cwd=self._cwd, timeout=200)
        self._note(" ".join(given), done)

    def _python(self, text: str) -> None:
        before = [given for part, given in CONTEXT.items() if part in text]
        text = re.sub(r"train_for_env_steps=[\d_]+", f"train_for_env_steps={ENV_STEPS}", text)
        text = re.sub(r"seconds=\d+", "seconds=1", text)
        named = re.match(r"# (\w+\.py)\n", text)
        file = self._folder / (named[1] if named else "block.py")
        if any("__main__" in given for given in before):
            text = indent(text, "    ")
        file.write_text("\n".join([*before, text]))
        self._note(text, self._run_cli(str(file), cwd=self._folder, timeout=200))

    def _shortened(self, words: list[str]) -> list[str]:
        text = " ".join(words)
        limits = [f for start, f in LIMITS.items() if text.startswith(start) or start in words]
        if not limits and ("train.py" in text or words[1] == "train"):
            runs = [after for before, after in pairwise(words) if before == "--run-dir"]
            self._trained.update(runs)
            times = self._trained[runs[-1]] if runs else 1  # a resumed run has something left to do
            limits = [f"--serial --train-for-env-steps {ENV_STEPS * times}"]
        own = [word for flags in limits for word in flags.split()]
        kept = [
            word
            for before, word in zip(["", *words], words, strict=False)
            if not (LAST & {before, word} if own else False)
        ]
        return [*kept, *own]

    def _globbed(self, word: str) -> list[str]:
        return sorted(glob.glob(word, root_dir=self._cwd)) if "*" in word else [word]

    def _note(self, what: str, done: subprocess.CompletedProcess[str]) -> None:
        if os.environ.get("SHOW"):
            print(f"$ {what}\n{done.stdout[-3000:]}{done.stderr[-3000:]}", file=sys.stderr)
        if done.returncode != 0:
            self.failures.append(f"{what}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")


@pytest.mark.slow
@pytest.mark.parametrize(
    "page",
    [page for page, text in TEXTS.items() if "```bash" in text or "```python" in text],
)
def test_what_a_page_shows_runs(
    page: str, run_cli: RunCli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    shown = Shown(run_cli, tmp_path)
    for command in BEFORE.get(page, []):
        shown.command(command.split())
    for block in blocks(TEXTS[page]):
        shown.block(block)
    for command in AFTER.get(page, []):
        shown.command(command.split())
    assert not shown.failures, "\n\n".join(shown.failures)
