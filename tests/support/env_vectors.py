"""Stepping an env vector into arrays, without an actor."""

from __future__ import annotations

from typing import Any

import numpy as np

from sampleforge.env.random_play import random_actions
from sampleforge.env.vector import EnvVector, Episode, StepOut
from sampleforge.spec import EnvSpec


def buffers(spec: EnvSpec, rows: int) -> StepOut:
    """A StepOut full of wrong values: what a step does not write shows."""

    def obs() -> dict[str, Any]:
        return {
            name: np.full((rows, *leaf.shape), 77, leaf.dtype)
            for name, leaf in spec.observations.items()
        }

    flags = [np.full(rows, i % 2 == 0, np.bool_) for i in range(4)]
    terminated, truncated, valid, first = flags
    reward = np.full(rows, 77, np.float32)
    return StepOut(reward, terminated, truncated, valid, obs(), first, obs())


def play(vector: EnvVector, steps: int) -> tuple[list[Any], list[Any], list[Episode]]:
    """Cells [steps][rows] as `expected` gives them, the actions [steps, rows], the episodes."""
    rng = np.random.default_rng(3)
    first = buffers(vector.spec, vector.num_rows)
    vector.reset(first.obs)
    assert first.obs["obs"][:, 1:].tolist() == [[0, 0, 0]] * vector.num_rows
    cells, actions, episodes = [], [], []
    for _ in range(steps):
        chosen = random_actions(vector.spec, vector.num_rows, rng)
        out = buffers(vector.spec, vector.num_rows)
        vector.send(chosen)
        found = vector.recv(out)
        assert vector.frames == out.valid.sum() * vector.spec.frame_skip
        episodes += found
        actions.append(chosen["action"])
        cells.append([cell_of(out, row) for row in range(vector.num_rows)])
    return cells, actions, episodes


def cell_of(out: StepOut, row: int) -> dict[str, Any]:
    assert out.final_obs is not None
    final = out.final_obs["obs"][row].tolist()
    return {
        "reward": out.reward[row],
        "terminated": out.terminated[row],
        "truncated": out.truncated[row],
        "valid": out.valid[row],
        "obs": out.obs["obs"][row].tolist(),
        "first": out.first[row],
        "final": None if final == [77] * 4 else final,
    }


def rollout(
    vector: EnvVector, actions: Any, episodes: list[Episode] | None = None
) -> list[StepOut]:
    """One StepOut per step; the first observations in front. Finished episodes are appended to
    ``episodes``."""
    ended = [] if episodes is None else episodes
    found = [buffers(vector.spec, vector.num_rows)]
    vector.reset(found[0].obs)
    for action in actions:
        found.append(buffers(vector.spec, vector.num_rows))
        vector.send({"action": action})
        ended.extend(vector.recv(found[-1]))
    return found
