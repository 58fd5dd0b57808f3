"""The scores of the presets: what `sampleforge presets` lists.

    python benchmarks/preset_scores.py appo cartpole [--seeds 1 2 3] [--long] [--stochastic]
    python benchmarks/preset_scores.py appo minatar-asterix --variant gymnax --flags "--env-kwargs
        sticky_action_prob=0 max_episode_steps=1000"
    python benchmarks/preset_scores.py appo breakout --variant freeway
        --flags "--env ALE/Freeway-v5" --long --stochastic
    python benchmarks/preset_scores.py              # only writes the table again
    python benchmarks/preset_scores.py --stale [--compare | --run [--minutes N]]

Trains a preset by its command, once per seed, one after the other, and plays 100 episodes (20 with
--long) with each result: unclipped returns of whole episodes, with the protocol that the run
prints. The score of the preset is the median over the seeds, its time that from the start of the
command to its end. A variant is the preset with flags that change its environment; it has a score
of its own. Writes the score into sampleforge/presets/scores.jsonl, the curves with the band of the
seeds into benchmarks/results/preset-ALGO-NAME.png, and all scores as a table into
benchmarks/results/presets.md. With --keep FOLDER the runs stay there, and the same command repeats
no training that has ended.

--stale lists the scores that are older than the code that made them, or of fewer than three seeds
(staleness.py says what counts), the cheapest first. --compare trains those whose code was changed
for a few updates, with the code of the score and with today's: where the weights are the same to
the bit, the change does not concern this preset, and the score counts as one of today's code.
--run measures them again in this order, as they were measured before, at the lowest priority, so
that it can go on beside other work; leave the checkout as it is meanwhile. It ends after --minutes,
and begins none that would end later. This, Ctrl-C and SIGTERM keep the scores that are written, and
with --keep the trainings that have ended.
A training that ends by the clock needs quiet cores and is left out.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from subprocess import PIPE
from typing import Any, NamedTuple

import machine
from first_weights import NotComparable, further_flags, same_weights
from staleness import FEWEST_SEEDS, REPO, check_repository, code_commit, counted, why_stale

from sampleforge.presets import preset_names, preset_values
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

Marks: *older code*, code that decides what the preset learns was changed after the commit of the
score (`--stale` says which), and a short training has other weights now, or was not compared
(`--stale --compare`); *unknown code*, the history lacks the commit; *older settings*, the
preset was changed; the number of seeds, if there are fewer than three.

"""
TIMES = "; its times are those of "


class CommandFailed(Exception):
    """A training or an evaluation has failed; the message has the end of what it printed."""


class Trained(NamedTuple):
    """A training and its evaluation: seconds of the command, env steps, mean return."""

    seconds: float
    env_steps: int
    return_mean: float


