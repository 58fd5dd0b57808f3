"""The gain of a thread that gathers the learner's next batch: whole runs with and without it.

Alternating, in one sitting; every process anew. The figures are those of ``--benchmark``: env
steps that were trained on, per second and per second of processor time (all processes together,
which other programs on the machine disturb less), and which part of the learner's time the copies
take.

    taskset -c 0,1 python benchmarks/prefetch.py --env CartPole-v1 --rounds 3
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path

from machine import describe, table

from sampleforge.cli.running import run
from sampleforge.models.config import ModelConfig
from sampleforge.topologies.appo import wire as appo
from sampleforge.topologies.config import AppoConfig


def measure(env: str, seconds: float, device: str, *, ahead: bool) -> dict[str, float]:
    """One run: rates per second, and shares of the learner's time."""
    vars(appo)["gathers_ahead"] = lambda plan, serial: ahead
    with tempfile.TemporaryDirectory() as folder:
        config = AppoConfig(
            env=env,
            async_rl=True,
            num_epochs=1,
            model=ModelConfig(separate_critic=False),
            device=device,
            benchmark=True,
            benchmark_peak=False,
            benchmark_seconds=seconds,
            env_timeout=600.0,  # other programs may make the start long
            run_dir=folder,
            quiet=True,
        )
        if run(config):
            raise SystemExit(1)
        found = json.loads((Path(folder) / "benchmark.json").read_text())
    share = {stage["name"]: stage["share"] for stage in found["stages"]}
    return {
        "trained/s": found["trained_per_s"],
        "per CPU s": found["trained_per_s"] / sum(found["busy_cores"].values()),
        "batch": share["batch"],
        "learn": share["learn"],
        "idle": share["learner idle"],
        "lag": found["policy_lag"]["mean"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--env", default="CartPole-v1")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=12.0)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    rows, ratios = [], []
    for number in range(args.rounds):
        found = {}
        for ahead in (False, True) if number % 2 == 0 else (True, False):
            run = found[ahead] = measure(args.env, args.seconds, args.device, ahead=ahead)
            shares = [f"{run[name]:.1%}" for name in ("batch", "learn", "idle")]
            label = "by a thread" if ahead else "in turn"
            rates = [f"{run[name]:,.0f}" for name in ("trained/s", "per CPU s")]
            rows.append([label, *rates, *shares, f"{run['lag']:.1f}"])
        ratios.append(found[True]["per CPU s"] / found[False]["per CPU s"])
    print(describe("torch", "ale-py"))
    header = ["batches gathered", "trained/s", "per CPU s", "batch", "learn", "idle", "lag"]
    print(table(header, rows))
    listed = ", ".join(f"{ratio:.3f}" for ratio in ratios)
    middle = statistics.median(ratios)
    print(f"per CPU s, by a thread / in turn: {listed}; median {middle:.3f}")


if __name__ == "__main__":
    main()
