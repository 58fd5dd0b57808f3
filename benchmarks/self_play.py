"""Whether self-play improves: `python benchmarks/self_play.py --folder runs/self-play`.

For each way of drawing opponents (`--opponent-draw`), and each seed, a policy trains on
PaddleDuel-v0 in serial mode, which makes the runs repeatable, with a snapshot every 1/20 of the env
steps. Then the final policy plays ``--episodes`` episodes against each snapshot of the first half
of the training, from both sides, with sampled actions. Prints the win rates; an episode that lasts
400 steps is a draw, which counts half.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter

import numpy as np

import sampleforge as sf
from sampleforge.algorithms.frozen_policy import FrozenPolicy
from sampleforge.loaded_policy import load_model
from sampleforge.populations.opponents import DRAW_RULES, DrawRule
from sampleforge.populations.self_play import load_snapshots
from sampleforge.run.folder.run_folder import RunFolder
from sampleforge.run.folder.trust import Trust
from sampleforge.runtime.threads import limit_threads
from sampleforge.tools.tournament.games import Game, GamePlayer
from sampleforge.tools.tournament.tournament import tournament_envs

SNAPSHOTS = 20


def train(folder: Path, draw: DrawRule, env_steps: int, seed: int) -> float:
    """Train one policy; return the seconds that it took."""
    started = perf_counter()
    config = sf.AppoConfig(
        env="PaddleDuel-v0",
        serial=True,
        quiet=True,
        seed=seed,
        num_envs_per_worker=32,
        opponent_pool=SNAPSHOTS + 1,
        opponent_interval=env_steps // SNAPSHOTS,
        opponent_draw=draw,
        train_for_env_steps=env_steps,
        run_dir=str(folder),
    )
    sf.train(config)
    return perf_counter() - started


def win_rates(path: Path, env_steps: int, episodes: int) -> dict[int, float]:
    """Return the points per game of the final policy against each snapshot of the first half of the
    training, by the env steps of the snapshot."""
    folder = RunFolder.existing(path)
    config = folder.read_config(sf.AppoConfig, Trust())
    final, spec, _ = load_model(folder, config)
    snapshots = [(n, m) for n, m in load_snapshots(folder, final) if n <= env_steps // 2]
    policies = [FrozenPolicy(final), *(FrozenPolicy(model) for _, model in snapshots)]

    def games() -> Iterator[Game]:
        for opponent in range(1, len(policies)):
            for number in range(episodes):
                yield Game(0, opponent) if number % 2 == 0 else Game(opponent, 0)

    envs = tournament_envs(config, {"final": spec}, episodes * len(snapshots), seed=0)
    player = GamePlayer(envs, policies, games(), stochastic=True, seed=0)
    while not player.done:
        player.step()
    envs.close()
    points: dict[int, list[float]] = {}
    for (first, second), score in player.played:
        opponent, own = (second, score) if first == 0 else (first, 1.0 - score)
        points.setdefault(snapshots[opponent - 1][0], []).append(own)
    return {steps: float(np.mean(points[steps])) for steps, _ in snapshots}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="where the runs are written")
    parser.add_argument("--env-steps", type=int, default=50_000)
    parser.add_argument("--episodes", type=int, default=200, help="per snapshot")
    parser.add_argument("--seeds", type=int, default=1)
    args = parser.parse_args()
    limit_threads(1)
    for draw in DRAW_RULES:
        for seed in range(args.seeds):
            folder = args.folder / f"{draw}-{seed}"
            seconds = train(folder, draw, args.env_steps, seed)
            rates = win_rates(folder, args.env_steps, args.episodes)
            shown = " ".join(f"{rate:.0%}" for rate in rates.values())
            print(
                f"{draw}, seed {seed}: lowest {min(rates.values()):.1%} ({shown}), {seconds:.0f} s",
                flush=True,
            )


if __name__ == "__main__":
    main()
