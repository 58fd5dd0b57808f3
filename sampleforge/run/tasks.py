"""The tasks of a curriculum, as the session sets and keeps them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sampleforge.config import ConfigError
from sampleforge.shared.newest import TaskBoard
from sampleforge.spec import EnvSpec

STATE = "tasks"
"""Key of the tasks in checkpoints."""


class Tasks:
    """The tasks of the environments that train (``training``), and of those of the evaluator.

    Both are kept in checkpoints, and set again when the run is resumed (``earlier``: the state of
    its newest checkpoint, empty for a new run). The boards are None if the environment takes no
    task. ``shared``: whether all workers can see this process's shared memory.
    """

    def __init__(self, spec: EnvSpec, earlier: Mapping[str, Any], *, shared: bool) -> None:
        self._env_id = spec.env_id
        self._shared = shared
        takes = spec.takes_task and shared
        self.training: TaskBoard | None = TaskBoard() if takes else None
        self.evaluation: TaskBoard | None = TaskBoard() if takes else None
        for board, name in ((self.training, "training"), (self.evaluation, "evaluation")):
            if board is not None and name in earlier.get(STATE, {}):
                board.set(earlier[STATE][name])

    def set(self, board: TaskBoard | None, task: Any) -> None:
        """Set the task of one of the boards. Raises ConfigError if the environment takes none, or
        not this one."""
        if not self._shared:
            raise ConfigError(
                "tasks reach the environments of one machine only, and torchrun has started these "
                "ranks; use --num-ranks instead of torchrun"
            )
        if board is None:
            raise ConfigError(
                f"{self._env_id} takes no tasks: it has no method set_task(task); write one, or a "
                "wrapper that has it"
            )
        board.set(task)

    def state(self) -> dict[str, Any]:
        """Return the tasks for a checkpoint; empty if none has been set."""
        boards = {"training": self.training, "evaluation": self.evaluation}
        tasks = {name: b.read()[1] for name, b in boards.items() if b is not None and b.number}
        return {STATE: tasks} if tasks else {}
