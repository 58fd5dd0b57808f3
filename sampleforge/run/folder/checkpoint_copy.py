"""A copy of a run's newest checkpoints, as a run folder of its own."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from sampleforge.config import ConfigError
from sampleforge.run.folder.checkpoint import CheckpointStore
from sampleforge.run.folder.run_folder import RunFolder


def check_empty(path: str | Path) -> Path:
    """Return the absolute path of a folder to copy to. Raises ConfigError if there is a file of
    that name, or a folder that is not empty."""
    to = Path(path).absolute()
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise ConfigError(f"{to} is not an empty folder; give another one to save to")
    return to


def copy_newest(folder: RunFolder, stores: Sequence[CheckpointStore], to: Path) -> None:
    """Copy config.yaml, spec.json and the newest checkpoint of each of ``stores`` into the folder
    ``to`` (see `check_empty`).

    It is then a run folder: it can be loaded, evaluated, exported, and trained from. The replay and
    the metrics of the run are not copied. Raises OSError if it cannot be written.
    """
    copy = RunFolder(to)
    copy.checkpoints.mkdir(parents=True)
    for store in stores:
        found = store.load(log=lambda text: None)
        assert found is not None, "a checkpoint was written before"
        where = copy.path / store.folder.relative_to(folder.path)
        where.mkdir(exist_ok=True)
        shutil.copyfile(store.folder / found[1].file, where / found[1].file)
    shutil.copyfile(folder.spec_file, copy.spec_file)
    shutil.copyfile(folder.config_file, copy.config_file)  # last: it makes a run folder of it
