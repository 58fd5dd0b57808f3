"""The reading of episodes in Minari's Arrow and Parquet formats, through Minari itself."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from sampleforge.data import minari_format as fields
from sampleforge.data.dataset_folder import own_file
from sampleforge.spec import EnvSpaces


class ArrowEpisodes:
    """The episodes of a dataset in the folder ``folder``, one folder each; the arguments
    are those of `sampleforge.data.hdf5_episodes.Hdf5Episodes`."""

    def __init__(self, folder: Path, stored: EnvSpaces, most_steps: int, *, jpeg: bool) -> None:
        from minari.dataset._storages import get_minari_storage

        metadata = json.loads((folder / fields.METADATA_FILE).read_text(encoding="utf-8"))
        kind = get_minari_storage(metadata["data_format"])
        self._storage = kind(folder, stored.observation, stored.action, jpeg_encoding=jpeg)
        self._folder = folder
        self._most_steps = most_steps

    def __len__(self) -> int:
        return sum(each.is_dir() and each.name.isdecimal() for each in self._folder.iterdir())

    def read(self, numbers: Sequence[int]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
        """Yield the arrays of each episode, and its attributes. Raises ValueError for what is not
        as it must be."""
        for number in numbers:
            self._check(number)
            (episode,) = self._storage.get_episodes([number])
            (about,) = self._storage.get_episode_metadata([number])
            yield episode, about

    def _check(self, number: int) -> None:
        """Raise ValueError for files from elsewhere, and for more rows than there are env steps."""
        import pyarrow.dataset

        folder = self._folder / str(number)
        if folder.resolve().parent != self._folder.resolve():
            raise ValueError(f"{number} leads out of the dataset's folder")
        names = [each.name for each in folder.iterdir()]
        for name in names:
            own_file(folder, name)
        files = [str(folder / name) for name in names if name != fields.METADATA_FILE]
        if not files:
            raise ValueError("it has no arrays")
        rows = pyarrow.dataset.dataset(files, format=self._storage.FORMAT).count_rows()
        if rows > self._most_steps + 1:
            raise ValueError(
                f"it declares {rows:,} rows, but the dataset has total_steps {self._most_steps:,}"
            )
