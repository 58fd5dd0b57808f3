"""Reports to a run folder, a screen that is a text, and what TensorBoard was given."""

from __future__ import annotations

import io
import struct

from rich.console import Console

from sampleforge.run.folder.run_folder import RunFolder
from sampleforge.run.reports.reporter import Reporter
from sampleforge.run.screen.progress import Goal
from sampleforge.run.screen.screen import open_display
from sampleforge.runtime.files import to_json
from sampleforge.topologies.config import AppoConfig

SCALARS = {
    "frames_per_s_10s": 45_210.0,
    "return_mean": 123.456,
    "return_std": 3.0,
    "policy_lag_mean": 1.25,
    "policy_lag_max": 4.0,
    "loss": -0.0123,
    "something_new": 7.0,
}


class ShownReporter(Reporter):
    """The files and the screen of a run together, as the command has them."""

    def __init__(self, folder, display):
        super().__init__(folder)
        self._display = display
        self.state = None

    def report(self, scalars, *, env_steps, wall_s, **more):
        warning = super().report(scalars, env_steps=env_steps, wall_s=wall_s, **more)
        values = {**scalars, "env_steps": env_steps, "wall_s": wall_s}
        self._display.update(values, self.state)
        return warning

    def log(self, text, level="info", source="driver"):
        if level != "debug":
            self._display.message(text, level)
        super().log(text, level, source)

    def close(self):
        super().close()
        self._display.close()


def reporter(folder, quiet=False, terminal=False, width=100, **goal):
    """A reporter, and the text that it shows."""
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=terminal, width=width, color_system=None)
    ends = Goal(goal.get("total_env_steps"), goal.get("total_seconds"))
    display = open_display("E, appo", ends, quiet, console)
    return ShownReporter(folder, display), screen


def report_steps(folder, *steps, **options):
    """Reports at these env steps, one per second; returns the text shown."""
    reporting, screen = reporter(folder, **options)
    with reporting:
        for step in steps:
            reporting.report(SCALARS, env_steps=step, wall_s=step / 100)
    return screen.getvalue()


def events(folder):
    """(step, tag -> value) of all TensorBoard events, in order, read by hand."""
    from tensorboardX.proto.event_pb2 import Event

    for path in sorted(folder.tensorboard.iterdir()):
        data = path.read_bytes()
        while data:
            (length,) = struct.unpack("Q", data[:8])
            event = Event.FromString(data[12 : 12 + length])
            data = data[16 + length :]
            if event.HasField("summary"):
                yield event.step, {v.tag: v.simple_value for v in event.summary.value}


def make_run(path, reports, **settings):
    """A run folder with these reports, of a run with these settings."""
    folder = RunFolder(path)
    folder.create()
    folder.close()
    config = AppoConfig(**{"env": "CartPole-v1", **settings})
    folder.write_config(config, config)
    folder.metrics_file.write_text("".join(to_json(report) + "\n" for report in reports))
    return str(path)
