"""The plans of all algorithms and presets on machines that need not be at hand.

    python benchmarks/plans.py            # prints the tables of docs/defaults.md and docs/gpu.md
    python benchmarks/plans.py --write    # writes them there

What is learned must not depend on the machine: the batch, the minibatch, the epochs and so the
gradient steps per env step are the same on each of `MACHINES`, and so are the env rows, but where a
GPU serves actors, which then have more; with APPO and images a GPU also learns while the cores
sample. The number of processes and threads follows the cores. The table of docs/defaults.md says
both, that of docs/gpu.md which workers a run has on each machine.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

from sampleforge.config import from_plain
from sampleforge.models.config import ModelConfig
from sampleforge.presets import preset_names, preset_values
from sampleforge.run.folder.stored_config import nested
from sampleforge.runtime.machine import Machine, assumed
from sampleforge.spec import ActionSpec, ArraySpec, EnvSpec
from sampleforge.topologies.config import (
    ALGOS,
    AnyConfig,
    DdppoConfig,
    MarwilConfig,
    ReplayRunConfig,
)
from sampleforge.topologies.registry import pairing
from sampleforge.topologies.sampler_plan import run_device

DOCS = Path(__file__).parents[1] / "docs"
BEGIN, END = "<!-- plans: written by benchmarks/plans.py -->", "<!-- end of plans -->"
CORES, GPUS = (2, 16, 32, 128), (0, 1, 4)
MEMORY = 512 << 30


def machine(cores: int, gpus: int = 0, capability: tuple[int, int] = (9, 0)) -> Machine:
    """Return a machine with enough memory for all presets."""
    return Machine(cores, gpus, lambda gpu: capability, MEMORY)


MACHINES = tuple(machine(cores, gpus) for gpus in GPUS for cores in CORES)


def spec(shape: tuple[int, ...], dtype: str, *, asynchronous: bool = False) -> EnvSpec:
    """Return the spec of an environment with two discrete actions and one observation leaf."""
    actions = {"action": ActionSpec("discrete", (), "int64", (2,))}
    leaf = ArraySpec(shape, dtype)
    return EnvSpec("X-v0", {"obs": leaf}, actions, asynchronous=asynchronous)


CONTINUOUS = ("sac", "crossq", "td3")
"""Algorithms of Box actions alone."""
BOXES = {"action": ActionSpec("box", (2,), "float32", low=(-1.0, -1.0), high=(1.0, 1.0))}
VECTORS, PLANES = spec((8,), "float32"), spec((10, 10, 4), "bool")
IMAGES, ATARI = spec((3, 72, 128), "uint8"), spec((4, 84, 84), "uint8", asynchronous=True)
GOALS = dataclasses.replace(
    VECTORS,
    observations=dict.fromkeys(("achieved_goal", "desired_goal"), ArraySpec((3,), "float32")),
    max_episode_steps=50,
    has_goals=True,
)
KINDS = {"vectors": VECTORS, "planes": PLANES, "images": IMAGES, "images (Atari)": ATARI}
FAMILIES = {"ALE/": ATARI, "Vizdoom": IMAGES, "MinAtar/": PLANES}
"""Beginning of an environment's id -> the kind of its observations; all others are vectors."""


class Run(NamedTuple):
    """A run by the defaults, or by a preset."""

    name: str
    config: AnyConfig
    spec: EnvSpec


@dataclass(frozen=True)
class Sizes:
    """What a run on one machine learns from, over all its ranks, and with which processes.

    ``minibatch``: env steps of a gradient step; ``per_env_step``: gradient steps per env step."""

    rows: int
    batch: int
    minibatch: int
    epochs: int
    per_env_step: Fraction
    workers: int
    threads: int
    device: str
    nbytes: int
    policy_workers: int = 0
    precision: str = ""
    policy_cores: int = 0

    @property
    def learned(self) -> tuple[Any, ...]:
        """What must be the same on all machines."""
        return self.batch, self.minibatch, self.epochs, self.per_env_step


def runs() -> Iterator[Run]:
    """Yield the defaults of each algorithm for each kind of observations, and all presets."""
    for algo, make in ALGOS.items():
        for kind, of in KINDS.items():
            for core in ("none", "gru") if algo not in CONTINUOUS else ("none",):
                model = ModelConfig(core=core)
                of = dataclasses.replace(of, actions=BOXES) if algo in CONTINUOUS else of
                name = f"`{algo}`, {kind}{'' if core == 'none' else ', GRU'}"
                yield Run(name, make(env="X-v0", model=model), of)
    for algo, make in ALGOS.items():
        for preset in preset_names(algo):
            values = preset_values(algo, preset)
            of = next((s for k, s in FAMILIES.items() if values["env"].startswith(k)), VECTORS)
            of = GOALS if values.get("her") else of
            of = dataclasses.replace(of, actions=BOXES) if algo in CONTINUOUS else of
            yield Run(f"`{algo} --preset {preset}`", from_plain(make, nested(values), preset), of)


