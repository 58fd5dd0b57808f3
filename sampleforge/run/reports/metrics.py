"""The metrics of reports: their groups, those of each policy and of evaluations, and the reader of
metrics.jsonl."""

from __future__ import annotations

import json
import re
import sys
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sampleforge.run.folder.files import writing
from sampleforge.runtime.files import write_atomically

if TYPE_CHECKING:
    pass

GROUPS = {
    "rollout": (
        "env_steps",
        "env_frames",
        "episodes",
        "length_mean",
        "nonfinite_steps",
        "far_values",
        "return_mean",
        "return_std",
        "return_best",
        "return_mean_all",
        "return_mean_early",
        "return_episodes",
        "return_mean_middle_third",
        "return_mean_exploring_third",
        "policy_lag_min",
        "policy_lag_mean",
        "policy_lag_max",
        "policy_lag_batches_mean",
        "policy_lag_batches_max",
        "valid_steps",
        "stale_steps",
        "stale_fraction",
        "dataset_steps",
        "data_passes",
        "recorded_steps",
        "recorded_episodes",
        "recorded_bytes",
        "record_dropped_steps",
        "record_dropped_episodes",
        "record_cut_episodes",
        "record_lost_episodes",
    ),
    "losses": (
        "loss",
        "policy_loss",
        "value_loss",
        "entropy",
        "approx_kl",
        "approx_kl_max",
        "update_kl",
        "clip_fraction",
        "ratio_deviation",
        "ratio_deviation_first",
        "explained_variance",
        "value_mean",
        "target_mean",
        "value_scale",
        "rnd_reward",
        "grad_norm",
        "critic_grad_norm",
        "temperature",
        "learning_rate",
        "skipped_steps",
        "empty_minibatches",
        "updates",
        "skipped_updates",
        "checksums_compared",
        "q_mean",
        "td_error_mean",
        "td_error_max",
        "td_error",
        "noise_to_weight",
        "outside_support",
        "importance_weight_mean",
        "beta",
        "advantage_norm",
        "advantage_weight_mean",
        "advantage_weights_capped",
    ),
    "perf": (
        "wall_s",
        "frames_per_s",
        "frames_per_s_10s",
        "frames_per_s_60s",
        "env_steps_per_s",
        "trained_per_s",
        "restarts",
        "env_restarts",
        "free_slots_fill",
        "ready_slots_fill",
        "stage_env_us",
        "stage_infer_us",
        "stage_wait_us",
        "stage_insert_us",
        "stage_draw_us",
        "stage_batch_us",
        "stage_learn_us",
        "stage_publish_us",
    ),
    "replay": (
        "replay_transitions",
        "replay_fill",
        "replay_priority_sum",
        "replay_frame_bytes",
        "samples_per_insert",
        "sample_age_mean",
        "stale_priority_updates",
        "late_samples",
        "priority",
    ),
    "population": ("copies", "mutations", "copied_from", "member_env_steps"),
}
"""Group -> names of its metrics. Names that tell their group are in `PATTERNS`."""
PATTERNS = {
    "eval": r"eval_\w+",
    "losses": r"\w+_loss",
    "perf": r"restarts_\w+",
    "population": r"pbt_.+",
    "ranks": r"rank\d+_\w+",
    "replay": r"replay_priority_sum_\d+",
    "rollout": r"return_mean_(epsilon|agents)_.+|env_.+",
    "self_play": r"self_play_\w+",
    "system": r"system_\w+",
}
"""Group -> regular expression of the names that tell their group: those of the terms of a loss, and
names with a variable part."""
OTHERS = "custom"
"""The group of metrics that SampleForge does not write itself, such as those of callbacks."""

_GROUP_OF = {name: group for group, names in GROUPS.items() for name in names}


def group_of(name: str) -> str:
    """Return the group of a metric: rollout, losses, perf, eval, replay, ranks, population,
    self_play, system, or `OTHERS`."""
    if name in _GROUP_OF:
        return _GROUP_OF[name]
    fits = (group for group, pattern in PATTERNS.items() if re.fullmatch(pattern, name))
    return next(fits, OTHERS)


def tag(name: str, policies: Sequence[str] = ()) -> str:
    """Return a metric's tag in TensorBoard, such as ``losses/entropy``. If the name begins with the
    group's name, that part is dropped: ``eval_return_mean`` becomes ``eval/return_mean``.

    ``policies``: the beginning of the names of each policy's metrics, such as ``policy_1/``, with
    which the tag begins, too.
    """
    policy = next((each for each in policies if name.startswith(each)), "")
    name = name.removeprefix(policy)
    group = group_of(name)
    return f"{policy}{group}/{name.removeprefix(f'{group}_')}"


Values = Mapping[str, float]


OF_EVERY_REPORT = frozenset({"env_steps", "wall_s"})
"""Metrics without which a line is no report."""
OF_EVERY_POLICY = ("episodes", "updates")
"""Metrics that every report of a run with several policies has of each of them."""


