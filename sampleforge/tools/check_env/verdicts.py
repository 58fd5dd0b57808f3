"""The verdicts of `sampleforge check-env`: what measurements of an environment mean for training.

Everything here is a function of plain numbers, most of them those of `Played`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from sampleforge.encoding import encodings, lines
from sampleforge.env.family import Family
from sampleforge.runtime.causes import causes
from sampleforge.runtime.machine import human_bytes
from sampleforge.spec import ACTION_MASK, EnvSpec
from sampleforge.tools.check_env.past import Told
from sampleforge.tools.check_env.played import Played, Speed

Verdict = Literal["ok", "note", "warning", "error"]

UNEVEN = 5.0
"""The 99th percentile of step times counts as large from this multiple of the median on ..."""
UNEVEN_S = 0.5e-3
"""... if it is at least so many seconds: shorter steps are uneven by the machine's own doing."""
WAITS_BELOW = 0.5
"""Fraction of a step's time below which an environment that uses a processor counts as waiting."""
BUSY = 0.8
"""Fraction of the time with a processor below which other programs have slowed a process down."""
LARGE = 1e4
"""Size of an observation's or reward's value from which on it is remarked."""


@dataclass(frozen=True)
class Finding:
    """The result of one check. ``name``: what was checked; ``text``: what was found; ``remedy``:
    what to do about it, empty if nothing; ``detail``: a traceback, or empty; ``values``: the
    numbers behind it, by names that are unique among all findings."""

    verdict: Verdict
    name: str
    text: str
    remedy: str = ""
    detail: str = ""
    values: Mapping[str, float | None] = field(default_factory=dict)


def observations(spec: EnvSpec, played: Played) -> Iterator[Finding]:
    """Judge the observation leaves: dtypes, shapes, and the values seen."""
    seen = {name: leaf for name, leaf in played.leaves.items() if name != ACTION_MASK}
    groups = reversed(spec.agent_groups)  # of a leaf that several have, the first one's spec
    arrays = {name: array for group in groups for name, array in group.observations.items()}
    parts = []
    for name, leaf in seen.items():
        array = arrays[name]
        shape = "x".join(map(str, array.shape)) or "scalar"
        parts.append(f"{name} {array.dtype} {shape}, seen {leaf.low:g} to {leaf.high:g}")
    size = max((max(abs(leaf.low), abs(leaf.high)) for leaf in seen.values()), default=0.0)
    values = {"observation_size": size}
    yield Finding("ok", "observations", "; ".join(parts), values=values)
    still = [name for name, leaf in seen.items() if not leaf.changed]
    if still and played.env_steps >= 100:
        every = len(still) == len(seen)
        yield Finding(
            "warning" if every else "note",
            "observations",
            f"{', '.join(still)} never changed in {played.env_steps:,} env steps",
            "a policy learns nothing from it; leave it out, or return what does change",
        )
    for name, leaf in seen.items():
        array = arrays[name]
        if array.dtype.startswith("float") and max(abs(leaf.low), abs(leaf.high)) >= LARGE:
            yield Finding(
                "note",
                "observations",
                f"{name} has values up to {max(abs(leaf.low), abs(leaf.high)):g}",
                "keep --model.normalise-observations on (SAC, CrossQ and TD3: turn it on), or "
                "scale them in the environment",
            )


def encoded(spec: EnvSpec, played: Played) -> Iterator[Finding]:
    """Tell how each observation leaf is encoded, and judge whether the values seen fit that."""
    for line in lines(spec, encodings):
        yield Finding("ok", "encoding", line)
    groups = reversed(spec.agent_groups)
    arrays = {name: array for group in groups for name, array in group.observations.items()}
    for name, encoding in encodings(arrays).items():
        seen = played.leaves.get(name)
        if seen is None or encoding.kind != "pixels":
            continue
        if encoding.high > 1.0 and 0.0 <= seen.low < seen.high <= 1.0:
            yield Finding(
                "note",
                "encoding",
                f"{name} has values from {seen.low:g} to {seen.high:g} only, but is divided by its "
                f"bound {encoding.high:g}",
                f"give it the bounds 0 and 1, or train with --model.encode {name}=planes",
            )
        elif arrays[name].dtype.startswith("float"):
            yield Finding(
                "note",
                "encoding",
                f"{name} is an image of {arrays[name].dtype}: it takes four times the memory of "
                "uint8",
                "if it is made of bytes, return them, in Box(0, 255, shape, np.uint8)",
            )


