"""The advice of `sampleforge check-env`: which algorithm, preset and flags to begin with, as
commands, and how long each takes.

It follows from the environment's spec, from the numbers behind the findings, and from what
comparable trainings took (`sampleforge.tools.check_env.measured`).
"""

from __future__ import annotations

import dataclasses
import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from sampleforge.config import typed
from sampleforge.encoding import encodings
from sampleforge.env.config import EnvConfig
from sampleforge.presets import preset_values
from sampleforge.spec import ACTION_MASK, EnvSpec
from sampleforge.tools.check_env.measured import (
    Kind,
    Measured,
    is_same,
    measured_in,
    measured_of,
    unmeasured_presets,
)
from sampleforge.tools.check_env.verdicts import LARGE, WAITS_BELOW, human_time

Values = Mapping[str, float | None]
"""The numbers behind the findings, by name."""

MOST = 3
"""Number of commands that are given."""
FEW_ACTIONS = 2
"""Numbers in a Box action up to which there are few."""
OF_CRITICS = ("sac", "crossq", "td3")
WITH_BONUS = ("appo", "ddppo", "pqn")
"""Those that can pay for new observations, which helps where all random episodes are alike."""
FAR_BELOW = 10
"""How many times larger than others single costs are from which on the user is told."""
SMALL_PART = 0.05
"""Rewards that differ by less than this part of the least of them have a constant that hides what
an action changes."""
ROWS = {"appo": 16, **dict.fromkeys(OF_CRITICS, 4)}
"""Env rows of a run by the defaults; those of `OF_CRITICS` are in one worker."""
FROM_REPLAY = ("apex", *OF_CRITICS)
USUAL_ROLLOUT = 32
"""Steps of a rollout by the defaults, through which the gradients of a recurrent core reach."""
REACH = 1.25
"""Steps of a rollout for each step that something has to be remembered, at least: 64 for 50
(benchmarks/results/levers.md, "T-mazes of length 20 and 50")."""
NO_LIMIT = 1000
"""Value of --max-episode-steps where episodes have no end: the time limit of gymnasium's MuJoCo."""


@dataclass(frozen=True)
class Suggestion:
    """A training to begin with: its ``command``, the ``row`` that speaks for it, if there is one,
    and the ``seconds`` that it is expected to take here, of which ``simulation`` are the env
    steps'. Both are None if nothing comparable was measured."""

    command: str
    row: Measured | None = None
    seconds: float | None = None
    simulation: float | None = None

    @property
    def text(self) -> str:
        """What was measured, and what it takes here."""
        row = self.row
        if row is None or self.seconds is None or self.simulation is None:
            return "no comparable training was measured"
        preset = f", preset {row.preset}" if row.preset else ""
        return (
            f"about {human_time(self.seconds)} here, of which {human_time(self.simulation)} of "
            f"simulation; measured on {row.env}{preset}: a return of {row.score:,.5g} after "
            f"{row.env_steps:,} env steps and {human_time(row.seconds)} "
            f"(benchmarks/results/{row.page})"
        )


@dataclass(frozen=True)
class Advice:
    """What to begin with, the quickest first, and what else there is to know."""

    suggestions: tuple[Suggestion, ...]
    notes: tuple[str, ...]


def advise(config: EnvConfig, spec: EnvSpec, values: Values, cores: int) -> Advice:
    """Return the advice for the environment of ``config``, which must have a measured speed among
    the ``values``."""
    kind = kind_of_task(spec, values)
    rows = measured_in(config.env) or (measured_of(kind) if kind is not None else [])
    found = [_suggestion(row, config, spec, values, cores) for row in rows]
    found.sort(key=lambda each: (each.seconds or 0.0, -each.row.score if each.row else 0.0))
    if not found:
        found = [Suggestion(_command("appo", config, "", [*_of_env(spec, values)]))]
    return Advice(tuple(found[:MOST]), tuple(_notes(config, spec, values, cores, found)))


def kind_of_task(spec: EnvSpec, values: Values) -> Kind | None:
    """Return the kind of environment whose measurements are comparable, or None if there are
    none."""
    if spec.num_seats > 1:
        return None
    actions = [*spec.actions.values()]
    seen = {leaf.kind for leaf in encodings(spec.observations).values()}
    if values.get("hidden_state") and not seen & {"pixels", "planes"}:
        return "memory"
    if all(leaf.is_bounded_box for leaf in actions):
        if spec.has_goals:
            return "goals"
        if seen & {"pixels", "planes"}:
            return None
        most = max(len(leaf.low) for leaf in actions)
        return "few actions" if most <= FEW_ACTIONS else "many actions"
    if any(leaf.kind == "box" for leaf in actions):
        return None
    if "pixels" in seen:
        return "pixels"
    return "planes" if "planes" in seen else "vectors"


