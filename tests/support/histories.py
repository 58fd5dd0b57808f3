"""The steps of each CodeEnv in the order in which they were sampled, and the check that they are
all there."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import numpy as np

from sampleforge.rollouts.batch import Batch
from tests.support.envs import code_reward

History = dict[str, np.ndarray]


def histories(batches: Iterable[Batch]) -> dict[int, History]:
    """Each env's consecutive steps, over all its rollouts in order."""
    found: dict[int, dict[str, list[np.ndarray]]] = defaultdict(lambda: defaultdict(list))
    for batch in batches:
        obs = batch.obs["obs"].numpy()
        ids = obs[0, :, 0].astype(int)
        assert (obs[:, :, 0] == ids).all(), "a row holds one env only"
        for row, env in enumerate(ids):
            found[env]["obs"].append(obs[:-1, row])
            found[env]["after"].append(obs[1:, row])
            found[env]["first"].append(batch.is_first[:-1, row].numpy())
            found[env]["action"].append(batch.actions["action"][:, row].numpy())
            for name in ("reward", "terminated", "truncated", "valid"):
                found[env][name].append(getattr(batch, name)[:, row].numpy())
    return {
        env: {name: np.concatenate(parts) for name, parts in columns.items()}
        for env, columns in found.items()
    }


def check_history(env: int, steps: History) -> None:
    """Nothing is missing and nothing comes twice, from the env's first step on. Raises
    AssertionError."""
    # What one step saw last, the next sees first.
    assert (steps["obs"][1:] == steps["after"][:-1]).all()
    episode, step = 0, 0
    assert steps["first"][0]
    for i in range(len(steps["obs"])):
        assert steps["obs"][i, 1:3].tolist() == [episode, step]
        assert steps["first"][i] == (step == 0)
        if not steps["valid"][i]:
            # The row after an end: obs was the final observation, the action was ignored.
            assert steps["terminated"][i - 1] or steps["truncated"][i - 1]
            assert steps["reward"][i] == 0
            assert not steps["terminated"][i] and not steps["truncated"][i]
            episode, step = episode + 1, 0
            continue
        step += 1
        assert steps["after"][i, 3] == steps["action"][i], "the action stored is the one taken"
        assert steps["reward"][i] == code_reward(env, episode, step)
        assert not (steps["terminated"][i] and steps["truncated"][i])