def hidden_state(played: Played, family: Family | None) -> Finding | None:
    """Tell that a step depends on more than its observation and action, as far as the steps show
    it or the ``family`` of the environment says so; None if not."""
    gru = "a recurrent core remembers it: --model.core gru"
    stack = "; so does a stack of observations (gymnasium.wrappers.FrameStackObservation)"
    told = played.past.told_of_results()
    if told is None and (told := played.past.told_of_changes()) is not None:
        gru += stack
    if told is None:
        if family is None or not family.needs_memory:
            return None
        told = Told(1.0, f"the environments of {family.name} are made for policies with memory")
    values = {"hidden_state": told.part, "steps_back": float(told.steps_back)}
    return Finding("note", "hidden state", told.text, gru, values=values)


def bounds(played: Played) -> Finding:
    """Judge whether observations stay within their declared bounds."""
    if played.out_of_bounds is not None:
        outside, count = played.out_of_bounds
        fault, _, remedy = outside.text.rpartition("; ")
        seen = played.env_steps + played.resets.count  # resets give observations, too
        text = f"{fault} ({_share(count, seen)} of the observations)"
        return Finding("error" if outside.category else "warning", "bounds", text, remedy)
    return Finding("ok", "bounds", f"kept by all values of {played.env_steps:,} env steps")


def converted(notes: Iterable[str]) -> Iterator[Finding]:
    """Judge observations of another type than their space's."""
    for text in notes:
        yield Finding(
            "warning", "types", text, "return that type, or declare the one that is given"
        )


def finite(played: Played) -> Finding:
    """Judge whether observations and rewards are finite."""
    if played.not_finite is None:
        return Finding("ok", "NaN and inf", f"none in {played.env_steps:,} env steps")
    text, count = played.not_finite
    return Finding(
        "error",
        "NaN and inf",
        f"{text} (first of {count:,} in {played.env_steps:,} env steps)",
        "return finite numbers, and end an episode whose simulation breaks down with "
        "terminated=True; training drops such a step, and ends after ten in a row",
    )


def exceptions(played: Played) -> Finding | None:
    """Judge the errors that the environment has raised; None if there were none."""
    if played.failure:
        text = f"the play ended after {played.env_steps:,} env steps: {causes(played.failure)}"
        return Finding("error", "errors", text, "correct the environment", played.failure)
    if not played.errors:
        return None
    return Finding(
        "error",
        "errors",
        f"{played.errors:,} in {played.env_steps:,} env steps; the first: "
        f"{causes(played.traceback)}",
        "correct the environment; training builds it anew and drops the episode, and ends if more "
        "than --max-env-restart-rate of the episodes are lost",
        played.traceback,
    )


def agents(stayed: Iterable[str]) -> Finding | None:
    """Judge the agents that were listed as taking part after their end; None if there were none."""
    if not (names := ", ".join(sorted(stayed))):
        return None
    return Finding(
        "warning",
        "agents",
        f"listed in `agents` after the step in which they terminated or were truncated: {names}",
        "take an agent out of `agents` in the step that ends its episode, as PettingZoo asks; "
        "training leaves it out until the next game, with any other library it may act on",
    )


