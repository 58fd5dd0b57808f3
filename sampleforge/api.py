"""The Python API: `train` a run, a `Trainer` to follow step by step, `load_policy` to act."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sampleforge.loaded_policy import LoadedPolicy, load_policy
from sampleforge.populations.callbacks import population_callbacks, with_schedule_seed
from sampleforge.session.callback import Callback
from sampleforge.session.session import Session
from sampleforge.topologies.config import AnyConfig

if TYPE_CHECKING:
    from sampleforge.export.write import Format

__all__ = ["LoadedPolicy", "Result", "Trainer", "load_policy", "train"]


@dataclass(frozen=True)
class Result:
    """A finished run: its folder and the contents of summary.json."""

    run_dir: Path
    summary: dict[str, Any]


def train(config: AnyConfig, callbacks: Sequence[Callback] = ()) -> Result:
    """Run ``config`` until its stop condition, or measure it if ``config.benchmark`` is set.

    Raises ConfigError for a config that cannot run, and WorkerDied if a worker has died. Ctrl-C
    ends the run in order, with a checkpoint, and then raises KeyboardInterrupt.
    """
    config = with_schedule_seed(config)
    session = Session(config, [*population_callbacks(config), *callbacks])
    session.open()
    if config.benchmark:
        from sampleforge.benchmark import run_benchmark

        run_benchmark(session)
    else:
        with session:
            for _ in session.reports():
                pass
    return Result(session.folder.path, json.loads(session.folder.summary_file.read_text()))


class Trainer:
    """Training step by step, for notebooks and sweeps::

    with Trainer(config) as trainer:
        for report in trainer:      # a dict of scalars per report interval, and per evaluation
            ...
        trainer.save()

    ``policies``: see `Session`.
    """

    def __init__(
        self,
        config: AnyConfig,
        callbacks: Sequence[Callback] = (),
        *,
        policies: Sequence[str] | None = None,
    ) -> None:
        config = with_schedule_seed(config)
        both = [*population_callbacks(config), *callbacks]
        self.session = Session(config, both, policies=policies)
        self._policy: LoadedPolicy | None = None

    def __enter__(self) -> Trainer:
        self.session.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self.session.__exit__(*error)

    def __iter__(self) -> Iterator[dict[str, float]]:
        return self.session.reports()

    @property
    def run_dir(self) -> Path:
        return self.session.folder.path

    def save(self) -> None:
        """Write a checkpoint now."""
        self.session.save()

    def export(
        self, path: str | Path, format: Format | None = None, policy: int = 0
    ) -> dict[str, Any]:
        """Write policy number ``policy`` (from 0), with its newest weights, to a file that runs
        without SampleForge; return the file's metadata. ``format``, the metadata and the errors
        are those of `sampleforge.export.write.export_policy`."""
        from sampleforge.export.write import export_policy

        details = {"env_steps": self.session.graph.progress.env_steps}
        return export_policy(self._newest(policy), path, format, details=details)

    def compute_action(self, obs: Any, policy: int = 0) -> Any:
        """Return the most likely action for one observation, computed with the newest weights of
        policy number ``policy`` (from 0). For a recurrent model or action masks use `load_policy`,
        whose `act` takes state and mask."""
        return self._newest(policy).act(obs)[0]

    def _newest(self, policy: int) -> LoadedPolicy:
        """Return policy number ``policy`` with its newest weights."""
        if self._policy is None:
            self._policy = LoadedPolicy(self.session.new_model(), self.session.spec)
        self.session.graph.groups[policy].weights.read(self._policy.model.state_dict())
        return self._policy
