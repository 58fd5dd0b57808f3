"""SampleForge from Python: train, a trainer to step by hand, a trained policy to act with."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sampleforge.driver import Run
from sampleforge.loaded_policy import LoadedPolicy, load_policy
from sampleforge.topologies.config import AnyConfig

__all__ = ["LoadedPolicy", "Result", "Trainer", "load_policy", "train"]


@dataclass(frozen=True)
class Result:
    """A finished run: its folder, and what summary.json says."""

    run_dir: Path
    summary: dict[str, Any]


def train(config: AnyConfig) -> Result:
    """Run ``config`` to its stop condition. Raises ConfigError for what cannot run, and what a
    worker died of as WorkerDied; Ctrl-C ends it in order, with a checkpoint."""
    with Run(config) as run:
        for _ in run.reports():
            pass
    return Result(run.folder.path, json.loads(run.folder.summary_file.read_text()))


class Trainer:
    """Training step by step, for notebooks and sweeps::

    with Trainer(config) as trainer:
        for report in trainer:      # a dict of scalars per report interval, and per evaluation
            ...
        trainer.save()
    """

    def __init__(self, config: AnyConfig) -> None:
        self._run = Run(config)
        self._policy: LoadedPolicy | None = None

    def __enter__(self) -> Trainer:
        self._run.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._run.__exit__(*error)

    def __iter__(self) -> Iterator[dict[str, float]]:
        return self._run.reports()

    @property
    def run_dir(self) -> Path:
        return self._run.folder.path

    def save(self) -> None:
        """Write a checkpoint now."""
        self._run.save()

    def compute_action(self, obs: Any) -> Any:
        """The most likely action for one observation, by the newest weights. For a recurrent model
        or action masks use `load_policy`, which carries the state and takes masks."""
        if self._policy is None:
            self._policy = LoadedPolicy(self._run.new_model(), self._run.spec)
        self._run.graph.weights.read(self._policy.model.state_dict())
        return self._policy.act(obs)[0]
