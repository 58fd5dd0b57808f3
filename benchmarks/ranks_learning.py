"""What DD-PPO learns while one of its ranks is slow, with and without pre-emption."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

STEP_S, SLOW = 0.0005, 4.0
"""Sleep per env step, and how many times as long it is in rank 0."""


@dataclass(frozen=True)
class Learned:
    """One training: its curve as (env steps, seconds, mean return of the last 100 episodes), the
    mean return of 100 episodes played afterwards, rank 0's share of the experience."""

    curve: list[tuple[float, float, float]]
    evaluated: float
    share: float


def learning(seeds: int) -> dict[float, list[Learned]]:
    """By ``--sync-fraction``: 1 is without pre-emption."""
    found: dict[float, list[Learned]] = {fraction: [] for fraction in (1.0, 0.6)}
    for seed in range(1, seeds + 1):  # in turns: the machine's moods are shared out
        for fraction, runs in found.items():
            runs.append(learn(fraction, seed))
    return found


def learn(sync_fraction: float, seed: int) -> Learned:
    """The preset ``cartpole`` with four ranks in place of two: the same batch, minibatch and number
    of env steps over all of them."""
    from sampleforge.api import train
    from sampleforge.cli.train import parse_config
    from sampleforge.evaluation import evaluate
    from sampleforge.reporting.metrics_file import read_metrics

    with tempfile.TemporaryDirectory() as folder:
        flags = (
            f"--preset cartpole --env ranks:SlowCartPole --env-kwargs sleep={STEP_S} slow={SLOW} "
            "--num-ranks 4 --num-envs-per-worker 4 --minibatch-size 32 --device cpu --quiet "
            f"--sync-fraction {sync_fraction} --seed {seed} --report-interval 0.5 "
            f"--run-dir {folder}"
        )
        train(parse_config("ddppo", flags.split()))
        reports = read_metrics(Path(folder) / "metrics.jsonl")
        evaluated = evaluate(Path(folder), episodes=100)["return_mean"]
    curve = [(r["env_steps"], r["wall_s"], r["return_mean"]) for r in reports if "return_mean" in r]
    steps = [reports[-1][f"rank{rank}_steps"] for rank in range(4)]
    return Learned(curve, evaluated, steps[0] / sum(steps))
