"""The folder of a sweep or of a population of runs, with the lock of its launcher."""

from __future__ import annotations

import os
from pathlib import Path

from sampleforge.config import ConfigError
from sampleforge.run.folder.lock import lock_folder
from sampleforge.run.folder.trust import check_places


class PopulationFolder:
    """A context that creates the folder and locks it against other launchers. Raises ConfigError if
    it cannot be used, or if a link in it leads out of it."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()

    def __enter__(self) -> PopulationFolder:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            check_places(self.path, tuple(os.listdir(self.path)))
            self._lock = lock_folder(self.path, "--folder")
        except OSError as error:
            raise ConfigError(
                f"--folder {self.path} cannot be used: {error.strerror} ({error.filename}); give "
                "another folder"
            ) from error
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._lock)


STUDY, POPULATION = "study.db", "population.json"
"""The files by which the folders of sweeps and of populations of runs are recognised."""
