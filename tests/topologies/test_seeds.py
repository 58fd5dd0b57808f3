"""The seed of an environment depends on its place, not on the number of processes and rows."""

from __future__ import annotations

import dataclasses
import itertools
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sampleforge.env.place import row_seeds
from sampleforge.env.vector import own_outputs
from sampleforge.topologies.actors import frozen_port
from sampleforge.topologies.builders import env_makers
from sampleforge.topologies.config import AppoConfig
from sampleforge.topologies.graph import FrozenGroup
from sampleforge.topologies.starts import ResumePoint
from tests.support.env_vectors import rollout
from tests.support.graphs import resolved, spec_of
from tests.support.pairings import plan_of

CONFIG = AppoConfig(
    env="tests.support.envs:CodeEnv",
    num_workers=1,
    num_envs_per_worker=4,
    num_splits=2,
    rollout=8,
    async_rl=True,
)


def seeds_of(actor: int, seed: int = 7, **changes: Any) -> list[list[int]]:
    """The seeds modulo 1000, which CodeEnv shows, of the rows of each split of an actor."""
    config = dataclasses.replace(CONFIG, **changes)
    spec = spec_of(config)
    config = resolved(config, spec)
    plan = plan_of(config, spec, "cpu")
    found = []
    for make in env_makers(actor, config, plan, ResumePoint(seed)):
        envs = make()
        out = own_outputs(envs.spec, envs.num_rows)
        envs.reset(out.obs)
        found.append([int(x) for x in out.obs["obs"][:, 0]])
        envs.close()
    return found


def test_a_row_has_the_same_seed_with_any_number_of_workers_rows_and_learners() -> None:
    usual = seeds_of(0)
    assert usual == [[s % 1000 for s in row_seeds(7, 0, split, 2)] for split in (0, 1)]
    assert seeds_of(0, num_workers=5, num_learners=2) == usual
    assert seeds_of(0, inference="worker", num_policy_workers=2) == usual
    more = seeds_of(0, num_envs_per_worker=10)
    assert [split[:2] for split in more] == usual
    third = seeds_of(2, num_workers=3)
    assert seeds_of(2, num_workers=9) == third


def test_rows_splits_actors_and_runs_differ() -> None:
    every = [s for actor in range(3) for split in seeds_of(actor, num_workers=3) for s in split]
    assert len(set(every)) == len(every)
    assert seeds_of(0, seed=8) != seeds_of(0)


@pytest.mark.parametrize("rows", [1, 5, 64])
def test_more_rows_do_not_move_the_seeds_of_the_first(rows: int) -> None:
    assert row_seeds(3, 4, 1, 100)[:rows] == row_seeds(3, 4, 1, rows)


def test_the_first_ends_of_rows_are_spread_over_all_workers() -> None:
    config = dataclasses.replace(
        CONFIG, env_kwargs={"length": 99}, max_episode_steps=24, num_workers=4, num_splits=1
    )
    spec = spec_of(config)
    config = resolved(config, spec)
    plan = plan_of(config, spec, "cpu")
    ends = []
    for actor in range(4):
        (make,) = env_makers(actor, config, plan, ResumePoint(7))
        outs = rollout(make(), np.zeros((24, 4), np.int64))[1:]
        ends.append((np.array([out.truncated for out in outs]).argmax(axis=0) + 1).tolist())
    assert sorted(end for own in ends for end in own) == [
        max(1, 24 * (k + 1) // 16) for k in range(16)
    ]
    assert ends[0] == [1, 7, 13, 19], "each worker has rows of the whole range"


def test_policies_that_only_act_draw_anew_in_each_part_of_a_run_and_life_of_their_actor() -> None:
    def draws(actor: int, resumes: int, life: int) -> int:
        model: Any = SimpleNamespace(state_size=0)
        pool: Any = None
        group = FrozenGroup("past", pool, lambda: model, ResumePoint(7, resumes))
        inference = frozen_port(group, 1, actor, lambda _: life).inference
        inference.start()
        return int(inference._draws.integers(2**40))

    cases = list(itertools.product((0, 1), repeat=3))
    assert len({draws(*case) for case in cases}) == len(cases)
    assert [draws(*case) for case in cases] == [draws(*case) for case in cases]
