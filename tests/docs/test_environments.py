"""The factory of the guide to environments does what the guide says."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.support import REPO


@pytest.mark.parametrize(("frames", "shape"), [(1, (2,)), (4, (4, 2))])
def test_the_wrapped_environment_of_the_guide_hides_the_velocities(
    frames: int, shape: tuple[int, ...]
) -> None:
    text = (REPO / "docs" / "environments.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    code = next(block for block in blocks if "gymnasium.wrappers" in block)
    names: dict[str, Any] = {}
    exec(code, names)
    env = names["make"](frames)
    obs, _ = env.reset(seed=3)
    assert obs.shape == env.observation_space.shape == shape
    obs, *_ = env.step(1)
    hidden = env.unwrapped.state
    assert (obs.reshape(-1, 2)[-1] == hidden[[0, 2]].astype("float32")).all()
    env.close()
