"""The reading of episodes from Minari's HDF5 files, which may come from anywhere, and in its Arrow
and Parquet formats, through Minari itself.

HDF5 can name other files: by links, as the storage of an array, or as the parts of a virtual one.
None of these is followed, but for links from the index to files in its own folder, as SampleForge
writes them. What an array declares to be is compared with what it must be, with the size of what is
stored, and with the memory, before it is read.
"""

from __future__ import annotations

import io
import json
import math
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from sampleforge.data import minari_format as fields
from sampleforge.runtime.machine import human_bytes, memory_available
from sampleforge.spec import EnvSpaces

Array = npt.NDArray[Any]
MOST_MEMORY = 0.5
"""Largest fraction of the available memory that one array may take."""
SMALL = 1 << 20
"""Bytes up to which an array is read whatever the file has of it."""
MOST_COMPRESSED = 1100
"""Largest ratio of an array's bytes to those that are stored; deflate reaches 1,032."""
OPEN_FILES = 32
"""Number of segments that are open at a time."""
PER_STEP = (fields.LOG_PROB, fields.VERSION, fields.PARAMETERS, fields.INDEPENDENT)


class Hdf5Files:
    """The open files of a dataset, by which its episodes are found. A context manager."""

    def __init__(self, folder: Path) -> None:
        import h5py

        self._h5 = h5py
        self._folder = folder
        self._parts: dict[str, Any] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Hdf5Files:
        self.index = self._stack.enter_context(self._open(fields.MAIN_FILE))
        return self

    def __exit__(self, *_: object) -> None:
        self._close_parts()
        self._stack.close()

    def __len__(self) -> int:
        return len(self.index)

    def episode(self, number: int) -> Any:
        """Return the group of an episode. Raises ValueError if there is none in these files."""
        name = f"episode_{number}"
        link = self.index.get(name, getlink=True)
        if link is None:
            raise ValueError(f"{fields.MAIN_FILE} has no {name}")
        if isinstance(link, self._h5.ExternalLink):
            name = link.path.removeprefix("/")
            return self._kind(self._child(self._part(link.filename), name, name), name)
        return self._kind(self._child(self.index, name, name), name)

    def array(
        self, group: Any, path: str, entries: int | None, shape: tuple[int, ...] | None = None
    ) -> Array:
        """Return the array at ``path``, [entries, *shape] (None: of any size)."""
        data = self.stored(group, path, entries)
        if data.dtype.kind not in "biuf":
            raise ValueError(f"{path} has the type {data.dtype}, but must be numbers")
        if shape is not None and data.shape[1:] != shape:
            raise ValueError(
                f"{path} declares entries of the shape {list(data.shape[1:])}, expected "
                f"{list(shape)}"
            )
        nbytes, size = data.dtype.itemsize * math.prod(data.shape), data.id.get_storage_size()
        if nbytes > max(SMALL, MOST_COMPRESSED * size):
            raise ValueError(
                f"{path} declares {human_bytes(nbytes)}, but the file has {human_bytes(size)} of it"
            )
        check_memory(path, nbytes)
        return np.asarray(data[()])

    def images(self, group: Any, path: str, entries: int, shape: tuple[int, ...]) -> Array:
        """Return the images, uint8 [entries, *shape], that are stored as JPEG."""
        from PIL import Image

        data = self.stored(group, path, entries)
        check_memory(path, entries * math.prod(shape))
        images, left = np.empty((entries, *shape), np.uint8), os.stat(data.file.filename).st_size
        for number, image in enumerate(images):
            encoded = np.asarray(data[number], np.uint8)
            left -= encoded.nbytes
            if left < 0:
                raise ValueError(f"{path} declares more bytes of images than the file has")
            with Image.open(io.BytesIO(encoded.tobytes()), formats=("JPEG",)) as opened:
                if opened.size != shape[1::-1]:
                    raise ValueError(f"{path} has an image of {opened.size}, expected {shape}")
                image[...] = np.asarray(opened).reshape(shape)
        return images

    def stored(self, group: Any, path: str, entries: int | None = None) -> Any:
        """Return what is stored at ``path``, with so many entries, without reading it."""
        data = group
        for name in path.split("/"):
            data = self._child(data, name, path)
        if not isinstance(data, self._h5.Dataset):
            raise ValueError(f"{path} is no array")
        if data.is_virtual or data.external:
            raise ValueError(
                f"{path} is stored in another file, and no file from elsewhere is read; write the "
                "dataset again, with its arrays in it"
            )
        if entries is not None and (data.shape or ())[:1] != (entries,):
            raise ValueError(
                f"{path} declares the shape {list(data.shape or ())}, expected {entries:,} entries"
            )
        return data

    def names(self, group: Any, path: str) -> list[str]:
        """Return the names in the group at ``path``; none if there is no such group."""
        for name in path.split("/"):
            if name not in group:
                return []
            group = self._child(group, name, path)
        return list(self._kind(group, path))

    def _child(self, group: Any, name: str, path: str) -> Any:
        """Return a member of a group. Raises ValueError for a link to another name or file."""
        if not isinstance(group, self._h5.Group):
            raise ValueError(f"{path} is missing")
        link = group.get(name, getlink=True)
        if link is None:
            raise ValueError(f"{path} is missing")
        if not isinstance(link, self._h5.HardLink):
            raise ValueError(
                f"{path} is a link to {getattr(link, 'filename', '')}{link.path}, and links are "
                "not followed; write the dataset again, with its arrays in it"
            )
        return group[name]

    def _kind(self, found: Any, path: str) -> Any:
        if not isinstance(found, self._h5.Group):
            raise ValueError(f"{path} is no group of arrays")
        return found

    def _part(self, name: str) -> Any:
        if name not in self._parts:
            if len(self._parts) >= OPEN_FILES:
                self._close_parts()
            self._parts[name] = self._open(name)
        return self._parts[name]

    def _open(self, name: str) -> Any:
        return self._h5.File(fields.own_file(self._folder, name), "r")

    def _close_parts(self) -> None:
        for part in self._parts.values():
            part.close()
        self._parts.clear()


