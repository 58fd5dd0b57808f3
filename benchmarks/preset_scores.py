"""The scores of the presets: what `sampleforge presets` lists.

    python benchmarks/preset_scores.py appo cartpole [--seeds 1 2 3] [--long] [--stochastic]
    python benchmarks/preset_scores.py appo minatar-asterix --variant gymnax --flags "--env-kwargs
        sticky_action_prob=0 max_episode_steps=1000"
    python benchmarks/preset_scores.py appo breakout --variant freeway
        --flags "--env ALE/Freeway-v5" --long --stochastic
    python benchmarks/preset_scores.py              # only writes the table again

Trains a preset by its command, once per seed, one after the other, and plays 100 episodes (20 with
--long) with each result: unclipped returns of whole episodes, with the protocol that the run
prints. The score of the preset is the median over the seeds, its time that from the start of the
command to its end. A variant is the preset with flags that change its environment; it has a score
of its own. Writes the score into sampleforge/presets/scores.jsonl, the curves with the band of the
seeds into benchmarks/results/preset-ALGO-NAME.png, and all scores as a table into
benchmarks/results/presets.md. With --keep FOLDER the runs stay there, and the same command repeats
no training that has ended.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import machine

from sampleforge.presets import preset_names
from sampleforge.presets.scores import PresetScore, digest, duration, read_scores, write_score
from sampleforge.run.folder.run_folder import RunFolder
from sampleforge.topologies.config import ALGOS

HERE = Path(__file__).resolve().parent
TABLE = HERE / "results" / "presets.md"
HEAD = """\
# Scores of the presets

Written by `python benchmarks/preset_scores.py ALGO PRESET`; `sampleforge presets` lists the same.
A score is the median over the seeds of the mean return of evaluation episodes, raw and unclipped;
the time is the median of the seconds from the start of the training command to its end. Machine,
software and commit of each are below the table, with the protocol and the curves (their band: the
95% interval of the mean over the seeds). This script has not measured the presets that are missing;
earlier figures, most of one seed, are in [learning.md](learning.md).