def actions(spec: EnvSpec) -> Iterator[Finding]:
    """Describe the actions, and which algorithms take them."""
    every = [item for group in spec.agent_groups for item in group.actions.items()]
    for name, leaf in every:
        if leaf.kind != "box":
            text = f"{name}: {leaf.kind}, {' x '.join(map(str, leaf.categories))} values"
            yield Finding("ok", "actions", text)
            continue
        low, high = leaf.env_low or leaf.low, leaf.env_high or leaf.high
        text = f"{name}: box of {len(low)}, {min(low):g} to {max(high):g}"
        free = sum(not np.isfinite([a, b]).all() for a, b in zip(low, high, strict=True))
        if free:
            yield Finding(
                "note",
                "actions",
                f"{text}; {free} without bounds, so the policy begins with a standard deviation of "
                "1 in the environment's units",
                "declare bounds in action_space: bounded actions are rescaled to [-1, 1]",
            )
        else:
            yield Finding("ok", "actions", text)


def masks(played: Played) -> Finding | None:
    """Judge the action masks; None if there are none. (A mask of a wrong size, or one that forbids
    everything, has ended the play.)"""
    if not played.masks:
        return None
    if played.mask_open == played.masks >= 100:
        return Finding(
            "note",
            "action mask",
            f"each of {played.masks:,} allowed every action",
            "leave it out if it is always so: it takes time and memory",
        )
    text = f"allowed {played.mask_allowed / played.masks:.0%} of the actions on average"
    return Finding("ok", "action mask", text)


def determinism(steps: int, difference: tuple[int, str] | None, played: Played) -> Finding:
    """Judge whether two plays of ``steps`` env steps with the same seeds and actions were equal.
    ``difference``: the first step (0: the reset) and column that differ, or None."""
    if difference is not None:
        step, column = difference
        where = "at the reset" if step == 0 else f"from step {step} on"
        return Finding(
            "warning",
            "determinism",
            f"two plays with the same seed and actions differ {where}, in {column}",
            "draw every random number from self.np_random, which super().reset(seed=seed) seeds; "
            "otherwise --seed and --serial repeat nothing",
        )
    text = f"the same seed gave the same {steps:,} env steps twice"
    if played.beginnings >= 3 and played.same_beginning:
        return Finding(
            "note",
            "determinism",
            f"{text}; all {played.beginnings:,} episodes began with the same observation",
            "if starts should differ, draw them from self.np_random",
        )
    return Finding("ok", "determinism", text)


def rewards(played: Played) -> Finding:
    """Judge the rewards and returns of random play."""
    given, returns = played.rewards, played.returns
    if not given.count:
        return Finding("note", "rewards", "no step was completed")
    ret = f"; returns {returns.low:g} to {returns.high:g}" if returns.count else ""
    text = f"{given.low:g} to {given.high:g}, {_share(given.nonzero, given.count)} not 0{ret}"
    mean = given.total / given.count
    values = {"reward_min": given.low, "reward_max": given.high, "reward_mean": mean}
    values["reward_median"] = given.quantile(0.5)
    if returns.count >= 5:
        values["return_spread"] = returns.high - returns.low
    if not given.nonzero:
        return Finding(
            "warning",
            "rewards",
            f"none in {given.count:,} env steps of random play",
            "check for longer (--seconds); if it stays so, random exploration finds no reward "
            "either: pay for what is new (--rnd-coeff), shape it, begin with a simpler task "
            "(set_task), or learn from recorded data",
            values=values,
        )
    if returns.count >= 5 and returns.low == returns.high:
        return Finding(
            "warning",
            "rewards",
            f"all {returns.count:,} episodes had the return {returns.low:g}, whatever the actions "
            "were",
            "if random actions never reach what would change it, pay for what is new "
            "(--rnd-coeff 1); if it does not depend on the actions, there is nothing to learn",
            values=values,
        )
    if max(abs(given.low), abs(given.high)) >= LARGE:
        return Finding(
            "note",
            "rewards",
            text,
            "SAC, CrossQ and TD3 need --reward-scale; the others normalise returns "
            "(--normalise-returns), or, of images with Ape-X, clip rewards (--reward-clip)",
            values=values,
        )
    return Finding("ok", "rewards", text, values=values)


