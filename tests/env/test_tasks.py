"""Tasks of a curriculum reach every environment where it is reset next."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sampleforge.config import ConfigError
from sampleforge.env.config import EnvConfig
from sampleforge.env.registry import make_vector
from sampleforge.env.spec_json import spec_from_plain, spec_to_plain
from sampleforge.env.tasks import at_newest, following
from sampleforge.env.vector import EnvVector, StepOut, own_outputs
from sampleforge.shared.newest import TASK_BYTES, TaskBoard

ENVS = "tests.support.task_envs:"
KINDS = ("TaskEnv", "wrapped", "TaskVectorEnv", "gymnasium_rows", "TaskParallelEnv")


def rows(name: str, count: int = 3) -> EnvVector:
    return make_vector(EnvConfig(env=ENVS + name), count, list(range(count)))


def step(vector: EnvVector, outs: list[StepOut]) -> None:
    for seat in vector.seats:
        seat.send({"action": np.zeros(seat.num_rows, np.int64)})
    for seat, out in zip(vector.seats, outs, strict=True):
        seat.recv(out)


@pytest.mark.parametrize("name", KINDS)
def test_each_episode_is_of_the_task_that_was_newest_when_it_began(name: str) -> None:
    """And keeps it to its end: the observations hold the task."""
    board = TaskBoard()
    board.set(7)
    vector = following(board, rows, name)
    assert vector.spec.takes_task and spec_from_plain(spec_to_plain(vector.spec)).takes_task
    outs = [own_outputs(seat.spec, seat.num_rows) for seat in vector.seats]
    for seat, out in zip(vector.seats, outs, strict=True):
        seat.reset(out.obs)
    tasks = np.array([[out.obs["obs"][:, 3] for out in outs]])
    assert (tasks == 7).all(), "the first reset has it, too"
    begun = 0
    for newest in (7, 7, 8, 8, 8, 9) * 5:
        if newest != board.read()[1]:
            board.set(newest)
        before = [out.obs["obs"][:, 3].copy() for out in outs]
        step(vector, outs)
        for out, old in zip(outs, before, strict=True):
            now = out.obs["obs"][:, 3]
            assert (now[~out.first] == old[~out.first]).all()
            if name in ("TaskEnv", "wrapped", "TaskParallelEnv"):  # reset by our own code
                assert (now[out.first] == newest).all()
            begun += int(out.first.sum())
    assert begun > 6 and vector.rebuilt == 0
    vector.close()


def test_an_evaluation_keeps_the_task_that_it_began_with() -> None:
    board = TaskBoard()
    board.set(1)
    kept = at_newest(board, rows, "TaskEnv", 1)
    board.set(2)
    assert kept.row_env(0).task == 1
    assert rows("TaskEnv", 1).row_env(0).task == -1, "outside of `following`"


def test_a_rebuilt_environment_has_the_task_again() -> None:
    board = TaskBoard()
    board.set(4)
    vector = following(board, rows, "RaisingTaskEnv", 1)
    out = own_outputs(vector.spec, 1)
    vector.reset(out.obs)
    first = vector.row_env(0)
    for _ in range(4):
        step(vector, [out])
    assert vector.rebuilt == 1 and vector.row_env(0) is not first
    assert out.obs["obs"][0, 3] == 4


@pytest.mark.parametrize(
    ("task", "why"),
    [
        (Path("maze"), "not JSON serializable"),
        (np.float32(1), "not JSON serializable"),
        (float("nan"), "not JSON compliant|Out of range"),
        ("x" * TASK_BYTES, f"may have {TASK_BYTES:,}"),
    ],
)
def test_a_task_that_checkpoints_cannot_keep_is_refused(task: object, why: str) -> None:
    board = TaskBoard()
    with pytest.raises(ConfigError, match=why):
        board.set(task)
    assert board.read() == (0, None)
    board.set({"level": [1, None], "name": "maze"})
    assert board.read() == (1, {"level": [1, None], "name": "maze"})