"""


class Trained(NamedTuple):
    """A training and its evaluation: seconds of the command, env steps, mean return."""

    seconds: float
    env_steps: int
    return_mean: float


def train(algo: str, preset: str, seed: int, run_dir: Path, args: argparse.Namespace) -> Trained:
    """Train and evaluate through the command line, as a user would."""
    words = [sys.executable, str(HERE.parent / "train.py"), algo, "--preset", preset]
    words += [*shlex.split(args.flags), "--seed", str(seed), "--run-dir", str(run_dir)]
    took = run_dir.with_suffix(".seconds")
    if not took.exists():
        started = time.perf_counter()
        output(words)
        took.write_text(str(time.perf_counter() - started))
    seconds = float(took.read_text())
    evaluate = [sys.executable, "-m", "sampleforge", "eval", str(run_dir)]
    evaluate += ["--episodes", str(episodes(args)), *["--stochastic"] * args.stochastic]
    found = json.loads(output(evaluate).splitlines()[-1])
    summary = json.loads((run_dir / "summary.json").read_text())
    return Trained(round(seconds, 2), summary["env_steps"], round(found["return_mean"], 4))


def output(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr[-3000:]}")
    return done.stdout


def episodes(args: argparse.Namespace) -> int:
    return 20 if args.long else 100


def protocol(run_dir: Path, args: argparse.Namespace) -> str:
    """Return how the episodes were played: as the environment says, their limit, and the choice of
    the actions."""
    spec = RunFolder(run_dir).read_spec()
    assert spec is not None
    limit = spec.max_episode_steps
    parts = [
        f"{episodes(args)} episodes",
        "sampled actions" if args.stochastic else "most likely actions",
        spec.protocol or "raw rewards",
    ]
    if "cut at" not in spec.protocol:
        parts.append(f"at most {limit} env steps" if limit else "no time limit")
    return ", ".join(parts)


def measure(algo: str, preset: str, args: argparse.Namespace) -> None:
    """Measure a preset, and write its score and curves."""
    from sampleforge.tools.plots.curves import draw

    conditions = dict(
        line.split(maxsplit=1) for line in machine.describe("torch", "gymnasium").splitlines()
    )
    print(f"{algo} {preset}, {conditions['machine']}, commit {conditions['commit']}", flush=True)
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        runs = [folder / f"seed-{seed}" for seed in args.seeds]
        trained = []
        for seed, run_dir in zip(args.seeds, runs, strict=True):
            trained.append(train(algo, preset, seed, run_dir, args))
            print(f"  seed {seed}: {trained[-1]}", flush=True)
        how = protocol(runs[0], args)
        env = json.loads((runs[0] / "summary.json").read_text())["env"]
        draw(runs, curves(algo, preset, args.variant))
    command = ["python train.py", algo, "--preset", preset, *[args.flags] * bool(args.flags)]
    seconds, env_steps, returns = zip(*trained, strict=True)
    values: dict[str, Any] = {
        **{"algo": algo, "preset": preset, "env": env},
        **{"seeds": tuple(args.seeds), "returns": returns, "seconds": seconds},
        **{"env_steps": env_steps, "episodes": episodes(args), "protocol": how},
        **{"command": " ".join([*command, "--seed S"]), "variant": args.variant},
        **{name: conditions[name] for name in ("machine", "software", "commit")},
        **{"date": time.strftime("%Y-%m-%d"), "settings": digest(algo, preset)},
    }
    if args.note:
        values["machine"] += f"; {args.note}"
    write_score(PresetScore(**values))


def curves(algo: str, preset: str, variant: str) -> Path:
    name = "-".join(filter(None, ("preset", algo, preset, variant)))
    return HERE / "results" / f"{name}.png"


def write_table() -> None:
    """Write all scores as Markdown."""
    scores = read_scores()
    header = ["preset", "environment", "score", "each seed", "time", "env steps", "date"]
    rows = [
        [
            f"{score.algo} `{score.preset}` {score.variant}".strip()
            + ("" if score.is_current else " (older settings)"),
            score.env,
            f"{score.score:.5g}",
            each_seed(score.returns),
            duration(score.time),
            f"{max(score.env_steps):,}",
            score.date,
        ]
        for score in scores.values()
    ]
    parts = [HEAD, machine.table(header, rows), "\n"]
    for score in scores.values():
        name = curves(*score.key).name
        seeds = ", ".join(map(str, score.seeds))
        parts.append(
            f"\n## {' '.join(filter(None, score.key))}\n\n"
            f"* command: `{score.command}`, S of {seeds}\n"
            f"* protocol: {score.protocol}\n"
            f"* {score.machine}; {score.software}; commit {score.commit}\n\n"
            f"![]({name})\n"
        )
    TABLE.write_text("".join(parts))
    print(f"{len(scores)} presets: {TABLE.relative_to(HERE.parent)}")


def each_seed(returns: Sequence[float]) -> str:
    """Return the scores of the seeds as text, of many only how many there are and their range."""
    if len(returns) <= 5:
        return ", ".join(f"{one:.5g}" for one in returns)
    return f"{len(returns)} seeds: {min(returns):.5g} to {max(returns):.5g}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("algo", nargs="?", choices=list(ALGOS))
    parser.add_argument("preset", nargs="?")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--long", action="store_true", help="20 episodes instead of 100")
    parser.add_argument("--stochastic", action="store_true", help="sample the actions to evaluate")
    parser.add_argument("--variant", default="", help="a word for what --flags change")
    parser.add_argument("--flags", default="", help="for the training, beside --preset")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep the runs there")
    parser.add_argument("--note", default="", help="what else the machine did meanwhile")
    args = parser.parse_args()
    if bool(args.variant) != bool(args.flags):
        parser.error("--variant and --flags are given together")
    if args.algo is not None:
        if args.preset not in preset_names(args.algo):
            parser.error(f"{args.algo} has the presets {', '.join(preset_names(args.algo))}")
        measure(args.algo, args.preset, args)
    write_table()


if __name__ == "__main__":
    main()
