"""The spec of the episodes of `tests.support.recorded`, with its spaces."""

from __future__ import annotations

import numpy as np
from gymnasium import spaces

from sampleforge.env.adapter import env_spec
from sampleforge.spec import EnvSpaces

SPEC = env_spec(
    "recorded", EnvSpaces(spaces.Box(-np.inf, np.inf, (3,), np.float32), spaces.Discrete(4))
)
