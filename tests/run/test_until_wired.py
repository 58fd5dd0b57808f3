"""What a session is given before its workers are made."""

from __future__ import annotations

from typing import Any

import pytest

from sampleforge.run.session import Session
from sampleforge.topologies.config import AppoConfig


def test_an_item_of_a_mapping_cannot_be_set_without_effect() -> None:
    session = Session(AppoConfig(env="CartPole-v1"))
    given: Any = session.hyperparameters
    with pytest.raises(TypeError, match="does not support item assignment"):
        given["policy"] = {"gamma": 0.5}
    assert not Session(AppoConfig(env="CartPole-v1")).hyperparameters
    session.hyperparameters = {"policy": {"gamma": 0.5}}
    assert session.hyperparameters == {"policy": {"gamma": 0.5}}
