"""Whether a learner launches its work as CUDA graphs."""

from __future__ import annotations

from sampleforge.config import ConfigError
from sampleforge.topologies.config import ReplayRunConfig, SlotsRunConfig


def uses_cuda_graphs(config: SlotsRunConfig | ReplayRunConfig, device: str) -> bool:
    """Return whether a learner on ``device`` launches its work as graphs: as asked, or where it
    can. Raises ConfigError if they are asked for and cannot hold what it does."""
    if config.cuda_graphs is False:
        return False
    reasons = _obstacles(config)
    if config.cuda_graphs is None:
        return device.startswith("cuda") and not reasons
    if not device.startswith("cuda"):
        raise ConfigError(
            f"--cuda-graphs: the learner is on the {device}; leave it out, or learn on a GPU "
            "(--device)"
        )
    if reasons:
        raise ConfigError(f"--cuda-graphs {reasons[0]}; leave out one of the two")
    return True


def _obstacles(config: SlotsRunConfig | ReplayRunConfig) -> list[str]:
    """Return what a graph cannot hold, each as a flag and the reason."""
    core, learners = config.model.core, config.num_learners
    reasons = {
        f"--model.core {core}: its passes depend on where episodes begin": core != "none",
        f"--num-learners {learners}: it cannot hold the sums of gradients": learners > 1,
        "--variable-experience: batches differ in size": config.variable_experience,
        "--noisy-nets: a graph would repeat its noise": getattr(config, "noisy_nets", False),
        "--exploration-schedule linear: a graph has a fixed bonus": (
            getattr(config, "exploration_schedule", "constant") == "linear"
        ),
    }
    return [reason for reason, holds in reasons.items() if holds]
