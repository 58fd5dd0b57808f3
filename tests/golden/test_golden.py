"""The weights after 20 updates of a serial run, to the bit, and the first 20 losses, nearly.

A change that moves them was meant, or is a bug. After one that was meant, `python -m
tests.golden.test_golden` writes them anew, and `python -m tests.golden.test_golden --add` adds the
weights of another machine. OPENBLAS_CORETYPE=Zen in front gives those of a processor for which
numpy chooses that kernel.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import platform
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from threadpoolctl import threadpool_info

from sampleforge.models.config import ModelConfig
from sampleforge.models.encoder_registry import resolve_encoder
from sampleforge.runners.serial import SerialRunner
from sampleforge.topologies.config import (
    AnyConfig,
    ApexConfig,
    AppoConfig,
    CrossqConfig,
    DdppoConfig,
    SacConfig,
    Td3Config,
)
from sampleforge.topologies.registry import pairing
from sampleforge.topologies.starts import ResumePoint
from tests.support.graphs import one_policy, spec_of, updates

LOSSES = Path(__file__).parent / "appo_serial.json"
WEIGHTS = Path(__file__).parent / "weights.json"
COLUMNS = ("loss", "policy_loss", "value_loss", "entropy", "grad_norm")
UPDATES = 20
SMALL: dict[str, Any] = {"env": "CartPole-v1", "num_envs_per_worker": 8, "serial": True}
CORE = ModelConfig(hidden_sizes=(32,), core="gru", core_size=16)
RAW = ModelConfig(hidden_sizes=(128, 128), activation="relu", normalise_observations=False)
REPLAY: dict[str, Any] = {
    "num_workers": 2,
    "rollout": 16,
    "learning_starts": 500,
    "replay_capacity": 20_000,
    "batch_size": 32,
    "weights_refresh_interval": 1,
}
ALGORITHMS: dict[str, AnyConfig] = {
    "appo": AppoConfig(**SMALL, num_workers=2, batch_size=512, rollout=32, async_rl=True),
    "appo-gru": AppoConfig(**SMALL, batch_size=512, kl_coeff=0.0, model=CORE),
    "apex": ApexConfig(**SMALL, **REPLAY, learning_rate=5e-4, model=RAW),
    "r2d2": ApexConfig(**SMALL, **REPLAY, model=CORE),
    "ddppo": DdppoConfig(**SMALL, rollout=32, minibatch_size=64, kl_coeff=0.0),
    "sac": SacConfig(**{**SMALL, **REPLAY, "env": "Pendulum-v1"}, model=RAW),
    "crossq": CrossqConfig(**{**SMALL, **REPLAY, "env": "Pendulum-v1"}, model=RAW),
    "td3": Td3Config(**{**SMALL, **REPLAY, "env": "Pendulum-v1"}, model=RAW),
}


def weights_after(config: AnyConfig, count: int, seed: int = 7) -> str:
    """SHA-256 of the published weights after ``count`` updates: names and bytes, in their order."""
    torch.set_num_threads(1)  # an orthogonal matrix depends on it
    chosen, spec = pairing(config), spec_of(config)
    config = dataclasses.replace(chosen.resolve_defaults(config, spec), seed=seed)
    plan = chosen.plan(config, spec, "cpu")
    config = dataclasses.replace(config, model=resolve_encoder(config.model, spec.observations))
    graph = chosen.wire(config, plan, spec, *one_policy(ResumePoint(seed)))
    runner = SerialRunner(graph)
    runner.start()
    try:
        until = graph.groups[0].weights.published + count
        while graph.groups[0].weights.published < until:
            runner.poll(0)
        tensors = chosen.network_maker(config, spec, seed)().state_dict()
        graph.groups[0].weights.read(tensors)
    finally:
        runner.close()
    digest = hashlib.sha256()
    for name, tensor in tensors.items():
        digest.update(name.encode() + tensor.numpy().tobytes())
    return digest.hexdigest()


def processor() -> str:
    """Its name; on other systems than Linux only its architecture."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def numpy_kernel() -> str:
    """Of numpy's matrix products, such as ``openblas 0.3.31 SkylakeX``: one name of a processor
    stands for several kernels."""
    libraries = [each for each in threadpool_info() if "numpy" in each["filepath"]]
    names = ("internal_api", "version", "architecture")
    return " ".join(str(each.get(name)) for each in libraries for name in names)


def machine() -> dict[str, str]:
    """What the order of additions depends on."""
    return {
        "torch": torch.__version__,
        "processor": processor(),
        "vector_unit": torch.backends.cpu.get_cpu_capability(),
        "numpy_kernel": numpy_kernel(),
    }


def records() -> list[dict[str, Any]]:
    """Of each machine: what it is, and the hash of the weights of each algorithm that there was
    then."""
    recorded: list[dict[str, Any]] = json.loads(WEIGHTS.read_text())
    return recorded


@pytest.mark.long
@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_weights_are_those_that_were_recorded(name: str) -> None:
    found = [record for record in records() if name in record]
    of_this = [record for record in found if record["machine"] == machine()]
    if not of_this:
        pytest.skip(f"recorded with {[r['machine'] for r in found]}, this is {machine()}")
    assert weights_after(ALGORITHMS[name], UPDATES) == of_this[0][name]


def losses() -> list[dict[str, float]]:
    config = AppoConfig(
        env="CartPole-v1",
        num_workers=2,
        num_envs_per_worker=8,
        batch_size=512,
        async_rl=True,
        rollout=32,
        num_epochs=1,
        advantage="vtrace",
        learning_rate=1e-3,
        adam_eps=1e-6,
        max_grad_norm=4.0,
        clip_ratio=0.1,
        value_clip=1.0,
        exploration_coeff=0.003,
        model=CORE,
    )
    return [{name: m[name] for name in COLUMNS} for _, m in updates(config, UPDATES, seed=7)]


@pytest.mark.long
def test_the_losses_are_those_that_were_recorded() -> None:
    """To 1 part in 1000, which leaves room for another processor's order of additions."""
    recorded = json.loads(LOSSES.read_text())
    assert len(recorded) == UPDATES
    for now, then in zip(losses(), recorded, strict=True):
        assert now == pytest.approx(then, rel=1e-3, abs=1e-5)


if __name__ == "__main__":
    others: list[dict[str, Any]] = []
    if "--add" in sys.argv:
        others = [record for record in records() if record["machine"] != machine()]
    else:
        LOSSES.write_text(json.dumps(losses(), indent=1) + "\n")
    hashes = {name: weights_after(config, UPDATES) for name, config in ALGORITHMS.items()}
    new = {"machine": machine(), **hashes}
    WEIGHTS.write_text(json.dumps([*others, new], indent=1) + "\n")