def policies_of(names: Collection[str]) -> list[str]:
    """Return the ids of the policies that have metrics among the ``names`` of a report, or of all
    reports of a run. Empty if the run has one policy. What is before a slash is a policy only if
    `OF_EVERY_POLICY` are there: environments and callbacks name metrics as they like, such as
    ``env_level/score``."""
    before = dict.fromkeys(name.partition("/")[0] for name in names if "/" in name)
    return [each for each in before if all(f"{each}/{own}" in names for own in OF_EVERY_POLICY)]


def by_policy(values: Values) -> dict[str, dict[str, float]]:
    """Return the scalars of each policy by its id, without the id in their names. Empty if the run
    has one policy."""
    policies: dict[str, dict[str, float]] = {policy: {} for policy in policies_of(values)}
    for name, value in values.items():
        policy, slash, own = name.partition("/")
        if slash and policy in policies:
            policies[policy][own] = value
    return policies


def with_overall(values: Values) -> dict[str, float]:
    """Return the scalars with those added that only policies have: the mean over all policies, or
    the largest if the name ends in _max."""
    policies = by_policy(values)
    overall: dict[str, float] = {}
    for name in {name for own in policies.values() for name in own} - set(values):
        each = [own[name] for own in policies.values() if name in own]
        overall[name] = max(each) if name.endswith("_max") else sum(each) / len(each)
    return {**values, **overall}


PREFIX = "eval_"
"""The beginning of the scalars' names; a field of `Evaluation`, or the name of a metric of the
user's own evaluation function, follows it."""


def evaluated(values: Mapping[str, float], prefix: str = "") -> dict[str, float]:
    """Return the values of a report that come from an evaluation. ``prefix``: the beginning of the
    names of the policy's metrics; empty in a run with one policy."""
    return {name: value for name, value in values.items() if name.startswith(prefix + PREFIX)}


def evaluations(values: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """Return the evaluations in a report: beginning of the names of a policy's metrics -> the
    values of its evaluation, under their full names."""
    prefixes = ["", *(f"{policy}/" for policy in policies_of(values))]
    found = [prefix for prefix in prefixes if f"{prefix}{PREFIX}env_steps" in values]
    return {prefix: evaluated(values, prefix) for prefix in found}


def read_metrics(
    path: Path,
    log: Callable[[str], None] = warnings.warn,
    names: Collection[str] | None = None,
) -> list[dict[str, Any]]:
    """Return the reports in a metrics.jsonl, in order. If a resumed run did steps again, the
    earlier reports of these steps are left out. An incomplete last line is left out, too, and so
    are damaged lines, which ``log`` is told of. ``names``: the scalars, also those of each policy,
    that are kept besides `OF_EVERY_REPORT` and `OF_EVERY_POLICY` (None: all)."""
    reports: list[dict[str, Any]] = []
    damaged: list[int] = []
    kept = None if names is None else {*OF_EVERY_REPORT, *OF_EVERY_POLICY, *names}
    number = 0
    for number, line in enumerate(_whole_lines(path), 1):
        report = parse_report(line)
        if report is None:
            damaged.append(number)
            continue
        if kept is not None:
            report = {
                sys.intern(name): value  # one text for all reports
                for name, value in report.items()
                if (name.partition("/")[2] or name) in kept
            }
        while reports and reports[-1]["env_steps"] > report["env_steps"]:
            reports.pop()
        reports.append(report)
    if damaged:
        more = "" if len(damaged) == 1 else f" and {len(damaged) - 1} more"
        log(f"{path}: line {damaged[0]}{more} of {number} left out: damaged, not a report")
    return reports


def has_reports(path: Path) -> bool:
    """Return whether there is a metrics.jsonl with a report; it is read as far as the first one."""
    return path.is_file() and any(parse_report(line) is not None for line in _whole_lines(path))


def _whole_lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file, but for a last one that has no end yet."""
    with path.open("rb") as file:
        yield from (line for line in file if line.endswith(b"\n"))


def drop_reports_after(path: Path, env_steps: int) -> None:
    """Remove the reports of later env steps from a metrics.jsonl, if there is one. Raises OSError,
    which names the file, if it cannot be written."""
    if not path.exists():
        return
    lines = path.read_bytes().splitlines(keepends=True)
    reports = map(parse_report, lines)
    later = [report is not None and report["env_steps"] > env_steps for report in reports]
    if any(later):
        kept = [line for line, is_later in zip(lines, later, strict=True) if not is_later]
        with writing(path):
            write_atomically(path, b"".join(kept))


def parse_report(line: bytes) -> dict[str, Any] | None:
    """Return the report in a line of a metrics.jsonl: a JSON object whose values are numbers or
    null, with numbers as ``env_steps`` and ``wall_s``. Return None for another line, which is
    damaged."""
    try:
        report = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(report, dict) or not report.keys() >= OF_EVERY_REPORT:
        return None
    axes = [report[name] for name in OF_EVERY_REPORT]
    whole = None not in axes and all(map(_is_value, report.values()))
    return report if whole else None


def _is_value(value: Any) -> bool:
    """Return whether a value can be converted to a float, or is null."""
    if isinstance(value, int):
        return abs(value) <= sys.float_info.max
    return value is None or isinstance(value, float)
