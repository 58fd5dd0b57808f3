"""The members of a population of runs as a table and as lines of text."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.table import Table

from sampleforge.populations.rounds import PERTURBED
from sampleforge.tools.pbt.across_runs import MemberStatus, Population

SHOWN = 5
"""Hyperparameters in the table of the members."""


def news(population: Population, told: dict[str, str]) -> list[str]:
    """Return the problems since the last call, and a line for each member whose state or round has
    changed since it was ``told``."""
    lines = population.take_problems()
    for member in population.members():
        state = member.published
        line = f"member {member.id} {member.state}"
        if state is not None:
            objective = "-" if state.objective is None else f"{state.objective:,.2f}"
            line += f"  round {state.round}  {state.env_steps:,} env steps  return {objective}"
        if told.get(member.id) != line:
            told[member.id] = line
            lines.append(line)
    return lines


def table(members: Sequence[MemberStatus]) -> Table:
    """Return the members as a table."""
    result = Table(box=box.SIMPLE_HEAD)
    names = sorted(_varied(members), key=_importance)[:SHOWN]
    for name in ("member", "state", "round", "env steps", "return", *names):
        result.add_column(name, justify="left" if name == "state" else "right")
    for member in members:
        state = member.published
        if state is None:
            result.add_row(member.id, member.state)
            continue
        objective = "-" if state.objective is None else f"{state.objective:,.2f}"
        values = (state.hyperparameters.get(name) for name in names)
        result.add_row(
            member.id,
            member.state,
            str(state.round),
            f"{state.env_steps:,}",
            objective,
            *(f"{value:.4g}" if isinstance(value, float) else str(value) for value in values),
        )
    return result


def _importance(name: str) -> tuple[int, str]:
    """Return a sort key by which the hyperparameters that most depends on are first."""
    return (PERTURBED.index(name) if name in PERTURBED else len(PERTURBED)), name


def _varied(members: Sequence[MemberStatus]) -> set[str]:
    """Return the hyperparameters that differ between the members."""
    known = [member.published.hyperparameters for member in members if member.published]
    return {name for values in known for name in values if values[name] != known[0].get(name)}
