"""Plans of APPO and DD-PPO for each kind of observation."""

from __future__ import annotations

from typing import Any

from sampleforge.spec import ActionSpec, ArraySpec, EnvSpec
from sampleforge.topologies.config import AppoConfig, DdppoConfig
from sampleforge.topologies.pairings.ppo_defaults import resolve_defaults
from sampleforge.topologies.sampler_plan import Plan
from tests.support.pairings import plan_of

PpoConfig = AppoConfig | DdppoConfig
Settings = dict[str, Any]


def spec(shape: tuple[int, ...], dtype: str, *, asynchronous: bool = False, n: int = 0) -> EnvSpec:
    leaf = ArraySpec(shape, dtype, (n,) if n else None)
    actions = {"action": ActionSpec("discrete", (), "int64", (3,))}
    return EnvSpec("X-v0", {"obs": leaf}, actions, asynchronous=asynchronous)


VECTOR = spec((8,), "float32")
DISCRETE = spec((), "int64", n=16)
PLANES = spec((10, 10, 4), "bool")
IMAGE = spec((4, 84, 84), "uint8")
ATARI = spec((4, 84, 84), "uint8", asynchronous=True)
KINDS = {
    "vector": VECTOR,
    "threaded vector": spec((8,), "float32", asynchronous=True),
    "discrete": DISCRETE,
    "planes": PLANES,
    "image": IMAGE,
    "atari": ATARI,
}


def planned(config: PpoConfig, of: EnvSpec) -> tuple[PpoConfig, Plan]:
    """The resolved config and its plan."""
    found = resolve_defaults(config, of)
    if isinstance(found, DdppoConfig):
        return found, plan_of(found, of, "cpu")
    return found, plan_of(found, of, "cpu")
