"""Every row of the table of exclusions holds in each config that has its settings."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest

from sampleforge.config import ConfigError, from_plain
from sampleforge.topologies.config import ALGOS
from sampleforge.topologies.exclusions import EXCLUSIONS, GIVEN, UNTIL_THE_END, Exclusion

VALUES: dict[str, Any] = {
    **{"serial": True, "compile": True, "num_learners": 2, "sampler_only": True, "pbt": True},
    **{"cuda_graphs": True, "evaluate_interval": 7, "num_policy_workers": 3, "opponent_pool": 4},
    **{
        "num_policies": 2,
        "schedule": "a.json",
        "anneal": {"learning_rate": "cosine:1e-3:0"},
        "policies_to_train": ["policy_0"],
        "benchmark": True,
    },
    **{
        "policy_mapping": "a:b",
        "variable_experience": True,
        "model": {"core": "gru", "head": "a:B"},
    },
    **{
        "her": True,
        "record": "data",
        "action_repeat": 2,
        "value_distribution": "c51",
        "input": ["data"],
        "priority_beta_final": 0.9,
    },
}
"""A value of each field that is not the default; other tests give what the table names itself."""
ALSO: dict[str, dict[str, Any]] = {
    "pbt": {"num_policies": 2},
    "policies_to_train": {"num_policies": 2},
}
"""What another rule wants beside a field."""

REFUSED_ALONE = {
    "ddppo": {"sampler_only", "inference", "num_policy_workers"},
    "marwil": {"sampler_only", "benchmark"},
    "pqn": {"compile"},
    "sac": {"model.core", "model.head"},
    "crossq": {"model.core", "model.head"},
    "td3": {"model.core", "model.head"},
}
"""Fields that an algorithm refuses whatever else is given."""


def cases() -> list[Any]:
    return [
        pytest.param(row, algo, id=f"{algo}-{row.one}-{row.other}")
        for row in EXCLUSIONS
        for algo, kind in ALGOS.items()
        if row.topology in (None, kind.topology)
        and {row.one.split(".")[0], row.other.split(".")[0]}
        <= {f.name for f in dataclasses.fields(kind)}
        and not {row.one, row.other} & REFUSED_ALONE.get(algo, set())
    ]


def given(name: str, value: Any = GIVEN) -> dict[str, Any]:
    outer = name.split(".")[0]
    return {**ALSO.get(outer, {}), outer: VALUES[outer] if value is GIVEN else value}


@pytest.mark.long
@pytest.mark.parametrize(("row", "algo"), cases())
def test_both_together_are_refused_and_each_alone_is_not(row: Exclusion, algo: str) -> None:
    plain = {"env": "CartPole-v1", **({"input": ["data"]} if algo == "marwil" else {})}
    one, other = given(row.one, row.value), given(row.other)
    for alone in (one, other):
        from_plain(ALGOS[algo], plain | alone)
    with pytest.raises(ConfigError, match=re.escape(f"{row.reason}; {row.remedy}")):
        from_plain(ALGOS[algo], plain | one | other)


def test_the_table_has_a_case_for_every_row() -> None:
    assert {(case.values[0].one, case.values[0].other) for case in cases()} == {
        (row.one, row.other) for row in EXCLUSIONS
    }


@pytest.mark.parametrize("each", UNTIL_THE_END, ids=lambda each: each.name)
def test_what_lasts_until_the_end_needs_one(each: Any) -> None:
    kind = next(k for k in ALGOS.values() if each.name in {f.name for f in dataclasses.fields(k)})
    plain = {"env": "CartPole-v1", **given(each.name, each.value)}
    from_plain(kind, plain | {"train_for_seconds": 5})
    with pytest.raises(ConfigError, match="the stop condition, and there is none"):
        from_plain(kind, plain)
