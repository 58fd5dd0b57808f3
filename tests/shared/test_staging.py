"""Page-locked memory, and batches that a device fetches from it."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
import torch

from sampleforge.rollouts.batch import BatchBuilder
from sampleforge.shared import staging
from sampleforge.shared.arrays import SharedArrays
from sampleforge.shared.staging import begin_on, page_lock, page_locked
from tests.support.slots import some_slots

CPU = torch.device("cpu")


class Runtime:
    """CUDA's functions for page-locked memory. ``refuses``: the code of its error."""

    refuses = 0

    def __init__(self) -> None:
        self.locked: dict[int, int] = {}

    def cudaHostRegister(self, address: int, size: int, flags: int) -> int:
        if self.refuses:
            return self.refuses
        assert address not in self.locked, "CUDA refuses to lock memory twice"
        self.locked[address] = size
        return 0

    def cudaError(self, code: int) -> int:
        return code

    def cudaGetErrorString(self, code: int) -> str:
        return "operation not supported"

    def cudaHostUnregister(self, address: int) -> int:
        del self.locked[address]
        return 0


@pytest.fixture(autouse=True)
def warned_of_nothing() -> None:
    staging._warn_of_refusal.cache_clear()


def test_page_locks_end_with_their_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = Runtime()
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    arrays = SharedArrays({"x": ((10,), "float32")})
    page_lock(arrays.buffer)
    page_lock(arrays.buffer)
    assert runtime.locked == {arrays.buffer.data_ptr(): 64}
    del arrays
    gc.collect()
    assert not runtime.locked


def test_where_memory_cannot_be_locked_a_warning_says_so_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    runtime, forgotten = Runtime(), []
    runtime.refuses = 801
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    monkeypatch.setattr(staging, "_forget_error", lambda: forgotten.append(True))
    arrays, more = (SharedArrays({"x": ((10,), "float32")}) for _ in range(2))
    page_lock(arrays.buffer)
    page_lock(arrays.buffer)
    assert len(caplog.records) == len(forgotten) == 1 and not runtime.locked
    page_lock(more.buffer)
    assert len(caplog.records) == 1 and len(forgotten) == 2
    assert "operation not supported" in caplog.text and "--ulimit memlock=-1" in caplog.text


def test_memory_of_torch_that_cannot_be_locked_is_used_as_it_is(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    forgotten: list[bool] = []

    def refuse(tensor: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("CUDA error: operation not supported\nCUDA kernel errors might be ...")

    monkeypatch.setattr(torch.Tensor, "pin_memory", refuse)
    monkeypatch.setattr(staging, "_forget_error", lambda: forgotten.append(True))
    for number in range(3):
        tensor = torch.arange(5) + number
        assert page_locked(tensor, CPU) is tensor and len(forgotten) == number
        assert page_locked(tensor, torch.device("cuda", 0)) is tensor
    (record,) = caplog.records
    assert "page-lock memory (operation not supported): copies" in record.getMessage()
    assert "--ulimit memlock=-1" in record.getMessage()


def test_nothing_else_page_locks() -> None:
    """Elsewhere a machine that refuses would end the run."""
    package = Path(staging.__file__).parents[1]
    having = {path.name for path in package.rglob("*.py") if "pin_memory" in path.read_text()}
    assert having == {"staging.py"}


@pytest.mark.parametrize(("device", "number"), [("cuda", 0), ("cuda:0", 0), ("cuda:3", 3)])
def test_a_process_begins_on_its_device(
    monkeypatch: pytest.MonkeyPatch, device: str, number: int
) -> None:
    chosen: list[object] = []
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    begin_on(CPU)
    begin_on(torch.device(device))
    assert chosen == [number], "torch refuses a device without a number"


@pytest.mark.gpu
def test_refused_page_locks_leave_no_error_behind(caplog: pytest.LogCaptureFixture) -> None:
    begin_on(torch.device("cuda", 0))
    buffer = torch.empty(1 << 22, dtype=torch.uint8)
    runtime: object = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    inner = buffer.data_ptr() + (1 << 20)
    assert int(runtime.cudaHostRegister(inner, 1 << 16, 0)) == 0  # type: ignore[attr-defined]
    page_lock(buffer)
    assert "cannot page-lock memory" in caplog.text
    assert torch.ones(3, device="cuda").sum().item() == 3.0
    there = torch.empty_like(buffer, device="cuda")
    there.copy_(buffer.fill_(7), non_blocking=True)
    assert bool((there == 7).all())
    runtime.cudaHostUnregister(inner)  # type: ignore[attr-defined]


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
