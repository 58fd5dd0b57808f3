"""A user who waits for many environments is told what the run is waiting for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sampleforge.run import reporting
from sampleforge.run.reporting import Starting
from sampleforge.shared.counters import Counters
from sampleforge.topologies.sampler_plan import SamplerPlan


def test_until_the_first_env_step_it_is_said_how_many_rows_have_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Resets of many Atari rows, one after the other, take seconds."""
    clock = [100.0]
    monkeypatch.setattr(reporting, "monotonic", lambda: clock[0])
    counters, said = Counters(["started_rows", "env_steps"], 2), list[str]()
    session: Any = SimpleNamespace(
        graph=SimpleNamespace(counters=counters),
        plan=SamplerPlan(2, 4, 8, 1, 16, "inline", 0, "cpu", "fp32", "fp32", False, ()),
        message=said.append,
    )
    starting = Starting()
    starting.on_start(session)
    looks = [(104, 4, 0), (106, 10.5, 0), (107, 12, 0), (112, 64, 0)]
    for clock[0], started, env_steps in looks:
        counters.row(1)["started_rows"][0] = started
        counters.row(1)["env_steps"][0] = env_steps
        starting.on_poll(session)
    assert said == ["Waiting for the environments: 10 of 64 have started"]
    counters.row(1)["started_rows"][0] = 0  # a replaced actor, later in the run
    counters.row(1)["env_steps"][0] = 1
    for clock[0] in (120, 130):
        starting.on_poll(session)
    assert len(said) == 1
