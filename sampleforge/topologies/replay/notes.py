"""What `sampleforge describe` says of the sizes and settings of a run with a replay."""

from __future__ import annotations

from sampleforge.runtime.machine import human_bytes
from sampleforge.spec import EnvSpec
from sampleforge.topologies.config import ReplayRunConfig
from sampleforge.topologies.rendezvous import describe_learners
from sampleforge.topologies.replay.plan import ReplayPlan


def _sequence_notes(config: ReplayRunConfig) -> tuple[str, ...]:
    sequences = config.sequences
    if sequences is None:
        return ()
    return (
        f"{config.model.core} core: sequences of {sequences.length} steps, one every "
        f"{sequences.stride}, of which {sequences.burn_in} are burn-in; a rollout keeps "
        f"{sequences.overlap} steps of the one before",
    )


def _clip_notes(config: ReplayRunConfig) -> tuple[str, ...]:
    clip = config.reward_clip
    if clip is None:
        return ()
    if clip == "sign":
        return ("rewards are reduced to their sign for learning (--reward-clip sign)",)
    return (f"rewards are clipped to +-{clip:g} for learning (--reward-clip None: not at all)",)


def run_notes(config: ReplayRunConfig, plan: ReplayPlan, spec: EnvSpec) -> tuple[str, ...]:
    """Return notes about a run with a replay."""
    compression = (
        f"of these, {human_bytes(sum(plan.ring_bytes))} for frames, which are compressed: enough "
        f"if they shrink {config.replay_compression_ratio:g} times, else the oldest are evicted"
    )
    return (
        *([plan.describe_envs()] if plan.envs else []),
        f"replay of {plan.capacity} transitions in {sum(plan.stored_slots)} slots: "
        f"{human_bytes(plan.slot_bytes + plan.frame_bytes)} of shared memory when full, "
        f"{human_bytes(plan.tree_bytes)} for priorities",
        *([compression] if plan.ring_bytes else []),
        *_sequence_notes(config),
        *_clip_notes(config),
        f"{describe_learners(config, plan.device)}, {plan.learner_threads} thread(s)",
        *plan.reasons,
        *([f"protocol: {spec.protocol}"] if spec.protocol else []),
    )
