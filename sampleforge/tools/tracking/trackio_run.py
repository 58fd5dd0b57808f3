"""The sink that writes a run into trackio's local database (extra ``trackio``)."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from contextvars import Context
from typing import Any

from sampleforge.run.reports.evaluated import evaluations
from sampleforge.run.reports.tags import tag
from sampleforge.tools.tracking.sink import TrackedRun


class TrackioRun:
    """A run of trackio, with the tags of TensorBoard; a step is an env step. Numbers of the summary
    are the metrics ``summary/...`` of the last step.

    trackio's own environment variables hold (TRACKIO_DIR, TRACKIO_SPACE_ID ...). It writes in a
    thread of its own, and warns itself of what it cannot write.
    """

    name = "trackio"

    def __init__(self) -> None:
        self._run: Any = None
        # trackio has one current run per context, and ends it when another one begins.
        self._context = Context()
        self._env_steps = 0

    def start(self, run: TrackedRun) -> str:
        import trackio

        self._env_steps = run.env_steps
        with redirect_stdout(io.StringIO()):  # it prints six lines
            self._run = self._context.run(
                trackio.init,
                project=run.project,
                name=run.earlier.get("name", run.name),
                group=run.group,
                config=dict(run.config),
                resume="allow" if run.earlier else "never",
                embed=False,
                auto_log_cpu=False,
                auto_log_gpu=False,
            )
        return f"To see this run in trackio: trackio show --project {run.project}"

    def report(
        self, values: Mapping[str, float], env_steps: int, policies: Sequence[str] = ()
    ) -> None:
        self._env_steps = env_steps
        found = evaluations(values)
        evaluated = {name for result in found.values() for name in result}
        now = {tag(n, policies): value for n, value in values.items() if n not in evaluated}
        self._run.log(now, step=env_steps)
        for prefix, result in found.items():
            tagged = {tag(name, policies): value for name, value in result.items()}
            self._run.log(tagged, step=int(result[f"{prefix}eval_env_steps"]))

    def state(self) -> Mapping[str, Any]:
        return {"name": self._run.name}

    def finish(self, summary: Mapping[str, Any]) -> None:
        import trackio

        numbers = {f"summary/{n}": v for n, v in summary.items() if type(v) in (int, float)}
        self._run.log(numbers, step=self._env_steps)
        with redirect_stdout(io.StringIO()):
            self._context.run(trackio.finish)
