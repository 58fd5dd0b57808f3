"""Behaviour cloning and advantage weighting on datasets of different quality, with several seeds.

    python benchmarks/imitation.py run --data data/expert data/weak --folder runs/imitation
    python benchmarks/imitation.py plot --folder runs/imitation --out imitation.png

`run` trains `marwil` on each dataset with each exponent and seed, one after the other, and plays
100 episodes with each policy, greedily and with sampled actions; results.jsonl has a line for each
run.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from sampleforge.api import train
from sampleforge.evaluation import evaluate
from sampleforge.offline.dataset import open_dataset
from sampleforge.topologies.config import MarwilConfig


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run")
    run.add_argument("--env", default="CartPole-v1")
    run.add_argument("--data", nargs="+", required=True)
    run.add_argument("--exponents", nargs="+", type=float, default=[0.0, 1.0])
    run.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    run.add_argument("--env-steps", type=int, default=300_000)
    run.add_argument("--folder", type=Path, required=True)
    plot = commands.add_parser("plot")
    plot.add_argument("--folder", type=Path, required=True)
    plot.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    if args.command == "plot":
        draw(args.folder / "results.jsonl", args.out)
        return
    args.folder.mkdir(parents=True, exist_ok=True)
    for data in args.data:
        for exponent in args.exponents:
            for seed in args.seeds:
                result = one(args, data, exponent, seed)
                print(json.dumps(result), flush=True)
                with (args.folder / "results.jsonl").open("a") as file:
                    file.write(json.dumps(result) + "\n")


def one(args: argparse.Namespace, data: str, exponent: float, seed: int) -> dict[str, Any]:
    """Train and evaluate one policy."""
    name = f"{Path(data).name}-{exponent:g}-{seed}"
    config = MarwilConfig(
        env=args.env,
        input=(data,),
        advantage_exponent=exponent,
        train_for_env_steps=args.env_steps,
        evaluate_interval=None,
        seed=seed,
        run_dir=str(args.folder / name),
        quiet=True,
    )
    summary = train(config).summary
    greedy, sampled = (
        evaluate(args.folder / name, episodes=100, seed=1000, stochastic=stochastic)
        for stochastic in (False, True)
    )
    return {
        "data": Path(data).name,
        "data_return_mean": mean_return(data),
        "exponent": exponent,
        "seed": seed,
        "greedy": greedy["return_mean"],
        "sampled": sampled["return_mean"],
        "trained_per_s": summary["trained_per_s"],
    }


def mean_return(data: str) -> float:
    """The mean return of the complete episodes of a dataset."""
    episodes = [e for e in open_dataset(data).episodes() if e.begins and e.ends]
    return sum(float(e.rewards.sum()) for e in episodes) / len(episodes)


def draw(results: Path, out: Path) -> None:
    """Draw a point for each seed, and a bar at the mean, for each dataset and exponent."""
    from matplotlib.figure import Figure

    rows = [json.loads(line) for line in results.read_text().splitlines()]
    names = list(dict.fromkeys(row["data"] for row in rows))
    exponents = sorted({row["exponent"] for row in rows})
    figure = Figure(figsize=(7.2, 3.0), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    for axis, kind in zip(axes, ("greedy", "sampled"), strict=True):
        for place, name in enumerate(names):
            of_data = [row for row in rows if row["data"] == name]
            axis.plot(
                [place - 0.4, place + 0.4],
                2 * [of_data[0]["data_return_mean"]],
                "--",
                color="#767676",
            )
            for index, exponent in enumerate(exponents):
                returns = [row[kind] for row in of_data if row["exponent"] == exponent]
                x = place + 0.3 * (index - (len(exponents) - 1) / 2)
                if not returns:
                    continue
                mean = sum(returns) / len(returns)
                colour = f"C{index}"
                axis.bar([x], [mean], 0.26, color=colour, alpha=0.35)
                axis.plot([x] * len(returns), returns, "o", color=colour, markersize=4)
        axis.set_xticks(range(len(names)), names)
        axis.set_title(f"{kind} actions", loc="left", fontsize=9)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("return (100 episodes)")
    labels = ["cloning" if e == 0 else f"exponent {e:g}" for e in exponents]
    for index, label in enumerate(labels):
        axes[1].plot([], [], "o", color=f"C{index}", label=label)
    axes[1].plot([], [], "--", color="#767676", label="mean of the data")
    axes[1].legend(frameon=False, fontsize=8)
    figure.savefig(out, dpi=160)


if __name__ == "__main__":
    main()
