"""APPO that samples and learns in turn goes on with the env rows that it began with."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import pytest

from sampleforge.cli.train import parse_config
from sampleforge.run.beginning import RunPlan, plan_run
from sampleforge.run.folder.run_folder import RunFolder
from sampleforge.runtime.machine import Machine, assumed
from sampleforge.spec import EnvSpec
from sampleforge.topologies.config import AppoConfig
from sampleforge.topologies.registry import pairing
from tests.support.ppo_plans import ATARI, IMAGE, VECTOR
from tests.support.variants import slow


def planned(config: AppoConfig, of: EnvSpec, cores: int) -> RunPlan:
    with assumed(Machine(cores)):
        return plan_run(pairing(config), config, of)


def started(folder: RunFolder, asked: AppoConfig, of: EnvSpec, cores: int = 2) -> RunPlan:
    """What a run begins with in the folder."""
    first = planned(asked, of, cores)
    used = dataclasses.replace(first.on_machine(first.resolved), seed=1)
    folder.write_config(used, asked)
    return first


def resumed(folder: RunFolder, asked: AppoConfig, of: EnvSpec, cores: int = 2) -> RunPlan:
    """What the run of the folder goes on with; the folder then has it."""
    with assumed(Machine(cores)):
        found = folder.check_resume(asked, lambda c: pairing(c).resolved(c, of))
    plan = planned(found.used, of, cores)
    folder.write_config(plan.on_machine(plan.resolved), found.asked)
    return plan


def learned_with(run: RunPlan) -> tuple[Any, ...]:
    """The sizes that do not depend on the machine."""
    sizes, config = run.sizes, run.resolved
    return sizes.envs, sizes.batch_size, sizes.rollout, config.minibatch_size


def layout(run: RunPlan) -> tuple[Any, ...]:
    return run.sizes.num_workers, run.sizes.num_splits, *learned_with(run)


WORKERS, LEARNERS, POLICIES = (None, 1, 3), (1, 2, 4), (1, 2)


@pytest.mark.parametrize("of", [VECTOR, slow(IMAGE), ATARI])
@pytest.mark.parametrize("rollout", [None, 16, slow(8), slow(100), slow(256)])
def test_a_start_and_a_resume_have_the_same_layout(
    folder: RunFolder, rollout: int | None, of: EnvSpec
) -> None:
    """Batches of several rollouts of each row were taken for ones that the user had asked for:
    learners of equal shares or short rollouts gave a resume other env rows, or a refusal."""
    for workers, learners, policies in itertools.product(WORKERS, LEARNERS, POLICIES):
        asked = AppoConfig(
            env="X-v0",
            rollout=rollout,
            num_workers=workers,
            num_learners=learners,
            num_policies=policies,
        )
        first = started(folder, asked, of)
        assert layout(resumed(folder, asked, of)) == layout(first), asked


GIVEN: dict[str, dict[str, Any]] = {
    "nothing": {},
    "batch": {"batch_size": 4096},
    "batch and rollout": {"batch_size": 4096, "rollout": 64},
    "rows": {"num_envs_per_worker": 8, "rollout": 16},
    "one row": {"num_envs_per_worker": 1, "rollout": 16},
    "splits": {"num_splits": 2, "rollout": 16},
    "learners": {"num_learners": 2, "rollout": 16},
    "serial": {"serial": True, "rollout": 16},
    "core": {"model": dataclasses.replace(AppoConfig().model, core="gru"), "num_learners": 2},
    "asynchronous": {"async_rl": True},
}


@pytest.mark.parametrize("given", GIVEN.values(), ids=GIVEN)
@pytest.mark.parametrize("before", [2, slow(1), slow(16)])
def test_another_machine_goes_on_with_the_same_rows_and_batches(
    folder: RunFolder, given: dict[str, Any], before: int
) -> None:
    asked = AppoConfig(env="X-v0", **given)
    for cores in (1, 3, 16):
        first = started(folder, asked, VECTOR, before)
        now = resumed(folder, asked, VECTOR, cores)
        if asked.async_rl:  # each actor has as many rows as the others
            assert learned_with(now)[1:] == learned_with(first)[1:]
        else:
            assert learned_with(now) == learned_with(first), cores
        assert layout(resumed(folder, asked, VECTOR, before)) == layout(first), "and back"


@pytest.mark.parametrize("cores", [1, 2, 16])
def test_a_process_that_can_have_one_environment_only_has_one(
    folder: RunFolder, cores: int
) -> None:
    of = dataclasses.replace(VECTOR, one_per_process=True)
    for rollout, serial in itertools.product((None, 16), (False, True)):
        asked = AppoConfig(env="X-v0", rollout=rollout)
        first = started(folder, asked, of, 2)
        assert (first.sizes.num_workers, first.sizes.envs) == (2, 2)
        now = resumed(folder, dataclasses.replace(asked, serial=serial), of, cores)
        assert now.sizes.envs == now.sizes.num_workers == (1 if serial else 2)


@pytest.mark.parametrize(
    ("first", "then", "expected"),
    [
        ({"rollout": 16}, {"num_workers": 4}, {"num_workers": 4, "envs": 16, "batch_size": 1024}),
        ({"rollout": 16}, {"num_envs_per_worker": 4}, {"envs": 8, "batch_size": 1024}),
        ({"rollout": 16}, {"serial": True}, {"num_workers": 1, "envs": 16, "batch_size": 1024}),
        ({"rollout": 16}, {"num_learners": 2}, {"envs": 16, "batch_size": 1024}),
        ({"rollout": 16}, {"batch_size": 1024}, {"envs": 16, "batch_size": 1024}),
        ({}, {"batch_size": 4096}, {"batch_size": 4096}),
        ({}, {"rollout": 256}, {"rollout": 256, "envs": 8, "batch_size": 2048}),
        ({"batch_size": 4096}, {}, {"envs": 16, "batch_size": 4096}),
        ({"num_workers": 3, "num_learners": 2}, {}, {"num_workers": 3, "envs": 18}),
    ],
    ids=str,
)
def test_what_a_resume_is_given_is_kept_from_then_on(
    folder: RunFolder, first: dict[str, Any], then: dict[str, Any], expected: dict[str, Any]
) -> None:
    asked = AppoConfig(env="X-v0", **first)
    started(folder, asked, VECTOR)
    found = resumed(folder, AppoConfig(env="X-v0", **first | then), VECTOR)
    assert {name: getattr(found.sizes, name) for name in expected} == expected
    again = resumed(folder, AppoConfig(env="X-v0", **then), VECTOR)
    assert layout(again) == layout(found)
    if "serial" not in then:  # of one command
        assert layout(resumed(folder, AppoConfig(env="X-v0"), VECTOR)) == layout(found)


@pytest.mark.parametrize("given", [{}, {"rollout": 16}, {"num_workers": 1, "num_learners": 2}])
def test_the_config_of_a_run_is_repeated_with_its_rows(
    folder: RunFolder, given: dict[str, Any]
) -> None:
    first = started(folder, AppoConfig(env="CartPole-v1", **given), VECTOR)
    repeated = parse_config("appo", ["--config", str(folder.config_file)])
    assert repeated.num_envs_per_worker is None
    assert layout(planned(repeated, VECTOR, 2)) == layout(first)
