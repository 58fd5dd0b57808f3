"""Factories that ask for the number of their worker and of their row get both."""

from __future__ import annotations

from typing import Any

import numpy as np

from sampleforge.env.config import EnvConfig
from sampleforge.env.place import Place
from sampleforge.env.registry import make_single, make_vector
from sampleforge.env.vector import own_outputs
from sampleforge.topologies.config import AppoConfig
from tests.support.envs import CodeEnv, CountingVectorEnv, FlakyEnv
from tests.support.graphs import rollouts
from tests.support.multi_agent import CodeParallelEnv

made: list[tuple[Any, ...]] = []


def single(worker_index: int, vector_index: int, length: int = 5) -> CodeEnv:
    made.append((worker_index, vector_index))
    return CodeEnv(env_id=100 * worker_index + vector_index, length=length)


def only_row(vector_index: int) -> CodeEnv:
    made.append((vector_index,))
    return CodeEnv(env_id=vector_index)


def vector(num_envs: int, worker_index: int, vector_index: int) -> CountingVectorEnv:
    made.append((num_envs, worker_index, vector_index))
    return CountingVectorEnv(num_envs)


def agents(worker_index: int, vector_index: int) -> CodeParallelEnv:
    made.append((worker_index, vector_index))
    return CodeParallelEnv()


def flaky(vector_index: int) -> FlakyEnv:
    made.append((vector_index,))
    return FlakyEnv(every=7, most=1)


def made_by(name: str, rows: int = 3, **kwargs: Any) -> list[tuple[Any, ...]]:
    """What a factory was given for the rows from number 6 on of worker 2."""
    made.clear()
    config = EnvConfig(env=f"{__name__}:{name}", env_kwargs=kwargs)
    make_vector(config, rows, list(range(rows)), Place(2, 6, 3)).close()
    return list(made)


def test_each_kind_of_factory_is_given_what_it_asks_for() -> None:
    assert made_by("single") == [(2, 6), (2, 7), (2, 8)]
    assert made_by("only_row") == [(6,), (7,), (8,)]
    assert made_by("agents") == [(2, 6), (2, 7), (2, 8)]
    assert made_by("vector") == [(3, 2, 6)], "of a vector, the first row"
    assert made_by("single", rows=2, worker_index=40) == [(40, 6), (40, 7)], "the user's own"


def test_an_environment_within_wrappers_has_the_place_of_its_row() -> None:
    made.clear()
    for name in ("single", "only_row"):
        given = {"id": f"{__name__}:{name}"}
        config = EnvConfig(env="sampleforge.env.wrapped:make", env_kwargs=given)
        make_vector(config, 2, [0, 1], Place(2, 6, 3)).close()
    assert made == [(2, 6), (2, 7), (6,), (7,)]
    assert made_by_wrapped({"worker_index": 40}) == [(40, 6), (40, 7)], "the user's own"


def made_by_wrapped(more: dict[str, Any]) -> list[tuple[int, ...]]:
    made.clear()
    given = {"id": f"{__name__}:single", **more}
    config = EnvConfig(env="sampleforge.env.wrapped:make", env_kwargs=given)
    make_vector(config, 2, [0, 1], Place(2, 6, 3)).close()
    return made


def test_a_single_environment_is_the_first_row_of_the_first_worker() -> None:
    made.clear()
    make_single(EnvConfig(env=f"{__name__}:single")).close()
    assert made == [(0, 0)]


def test_an_environment_that_is_made_again_has_the_same_number() -> None:
    made.clear()
    FlakyEnv.steps_taken = FlakyEnv.faults = 0
    rows = make_vector(EnvConfig(env=f"{__name__}:flaky"), 3, [0, 1, 2], Place(0, 3))
    out = own_outputs(rows.spec, 3)
    rows.reset(out.obs)
    while not rows.rebuilt:
        rows.send({"action": np.zeros(3, np.int64)})
        rows.recv(out)
    rows.close()
    assert made[:3] == [(3,), (4,), (5,)] and len(made) == 4
    assert made[3] == (3,), "the seventh step is that of the first row"


def test_the_rows_of_a_run_are_numbered_over_all_splits_of_a_worker() -> None:
    config = AppoConfig(
        env=f"{__name__}:single",
        num_workers=2,
        num_envs_per_worker=6,
        num_splits=2,
        rollout=4,
        async_rl=True,
    )
    found = {int(x) for batch in rollouts(config, 12) for x in batch.obs["obs"][0, :, 0]}
    assert found == {100 * worker + row for worker in range(2) for row in range(6)}
