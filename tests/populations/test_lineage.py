"""The record of a population: what is written is read, damage is named, an incomplete line is not
taken for damage."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sampleforge.config import ConfigError
from sampleforge.populations.lineage import Lineage, read

HYPERPARAMETERS = {"learning_rate": 1e-3, "value_clip": None, "env.dense": True}


def event(name: str, round_number: int = 0, **more: Any) -> dict[str, Any]:
    common = {"event": name, "member": "3", "round": round_number, "env_steps": 10, "wall_s": 0.5}
    return {**common, "hyperparameters": HYPERPARAMETERS, **more}


COPY: dict[str, Any] = {
    **{"donor": "0", "donor_env_steps": 12, "snapshot": "17"},
    **{"objective": -3.5, "donor_objective": 2.0},
}
EVENTS = [
    event("start"),
    event("score", 1, objective=None, episodes=0),
    event("score", 2, objective=-3.5, episodes=7),
    event("exploit", 2, **COPY),
    event("explore", 2, changed={"learning_rate": [1e-3, 1.2e-3], "env.dense": [True, False]}),
]


def written(path: Path, events: list[dict[str, Any]]) -> Path:
    lineage = Lineage(path)
    for each in events:
        lineage.append(each)
    lineage.close()
    return path


def test_events_are_read_as_they_were_written(tmp_path: Path) -> None:
    path = written(tmp_path / "lineage.jsonl", EVENTS)
    assert read(path) == EVENTS
    lineage = Lineage(path)
    assert lineage.lines == len(EVENTS)
    lineage.append(EVENTS[0])
    lineage.close()
    assert read(path) == [*EVENTS, EVENTS[0]] and lineage.lines == len(EVENTS) + 1


@pytest.mark.parametrize("cut", [1, 20, 100])
def test_an_incomplete_last_line_is_left_out_and_cut_off(tmp_path: Path, cut: int) -> None:
    path = written(tmp_path / "lineage.jsonl", EVENTS)
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    assert read(path) == EVENTS[:-1]
    lineage = Lineage(path)
    assert lineage.lines == len(EVENTS) - 1
    lineage.append(EVENTS[-1])
    lineage.close()
    assert path.read_bytes() == whole


def test_events_after_a_checkpoint_are_undone_by_a_resume_from_it(tmp_path: Path) -> None:
    path = written(tmp_path / "lineage.jsonl", EVENTS[:4])
    written(path, [{"event": "resume", "lines": 3}, EVENTS[4]])
    assert read(path) == [*EVENTS[:3], EVENTS[4]]
    written(path, [{"event": "resume", "lines": 6}, EVENTS[0]])
    assert read(path) == [*EVENTS[:3], EVENTS[4], EVENTS[0]], "nothing is undone"
    written(path, [{"event": "resume", "lines": 1}])
    assert read(path) == EVENTS[:1], "also what came after an earlier resume"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "Expecting property name"),
        ("[]", "it is no JSON object"),
        ('{"event": "exploded"}', "event is 'exploded', but must be one of start, score"),
        (json.dumps({**EVENTS[0], "round": -1}), "round of start is -1"),
        (json.dumps({**EVENTS[0], "env_steps": 1.5}), "env_steps of start is 1.5"),
        (json.dumps({**EVENTS[0], "member": ""}), "member of start is ''"),
        (json.dumps({**EVENTS[0], "hyperparameters": {"a": "b"}}), "hyperparameters of start is"),
        (json.dumps({**EVENTS[0], "hyperparameters": {"a": float("nan")}}), "hyperparameters of"),
        (json.dumps({n: v for n, v in EVENTS[3].items() if n != "donor"}), "has no 'donor'"),
        (json.dumps({**EVENTS[4], "changed": {"a": [1]}}), "changed of explore is"),
        ('{"event": "resume"}', "resume has no 'lines'"),
    ],
)
def test_a_damaged_line_is_refused_with_its_number_and_the_reason(
    tmp_path: Path, line: str, reason: str
) -> None:
    path = written(tmp_path / "lineage.jsonl", EVENTS[:2])
    with path.open("a") as file:
        file.write(line + "\n" + json.dumps(EVENTS[2]) + "\n")
    with pytest.raises(ConfigError, match=r"lineage.jsonl, line 3 is damaged: ") as refused:
        read(path)
    assert reason in str(refused.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"lineage.jsonl cannot be read"):
        read(tmp_path / "lineage.jsonl")


def test_what_could_not_be_read_is_not_written(tmp_path: Path) -> None:
    lineage = Lineage(tmp_path / "lineage.jsonl")
    for wrong in (event("exploit"), event("start", env_steps=-1)):
        with pytest.raises(ValueError, match=r"of start is|has no"):
            lineage.append(wrong)
    with pytest.raises(ValueError, match="JSON compliant"):
        lineage.append(event("score", objective=float("nan"), episodes=1))
    lineage.close()
    assert read(tmp_path / "lineage.jsonl") == []
