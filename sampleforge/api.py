"""The Python API: `train` a run, a `Trainer` to follow step by step, `load_policy` to act."""

from __future__ import annotations

from collections.abc import Sequence

from sampleforge.loaded_policy import LoadedPolicy, load_policy
from sampleforge.result import Result
from sampleforge.run.callback import Callback
from sampleforge.topologies.config import AnyConfig
from sampleforge.trainer import Trainer

__all__ = ["LoadedPolicy", "Result", "Trainer", "load_policy", "train"]


def train(
    config: AnyConfig, callbacks: Sequence[Callback] = (), *, display: bool | None = None
) -> Result:
    """Run ``config`` until its stop condition, or measure it if ``config.benchmark`` is set.
    ``display``: show the run as the command line does, with a live panel on a terminal and in a
    notebook, and lines elsewhere (None: unless ``config.quiet``).

    Raises ConfigError for a config that cannot run, and WorkerDied if a worker has died. Ctrl-C
    ends the run in order, with a checkpoint, and then raises KeyboardInterrupt.
    """
    shown = not config.quiet if display is None else display
    trainer = Trainer(config, callbacks, display=shown)
    if config.benchmark:
        from sampleforge.tools.benchmark.benchmark import run_benchmark

        session = trainer.session
        session.open()
        run_benchmark(session)
        return Result.of(session.folder)
    with trainer:
        for _ in trainer:
            pass
    return trainer.result