def check_memory(what: str, nbytes: int) -> None:
    """Raise ValueError if ``what`` takes more memory than there is."""
    if nbytes > SMALL and nbytes > MOST_MEMORY * memory_available():
        raise ValueError(
            f"{what} takes {human_bytes(nbytes)} of memory, but only "
            f"{human_bytes(memory_available())} are available"
        )


class Hdf5Episodes:
    """The episodes of a dataset in the folder ``folder``, in the form of Minari's storage.
    ``stored``: their spaces; ``most_steps``: env steps that no episode exceeds; ``jpeg``: images
    are stored as JPEG."""

    def __init__(self, folder: Path, stored: EnvSpaces, most_steps: int, *, jpeg: bool) -> None:
        self._folder = folder
        self._spaces = stored
        self._most_steps = most_steps
        self._jpeg = jpeg

    def __len__(self) -> int:
        with Hdf5Files(self._folder) as files:
            return len(files)

    def read(self, numbers: Sequence[int]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
        """Yield the arrays of each episode, and its attributes. Raises ValueError for what is not
        as it must be."""
        with Hdf5Files(self._folder) as files:
            for number in numbers:
                group = files.episode(number)
                yield self._episode(files, group), _attributes(group)

    def _episode(self, files: Hdf5Files, group: Any) -> dict[str, Any]:
        shape: tuple[int, ...] = files.stored(group, "rewards").shape or ()
        if len(shape) != 1:
            raise ValueError(
                f"rewards declares the shape {list(shape)}, but must have one number for each "
                "step, [steps]; write the dataset again, with rewards of this shape"
            )
        if shape[0] > self._most_steps:
            raise ValueError(
                f"rewards declares the shape {list(shape)}, but the dataset has total_steps "
                f"{self._most_steps:,}"
            )
        steps = shape[0]
        columns = {n: files.array(group, n, steps, ()) for n in ("terminations", "truncations")}
        return {
            **columns,
            "rewards": files.array(group, "rewards", steps, ()),
            "observations": self._space(
                files, group, "observations", self._spaces.observation, steps + 1
            ),
            "actions": self._space(files, group, "actions", self._spaces.action, steps),
            "infos": self._infos(files, group, steps),
        }

    def _space(
        self, files: Hdf5Files, group: Any, path: str, space: gym.Space[Any], entries: int
    ) -> Any:
        """Return the arrays of a space, nested as it is."""
        if isinstance(space, spaces.Dict):
            return {
                key: self._space(files, group, f"{path}/{key}", child, entries)
                for key, child in space.spaces.items()
            }
        if isinstance(space, spaces.Tuple):
            return tuple(
                self._space(files, group, f"{path}/_index_{i}", child, entries)
                for i, child in enumerate(space.spaces)
            )
        assert space.shape is not None, "others have no spec"
        if self._jpeg and is_image(space):
            return files.images(group, path, entries, space.shape)
        return files.array(group, path, entries, space.shape)

    def _infos(self, files: Hdf5Files, group: Any, steps: int) -> dict[str, Any]:
        """Return the arrays that SampleForge adds; no others are read."""
        there = set(files.names(group, "infos"))
        infos: dict[str, Any] = {
            name: files.array(group, f"infos/{name}", steps) for name in there & {*PER_STEP}
        }
        if fields.MASK in there:
            infos[fields.MASK] = files.array(group, f"infos/{fields.MASK}", steps + 1)
        for name, entries in {fields.POLICY_ACTION: steps, fields.FRAMES_BEFORE: None}.items():
            infos[name] = {
                leaf: files.array(group, f"infos/{name}/{leaf}", entries)
                for leaf in files.names(group, f"infos/{name}")
            }
        return infos


def is_image(space: gym.Space[Any]) -> bool:
    """Return whether Minari stores a space as JPEG images, if it stores any."""
    from minari.dataset.minari_storage import is_image_space

    return bool(is_image_space(space))


def _attributes(group: Any) -> dict[str, Any]:
    """Return the attributes of an episode that SampleForge adds."""
    found: dict[str, Any] = {}
    for name in fields.ATTRIBUTES:
        if name in group.attrs:
            given = group.attrs.get_id(name)
            if given.dtype.kind not in "biu" or math.prod(given.shape) > 8:
                raise ValueError(f"the attribute {name} declares {given.dtype} {given.shape}")
            found[name] = group.attrs[name]
    return found


class ArrowEpisodes:
    """The episodes of a dataset in the folder ``folder``, one folder each; the arguments are those
    of `Hdf5Episodes`."""

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
            rows = self._check(number)
            (episode,) = self._storage.get_episodes([number])
            (about,) = self._storage.get_episode_metadata([number])
            if (steps := len(episode["rewards"])) != rows - 1:
                raise ValueError(
                    f"it has {rows - 1:,} steps, of which Minari's storage in "
                    f"{self._storage.FORMAT} reads {steps:,}; write the dataset again, in hdf5"
                )
            yield episode, about

    def _check(self, number: int) -> int:
        """Return the rows of an episode, one more than its steps. Raises ValueError for files from
        elsewhere, and for more rows than there are env steps."""
        import pyarrow.dataset

        folder = self._folder / str(number)
        if folder.resolve().parent != self._folder.resolve():
            raise ValueError(f"{number} leads out of the dataset's folder")
        names = [each.name for each in folder.iterdir()]
        for name in names:
            fields.own_file(folder, name)
        files = [str(folder / name) for name in names if name != fields.METADATA_FILE]
        if not files:
            raise ValueError("it has no arrays")
        rows = pyarrow.dataset.dataset(files, format=self._storage.FORMAT).count_rows()
        if rows > self._most_steps + 1:
            raise ValueError(
                f"it declares {rows:,} rows, but the dataset has total_steps {self._most_steps:,}"
            )
        return int(rows)
