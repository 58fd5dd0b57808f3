"""Every example runs as its first lines say, and learns."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sampleforge.api import train
from sampleforge.run.folder.trust import Trust
from sampleforge.tools.export.write import export_run
from sampleforge.topologies.config import AppoConfig
from tests.support import REPO
from tests.support.processes import RunCli

EXAMPLES = sorted((REPO / "examples").glob("*.py"))
NOTEBOOKS = sorted((REPO / "examples").glob("*.ipynb"))
LEARNED = {
    "custom_callback": (r"stopped at a mean return of ([\d.]+)", 150.0),
    "custom_env": (r"with the trained policy: (\S+)", 0.8),
    "curriculum": (r"distances up to (\d+) are mastered", 32.0),
    "custom_model": (r"last 100 episodes: (\S+)", 60.0),
    "minimal_appo": (r"mean return at the end: (\S+)", 200.0),
    "own_algorithm": (r"last 100 episodes: (\S+)", 60.0),
    "own_distribution": (r"last 100 episodes: (\S+)", -900.0),
    "own_loss": (r"last 100 episodes: (\S+)", -900.0),
    "play_onnx": (r"mean return of 10 episodes: (\S+)", 60.0),
    "step_by_step": (r"newest weights: (\d+) steps", 100.0),
}
"""Of each example: a figure that it prints, and what it is at least once something was learned."""


@pytest.mark.multiprocess(timeout=110)
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs_and_learns(run_cli: RunCli, path: Path, tmp_path: Path) -> None:
    if path.stem == "play_onnx":
        export_cartpole(tmp_path)
    done = run_cli(str(path), timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    pattern, least = LEARNED[path.stem]
    found = re.search(pattern, done.stdout)
    assert found is not None, done.stdout
    assert float(found[1]) >= least, done.stdout


def export_cartpole(folder: Path) -> None:
    """Train a policy that is better than a random one, whose return is about 22, and export it."""
    config = AppoConfig(
        env="CartPole-v1",
        run_dir=str(folder / "run"),
        serial=True,
        quiet=True,
        seed=1,
        train_for_env_steps=15_000,
    )
    export_run(train(config).run_dir, folder / "policy.onnx", "onnx", trust=Trust())


def test_the_consumer_of_an_exported_policy_does_without_sampleforge() -> None:
    code = (REPO / "examples" / "play_onnx.py").read_text(encoding="utf-8")
    assert re.findall(r"^(?:import|from) (\w+)", code, re.MULTILINE) == [
        *("__future__", "sys", "gymnasium", "numpy", "onnxruntime")
    ]


def test_the_list_of_examples_is_complete() -> None:
    text = (REPO / "examples" / "README.md").read_text(encoding="utf-8")
    assert {path.name for path in [*EXAMPLES, *NOTEBOOKS]} == set(
        re.findall(r"\((\w+\.(?:py|ipynb))\)", text)
    )