def episodes(spec: EnvSpec, played: Played) -> Finding:
    """Judge how episodes end."""
    limit, lengths = spec.max_episode_steps, played.lengths
    count = lengths.count
    missing = "the time limit is not declared" if played.truncated else "no time limit"
    limited = f"time limit {limit:,}" if limit is not None else missing
    values = {"episodes": float(count), "max_episode_steps": limit and float(limit)}
    if limit is None and count == played.truncated >= 3 and lengths.low == lengths.high:
        values["cut_after"] = lengths.high
    if not count:
        if limit is None:
            return Finding(
                "warning",
                "episodes",
                f"none ended in {played.env_steps:,} env steps, and there is no time limit",
                "give --max-episode-steps N: without ends there are no returns, and no resets",
                values=values,
            )
        text = f"none ended in {played.env_steps:,} env steps; {limited}"
        return Finding("note", "episodes", text, "check for longer (--seconds)", values=values)
    text = (
        f"{count:,} ended, {played.terminated:,} terminated, {played.truncated:,} truncated; "
        f"{lengths.low:,.0f} to {lengths.high:,.0f} steps, median {lengths.quantile(0.5):,.0f}; "
        f"{limited}"
    )
    if count >= 3 and lengths.low == lengths.high > 1 and not played.truncated:
        return Finding(
            "note",
            "episodes",
            f"{text}: all ended by terminated=True after the same number of steps",
            "if that is a time limit, return truncated=True there: the value of the last state "
            "then counts",
            values=values,
        )
    if limit is None and not played.truncated:
        remedy = "a policy that never fails would play for ever: give --max-episode-steps N"
        return Finding("note", "episodes", text, remedy, values=values)
    return Finding("ok", "episodes", text, values=values)


def time_limit(shorter: str | None) -> Finding | None:
    """Tell that the environment's own time limit is ``shorter`` than the flag's, in words; None if
    it is not."""
    if shorter is None:
        return None
    text, _, remedy = shorter.rpartition("; ")
    return Finding("warning", "episodes", text, remedy)


def step_time(played: Played, env_timeout: float) -> Finding:
    """Judge the times of steps and resets of one row."""
    steps, resets = played.steps, played.resets
    if not steps.count:
        return Finding("error", "step time", "no step was completed")
    median, p95, p99 = (steps.quantile(q) for q in (0.5, 0.95, 0.99))
    most = steps.high
    values = {"step_median_s": median, "step_p95_s": p95, "step_p99_s": p99, "step_max_s": most}
    text = (
        f"median {human_time(median)}, 95% {human_time(p95)}, 99% {human_time(p99)}, "
        f"longest {human_time(most)}"
    )
    share = 0.0
    if resets.count:
        reset, longest = resets.quantile(0.5), resets.high
        name = "reset" if played.resets_apart else "step with a reset"
        text += f"; {name} {human_time(reset)}, longest {human_time(longest)}"
        values |= {"reset_median_s": reset, "reset_max_s": longest}
        share = resets.total / (steps.total + resets.total)
        values["reset_share"] = share
        most = max(most, longest)
    if most > env_timeout / 2:
        remedy = f"--env-timeout {env_timeout:g} counts longer ones as hung: raise it"
        return Finding("warning", "step time", text, remedy, values=values)
    if share > 0.2 and played.resets_apart:
        remedy = f"resets take {share:.0%} of the time: make them faster, or episodes longer"
        return Finding("note", "step time", text, remedy, values=values)
    return Finding("ok", "step time", text, values=values)


def waiting(played: Played) -> float:
    """Return the fraction of the steps' time, 0 to 1, in which neither this process nor those of
    the environment used a processor; 0 if other programs were the reason."""
    seconds = played.steps.total + played.resets.total
    if not seconds:
        return 0.0
    return max(0.0, (played.waited_s - played.children_cpu_s) / seconds)


def uneven(played: Played) -> float | None:
    """Return how many times longer than the median the 99th percentile of the steps takes; None
    where that is usual."""
    # Where steps only compute, other programs make some of them longer, but take no more of them.
    waits = waiting(played) > WAITS_BELOW or played.processes
    times = played.steps if waits else played.cpu
    p50, p99 = (max(1e-9, times.quantile(q)) for q in (0.5, 0.99))
    return p99 / p50 if p99 >= UNEVEN * p50 and p99 >= UNEVEN_S else None


