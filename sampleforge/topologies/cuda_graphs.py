"""The check of ``--cuda-graphs``."""

from __future__ import annotations

from sampleforge.config import ConfigError
from sampleforge.topologies.config import ReplayRunConfig, SlotsRunConfig


def check_cuda_graphs(config: SlotsRunConfig | ReplayRunConfig, device: str) -> None:
    """Raise ConfigError if a graph cannot hold what the learner on ``device`` does."""
    if not config.cuda_graphs:
        return
    if not device.startswith("cuda"):
        raise ConfigError(
            f"--cuda-graphs: the learner is on the {device}; leave it out, or learn on a GPU "
            "(--device)"
        )
    core = config.model.core
    reasons = {
        f"--model.core {core}: its passes depend on where episodes begin": core != "none",
        "--compile: compiled passes are graphs of their own": getattr(config, "compile", False),
        "--noisy-nets: a graph would repeat its noise": getattr(config, "noisy_nets", False),
        "--exploration-schedule linear: a graph has a fixed bonus": (
            getattr(config, "exploration_schedule", "constant") == "linear"
        ),
    }
    for reason, holds in reasons.items():
        if holds:
            raise ConfigError(f"--cuda-graphs {reason}; leave out one of the two")
