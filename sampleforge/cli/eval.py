"""`sampleforge eval RUN_DIR`: play episodes with a trained policy."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from sampleforge.cli.flags import parse
from sampleforge.config import Checked, check_range
from sampleforge.folder.atomic_file import to_json


@dataclass(frozen=True)
class EvalFlags(Checked):
    run_dir: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN_DIR")]
    """Folder of the run."""
    episodes: int = 10
    """Episodes to play."""
    stochastic: bool = False
    """Sample the actions, as in training; off: take the most likely ones."""
    seed: int | None = None
    """Seed of the episodes (none: one that follows from the run's own)."""
    checkpoint: Literal["latest", "best"] = "latest"
    """best: that of the highest return in training."""


def run(args: Sequence[str]) -> int:
    """Evaluate; the last line printed is one JSON object. Raises ConfigError."""
    text = "Play episodes with a trained policy and print their returns as one line of JSON."
    flags = parse(EvalFlags, args, "sampleforge eval", text)
    check_range(flags, "episodes", low=1)
    check_range(flags, "seed", low=0)
    from sampleforge.env.scratch import scratch_directory
    from sampleforge.evaluation import evaluate
    from sampleforge.folder.checkpoint import CheckpointError

    run_dir = Path(flags.run_dir).absolute()
    try:
        with scratch_directory():
            result = evaluate(
                run_dir,
                episodes=flags.episodes,
                stochastic=flags.stochastic,
                seed=flags.seed,
                which=flags.checkpoint,
            )
    except CheckpointError as error:
        print(f"sampleforge: error: {error}", file=sys.stderr)
        return 1
    print(to_json(result))
    return 0
