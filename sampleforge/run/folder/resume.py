"""The functions by which the processes of a run write and load its checkpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sampleforge.config import ConfigError
from sampleforge.run.folder.checkpoint import Checkpoint, CheckpointStore
from sampleforge.run.folder.run_folder import RunFolder

if TYPE_CHECKING:
    import torch

    from sampleforge.algorithms.learning import Learner


class SaveCheckpoint:
    """Writes a checkpoint; the learner's process calls it."""

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
    """Loads the latest checkpoint: its weights in the driver, the complete state in the learner."""

    def __init__(self, store: CheckpointStore) -> None:
        self._store = store

    def weights(self, model: torch.nn.Module) -> int:
        """Load the weights of the checkpoint into ``model``; return their policy version. Raises
        ConfigError if they are those of another network."""
        checkpoint = self._load()
        try:
            load_weights(model, model_tensors(checkpoint.tensors))
        except RuntimeError as error:
            raise ConfigError(
                f"the checkpoint in {self._store.folder} is of another network: "
                f"{' '.join(str(error).split())}; undo the change of the encoder or the model, or "
                "start a new run with another --run-dir"
            ) from error
        return int(checkpoint.state["learner"]["version"])

    def learner(self, learner: Learner) -> None:
        """Load the complete state of the checkpoint into ``learner``."""
        checkpoint = self._load()
        learner.load(checkpoint.tensors, checkpoint.state["learner"])

    def plain(self) -> dict[str, Any]:
        """Return the plain values of the learner's state."""
        plain: dict[str, Any] = self._load().state["learner"]
        return plain

    def _load(self) -> Checkpoint:
        loaded = self._store.load(log=lambda text: None)
        assert loaded is not None, "the driver has loaded it before"
        return loaded[0]


def frozen_weights(weights: str) -> ResumeCheckpoint:
    """Return the latest checkpoint of a run folder, or, with ``weights`` as folder:id, that of its
    policy with this id. Raises ConfigError if there is none."""
    run_dir, _, policy = weights.partition(":")
    folder = RunFolder.existing(run_dir)
    store = CheckpointStore(folder.policy_checkpoints(policy or None), 1)
    if store.load(log=lambda text: None) is None:
        raise ConfigError(f"--policy-weights {weights}: there is no checkpoint yet; train it first")
    return ResumeCheckpoint(store)


def load_weights(model: torch.nn.Module, tensors: dict[str, torch.Tensor]) -> None:
    """Load the weights of a checkpoint. Raises RuntimeError if they are not those of the model, in
    names, shapes or dtypes: torch itself would convert another dtype and not say so."""
    for name, own in model.state_dict().items():
        found = tensors.get(name, own)
        if found.dtype != own.dtype:
            raise RuntimeError(f"{name!r} is {found.dtype}, but must be {own.dtype}")
    model.load_state_dict(tensors)


def model_tensors(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the model's state_dict from a checkpoint's tensors."""
    return {n.removeprefix("model/"): t for n, t in tensors.items() if n.startswith("model/")}
