"""Short serial trainings of APPO that are judged by the returns at their end."""

from __future__ import annotations

from typing import Any

from sampleforge.models.config import ModelConfig
from sampleforge.run.reports.statistics import RunStatistics
from sampleforge.runners.serial import SerialRunner
from sampleforge.topologies.config import AppoConfig
from tests.support.graphs import build


def config(env: str, model: dict[str, Any] | None = None, **kwargs: Any) -> AppoConfig:
    """One actor with one split, in this process unless ``kwargs`` say otherwise."""
    defaults: dict[str, Any] = {
        "env": env,
        "serial": True,
        "device": "cpu",
        "num_workers": 1,
        "num_splits": 1,
        "num_envs_per_worker": 32,
        "rollout": 16,
        "learning_rate": 3e-3,
        "normalise_returns": True,
        "model": ModelConfig(**(model or {})),
    }
    return AppoConfig(**{**defaults, **kwargs})


def learn(chosen: AppoConfig, env_steps: int, until: float) -> float:
    """Mean return of the last 100 episodes: after ``env_steps`` of serial training with a fixed
    seed, or as soon as it is more than ``until``."""
    graph, _ = build(chosen)
    runner, statistics = SerialRunner(graph), RunStatistics(graph, {})
    runner.start()
    try:
        found = float("-inf")
        while found <= until and graph.progress.env_steps < env_steps:
            runner.poll(0)
            if episodes := graph.episodes.take():
                statistics.take_episodes(episodes)
                assert statistics.return_mean is not None
                found = statistics.return_mean
        return found
    finally:
        runner.close()
