"""Populations as they write them into lineage.jsonl, simulated without training."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from sampleforge.populations.rounds import EXPLOIT_RULES, Member, exploit, explore, explore_rule

Event = dict[str, Any]


def simulated_population(
    members: int, rounds: int, seed: int = 0, *, interval: int = 50_000, silent: int = 0
) -> list[Event]:
    """The events of a population under truncation selection, as `exploit` and `explore` decide.
    Objectives rise highest with a learning rate that falls from 5e-3 to 3e-4 and with an
    entropy coefficient that falls; the members begin over a wide log range. ``silent``: rounds in
    which objectives are not known yet."""
    rng = np.random.default_rng(seed)
    ids = [str(i) for i in range(members)]
    rates = 10 ** rng.permutation(np.linspace(-5.5, -0.5, members))
    values: dict[str, dict[str, Any]] = {
        m: {
            "learning_rate": float(r),
            "exploration_coeff": float(10 ** rng.uniform(-4, -1)),
            "gamma": 0.99,
            "clip_ratio": 0.2,
        }
        for m, r in zip(ids, rates, strict=True)
    }
    names = ("learning_rate", "exploration_coeff", "gamma")
    rule = explore_rule("truncation", values[ids[0]], names)
    skill = dict.fromkeys(ids, 0.0)
    events: list[Event] = []

    def write(kind: str, member: str, number: int, steps: int, **more: Any) -> None:
        common = {"event": kind, "member": member, "round": number, "env_steps": steps}
        more = {"wall_s": steps / 1000, **more, "hyperparameters": dict(values[member])}
        events.append({**common, **more})

    for member in ids:
        write("start", member, 0, 0)
    for number in range(1, rounds + 1):
        steps, scores = number * interval, {}
        for member in ids:
            own = values[member]
            best = -2.3 - 1.2 * number / rounds
            fit = math.exp(-(((math.log10(own["learning_rate"]) - best) / 0.9) ** 2))
            fit *= 1.0 - min(0.9, 6.0 * own["exploration_coeff"] * number / rounds)
            ceiling = fit * min(1.0, 0.25 + 1.2 * number / rounds)
            pace = 0.25 if ceiling > skill[member] else 0.1
            skill[member] += pace * (ceiling - skill[member]) + float(rng.normal(0.0, 0.01))
            skill[member] = min(1.0, max(0.0, skill[member]))
            scores[member] = 20.0 + 480.0 * skill[member] + float(rng.normal(0.0, 8.0))
            known = None if number <= silent else scores[member]
            write("score", member, number, steps, objective=known, episodes=40)
        if number <= silent or number == rounds:
            continue
        present = [Member(m, scores[m], values[m], steps) for m in ids]
        for member, donor in exploit(present, EXPLOIT_RULES["truncation"], rng).items():
            skill[member], values[member] = skill[donor], dict(values[donor])
            write(
                "exploit",
                member,
                number,
                steps,
                donor=donor,
                donor_env_steps=steps,
                snapshot=f"{1000 * number}",
                objective=scores[member],
                donor_objective=scores[donor],
            )
            before, values[member] = values[member], explore(values[member], rule, rng)
            after = values[member]
            changed = {n: [before[n], after[n]] for n in after if before[n] != after[n]}
            write("explore", member, number, steps, changed=changed)
    return events


def write_lineage(folder: Path, events: list[Event]) -> Path:
    """Write the events into the lineage.jsonl of ``folder``; returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(event) + "\n" for event in events)
    (folder / "lineage.jsonl").write_text(text)
    return folder
