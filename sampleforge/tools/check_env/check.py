"""The check of an environment before training: what it gives, how it ends, how fast it is, and what
it leaves behind.

It begins with the probe, as a training does, and then plays with random actions in a child process
of the same kind, so that an environment which hangs or crashes is a finding.
"""

from __future__ import annotations

from collections.abc import Iterator
from time import monotonic
from typing import NamedTuple

from sampleforge.env.config import EnvConfig
from sampleforge.env.probe import ChildWork, EnvFailed, EnvProbeError, child_messages, probe
from sampleforge.runtime.processes import available_cores
from sampleforge.tools.check_env.advice import Advice, advise
from sampleforge.tools.check_env.verdicts import Finding, human_time

CHECK = ChildWork("check", "sampleforge.tools.check_env.examination:examine")


class CheckProgress(NamedTuple):
    """How far the check is, 0 to 1, and what it does."""

    fraction: float
    doing: str


def check_env(config: EnvConfig, seconds: float) -> Iterator[Finding | CheckProgress | Advice]:
    """Check ``config.env`` for about ``seconds`` of play, and yield what is found as soon as it is
    known; and at last, if there is no error, what to begin with. The verdict "error" means that a
    training would be refused, end, or drop experience.

    An unknown environment, an import error, a hang and a crash are findings too; only
    MissingMainGuard is raised, see `probe`.
    """
    yield CheckProgress(0.0, "the probe")
    began, warned, not_closed = monotonic(), list[str](), list[str]()
    try:
        spec = probe(config, warned.append, not_closed.append)  # the play finds the rest
    except EnvProbeError as error:
        yield _failed("start", "in the probe, with which every training begins,", error)
        return
    for text in not_closed:
        fault, _, remedy = text.rpartition("; ")
        yield Finding("warning", "closing", fault, remedy)
    rows = f", {spec.num_seats} agents" if spec.num_seats > 1 else ""
    protocol = f"; {spec.protocol}" if spec.protocol else ""
    made = "1 row was" if spec.one_per_process else f"2 rows{rows} were"
    text = f"{made} made, reset and stepped in {human_time(monotonic() - began)}"
    yield Finding("ok", "start", f"{text}{protocol}")
    if spec.one_per_process:
        yield Finding("note", "rows", warned[0])
    progress = CheckProgress(0.0, "starting")
    values, failed = dict[str, float | None](), False
    options = {"seconds": seconds, "closes": not not_closed, "several": not spec.one_per_process}
    try:
        for message in child_messages(config, CHECK, **options):
            if "finding" in message:
                finding = Finding(**message["finding"])
                values |= finding.values
                failed |= finding.verdict == "error"
                yield finding
            elif "progress" in message:
                progress = CheckProgress(message["progress"], message["doing"])
                yield progress
    except EnvProbeError as error:
        if error.stage == "closed":
            text = f"its close() {error.cause}; what is measured afterwards is missing"
            yield Finding("warning", "closing", text, "correct close()", str(error))
        else:
            yield _failed("play", f"after the probe ({progress.doing})", error)
            return
    if "env_steps_per_s" in values and not failed:
        yield advise(config, spec, values, len(available_cores()))


def _failed(name: str, what: str, error: EnvProbeError) -> Finding:
    """Return the finding of an environment that ended its check. ``what``: where it was."""
    detail = str(error) if "\n" in str(error).strip() else ""
    remedy = "correct what the traceback or the stacks show" if isinstance(error, EnvFailed) else ""
    return Finding("error", name, f"{what} it {error.what}: {error.cause}", remedy, detail)
