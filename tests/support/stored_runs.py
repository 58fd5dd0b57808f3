"""Small run folders of every kind, which are stored with the tests so that later versions are shown
to resume and evaluate them: `python -m tests.support.stored_runs FOLDER` makes them anew.

Those in tests/run/folder/stored are not made again with a later version: that they are of an
earlier one is what they are for. A kind that is added here is made by the version that adds it.
"""

from __future__ import annotations

import contextlib
import shutil
import sys
from pathlib import Path

from sampleforge.cli import main

_SERIAL = ("--serial", "--quiet", "--seed", "3", "--keep-checkpoints", "1")
_SMALL = (*_SERIAL, "--model.hidden-sizes", "4", "--num-envs-per-worker", "4", "--rollout", "8")
_CARTPOLE = ("--env", "CartPole-v1", *_SMALL)
_APPO = ("appo", *_CARTPOLE, "--batch-size", "32")
_APEX = ("apex", *_CARTPOLE, "--batch-size", "8", "--learning-starts", "64")
_GRU = ("--model.core", "gru", "--model.core-size", "4")
_SEQUENCES = ("--sequence-length", "8", "--sequence-overlap", "4", "--burn-in", "2")
_PBT = ("--pbt-start", "100", "--pbt-period", "100", "--pbt-initial", "learning-rate=1e-5..1e-2")
_DUEL = ("--env", "PaddleDuel-v0", *_SMALL, "--batch-size", "64", "--opponent-pool", "2")

COMMANDS: dict[str, tuple[str, ...]] = {
    "recorded": ("train", *_APPO, "--record", "data"),
    "appo": ("train", *_APPO),
    "appo-gru": ("train", *_APPO, *_GRU),
    "apex": ("train", *_APEX, "--replay-capacity", "128", "--save-replay"),
    "r2d2": ("train", *_APEX, *_GRU, *_SEQUENCES, "--replay-capacity", "128"),
    "ddppo": ("train", "ddppo", *_CARTPOLE),
    "marwil": (
        *("train", "marwil", "--env", "CartPole-v1", *_SERIAL, "--model.hidden-sizes", "4"),
        *("--input", "data", "--batch-size", "32", "--evaluate-interval", "100000"),
    ),
    "pbt": ("train", *_APPO, "--num-policies", "2", "--pbt", *_PBT),
    "self-play": ("train", "appo", *_DUEL, "--opponent-interval", "64"),
    "population": ("pbt", "--population", "2", "--jobs", "1", *_PBT, *_APPO),
}
"""Kind of run -> the command that makes its folder of this name, in the current folder, without
its number of env steps."""
ENV_STEPS = {"recorded": 64, "population": 200}
"""Kind of run -> its env steps, 512 for others."""
_NOT_READ = ("recorded", "tb", "log.txt", ".lock", "jobs")
"""Parts of the folders that nothing reads again."""


def command(kind: str, env_steps: int) -> list[str]:
    """Return the command that begins, or resumes, the run of this kind until ``env_steps``."""
    verb, *flags = COMMANDS[kind]
    flags = ["--folder", kind, *flags] if verb == "pbt" else [*flags, "--run-dir", kind]
    return [verb, *flags, "--train-for-env-steps", str(env_steps)]


def make(folder: Path) -> None:
    """Make a run folder of each kind in ``folder``."""
    with contextlib.chdir(folder):
        for kind in COMMANDS:
            if main(command(kind, ENV_STEPS.get(kind, 512))) != 0:
                raise RuntimeError(f"the run {kind} has failed")
        for name in _NOT_READ:
            for path in Path().glob(f"**/{name}"):
                shutil.rmtree(path) if path.is_dir() else path.unlink()


if __name__ == "__main__":
    make(Path(sys.argv[1]))
