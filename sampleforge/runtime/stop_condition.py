"""Conditions on metrics that end a run, such as eval_return_mean>=475 (``--stop``)."""

from __future__ import annotations

import contextlib
import math
import operator
import re
from collections.abc import Mapping
from dataclasses import dataclass

from sampleforge.config import ConfigError, typed

_SIGNS = {">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt}
_FORM = re.compile(r"\s*([^\s<>=]+)\s*(>=|<=|>|<)\s*([^\s<>=]+)\s*")


@dataclass(frozen=True)
class StopCondition:
    """Is met by a report whose ``metric`` compares as ``sign`` (>=, <=, >, <) with ``value``."""

    metric: str
    sign: str
    value: float

    @classmethod
    def parse(cls, text: str) -> StopCondition:
        """Return the condition that is written in ``text``. Raises ConfigError."""
        found = _FORM.fullmatch(text)
        value = math.nan
        with contextlib.suppress(ValueError):
            value = float(found[3]) if found else math.nan
        if found is None or math.isnan(value):
            raise ConfigError(
                f"{typed('stop', (text,))}: must be a metric, one of >=, <=, > and <, and a "
                'number, such as --stop "eval_return_mean>=475"'
            )
        return cls(found[1], found[2], value)

    def is_met(self, report: Mapping[str, float]) -> bool:
        """Return whether a report has the metric, with a value that meets the condition."""
        value = report.get(self.metric)
        return value is not None and bool(_SIGNS[self.sign](value, self.value))

    def __str__(self) -> str:
        return f"{self.metric}{self.sign}{self.value:g}"