def train(algo: str, preset: str, seed: int, run_dir: Path, args: argparse.Namespace) -> Trained:
    """Train and evaluate through the command line, as a user would."""
    took = run_dir.with_suffix(".seconds")
    if not took.exists():
        if run_dir.exists():
            sys.exit(f"{run_dir} is no training of this script; give another --keep")
        unfinished = run_dir.with_suffix(".unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)  # its seconds are not known
        words = [sys.executable, str(HERE.parent / "train.py"), algo, "--preset", preset]
        words += [*shlex.split(args.flags), "--seed", str(seed), "--run-dir", str(unfinished)]
        started = time.perf_counter()
        output(words)
        seconds = time.perf_counter() - started
        unfinished.rename(run_dir)
        took.write_text(str(seconds))
    seconds = float(took.read_text())
    evaluate = [sys.executable, "-m", "sampleforge", "eval", str(run_dir)]
    evaluate += ["--episodes", str(episodes(args)), *["--stochastic"] * args.stochastic]
    found = json.loads(output(evaluate).splitlines()[-1])
    summary = json.loads((run_dir / "summary.json").read_text())
    return Trained(round(seconds, 2), summary["env_steps"], round(found["return_mean"], 4))


def output(command: list[str]) -> str:
    """Return what a command prints; it ends when this script is interrupted. (Ctrl-C in a terminal
    interrupts both, and the second signal ends a training at once.)"""
    with subprocess.Popen(command, stdout=PIPE, stderr=PIPE, text=True) as process:
        try:
            printed, errors = process.communicate()
        except KeyboardInterrupt:
            process.send_signal(signal.SIGTERM)
            process.communicate()
            raise
    if process.returncode:
        raise CommandFailed(f"{' '.join(command)} failed:\n{errors[-3000:]}")
    return printed


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


def measure(algo: str, preset: str, args: argparse.Namespace) -> PresetScore:
    """Return the score of a preset, and write its curves."""
    from sampleforge.tools.plots.curves import draw

    conditions = dict(
        line.split(maxsplit=1) for line in machine.describe("torch", "gymnasium").splitlines()
    )
    conditions["commit"] = code_commit(REPO)
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
    return PresetScore(**values)


def curves(algo: str, preset: str, variant: str) -> Path:
    name = "-".join(filter(None, ("preset", algo, preset, variant)))
    return HERE / "results" / f"{name}.png"


def stale_scores() -> dict[PresetScore, dict[str, str]]:
    """Return the stale scores with the reasons, the cheapest to measure first."""
    scores = read_scores().values()
    check_repository(REPO, [score.commit for score in scores])
    found = {score: why for score in scores if (why := why_stale(score))}
    return dict(sorted(found.items(), key=lambda item: expected_seconds(item[0])))


def show_stale(stale: Mapping[PresetScore, dict[str, str]]) -> None:
    for score, why in stale.items():
        seeds, again = counted(len(score.seeds), "seed"), duration(expected_seconds(score))
        print(f"{title(score)}: {score.score:.5g} of {seeds}, commit {score.commit}; about {again}")
        print("".join(f"    {reason}\n" for reason in why.values()), end="")
    hours = sum(map(expected_seconds, stale)) / 3600
    print(f"{len(stale)} of {len(read_scores())} scores are stale: about {hours:.1f} h to measure")


def compare(stale: Mapping[PresetScore, dict[str, str]]) -> None:
    """Train what is stale by the code with the code of then and of now, and record where both learn
    the same."""
    commit = committed_code()
    changed = [score for score, why in stale.items() if "older code" in why]
    for index, score in enumerate(changed):
        print(f"[{index + 1}/{len(changed)}] {title(score)}, {score.commit}: ", end="", flush=True)
        try:
            same = same_weights(REPO, score, commit)
        except NotComparable as error:
            print(f"not compared: {error}")
            continue
        print("the same weights" if same else "other weights")
        if same:
            write_score(dataclasses.replace(score, same_at=commit))


def committed_code() -> str:
    """Return the newest commit; end the script if the code has changes besides."""
    commit = code_commit(REPO)
    if commit.endswith("-dirty"):
        sys.exit(
            "sampleforge/ or envs/ have changes that are not committed, so no commit would have "
            "the code of the scores; commit or stash them"
        )
    return commit


def run_again(stale: Sequence[PresetScore], args: argparse.Namespace) -> list[str]:
    """Measure the scores again, one after the other, and write each. Return what has failed."""
    commit = committed_code()
    by_clock = [score for score in stale if is_by_clock(score)]
    stale = [score for score in stale if score not in by_clock]
    if by_clock:
        print(f"left out, for quiet cores: {', '.join(map(title, by_clock))}")
    failed = []
    started, expected = time.monotonic(), 0.0
    for index, score in enumerate(stale):
        spent = time.monotonic() - started
        slower = spent / expected if expected else 1.0
        ahead, *later = (slower * expected_seconds(each) for each in stale[index:])
        if args.minutes is not None and spent + ahead > 60 * args.minutes:
            print(f"{title(score)} would take about {duration(ahead)}, more than is left")
            break
        left = f"about {duration(ahead)}, then {duration(sum(later))} for {len(later)} more"
        print(f"[{index + 1}/{len(stale)}] {left}: ", end="")
        expected += expected_seconds(score)
        try:
            write_score(measured_again(score, commit, args))
        except CommandFailed as error:
            failed.append(f"{title(score)}: {error}")
            print(failed[-1])
    return failed


def is_by_clock(score: PresetScore) -> bool:
    """Whether the training of a score ends by the clock, so that it learns less on busy cores."""
    return "train_for_seconds" in preset_values(score.algo, score.preset)


def measured_again(score: PresetScore, commit: str, args: argparse.Namespace) -> PresetScore:
    """Return a score of the same preset, measured in the same way, with three seeds at the least.
    At the lowest priority beside other work a training takes longer than on quiet cores, so that
    the times of an earlier measurement of the same seeds are kept where they are shorter."""
    settings = argparse.Namespace(
        seeds=seeds_again(score),
        long=score.episodes == 20,
        stochastic="sampled actions" in score.protocol,
        variant=score.variant,
        flags=further_flags(score),
        keep=args.keep and args.keep / commit / "-".join(filter(None, score.key)),
        note=args.note or "at the lowest priority",
    )
    found = measure(score.algo, score.preset, settings)
    if (now := code_commit(REPO)) != commit:
        sys.exit(f"{REPO} was changed meanwhile, from {commit} to {now}: use a checkout of its own")
    if found.seeds == score.seeds and found.time > score.time:
        first = score.machine.partition(TIMES)[2] or f"commit {score.commit}, {score.machine}"
        conditions = f"{found.machine}{TIMES}{first}"
        found = dataclasses.replace(found, seconds=score.seconds, machine=conditions)
    print(f"  {found.score:.5g}, before {score.score:.5g} ({each_seed(score.returns)})", flush=True)
    return found


def seeds_again(score: PresetScore) -> list[int]:
    """Return the seeds of a score, and further ones if they are fewer than three."""
    further = [seed for seed in range(1, 1 + FEWEST_SEEDS) if seed not in score.seeds]
    return [*score.seeds, *further[: max(0, FEWEST_SEEDS - len(score.seeds))]]


def expected_seconds(score: PresetScore) -> float:
    return score.time * len(seeds_again(score))


def title(score: PresetScore) -> str:
    return " ".join(filter(None, score.key))


def write_table() -> None:
    """Write all scores as Markdown."""
    scores, stale = read_scores(), stale_scores()
    header = ["preset", "environment", "score", "each seed", "time", "env steps", "date"]
    rows = [
        [
            f"{score.algo} `{score.preset}` {score.variant}".strip()
            + (f" ({', '.join(stale[score])})" if score in stale else ""),
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
            f"\n## {title(score)}\n\n"
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


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("algo", nargs="?", choices=list(ALGOS))
    parser.add_argument("preset", nargs="?")
    parser.add_argument("--seeds", nargs="+", type=int, help="default: 1 2 3")
    parser.add_argument("--long", action="store_true", help="20 episodes instead of 100")
    parser.add_argument("--stochastic", action="store_true", help="sample the actions to evaluate")
    parser.add_argument("--variant", default="", help="a word for what --flags change")
    parser.add_argument("--flags", default="", help="for the training, beside --preset")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep the runs there")
    parser.add_argument("--note", default="", help="what else the machine did meanwhile")
    parser.add_argument("--stale", action="store_true", help="list the scores that are too old")
    parser.add_argument("--compare", action="store_true", help="with --stale: by short trainings")
    parser.add_argument("--run", action="store_true", help="with --stale: measure them again")
    parser.add_argument("--minutes", type=float, help="with --run: end after so many")
    args = parser.parse_args()
    for name, needed in (("compare", "stale"), ("run", "stale"), ("minutes", "run")):
        if getattr(args, name) and not getattr(args, needed):
            parser.error(f"--{name} is for --{needed}; add it, or leave out --{name}")
    if args.minutes is not None and args.minutes <= 0:
        parser.error(f"--minutes {args.minutes:g}: must be above 0")
    if bool(args.variant) != bool(args.flags):
        parser.error("--variant and --flags are given together")
    if args.compare and args.run:
        parser.error("--compare comes before --run: give one of them")
    how = [name for name in ("seeds", "long", "stochastic", "variant") if getattr(args, name)]
    if args.algo is None and how:
        parser.error(f"--{how[0]} is for one preset; name it, as in appo cartpole --{how[0]} ...")
    if args.stale and args.algo is not None:
        parser.error("--stale is for all presets; leave out --stale, or the preset")
    if not (args.run or args.algo) and (args.keep or args.note):
        parser.error("--keep and --note are for a measurement; name a preset, or add --stale --run")
    if args.algo is not None and args.preset not in preset_names(args.algo):
        parser.error(f"{args.algo} has the presets {', '.join(preset_names(args.algo))}")
    return args


def be_interrupted(minutes: float | None) -> None:
    """Let SIGTERM interrupt the script as Ctrl-C does, which a shell ignores for commands in the
    background, and the end of so many minutes, too."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM):
        signal.signal(number, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 60 * (minutes or 0))


def main() -> None:
    args = arguments()
    be_interrupted(args.minutes)
    failed = []
    try:
        if args.algo is not None:
            args.seeds = args.seeds or [1, 2, 3]
            write_score(measure(args.algo, args.preset, args))
        elif args.run:
            os.nice(19)
            failed = run_again(list(stale_scores()), args)
        elif args.compare:
            compare(stale_scores())
        elif args.stale:
            return show_stale(stale_scores())
    except CommandFailed as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        failed = ["interrupted, or --minutes are over; the scores that are written are kept"]
    be_interrupted(None)
    write_table()
    sys.exit("\n".join(failed) or None)


if __name__ == "__main__":
    main()
