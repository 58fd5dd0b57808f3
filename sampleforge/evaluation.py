"""Playing episodes with a trained policy: raw returns, repeatable with a seed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sampleforge.api import load_model, read_config
from sampleforge.folder.run_folder import RunFolder
from sampleforge.workers.playing import EpisodePlayer, evaluation_envs, evaluation_seed, outcome


def evaluate(
    run_dir: Path,
    *,
    episodes: int,
    stochastic: bool = False,
    seed: int | None = None,
    which: str = "latest",
) -> dict[str, Any]:
    """Play ``episodes`` episodes with the frozen policy of a run folder; see `EpisodePlayer`.

    The same seed gives the same episodes; without one they are those that the run's own evaluator
    plays. Returns what `sampleforge eval` prints: return_mean, return_std, return_min, return_max,
    episodes, length_mean, stochastic, seed, env_steps (of the checkpoint).
    """
    folder = RunFolder.existing(run_dir)
    config = read_config(folder)
    model, _, state = load_model(folder, config, which)
    seed = evaluation_seed(config.seed or 0) if seed is None else seed
    envs = evaluation_envs(config, episodes, seed)
    try:
        player = EpisodePlayer(envs, model.eval(), episodes, stochastic=stochastic, seed=seed)
        while not player.done:
            player.step()
    finally:
        envs.close()
    return {
        **outcome(player.played),
        "stochastic": stochastic,
        "seed": seed,
        "env_steps": state["env_steps"],
    }
