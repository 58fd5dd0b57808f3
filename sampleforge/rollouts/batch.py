"""Batches of rollouts, which are copied from slots to a device, and their sources: the learner
gathers them between updates, or a thread does ahead.

The thread has two batches in rotation. Each has one owner at a time and moves only through deques:

    free -> being filled (the thread) -> complete -> being learned from (the learner) -> free

Then only the thread uses the learner's end of the exchange: it takes ready slots, copies them and
gives them back while the learner learns. So the actors may be one more batch ahead.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch

from sampleforge.ops.running_stats import Gather
from sampleforge.ops.tensors import moved
from sampleforge.rollouts.exchange import SlotExchange
from sampleforge.rollouts.slots import PER_ROLLOUT, TrajectorySlots, length
from sampleforge.shared.staging import Fence, page_lock, side_stream, wait_for_copies
from sampleforge.shared.wakeup import Wakeup

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Batch:
    """``B`` rows of ``T`` consecutive env steps, time first, with the columns of
    `SlotShape.layout`."""

    obs: dict[str, torch.Tensor]  # [T+1, B, ...]
    is_first: torch.Tensor  # bool [T+1, B]
    actions: dict[str, torch.Tensor]  # [T, B, ...]
    acted: dict[str, torch.Tensor]  # [T, B] each: what acting recorded, `SlotShape.extras`
    version: torch.Tensor  # int64 [T, B]
    reward: torch.Tensor  # float32 [T, B], raw
    terminated: torch.Tensor  # bool [T, B]
    truncated: torch.Tensor  # bool [T, B]
    valid: torch.Tensor  # bool [T, B]
    state: torch.Tensor  # float32 [B, S], the recurrent state before obs[0]
    final_value: torch.Tensor | None = None  # float32 [T, B], for same-step environments
    env_row: torch.Tensor | None = None  # int64 [B], the env row of each column; variable batches
    last_value: torch.Tensor | None = None  # float32 [B], of obs[T]; of rollouts that ended early

    @property
    def value(self) -> torch.Tensor:
        """The values by the behaviour policy, float32 [T, B]."""
        return self.acted["value"]

    @property
    def log_prob(self) -> torch.Tensor:
        """The log-probabilities of the actions by the behaviour policy, float32 [T, B]."""
        return self.acted["log_prob"]

    @property
    def steps(self) -> tuple[int, int]:
        """(T, B)."""
        rollout, rows = self.reward.shape
        return rollout, rows

    def to(self, device: torch.device) -> Batch:
        """Return the batch on another device."""
        return moved(self, device)


class BatchBuilder:
    """Copies ``slots_per_batch`` slots, side by side along the rows, into one reused batch on
    ``device``.

    A slot that is marked as the batch's last completes the batch earlier. The batch has as many
    time steps as its longest rollout. A CUDA device fetches the columns by itself from page-locked
    slots.
    """

    def __init__(
        self, slots: TrajectorySlots, slots_per_batch: int, device: torch.device = CPU
    ) -> None:
        self._slots = slots
        self._columns = slots.columns()
        self._device = device
        if device.type == "cuda":
            page_lock(slots.arrays.buffer)
        self._wanted = slots_per_batch
        self._filled = 0
        self._longest = 1
        self._complete = False
        # [T, slots, rows, ...]; those once per rollout: [slots, rows, ...]
        self._buffers: dict[str, torch.Tensor] = {}
        for name, column in self._columns.items():
            time = () if name in PER_ROLLOUT else (column.shape[1],)
            inner = column.shape[2 if time else 1 :]
            shape = (*time, slots_per_batch, *inner)
            self._buffers[name] = torch.empty(shape, dtype=column.dtype, device=device)
        self._batch = self._as_batch(slots_per_batch, slots.shape.rollout)

    def add(self, slot: int) -> bool:
        """Copy one slot into the batch; afterwards the slot may be overwritten. Return whether the
        batch is complete."""
        assert self._filled < self._wanted, "take the complete batch before adding to the next"
        for name, column in self._columns.items():
            buffer = self._buffers[name]
            place = buffer[self._filled] if name in PER_ROLLOUT else buffer[:, self._filled]
            place.copy_(column[slot], non_blocking=True)
        wait_for_copies(self._device)
        self._filled += 1
        self._longest = max(self._longest, length(self._slots, slot))
        ends_batch = self._slots.ends_batch
        last = ends_batch is not None and bool(ends_batch[slot])
        self._complete = last or self._filled == self._wanted
        return self._complete

    def clear(self) -> None:
        """Drop the slots that are in the batch."""
        self._filled, self._longest, self._complete = 0, 1, False

    def take(self) -> Batch:
        """Return the complete batch, which is valid until the next `add`."""
        assert self._complete, f"only {self._filled} of {self._wanted} slots are in"
        filled, longest = self._filled, self._longest
        self.clear()
        whole = filled == self._wanted and longest == self._slots.shape.rollout
        return self._batch if whole else self._as_batch(filled, longest)

    def _as_batch(self, slots: int, rollout: int) -> Batch:
        """Return the first ``slots`` slots and ``rollout`` steps: views if these are all slots, a
        copy otherwise. If the slots could hold longer rollouts, the value of obs[T] is known,
        because actions were requested for it."""
        flat: dict[str, Any] = {}
        left_out = self._slots.shape.rollout - rollout
        if left_out and "value" in self._buffers:
            flat["last_value"] = self._buffers["value"][rollout, :slots].flatten(0, 1)
        for name, buffer in self._buffers.items():
            if name in PER_ROLLOUT:
                flat[name] = buffer[:slots].flatten(0, 1)
            else:
                flat[name] = buffer[: len(buffer) - left_out, :slots].flatten(1, 2)
        leaves: dict[str, dict[str, torch.Tensor]] = {"obs": {}, "action": {}}
        for name in [n for n in flat if "/" in n]:
            kind, leaf = name.split("/", 1)
            leaves[kind][leaf] = flat.pop(name)
        acted = {name: flat.pop(name) for name in self._slots.shape.extras}
        return Batch(
            obs=leaves["obs"],
            actions=leaves["action"],
            acted=acted,
            is_first=flat.pop("first"),
            **flat,
        )


Seconds = npt.NDArray[np.float64]
"""float64 [1], a counter to which seconds are added."""
POLL_INTERVAL = 0.5
"""Seconds after which the thread looks for ready slots even without a wake-up."""


class Taken(NamedTuple):
    """A batch that belongs to the learner, or the number of one that is yet to be read.
    ``progress``: the fraction (0 to 1) of the training that was done when it was chosen, by which
    all schedules go."""

    batch: Any
    progress: float


class BatchSource(ABC):
    """A source of complete batches, one at a time. ``wakeup`` ends a wait for the next one."""

    wakeup: Wakeup

    @abstractmethod
    def gather(self) -> bool:
        """Do what there is to do for the next batch, if that is the caller's work; return False if
        there was nothing to do."""

    @abstractmethod
    def take(self, progress: float) -> Taken | None:
        """Return the next complete batch at this ``progress`` of the training, or None. It belongs
        to the caller until `done`."""

    def read(self, taken: Taken) -> Any:
        """Return what the learner takes of the batch that was taken, or None if nothing of it is
        left. Called when all learners of the policy have taken theirs."""
        return taken.batch

    @abstractmethod
    def done(self, errors: npt.NDArray[np.float32] | None = None) -> None:
        """Give back the batch that was taken, after learning from it and publishing the weights.
        ``errors`` [B]: those of its items, from which new priorities are made, if it has any."""

    @abstractmethod
    def abandon(self) -> None:
        """Give back the batch that was taken without learning from it, and all slots that are kept
        until an update."""

    def begin_again(self) -> bool:
        """Prepare for a new group of learners, which is formed next. Return whether the batch that
        was taken is kept; else it was given back."""
        return True

    def plain_state(self) -> dict[str, Any]:
        """Return what a checkpoint holds of the source, as values for JSON."""
        return {}

    def metrics(self) -> dict[str, float]:
        """Return what a report holds of the source."""
        return {}

    def close(self) -> None:
        """Stop gathering."""
        return


class Batches(Protocol):
    """What a learner learns from, on its ``device``."""

    @property
    def device(self) -> torch.device: ...

    def source(
        self, wakeup: Wakeup, count: Mapping[str, Seconds], version: int, gather: Gather
    ) -> BatchSource:
        """Return the source of the batches, in the learner's process. ``count``: the counters of
        the worker; ``version``: the gradient steps so far, after which stored data continue;
        ``gather``: over the learners of the policy."""

    def take_over(self) -> None:
        """Take over what the previous process of the learner had of the exchange."""


class SerialBatchSource(BatchSource):
    """Copies one slot per call of `gather`, in the learner's own loop.

    ``synchronous``: slots are given back when the batch is done, otherwise as soon as they are
    copied. ``spent`` counts the seconds of copying. ``learner``: index of the learner whose slots
    these are."""

    def __init__(
        self,
        exchange: SlotExchange,
        builder: BatchBuilder,
        wakeup: Wakeup,
        spent: Seconds,
        *,
        synchronous: bool,
        learner: int = 0,
    ) -> None:
        self.wakeup = wakeup
        self._exchange = exchange
        self._learner = learner
        self._builder = builder
        self._spent = spent
        self._synchronous = synchronous
        self._pending: list[int] = []
        self._complete = self._taken = False

    def gather(self) -> bool:
        if self._complete or self._taken:
            return False
        slot = self._exchange.take_ready(self._learner)
        if slot is None:
            return False
        started = perf_counter()
        self._complete = self._builder.add(slot)
        if self._synchronous:
            self._pending.append(slot)
        else:
            self._exchange.give_back(slot)
        self._spent += perf_counter() - started
        return True

    def take(self, progress: float) -> Taken | None:
        if not self._complete:
            return None
        self._complete, self._taken = False, True
        return Taken(self._builder.take(), progress)

    def done(self, errors: npt.NDArray[np.float32] | None = None) -> None:
        self._taken = False
        for slot in self._pending:
            self._exchange.give_back(slot)
        self._pending.clear()

    def abandon(self) -> None:
        self._taken = False
        if self._synchronous:
            self.done()
            self._complete = False
            self._builder.clear()


class _Rotating(NamedTuple):
    """A batch in rotation. On a CUDA device copies and kernels run concurrently: the fence
    ``filled`` orders the learner's kernels after the copies, ``read`` the next copies after the
    kernels."""

    builder: BatchBuilder
    filled: Fence
    read: Fence


class PrefetchingBatchSource(BatchSource):
    """Copies slots into one batch, in a thread, while the learner learns from another batch.

    Copying releases the interpreter lock. On a CUDA device it uses a stream of the thread's own,
    for which only the thread waits. ``wakeup`` is that of the process: the thread waits for it, and
    then sets ``self.wakeup``, because the wake-up may have been for the learner (a request, the
    end). If an exception ends the thread, the next `take` raises it.
    """

    def __init__(
        self,
        exchange: SlotExchange,
        builders: Sequence[BatchBuilder],
        wakeup: Wakeup,
        spent: Seconds,
        device: torch.device,
        learner: int = 0,
    ) -> None:
        self.wakeup = Wakeup()
        self._exchange = exchange
        self._learner = learner
        self._process_wakeup = wakeup
        self._spent = spent
        self._device = device
        self._free = deque(_Rotating(b, Fence(device), Fence(device)) for b in builders)
        for batch in self._free:
            batch.read.mark()  # its memory may have had another use a moment ago
        self._complete: deque[_Rotating] = deque()
        self._filling: _Rotating | None = None
        self._learning: _Rotating | None = None
        self._ending = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="gather ahead", daemon=True)
        self._thread.start()

    def gather(self) -> bool:
        return False

    def take(self, progress: float) -> Taken | None:
        if self._error is not None:
            raise self._error
        if not self._complete:
            return None
        self._learning = self._complete.popleft()
        self._learning.filled.follow()
        return Taken(self._learning.builder.take(), progress)

    def done(self, errors: npt.NDArray[np.float32] | None = None) -> None:
        assert self._learning is not None
        self._learning.read.mark()
        self._free.append(self._learning)
        self._learning = None
        self._process_wakeup.set()

    def abandon(self) -> None:
        if self._learning is not None:
            self.done()

    def close(self) -> None:
        self._ending = True
        self._process_wakeup.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            with side_stream(self._device):
                while not self._ending:
                    if not self._gather_one():
                        self._process_wakeup.wait(POLL_INTERVAL)
                        self.wakeup.set()
        except BaseException as error:
            self._error = error
            self.wakeup.set()

    def _gather_one(self) -> bool:
        """Copy a slot, if one is ready and there is a batch to copy it into."""
        if self._filling is None:
            if not self._free:
                return False
            self._filling = self._free.popleft()
            self._filling.read.follow()
        slot = self._exchange.take_ready(self._learner)
        if slot is None:
            return False
        started = perf_counter()
        complete = self._filling.builder.add(slot)
        self._exchange.give_back(slot)
        self._spent += perf_counter() - started
        if complete:
            self._filling.filled.mark()
            self._complete.append(self._filling)
            self._filling = None
            self.wakeup.set()
        return True


@dataclass(frozen=True)
class SlotBatches:
    """What a learner learns from: ``slots_per_batch`` slots of ``exchange`` at a time, copied to
    ``device``.

    Asynchronous: a slot goes back to its actor as soon as it is copied into the batch.
    ``synchronous``: it goes back when the weights of the update are published, so that no rollout
    begins before. ``prefetch`` (asynchronous only): a thread gathers the next batch during an
    update. ``learner``: index of the learner whose slots these are.
    """

    exchange: SlotExchange
    slots_per_batch: int
    device: torch.device
    synchronous: bool
    prefetch: bool = False
    learner: int = 0

    def __post_init__(self) -> None:
        assert not (self.prefetch and self.synchronous), "there is no next batch to gather ahead"

    def source(
        self, wakeup: Wakeup, count: Mapping[str, Seconds], version: int, gather: Gather
    ) -> BatchSource:
        """Return the source of these batches, see `Batches`; experience goes on by itself, whatever
        the ``version``."""
        spent = count["batch_s"]
        builders = [
            BatchBuilder(self.exchange.slots, self.slots_per_batch, self.device)
            for _ in range(2 if self.prefetch else 1)
        ]
        if self.prefetch:
            return PrefetchingBatchSource(
                self.exchange, builders, wakeup, spent, self.device, self.learner
            )
        return SerialBatchSource(
            self.exchange,
            builders[0],
            wakeup,
            spent,
            synchronous=self.synchronous,
            learner=self.learner,
        )

    def take_over(self) -> None:
        """Give back the slots that the previous process was reading: their steps are not learned
        from."""
        self.exchange.give_back_all(self.learner)
