"""What the ranks of DD-PPO share, and how a run goes on with another number of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from sampleforge.models.config import ModelConfig
from sampleforge.spec import EnvSpec
from sampleforge.topologies.config import DdppoConfig
from sampleforge.topologies.pairings import ppo_defaults
from sampleforge.topologies.pairings.ppo_defaults import BATCH, MINIBATCH, ROWS, resolve_defaults
from sampleforge.topologies.sampler_plan import Plan
from tests.support.ppo_plans import ATARI, KINDS, PLANES, VECTOR, planned


@pytest.mark.parametrize("ranks", [1, 2, 16])
def test_ranks_share_the_batch(cores: Callable[[int], None], ranks: int) -> None:
    cores(2)
    config, plan = planned(DdppoConfig(num_ranks=ranks), VECTOR)
    assert plan.num_workers == ranks and plan.envs == ROWS
    assert plan.batch_size * ranks == BATCH
    assert config.minibatch_size and config.minibatch_size * ranks == MINIBATCH
    images, plan = planned(DdppoConfig(num_ranks=ranks), ATARI)
    assert images.minibatch_size and images.minibatch_size * ranks == MINIBATCH
    assert (plan.envs, plan.batch_size * ranks) == (ROWS, BATCH)


@pytest.mark.parametrize("ranks", [1, 2, 8])
def test_ranks_with_a_core_and_images_have_the_minibatches_of_the_papers_code(ranks: int) -> None:
    recurrent = DdppoConfig(num_ranks=ranks, model=ModelConfig(core="gru"))
    images, plan = planned(recurrent, ATARI)
    assert images.minibatch_size and plan.batch_size == 2 * images.minibatch_size
    assert (plan.envs, plan.batch_size * ranks) == (ROWS, BATCH)


@pytest.mark.parametrize("ranks", [3, 5, 12, 24, 128])
def test_ranks_that_do_not_divide_the_batch_share_about_as_much(ranks: int) -> None:
    for of in (VECTOR, PLANES, ATARI):
        config, plan = planned(DdppoConfig(num_ranks=ranks), of)
        parts = BATCH // MINIBATCH
        assert config.minibatch_size and plan.batch_size == parts * config.minibatch_size
        assert 0.7 * BATCH <= plan.batch_size * ranks <= 1.4 * BATCH


def test_under_torchrun_the_ranks_are_those_that_it_started(
    cores: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the cores of this host: all ranks must come to the same numbers."""
    cores(64)
    expected = resolve_defaults(DdppoConfig(num_ranks=4), VECTOR)
    variables = {"RANK": 3, "WORLD_SIZE": 4, "LOCAL_RANK": 1, "LOCAL_WORLD_SIZE": 2}
    for name, value in {**variables, "MASTER_ADDR": "h", "MASTER_PORT": 1}.items():
        monkeypatch.setenv(name, str(value))
    found = resolve_defaults(DdppoConfig(), VECTOR)
    for name in ("num_envs_per_worker", "rollout", "minibatch_size"):
        assert getattr(found, name) == getattr(expected, name), name


# ---- a run that goes on with another number of ranks ----


def with_ranks(config: DdppoConfig, before: int, now: int, of: EnvSpec = VECTOR) -> list[Plan]:
    """The plans of a run of ``before`` ranks, and of its second part with ``now`` ranks."""
    first, plan = planned(dataclasses.replace(config, num_ranks=before), of)
    assert isinstance(first, DdppoConfig)
    first = dataclasses.replace(first, batch_size=plan.batch_size, num_envs_per_worker=None)
    unset = {f.name for f in dataclasses.fields(config) if getattr(config, f.name) is None}
    second = ppo_defaults.for_ranks(
        dataclasses.replace(first, num_envs_per_worker=config.num_envs_per_worker), now, unset
    )
    again, later = planned(second, of)
    sizes = ("batch_size", "minibatch_size", "rollout")
    assert all(getattr(again, size) == getattr(second, size) for size in sizes)
    assert isinstance(again, DdppoConfig) and later.num_workers == now
    assert again.minibatch_size and first.minibatch_size
    steps = [1 / (first.minibatch_size * before), 1 / (again.minibatch_size * now)]
    assert steps[1] == pytest.approx(steps[0], rel=0.1), "gradient steps per env step and epoch"
    return [plan, later]


@pytest.mark.long
@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.parametrize("core", ["none", "gru"])
def test_other_ranks_go_on_with_the_batch_of_all(kind: str, core: str) -> None:
    config = DdppoConfig(model=ModelConfig(core=core))  # type: ignore[arg-type]
    for before, now in ((2, 1), (1, 2), (8, 2), (2, 8)):
        first, later = with_ranks(config, before, now, KINDS[kind])
        assert later.batch_size * now == first.batch_size * before
        assert later.envs == first.envs
    for now in (3, 5, 7):
        first, later = with_ranks(config, 2, now, KINDS[kind])
        assert 0.7 < later.batch_size * now / (first.batch_size * 2) < 1.4


def test_sizes_of_a_rank_that_were_given_stay_with_other_ranks() -> None:
    first, later = with_ranks(DdppoConfig(num_envs_per_worker=10), 2, 1)
    assert later.rows == 10 and later.batch_size == 2 * first.batch_size
    first, later = with_ranks(DdppoConfig(rollout=64), 2, 1)
    assert later.rollout == 64 and later.envs == first.envs
    first, later = with_ranks(DdppoConfig(batch_size=1024), 2, 1)
    assert later.batch_size == 1024
    config = DdppoConfig(num_ranks=2, batch_size=1024, rollout=128, minibatch_size=64)
    assert ppo_defaults.for_ranks(config, 1, ()) == dataclasses.replace(config, num_ranks=1)
