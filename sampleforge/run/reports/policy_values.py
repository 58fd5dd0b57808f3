"""The scalars of a report by policy, in a run with several policies."""

from __future__ import annotations

from collections.abc import Mapping

Values = Mapping[str, float]


def by_policy(values: Values) -> dict[str, dict[str, float]]:
    """Return the scalars of each policy by its id, without the id in their names. Empty if the run
    has one policy."""
    policies: dict[str, dict[str, float]] = {}
    for name, value in values.items():
        policy, slash, own = name.partition("/")
        if slash:
            policies.setdefault(policy, {})[own] = value
    return policies


def with_overall(values: Values) -> dict[str, float]:
    """Return the scalars with those added that only policies have: the mean over all policies, or
    the largest if the name ends in _max."""
    policies = by_policy(values)
    overall: dict[str, float] = {}
    for name in {name for own in policies.values() for name in own} - set(values):
        each = [own[name] for own in policies.values() if name in own]
        overall[name] = max(each) if name.endswith("_max") else sum(each) / len(each)
    return {**values, **overall}
