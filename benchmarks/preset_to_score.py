"""A preset of SampleForge, and the scores of its weights over time, as one JSON line each.

Run by `benchmarks/time_to_score.py`. The weights are kept every few seconds of the training; when
it has ended, each is evaluated in turn until one reaches the target. So evaluations take nothing of
the training's time, as in `benchmarks/sb3_to_score.py`, where the clock stops meanwhile. The
training ends at the limit, at its own end, or when the mean return of its latest 100 episodes
reaches the target; scores before that count.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from contextlib import suppress
from typing import Any

# What a worker does not need is imported below: each worker imports this module.


def cpu_seconds() -> float:
    """Return the processor seconds of this process and its workers so far."""
    import psutil

    process, seconds = psutil.Process(), 0.0
    for one in (process, *process.children(recursive=True)):
        with suppress(psutil.Error):
            seconds += sum(one.cpu_times()[:2])
    return seconds


def trained(config: Any, args: argparse.Namespace) -> list[tuple[float, float, int, Any]]:
    """Train; return seconds, processor seconds, env steps and the policy of every report."""
    from sampleforge import Trainer

    kept = []
    with Trainer(config) as trainer:
        for report in trainer:
            seconds = time.time() - args.started
            steps = int(report["env_steps"])
            kept.append((seconds, cpu_seconds(), steps, trainer.get_policy()))
            whole = report["episodes"] >= config.metrics_window
            if seconds >= args.limit or (whole and report["return_mean"] >= args.target):
                break
    return kept


def main() -> None:
    from sampleforge import AppoConfig, DdppoConfig
    from sampleforge.algorithms.frozen_policy import FrozenPolicy
    from sampleforge.config import from_plain
    from sampleforge.presets import preset_values
    from sampleforge.workers.episode_player import EpisodePlayer, evaluation_envs

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    configs: dict[str, Any] = {"appo": AppoConfig, "ddppo": DdppoConfig}
    parser.add_argument("--algo", choices=list(configs), required=True)
    parser.add_argument("--preset", required=True)
    parser.add_argument("--target", type=float, required=True)
    parser.add_argument("--limit", type=float, required=True, help="seconds on the clock")
    parser.add_argument("--every", type=float, required=True, help="seconds between weights")
    parser.add_argument("--episodes", type=int, default=20, help="of an evaluation")
    parser.add_argument("--stochastic", action="store_true", help="sample actions to evaluate")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--started", type=float, default=time.time(), help="time at which the clock began"
    )
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        values = preset_values(args.algo, args.preset)
        values |= {"seed": args.seed, "run_dir": f"{folder}/run", "quiet": True}
        # A busy machine may take long to start a process.
        values |= {"report_interval": args.every, "env_timeout": 300.0}
        config = from_plain(configs[args.algo], values)
        kept = trained(config, args)
    for seconds, cpu, steps, policy in kept:
        seed = args.seed + 10_000
        envs = evaluation_envs(config, args.episodes, seed)
        player = EpisodePlayer(
            envs, FrozenPolicy(policy.model), args.episodes, stochastic=args.stochastic, seed=seed
        )
        while not player.done:
            player.step()
        envs.close()
        mean = sum(episode.ret for episode in player.played) / args.episodes
        print(json.dumps({"s": seconds, "cpu": cpu, "steps": steps, "mean": mean}), flush=True)
        if mean >= args.target:
            break


if __name__ == "__main__":
    main()
