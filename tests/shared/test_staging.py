"""What reaches a device, and what comes back, is what lies in the slots, whichever way it takes."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
import torch

from sampleforge.rollouts.batch import BatchBuilder
from sampleforge.run.session import Session
from sampleforge.shared.arrays import SharedArrays
from sampleforge.shared.staging import DeviceStaging, HostStaging, Staging, page_lock
from sampleforge.topologies.config import AppoConfig
from tests.support.slots import some_slots

CPU = torch.device("cpu")


@pytest.mark.parametrize("shape", [(), (5,), (4, 8, 8)])
def test_host_and_device_staging_give_the_same_blocks(shape: tuple[int, ...]) -> None:
    arrays = SharedArrays({"x": ((6, 7, 3, *shape), "float32")})
    arrays["x"][:] = np.random.default_rng(0).normal(size=arrays["x"].shape)
    at = np.array([5, 0, 2]), np.array([6, 0, 3])
    ways: tuple[Staging, ...] = (HostStaging(), DeviceStaging(CPU, [arrays]))
    for staging in ways:
        batch = staging.gather(arrays["x"], *at)
        assert np.array_equal(batch.numpy(), arrays["x"][at].reshape(9, *shape))
        small = staging.put(np.arange(6).reshape(2, 3))
        assert small.tolist() == [0, 1, 2, 3, 4, 5]
        back = staging.back([batch, small])
        assert np.array_equal(back[0], batch.numpy()) and back[1].tolist() == small.tolist()


def test_a_batch_gathered_for_a_device_does_not_change_with_the_slot() -> None:
    """On a CPU it is a copy too: an actor may write the slot's next step meanwhile."""
    arrays = SharedArrays({"x": ((2, 2, 3), "float32")})
    at = np.array([1]), np.array([0])
    for staging in (HostStaging(), DeviceStaging(CPU, [arrays])):
        batch = staging.gather(arrays["x"], *at)
        arrays["x"][1, 0] += 1
        assert not torch.equal(batch, torch.from_numpy(arrays["x"][1, 0]))


def test_page_locks_end_with_their_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    class Runtime:
        def __init__(self) -> None:
            self.locked: dict[int, int] = {}

        def cudaHostRegister(self, address: int, size: int, flags: int) -> int:
            assert address not in self.locked, "CUDA refuses to lock memory twice"
            self.locked[address] = size
            return 0

        def cudaHostUnregister(self, address: int) -> int:
            del self.locked[address]
            return 0

    runtime = Runtime()
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    monkeypatch.setattr(torch.cuda, "check_error", lambda code: None)
    arrays = SharedArrays({"x": ((10,), "float32")})
    page_lock(arrays.buffer)
    page_lock(arrays.buffer)
    assert runtime.locked == {arrays.buffer.data_ptr(): 64}
    del arrays
    gc.collect()
    assert not runtime.locked


def test_a_policy_worker_samples_the_same_with_host_and_device_staging(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    def weights(name: str) -> dict[str, torch.Tensor]:
        config = AppoConfig(
            env="CartPole-v1",
            serial=True,
            seed=5,
            inference="worker",
            num_workers=2,
            num_envs_per_worker=2,
            async_rl=True,
            train_for_env_steps=600,
            run_dir=str(tmp_path / name),
            quiet=True,
        )
        with Session(config) as run:
            list(run.reports())
            return dict(run.graph.groups[0].learner.worker._learner.model.state_dict())  # type: ignore[attr-defined]

    plain = weights("plain")
    used: list[DeviceStaging] = []

    def staged(device: torch.device, sources: list[SharedArrays]) -> DeviceStaging:
        used.append(DeviceStaging(device, sources))
        return used[-1]

    monkeypatch.setattr("sampleforge.workers.policy.staging_to", staged)
    through = weights("through")
    assert used and all(torch.equal(plain[name], through[name]) for name in plain)


@pytest.mark.gpu
def test_a_batch_on_a_gpu_is_the_slots() -> None:
    slots = some_slots()
    for column in slots.columns().values():
        column.view(torch.uint8).random_(0, 2)
    batches = []
    for device in (CPU, torch.device("cuda")):
        builder = BatchBuilder(slots, 2, device)
        assert [builder.add(1), builder.add(0)] == [False, True]
        batches.append(builder.take())
    here, there = batches
    assert there.reward.device.type == "cuda" and torch.equal(here.reward, there.reward.cpu())
    assert all(torch.equal(leaf, there.obs[name].cpu()) for name, leaf in here.obs.items())
