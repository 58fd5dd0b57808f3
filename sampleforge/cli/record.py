"""The command `sampleforge record RUN_DIR`: play episodes with a trained policy into a dataset."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sampleforge.cli.flags import parse
from sampleforge.cli.play_flags import PlayFlags, play
from sampleforge.config import ConfigError
from sampleforge.runtime.files import to_json


@dataclass(frozen=True)
class RecordFlags(PlayFlags):
    episodes: int | None = 100
    """Episodes to play."""
    out: str | None = None
    """Folder of the dataset, in Minari's format; the episodes follow those that it has (default:
    dataset in the run folder)."""
    stochastic: bool = False
    """Sample the actions, as in training, and record their log-probabilities, which estimates of
    other policies need; off: take the most likely actions."""


def run(args: Sequence[str]) -> int:
    """Record, and print the result as one JSON object in the last line. Raises ConfigError."""
    text = "Play episodes with a trained policy and write them into a dataset in Minari's format."
    flags = parse(RecordFlags, args, "sampleforge record", text)
    from sampleforge.cli.outputs import check_folder
    from sampleforge.run.folder.run_folder import RunFolder
    from sampleforge.run.folder.trust import trusted_config
    from sampleforge.run.recording import PlayRecorder

    folder = check_folder("--out", Path(flags.out or Path(flags.run_dir) / "dataset"))
    config = trusted_config(RunFolder.existing(Path(flags.run_dir)), flags.trusted)
    if config.model.head is not None:
        raise ConfigError(
            f"{flags.run_dir} has a policy head of its own ({config.model.head}), and a dataset "
            "has the parameters of the built-in distributions of actions alone; record another run"
        )
    recorder = PlayRecorder(folder.absolute(), config.algo, squashed=config.model.squash_actions)
    try:
        result = play(flags, "record", stochastic=flags.stochastic, recorder=recorder)
    except OSError as error:
        print(f"sampleforge: error: {error}", file=sys.stderr)
        return 1
    del result["returns"]  # the dataset has them
    print(to_json({"dataset": str(folder), **result, **recorder.written}))
    return 0
