"""A population of two in one run, and several learners, where the topology has them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sampleforge.api import train
from sampleforge.run.callback import Callback
from sampleforge.run.folder.checkpoint import CheckpointStore
from sampleforge.run.session import Session
from sampleforge.topologies.config_classes import config_class
from sampleforge.topologies.population_config import PbtConfig
from sampleforge.workers.config import LearnersConfig
from tests.support.product import SMALL, small
from tests.support.runs import newest
from tests.support.variants import slow

WITH_POPULATIONS = [algo for algo in SMALL if issubclass(config_class(algo), PbtConfig)]
WITH_LEARNERS = [algo for algo in SMALL if issubclass(config_class(algo), LearnersConfig)]
LIKE_OTHERS = ("td3", "tests.support.outside:A2cConfig", "tests.support.outside:SoftConfig")


@pytest.mark.long
@pytest.mark.parametrize("algo", WITH_POPULATIONS)
def test_a_population_of_two_trains(algo: str, data: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    train(small(algo, folder, data, pbt=True, num_policies=2, train_for_env_steps=3000))
    for member in ("policy_0", "policy_1"):
        assert list((folder / "checkpoints" / member).glob("*.safetensors"))
    last = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["policy_0/updates"] > 0 and last["policy_1/updates"] > 0


class Slower(Callback):
    """Sets the learning rate when the workers have been started."""

    def on_start(self, session: Session) -> None:
        session.set_hyperparameter("learning_rate", 1.25e-4)


@pytest.mark.multiprocess
@pytest.mark.parametrize("algo", [slow(a) if a in LIKE_OTHERS else a for a in WITH_LEARNERS])
def test_two_learners_learn_one_policy(algo: str, data: Path, tmp_path: Path) -> None:
    """With --debug, their states are compared after every update. A hyperparameter that a callback
    sets is changed in both of them after the same one."""
    more = {"serial": False, "num_learners": 2, "debug": True, "num_splits": 2}
    config = small(algo, tmp_path / "run", data, **more, lr_schedule="constant")
    train(config, [Slower()])
    last = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["updates"] > 0 and last["checksums_compared"] > 0
    loaded = CheckpointStore(tmp_path / "run" / "checkpoints", 1).load(log=print)
    assert loaded is not None
    assert loaded[0].state["learner"]["hyperparameters"]["learning_rate"] == 1.25e-4
    assert newest(tmp_path / "run")
