"""Whether two commits learn the same with a preset: both train it for a few updates in one process
(``--serial``), which is the same to the bit each time, and the weights are compared."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter
from io import BytesIO
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file
from staleness import PACKAGES, git

from sampleforge.presets import preset_values
from sampleforge.presets.scores import PresetScore
from sampleforge.topologies.config import ALGOS, RanksRunConfig

ENV_STEPS = 6144, 49_152
"""Length of a training: three batches of the defaults, and some updates of SAC and TD3; more where
this makes too few gradient steps."""
GRADIENT_STEPS = 16
"""Least number of gradient steps, so that what an update leaves behind has been used by others."""


class NotComparable(Exception):
    """A training that says nothing; the message has the reason."""


def same_weights(repo: Path, score: PresetScore, commit: str) -> bool:
    """Return whether the code of the score's commit and that of ``commit`` train its preset alike.
    Raises NotComparable where a training fails or is too short, or where it would depend on the
    clock."""
    if not score.is_current:
        raise NotComparable("the settings of the preset were changed")
    if score.commit.endswith("-dirty"):
        raise NotComparable(f"no commit has the code of {score.commit}")
    if "train_for_seconds" in preset_values(score.algo, score.preset):
        raise NotComparable("its schedules follow the clock")
    return first_weights(repo, score, score.commit) == first_weights(repo, score, commit)


def first_weights(repo: Path, score: PresetScore, commit: str) -> Counter[bytes]:
    """Return the weights, each tensor as its bytes, that the code of a commit has at the end of a
    short training of the score's preset, on one thread. Their names may differ between commits."""
    for env_steps in ENV_STEPS:
        tensors = trained(repo, score, commit, env_steps)
        counts = [int(x) for name, x in tensors.items() if name.endswith("/step")]
        if max(counts, default=0) >= GRADIENT_STEPS:
            return Counter(x.tobytes() for name, x in tensors.items() if name.startswith("model/"))
    raise NotComparable(f"{commit} makes too few gradient steps in {max(ENV_STEPS):,} env steps")


def trained(
    repo: Path, score: PresetScore, commit: str, env_steps: int
) -> dict[str, NDArray[np.generic]]:
    """Return the tensors of the last checkpoint of a training by the code of a commit."""
    with tempfile.TemporaryDirectory() as temporary:
        folder, run_dir = Path(temporary), Path(temporary) / "run"
        unpack(repo, commit, folder)
        words = ["train.py", score.algo, "--preset", score.preset]
        words += [*shlex.split(further_flags(score)), "--seed", "1", "--serial", "--quiet"]
        words += ["--train-for-env-steps", str(env_steps), "--run-dir", str(run_dir)]
        if issubclass(ALGOS[score.algo], RanksRunConfig):
            words += ["--num-ranks", "1"]
        environ = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": temporary}
        command = [sys.executable, *words]
        done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True)
        if done.returncode:
            raise NotComparable(f"{commit} does not train it: {done.stderr.strip()[-300:]}")
        return load_file(max((run_dir / "checkpoints").glob("*.safetensors")))


def further_flags(score: PresetScore) -> str:
    """Return the flags of the score's training beside the preset and the seed."""
    start = f"python train.py {score.algo} --preset {score.preset}"
    return score.command.removeprefix(start).removesuffix("--seed S").strip()


def unpack(repo: Path, commit: str, folder: Path) -> None:
    """Write the package, the environments and train.py of a commit into a folder."""
    packed = git(repo, "archive", "--format=tar", commit, *PACKAGES, "train.py")
    with tarfile.open(fileobj=BytesIO(packed)) as archive:
        archive.extractall(folder, filter="data")
    (folder / "sampleforge_envs").symlink_to("envs")  # as setup.py installs them
