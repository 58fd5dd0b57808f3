"""Fake environments for all tests; `tests.fakes.envs:NAME` is a valid --env."""

from tests.fakes.envs import (
    CodeEnv,
    CountingVectorEnv,
    HangingEnv,
    MaskedEnv,
    MemoryTMaze,
    MixedActionEnv,
    RaisingEnv,
    SleepEnv,
    WrongDtypeEnv,
)

__all__ = [
    "CodeEnv",
    "CountingVectorEnv",
    "HangingEnv",
    "MaskedEnv",
    "MemoryTMaze",
    "MixedActionEnv",
    "RaisingEnv",
    "SleepEnv",
    "WrongDtypeEnv",
]
