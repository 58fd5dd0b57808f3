"""Playing episodes with a trained policy: raw returns, repeatable with a seed."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sampleforge.api import load_model, read_config
from sampleforge.env.registry import make_vector
from sampleforge.env.seeding import row_seeds
from sampleforge.env.vector import EnvVector, StepOut
from sampleforge.folder.run_folder import RunFolder
from sampleforge.models.actor_critic import ActorCritic
from sampleforge.models.q_network import QNetwork

MAX_ROWS = 16


def evaluate(
    run_dir: Path,
    *,
    episodes: int,
    stochastic: bool = False,
    seed: int | None = None,
    which: str = "latest",
) -> dict[str, Any]:
    """Play ``episodes`` episodes with the frozen policy of a run folder.

    Every env row plays the same number of episodes (the first rows one more), so that short
    episodes are not over-represented. The same seed gives the same episodes. Returns what
    `sampleforge eval` prints: return_mean, return_std, episodes, length_mean, seed, env_steps (of
    the checkpoint).
    """
    folder = RunFolder.existing(run_dir)
    config = read_config(folder)
    model, _, state = load_model(folder, config, which)
    seed = (config.seed or 0) + 1 if seed is None else seed
    rows = min(MAX_ROWS, episodes)
    config = dataclasses.replace(config, decorrelate=False)
    envs = make_vector(config, rows, row_seeds(seed, 0, 0, rows))
    try:
        played = _play(envs, model.eval(), episodes, stochastic, seed)
    finally:
        envs.close()
    returns = np.array([ret for ret, _ in played])
    return {
        "return_mean": float(returns.mean()),
        "return_std": float(returns.std()),
        "episodes": len(played),
        "length_mean": float(np.mean([length for _, length in played])),
        "stochastic": stochastic,
        "seed": seed,
        "env_steps": state["env_steps"],
    }


@torch.inference_mode()
def _play(
    envs: EnvVector, model: ActorCritic | QNetwork, episodes: int, stochastic: bool, seed: int
) -> list[tuple[float, int]]:
    """(return, length) of each episode, in the order of rows and then of time."""
    rows, spec = envs.num_rows, envs.spec
    quota = [episodes // rows + (row < episodes % rows) for row in range(rows)]
    played: list[list[tuple[float, int]]] = [[] for _ in range(rows)]
    generator = torch.Generator().manual_seed(seed)
    obs = {n: np.zeros((rows, *leaf.shape), leaf.dtype) for n, leaf in spec.observations.items()}
    out = StepOut(
        reward=np.zeros(rows, np.float32),
        terminated=np.zeros(rows, np.bool_),
        truncated=np.zeros(rows, np.bool_),
        valid=np.zeros(rows, np.bool_),
        obs=obs,
        first=np.ones(rows, np.bool_),
        final_obs={n: np.zeros_like(leaf) for n, leaf in obs.items()},
    )
    state = torch.zeros(rows, model.state_size)
    envs.reset(obs)
    while any(len(done) < wanted for done, wanted in zip(played, quota, strict=True)):
        leaves = {n: torch.from_numpy(leaf) for n, leaf in obs.items()}
        output = model.step(leaves, state, torch.from_numpy(out.first))
        distribution = model.distribution(output.parameters, leaves)
        chosen = distribution.sample(generator) if stochastic else distribution.mode()
        state = output.state
        envs.send({n: action.numpy() for n, action in chosen.items()})
        for episode in envs.recv(out):
            if len(played[episode.row]) < quota[episode.row]:
                played[episode.row].append((episode.ret, episode.length))
    return [one for row in played for one in row]
