"""The checkpoints of a run, as its processes write and read them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sampleforge.folder.checkpoint import Checkpoint, CheckpointStore

if TYPE_CHECKING:
    import torch

    from sampleforge.topologies.builders import Loads


class SaveCheckpoint:
    """What the learner's process calls to write a checkpoint."""

    def __init__(self, store: CheckpointStore) -> None:
        self._store = store

    def __call__(self, tensors: dict[str, torch.Tensor], state: dict[str, Any]) -> None:
        self._store.save(
            Checkpoint(tensors, state),
            env_steps=state["env_steps"],
            version=state["learner"]["version"],
            return_mean=state["return_mean"],
            eval_return_mean=state["eval_return_mean"],
            eval_env_steps=state["eval_env_steps"],
            milestone=state["milestone"],
        )


class ResumeCheckpoint:
    """The latest checkpoint, for the driver (weights) and the learner's process (everything)."""

    def __init__(self, store: CheckpointStore) -> None:
        self._store = store

    def weights(self, model: torch.nn.Module) -> int:
        """Load the model's weights; returns their policy version."""
        checkpoint = self._load()
        load_weights(model, model_tensors(checkpoint.tensors))
        return int(checkpoint.state["learner"]["version"])

    def learner(self, learner: Loads) -> None:
        """Load all of the learner's state."""
        checkpoint = self._load()
        learner.load(checkpoint.tensors, checkpoint.state["learner"])

    def plain(self) -> dict[str, Any]:
        """The learner's plain state."""
        plain: dict[str, Any] = self._load().state["learner"]
        return plain

    def _load(self) -> Checkpoint:
        found = self._store.load(log=lambda text: None)
        assert found is not None, "the driver has loaded it before"
        return found[0]


def load_weights(model: torch.nn.Module, tensors: dict[str, torch.Tensor]) -> None:
    """Load the weights of a checkpoint. Raises RuntimeError if they are not those of the model, in
    names, shapes or dtypes: torch would convert another dtype without a word."""
    for name, own in model.state_dict().items():
        found = tensors.get(name, own)
        if found.dtype != own.dtype:
            raise RuntimeError(f"{name!r} is {found.dtype}, but must be {own.dtype}")
    model.load_state_dict(tensors)


def model_tensors(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The model's state_dict among a checkpoint's tensors."""
    return {n.removeprefix("model/"): t for n, t in tensors.items() if n.startswith("model/")}
