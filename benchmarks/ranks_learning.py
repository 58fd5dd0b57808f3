"""The returns of DD-PPO with a straggling rank, with and without pre-emption."""

from __future__ import annotations

import contextlib
import io
import tempfile
from dataclasses import dataclass
from pathlib import Path

CASES = {
    "one of 4 ranks 4x slower": "sleep=0.0005 slow=4",
    "Pareto step times, shape 1.5": "sleep=0.001 tail=1.5",
}
"""What the environment is told: seconds of sleep per env step, how many times as long rank 0 needs,
and the heavy tail of their distribution."""
WAYS = {
    "waiting": "--sync-fraction 1 --max-rollout-fraction 1",
    "pre-empting": "",
    "pre-empting, variable experience": "--variable-experience",
}


@dataclass(frozen=True)
class TrainingResult:
    """One training: its curve as (env steps, seconds, mean return of the last 100 episodes), the
    mean return of 100 episodes played afterwards, rank 0's share of the experience."""

    curve: list[tuple[float, float, float]]
    evaluated: float
    share: float


def learning(seeds: int) -> dict[str, dict[str, list[TrainingResult]]]:
    """Return the training results by case and way."""
    found: dict[str, dict[str, list[TrainingResult]]] = {
        c: {way: [] for way in WAYS} for c in CASES
    }
    for seed in range(1, seeds + 1):  # in turns: the machine's moods are shared out
        for case, ways in found.items():
            for way, runs in ways.items():
                runs.append(learn(CASES[case], WAYS[way], seed))
    return found


def learn(env_kwargs: str, way: str, seed: int) -> TrainingResult:
    """The preset ``cartpole`` with four ranks in place of two: the same batch, minibatch and number
    of env steps over all of them."""
    from sampleforge.api import train
    from sampleforge.cli.train import parse_config
    from sampleforge.evaluation import evaluate
    from sampleforge.run.folder.trust import Trust
    from sampleforge.run.reports.metrics_file import read_metrics

    with tempfile.TemporaryDirectory() as folder:
        flags = (
            f"--preset cartpole --env ranks:SlowCartPole --env-kwargs {env_kwargs} {way} "
            "--num-ranks 4 --num-envs-per-worker 4 --minibatch-size 32 --device cpu --quiet "
            f"--seed {seed} --report-interval 0.5 "
            f"--run-dir {folder}"
        )
        with contextlib.redirect_stdout(io.StringIO()):
            train(parse_config("ddppo", flags.split()))
        reports = read_metrics(Path(folder) / "metrics.jsonl")
        own = Trust(everything=True)
        evaluated = evaluate(folder, episodes=100, trust=own)["return_mean"]
    curve = [(r["env_steps"], r["wall_s"], r["return_mean"]) for r in reports if "return_mean" in r]
    steps = [reports[-1][f"rank{rank}_steps"] for rank in range(4)]
    return TrainingResult(curve, evaluated, steps[0] / sum(steps))
