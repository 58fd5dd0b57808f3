"""POPGym's tasks: every kind of their spaces is played, and one is trained in with a core."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("popgym")

from sampleforge.api import train
from sampleforge.env.config import EnvConfig
from sampleforge.env.random_play import RandomPlay
from sampleforge.env.registry import families, family_ids
from sampleforge.models.config import ModelConfig
from sampleforge.topologies.config import AppoConfig

pytestmark = pytest.mark.skipif(
    all(family.name != "popgym" for family in families()),
    reason="SampleForge was installed before it had this family: pip install -e .",
)
TASKS = (
    *("RepeatPrevious", "RepeatFirst", "Autoencode", "CountRecall", "HigherLower", "Battleship"),
    *("Concentration", "MineSweeper", "MultiarmedBandit", "PositionOnlyCartPole"),
    "NoisyPositionOnlyPendulum",
)


def test_the_family_lists_the_ids_that_popgym_registers() -> None:
    (family,) = (family for family in families() if family.name == "popgym")
    ids = set(family_ids(family))
    assert ids >= {f"popgym-{task}Easy-v0" for task in TASKS}


@pytest.mark.parametrize("task", TASKS)
def test_a_task_is_played_to_the_end_of_an_episode(task: str) -> None:
    play = RandomPlay(EnvConfig(env=f"popgym-{task}Easy-v0"), 2)
    play.reset()
    returns = []
    for _ in range(400):
        play.step()
        assert play.out_of_bounds() is None
        returns += [episode.ret for episode in play.episodes]
    assert returns and play.not_finite() is None
    play.close()


@pytest.mark.long
def test_a_task_is_trained_in_with_a_recurrent_core(tmp_path: Path) -> None:
    config = AppoConfig(
        env="popgym-RepeatFirstEasy-v0",
        model=ModelConfig(core="gru", core_size=16, hidden_sizes=(16,)),
        num_workers=1,
        num_envs_per_worker=4,
        serial=True,
        seed=1,
        train_for_env_steps=3000,
        run_dir=str(tmp_path / "run"),
    )
    assert train(config).summary["episodes"] > 10
