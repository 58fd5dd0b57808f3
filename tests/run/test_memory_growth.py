"""A user whose environment keeps what it should drop is told before the memory is full."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sampleforge.run import reporting
from sampleforge.run.reporting import MemoryGrowth
from sampleforge.topologies.config import AppoConfig

MIB = 1 << 20


def test_an_actor_whose_memory_grows_steadily_is_named_once_with_the_command_that_measures_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [0.0]
    monkeypatch.setattr(reporting, "monotonic", lambda: clock[0])
    said: list[tuple[str, str]] = []
    names = {"actor 0": 10, "actor 1": 11, "learner": 12}
    nodes = [SimpleNamespace(name=name, role=name.split()[0]) for name in names]
    session: Any = SimpleNamespace(
        config=AppoConfig(env="my_env:make", env_kwargs={"difficulty": 2}),
        graph=SimpleNamespace(nodes=nodes),
        runner=SimpleNamespace(pids=lambda: names),
        message=lambda text, level: said.append((text, level)),
    )
    metrics: Any = SimpleNamespace(private={})
    growth = MemoryGrowth(metrics)
    for second in range(0, 300, 2):
        clock[0] = float(second)
        metrics.private = {
            10: 200 * MIB + min(second, 20) * 10 * MIB,  # warms up
            11: 200 * MIB + second * MIB,
            12: 200 * MIB + second * 10 * MIB,  # the learner's own
        }
        growth.on_report(
            session, {"env_steps": 1000.0 * second, "system_memory_available_mib": 2048.0}
        )
        if second == 60:
            assert not said, "too early to tell"
    ((text, level),) = said
    assert level == "warning"
    assert text.startswith("actor 1: its memory grew steadily, by ")
    assert "3.516 GiB an hour, and there are 2 GiB left" in text
    assert "`sampleforge check-env my_env:make --env-kwargs difficulty=2 --seconds 60`" in text