def _suggestion(
    row: Measured, config: EnvConfig, spec: EnvSpec, values: Values, cores: int
) -> Suggestion:
    preset = row.preset if _fits(row, config.env) else ""
    processes, workers = _workers(row, preset, spec, values, cores)
    simulation = row.env_steps / ((values["env_steps_per_s"] or math.inf) * processes)
    flags = [*_of_env(spec, values), *workers]
    if not preset:
        steps = float(f"{row.env_steps:.2g}")  # the measured runs end with a batch
        flags += [*shlex.split(row.flags), "--train-for-env-steps", f"{steps:.0f}"]
        if row.algo in OF_CRITICS:
            flags += _of_size(values, flags)
        if "--model.core" in flags:
            flags += _of_gap(values)
        alike = values.get("return_spread") == 0.0
        if row.algo in WITH_BONUS and alike and "--rnd-coeff" not in flags:
            flags += ["--rnd-coeff", "1" if values.get("reward_min") else "0.5"]
    beside = row.algo in FROM_REPLAY and cores > 1
    parts = simulation, row.seconds
    seconds = max(parts) if beside else sum(parts)
    if preset:  # some end by time
        seconds = preset_values(row.algo, preset).get("train_for_seconds", seconds)
    return Suggestion(_command(row.algo, config, preset, flags), row, seconds, simulation)


def _of_size(values: Values, given: Sequence[str]) -> Iterator[str]:
    """Yield the flags that algorithms with critics need for large numbers, and that are not given:
    the others normalise observations and returns by themselves."""
    normalise = "--model.normalise-observations"
    if (values.get("observation_size") or 0.0) >= LARGE and normalise not in given:
        yield normalise
    size = max(abs(values.get(name) or 0.0) for name in ("reward_min", "reward_max"))
    if size >= LARGE:
        yield from ("--reward-scale", f"{1.0 / size:.0e}")


def _of_gap(values: Values) -> Iterator[str]:
    """Yield the flags for what has to be remembered for longer than a usual rollout."""
    rollout = USUAL_ROLLOUT
    while rollout < REACH * (values.get("steps_back") or 0.0):
        rollout *= 2
    if rollout > USUAL_ROLLOUT:
        yield from ("--rollout", str(rollout))


def _fits(row: Measured, env: str) -> bool:
    """Return whether the row's preset was measured in the environment ``env``, or beyond its own
    one."""
    made_for = _made_for(row.algo, row.preset) if row.preset else ""
    return bool(row.preset) and (is_same(row.env, env) or not is_same(made_for, row.env))


def _made_for(algo: str, preset: str) -> str:
    """Return the environment of a preset."""
    return str(preset_values(algo, preset).get("env", ""))


