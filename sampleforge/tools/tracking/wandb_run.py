"""The sink that sends a run to Weights & Biases (extra ``wandb``)."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from sampleforge.run.reports.evaluated import evaluations
from sampleforge.run.reports.tags import tag
from sampleforge.tools.tracking.sink import TrackedRun

LIMITS_S = {"init_timeout": 30.0, "finish_timeout": 30.0, "login_timeout": 15.0}
"""Seconds that the service may hold a run at its start, at its end, and for a login; environment
variables such as WANDB_FINISH_TIMEOUT set others."""


class WandbRun:
    """A run of Weights & Biases, with the tags of TensorBoard. Env steps are the horizontal axis;
    evaluations are at the env steps at which their weights were copied.

    wandb's own environment variables hold (WANDB_MODE=offline, WANDB_ENTITY, WANDB_DIR ...).
    """

    name = "wandb"

    def __init__(self) -> None:
        self._run: Any = None
        self._step = 0
        """wandb's own count of what was logged. Offline it would begin at 0 in a resumed run."""
        self._defined: set[str] = set()

    def start(self, run: TrackedRun) -> str:
        import wandb

        limits: dict[str, Any] = {
            n: s for n, s in LIMITS_S.items() if f"WANDB_{n.upper()}" not in os.environ
        }
        self._run = wandb.init(
            project=run.project,
            name=run.name,
            group=run.group,
            config=dict(run.config),
            id=run.earlier.get("id"),
            resume="allow",
            reinit="create_new",
            # The run has its own output, which wandb neither records nor adds to.
            settings=wandb.Settings(console="off", silent=True, **limits),
        )
        self._step = max(int(self._run.step), int(run.earlier.get("step", 0)))
        if self._run.offline:
            folder = os.path.relpath(os.path.dirname(self._run.dir))
            return f"wandb is offline; to send the run later: wandb sync {folder}"
        return f"This run at Weights & Biases: {self._run.url}"

    def report(
        self, values: Mapping[str, float], env_steps: int, policies: Sequence[str] = ()
    ) -> None:
        self._define("", policies)
        found = evaluations(values)
        evaluated = {name for result in found.values() for name in result}
        now = {name: value for name, value in values.items() if name not in evaluated}
        self._log({tag(name, policies): value for name, value in now.items()})
        for prefix, result in found.items():
            self._define(prefix, policies)
            self._log({tag(name, policies): value for name, value in result.items()})

    def _log(self, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=self._step)
        self._step += 1

    def _define(self, prefix: str, policies: Sequence[str]) -> None:
        """Say once which metric is the horizontal axis: env steps, and for the evaluations of a
        policy theirs."""
        if not self._defined:
            self._run.define_metric("*", step_metric=tag("env_steps"))
            self._run.define_metric("eval/*", step_metric=tag("eval_env_steps"))
            self._defined.add("")
        if prefix not in self._defined:
            self._defined.add(prefix)
            axis = tag(f"{prefix}eval_env_steps", policies)
            self._run.define_metric(f"{prefix}eval/*", step_metric=axis)

    def state(self) -> Mapping[str, Any]:
        return {"id": self._run.id, "step": self._step}

    def finish(self, summary: Mapping[str, Any]) -> None:
        self._run.summary.update(dict(summary))
        self._run.finish(exit_code=1 if summary["status"] == "failed" else 0)