def sizes(run: Run, on: Machine) -> Sizes:
    """Return the sizes of a run on a machine."""
    with assumed(on):
        chosen = pairing(run.config)
        config = chosen.resolve_defaults(run.config, run.spec)
        device = run_device(config, run.spec)
        if isinstance(config, MarwilConfig):  # its plan reads the data
            batch = config.batch_size or 0
            return Sizes(0, batch, batch, 1, Fraction(1, batch), 0, 0, device, 0)
        plan = chosen.plan(config, run.spec, device)
    ranks = plan.num_workers if isinstance(config, DdppoConfig) else 1
    batch = plan.batch_size * ranks
    if isinstance(config, ReplayRunConfig):
        ratio = Fraction(plan.ratio) / batch
        sequence = plan.item_steps.learned
        steps = batch * sequence
        return Sizes(
            *(plan.envs, steps, steps, 1, ratio / sequence),
            *(plan.num_workers, plan.learner_threads, device, plan.shared_bytes),
            *(plan.num_policy_workers, plan.precision, plan.policy_cores),
        )
    minibatch, epochs = (config.minibatch_size or plan.batch_size) * ranks, config.num_epochs
    return Sizes(
        *(plan.envs, batch, minibatch, epochs, Fraction(epochs, minibatch)),
        *(plan.num_workers, plan.learner_threads, device, plan.slot_bytes),
        *(plan.num_policy_workers, plan.precision, plan.policy_cores),
    )


def table() -> str:
    """Return the table of all runs on all machines, as Markdown."""
    cores = ", ".join(map(str, CORES))
    head = (
        "run",
        "env rows",
        "batch",
        "epochs x minibatch",
        "env steps per gradient step",
        f"actors or ranks on {cores} cores",
        "learner threads",
        "with one GPU",
        "with four GPUs",
    )
    lines = [_line(head), _line(["---", *["--:"] * 4, *["---"] * 4])]
    for run in runs():
        found = [sizes(run, on) for on in MACHINES]
        first, each = found[0], len(CORES)
        groups = [found[i : i + each] for i in range(0, len(found), each)]
        lines.append(
            _line(
                [
                    run.name,
                    f"{first.rows:,}" if first.rows else "",
                    f"{first.batch:,}",
                    f"{first.epochs} x {first.minibatch:,}",
                    f"{float(1 / first.per_env_step):,.4g}",
                    _counts(groups[0], "workers"),
                    _counts(groups[0], "threads"),
                    *(_with_gpus(group) for group in groups[1:]),
                ]
            )
        )
    return "\n".join(lines)


def _counts(found: Sequence[Sizes], name: str) -> str:
    counts = [getattr(each, name) for each in found]
    return ", ".join(map(str, counts)) if any(counts) else ""


def _with_gpus(found: Sequence[Sizes]) -> str:
    if found[0].device == "cpu":
        return "CPU"
    return f"{_counts(found, 'workers')} GPU".strip()


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def workers_table() -> str:
    """Return the table of the workers of a run by the defaults on each machine, as Markdown; a line
    for the numbers of cores with which they are the same."""
    lines = [_line(("run", "cores", "no GPU", "one GPU", "four GPUs")), _line(["---"] * 5)]
    for algo in ("appo", "apex", "ddppo", "sac"):
        for kind in ("vectors", "images") if algo not in CONTINUOUS else ("vectors",):
            of = KINDS[kind]
            of = dataclasses.replace(of, actions=BOXES) if algo in CONTINUOUS else of
            run = Run(f"`{algo}`, {kind}", ALGOS[algo](env="X-v0"), of)
            of_cores: dict[tuple[str, ...], list[str]] = {}
            for cores in CORES:
                on = [sizes(run, machine(cores, gpus)) for gpus in GPUS]
                cells = tuple(_workers(each, ranks=algo == "ddppo") for each in on)
                of_cores.setdefault(cells, []).append(str(cores))
            for cells, numbers in of_cores.items():
                lines.append(_line([run.name, ", ".join(numbers), *cells]))
    return "\n".join(lines)


def _workers(of: Sizes, *, ranks: bool) -> str:
    """Return the workers of a run as text."""
    parts = [_count(of.workers, "rank" if ranks else "actor")]
    if of.policy_workers:
        parts.append(_count(of.policy_workers, "policy worker"))
    if of.device != "cpu":
        parts.append("a GPU each" if ranks else "learner on a GPU")
        return ", ".join([*parts, of.precision])
    threads = _count(of.threads, "thread")
    return ", ".join([*parts, f"{threads} each" if ranks else f"learner of {threads}"])


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


TABLES: dict[str, Callable[[], str]] = {"defaults.md": table, "gpu.md": workers_table}
"""Page of docs -> the table in it."""


def page(name: str) -> str:
    """Return the text of a page of docs with the table of today in it."""
    before, _, rest = (DOCS / name).read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{TABLES[name]()}\n\n{END}{after}"


def main() -> None:
    """Print the tables, or write them into their pages."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--write", action="store_true")
    write = parser.parse_args().write
    for name, made in TABLES.items():
        if write:
            (DOCS / name).write_text(page(name), encoding="utf-8")
        else:
            print(f"{name}\n\n{made()}\n")


if __name__ == "__main__":
    main()