def _workers(
    row: Measured, preset: str, spec: EnvSpec, values: Values, cores: int
) -> tuple[float, list[str]]:
    """Return how many processes step environments at the same time, and the flags for that.

    Rows that wait have a worker each, so that they do not wait one after another, if it is known
    how many rows (`ROWS`) learn the same from it. A replay's learner has a core of its own."""
    usual = 1 if row.algo in OF_CRITICS else cores
    waits = values.get("waiting") or 0.0
    fixed = preset or "core" in row.flags or _has_pixels(spec) or spec.num_seats > 1
    rows = 0 if fixed else ROWS.get(row.algo, 0)
    workers = min(rows, max(cores, int(cores / max(1e-3, 1.0 - waits))))
    if waits <= WAITS_BELOW or spec.asynchronous or workers <= usual or rows % workers:
        return usual, []
    each = ["--num-envs-per-worker", str(rows // workers)]
    return workers, ["--num-workers", str(workers), *each]


def _has_pixels(spec: EnvSpec) -> bool:
    return any(leaf.kind == "pixels" for leaf in encodings(spec.observations).values())


def _of_env(spec: EnvSpec, values: Values) -> Iterator[str]:
    """Yield the flags that the environment needs with any algorithm."""
    if spec.max_episode_steps is None and not values.get("episodes"):
        yield from ("--max-episode-steps", str(NO_LIMIT))
    elif spec.has_goals and (own := values.get("cut_after")):  # unknown to --her otherwise
        yield from ("--max-episode-steps", f"{own:.0f}")
    if (groups := len(spec.agent_groups)) > 1:
        yield from ("--num-policies", str(groups))


def _command(algo: str, config: EnvConfig, preset: str, flags: list[str]) -> str:
    """Return the command line of a training, with the flags of the environment in ``config``."""
    parts = ["sampleforge train", algo, *(["--preset", preset] if preset else [])]
    usual = EnvConfig()
    for field in dataclasses.fields(EnvConfig):
        value = getattr(config, field.name)
        known = preset and field.name == "env" and value == _made_for(algo, preset)
        if value != getattr(usual, field.name) and not known:
            parts.append(typed(field.name, value))
    return " ".join([*parts, *flags])


def _notes(
    config: EnvConfig, spec: EnvSpec, values: Values, cores: int, found: Sequence[Suggestion]
) -> Iterator[str]:
    """Yield what else there is to know."""
    yield f"Algorithms that can train in it: {', '.join(_algorithms(spec))}"
    unknown = [
        f"{algo} --preset {name}"
        for algo, name in unmeasured_presets()
        if is_same(_made_for(algo, name), config.env)
    ]
    if unknown:
        yield f"Presets without a measured score: {', '.join(unknown)}"
    if any(each.row for each in found):
        yield (
            f"Simulation: at the speed of above, on {cores} core{'s' * (cores > 1)}; learning: as "
            "long as on the two cores of the measurement"
        )
    yield from _notes_of_time(spec, values)
    yield from _notes_of_rewards(spec, values)
    if spec.has_goals:
        algos = ", ".join(algo for algo in _algorithms(spec) if algo in FROM_REPLAY)
        yield f"It has goals: --her ({algos}) learns also from those that were missed"
    if _has_pixels(spec):
        yield (
            "Images: appo and ddppo normalise each pixel; with the others try "
            "--model.normalise-images, and --precision fp32 if learning is slow with bf16"
        )
    if ACTION_MASK in spec.observations:
        yield "Its action mask needs no flag"
    if (groups := len(spec.agent_groups)) > 1:
        yield (
            f"Its agents have {groups} kinds of spaces, each of which needs a policy of its own "
            f"(--num-policies {groups})"
        )
    elif spec.num_seats > 1:
        yield (
            "Its agents share one policy; --num-policies N trains several, --opponent-pool N plays "
            "against earlier ones"
        )


def _notes_of_time(spec: EnvSpec, values: Values) -> Iterator[str]:
    """Yield what there is to know about the time of a step."""
    waits, uneven = (values.get(name) or 0.0 for name in ("waiting", "uneven"))
    if spec.asynchronous:
        yield "It steps beside its actor: the defaults use that"
    elif waits > WAITS_BELOW:
        text = f"{waits:.0%} of a step is waiting, and the rows of a worker wait one after another"
        if spec.num_seats == 1:
            text += "; --variable-experience lets each row wait in a thread of its own"
        yield text
    if uneven:
        remedy = (
            "many workers (--num-workers) wait for none in the asynchronous topologies, and ddppo "
            "cuts late ranks short (--sync-fraction)"
        )
        if waits > WAITS_BELOW:
            remedy = "with --variable-experience rows do not wait for each other"
        yield f"1% of the steps take {uneven:.0f}x the median or longer: {remedy}"


def _notes_of_rewards(spec: EnvSpec, values: Values) -> Iterator[str]:
    """Yield what there is to know about rewards that hardly differ, or none of which was above
    0."""
    low, high = values.get("reward_min"), values.get("reward_max")
    if low is None or high is None:
        return
    least = min(abs(low), abs(high))
    if low * high > 0 and 0 < high - low < SMALL_PART * least:
        ppo = ", with --kl-coeff 0 for appo and ddppo" if low > 0 else ""
        yield (
            f"All rewards are between {low:g} and {high:g}: what an action changes is small beside "
            "what they have in common. Subtract that in the environment if no action ends an "
            f"episode; otherwise it takes more env steps{ppo}"
        )
    if high > 0 or spec.has_goals:
        return
    algos = ", ".join(algo for algo in _algorithms(spec) if algo in WITH_BONUS)
    yield (
        "Random play saw no reward above 0: where there is one that it hardly ever finds, "
        f"--rnd-coeff 0.5 ({algos}) pays for what is new"
    )
    if low < FAR_BELOW * high < 0 and values.get("reward_median") == high:  # else none is usual
        yield (
            f"All rewards are costs, and some ({low:g}) are over {FAR_BELOW} times as large as "
            f"others ({high:g}): a policy may learn only to avoid these, also beside its goal. "
            f"--reward-clip {-high:g} makes them equal; apex needed no flag in CliffWalking-v1"
        )


def _algorithms(spec: EnvSpec) -> Iterator[str]:
    """Yield the algorithms that can train in the environment."""
    groups = spec.agent_groups
    discrete = all([leaf.kind for leaf in g.actions.values()] == ["discrete"] for g in groups)
    yield "appo"
    if discrete:
        yield from ("pqn", "apex")
    elif all(leaf.is_bounded_box for group in groups for leaf in group.actions.values()):
        yield from OF_CRITICS
    if spec.num_seats == 1:
        yield "ddppo"