def throughput(speed: Speed, cores: int, played: Played) -> Finding:
    """Describe the env steps per second of many rows in one process, and what they mean."""
    million = 1e6 / speed.per_s
    text = (
        f"{speed.per_s:,.0f} env steps/s in one process with {speed.rows} "
        f"row{'s' * (speed.rows > 1)}: 1M env steps take "
    )
    if waiting(played) > WAITS_BELOW:  # more workers than cores make it shorter
        text += f"{human_time(million)} there, where its rows wait one after another"
    else:
        text += (
            f"at least {human_time(million)} there, {human_time(million / cores)} on {cores} cores"
        )
    values = {
        "env_steps_per_s": speed.per_s,
        "waiting": waiting(played),
        "uneven": uneven(played),
    }
    # Not if it waits by itself, or for processes of its own.
    if speed.busy < BUSY and not played.processes and not waiting(played):
        text += f"; other programs had its processor for {1 - speed.busy:.0%} of the time"
        return Finding("note", "throughput", text, "check again when they have ended", "", values)
    return Finding("ok", "throughput", text, values=values)


def memory(played: Played, rss: float, row_bytes: float | None) -> Finding:
    """Judge the memory of this process and the environment's own. ``row_bytes``: of each further
    row, if it is known."""
    text = f"{human_bytes(rss)} with one row"
    if row_bytes is not None:
        text += f", {human_bytes(max(0.0, row_bytes))} for each further one"
    values = {"rss_bytes": rss, "row_bytes": row_bytes, "growth_bytes_per_step": 0.0}
    growth = played.growth
    if growth is None:
        return Finding("ok", "memory", f"{text}; it does not grow", values=values)
    values["growth_bytes_per_step"] = growth.rate
    return Finding(
        "warning",
        "memory",
        f"{text}; it grew steadily by {human_bytes(growth.amount)} in {growth.duration:,.0f} env "
        f"steps: 10M env steps would take {human_bytes(1e7 * growth.rate)}",
        "find what keeps growing (lists of past steps, caches, figures, unclosed objects), and "
        "empty it in reset()",
        values=values,
    )


def starts(played: Played, files: int) -> Iterator[Finding]:
    """Judge what the environment starts; ``files``: how many lie in its working directory."""
    started = f"{played.processes} of its own per row" if played.processes else "none of its own"
    yield Finding("ok", "processes", started)
    if files:
        yield Finding(
            "note",
            "files",
            f"{files} in its working directory",
            "each worker has a scratch directory for them, which is removed",
        )


def closing(left: Sequence[str], closes: str) -> Iterator[Finding]:
    """Judge what ``close`` leaves: ``left`` are processes, folders and files in words; ``closes``:
    the traceback of what it has raised, or empty."""
    if closes:
        text = f"close() raised {causes(closes)}"
        yield Finding("warning", "closing", text, "correct close()", closes)
    if left:
        yield Finding(
            "warning",
            "closing",
            f"close() left {'; '.join(left)}",
            "end and close in close() what the environment has started and opened",
        )
    elif not closes:
        yield Finding("ok", "closing", "nothing is left")


def autoreset(kind: str) -> Finding:
    """Describe how rows are reset; an unknown mode was an error of the probe."""
    return Finding("ok", "autoreset", kind)


def human_time(seconds: float) -> str:
    """Return a duration with its unit, such as 21 us, 3.5 ms, 12 s, 2.1 h."""
    for unit, size in (("h", 3600.0), ("min", 60.0), ("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"


def _share(count: int, total: int) -> str:
    """Return a count as a percentage of ``total``; a small one that is not 0 is no 0%."""
    share = 100 * count / max(1, total)
    return f"{share:.0f}%" if share >= 1 or not count else f"{share:.1g}%"
