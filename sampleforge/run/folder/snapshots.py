"""The snapshots of self-play in a run folder: the weights of a policy at earlier env steps."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from sampleforge.run.folder.checkpoint import Checkpoint, decode, encode
from sampleforge.run.folder.files import write_atomically, writing

if TYPE_CHECKING:
    import torch

SUFFIX = ".safetensors"


class SnapshotFiles:
    """The files ``<number>.safetensors`` in ``folder``, each with the weights of one snapshot."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def _path(self, number: int) -> Path:
        return self._folder / f"{number}{SUFFIX}"

    def write(self, number: int, env_steps: int, weights: Mapping[str, torch.Tensor]) -> None:
        """Write the weights of snapshot ``number``, a model's state_dict, and replace an earlier
        file of this number. Raises CannotWrite, as on a full disk."""
        self._folder.mkdir(exist_ok=True)
        tensors = {f"model/{name}": tensor for name, tensor in weights.items()}
        data = encode(Checkpoint(tensors, {"env_steps": env_steps}), {"number": number})
        with writing(self._path(number)):
            write_atomically(self._path(number), data)

    def read(self, number: int) -> Checkpoint:
        """Return a snapshot, with the tensors of the model as in a checkpoint. Raises
        FileNotFoundError if it is not there, CheckpointError if it is damaged."""
        return decode(self._path(number).read_bytes())

    @property
    def numbers(self) -> list[int]:
        """The numbers of all snapshots that are there, in order."""
        return sorted(
            int(path.stem) for path in self._folder.glob(f"*{SUFFIX}") if path.stem.isdigit()
        )

    def keep_only(self, numbers: Collection[int]) -> None:
        """Remove all other snapshots."""
        for number in set(self.numbers) - set(numbers):
            self._path(number).unlink(missing_ok=True)
