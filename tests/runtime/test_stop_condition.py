"""Stop conditions as they are typed."""

from __future__ import annotations

import pytest

from sampleforge.config import ConfigError
from sampleforge.runtime.config import RunConfig, StopCondition


@pytest.mark.parametrize(
    ("text", "met", "not_met"),
    [
        ("eval_return_mean>=475", 475.0, 474.9),
        (" loss <= 1e-3 ", 0.001, 0.0011),
        ("policy_0/return_mean>-20", -19.9, -20.0),
        ("return_mean_epsilon_4.8e-05<0", -0.1, 0.0),
    ],
)
def test_a_condition_compares_its_metric(text: str, met: float, not_met: float) -> None:
    condition = StopCondition.parse(text)
    assert condition.is_met({condition.metric: met})
    assert not condition.is_met({condition.metric: not_met})
    assert not condition.is_met({"other": met}) and not condition.is_met({})
    assert not condition.is_met({condition.metric: float("nan")})
    assert StopCondition.parse(str(condition)) == condition


@pytest.mark.parametrize("text", ["loss", "loss=1", "loss>=", ">=1", "loss>=one", "a b>1", "1<a<2"])
def test_anything_else_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ConfigError, match=r'^--stop .*such as --stop "eval_return_mean>=475"$'):
        RunConfig(stop=("loss<1", text))
