"""The groups of metrics in TensorBoard. In metrics.jsonl names have no group."""

from __future__ import annotations

import re
from collections.abc import Sequence

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
        "update_kl",
        "clip_fraction",
        "ratio_deviation",
        "ratio_deviation_first",
        "explained_variance",
        "value_mean",
        "target_mean",
        "value_scale",
        "grad_norm",
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
