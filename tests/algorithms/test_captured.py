"""Updates from CUDA graphs. Without a GPU, a recorder of operations takes the place of the graph:
it repeats them on the same tensors, with the numbers that they had."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from threading import Event, Thread
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sampleforge.algorithms import rollout_learner
from sampleforge.algorithms.captured import CapturedWork, CudaGraphs
from sampleforge.algorithms.dqn.config import DqnConfig
from sampleforge.algorithms.dqn.learner import DqnLearner
from sampleforge.algorithms.learning import LearnerPlace
from sampleforge.algorithms.rollout_learner import RolloutLearner
from sampleforge.models import passes_by_hand
from sampleforge.ops import returns
from sampleforge.replay.sample_batches import ReplaySample
from sampleforge.shared.staging import side_stream, wait_for_copies
from tests.support.graphs import copy_of, rollouts
from tests.support.learners import config, learner_of
from tests.support.q_learning import network, transitions
from tests.support.recorded_graphs import RecordedGraphs
from tests.support.sac import (
    crossq_config,
    crossq_learner,
    sac_config,
    sac_learner,
    sample,
    td3_config,
    td3_learner,
)

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def as_on_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in torch where numpy is faster on a CPU: a device has no numpy, and the recorder of
    operations does not see it."""
    monkeypatch.setattr(returns, "linear_recurrence", returns.doubling)
    monkeypatch.setattr(passes_by_hand, "numpy_tanh_", torch.tanh_)


def sac(device: torch.device = CPU, **more: Any) -> Any:
    return sac_learner(sac_config(**more), device=device)


def crossq(device: torch.device = CPU, **more: Any) -> Any:
    return crossq_learner(crossq_config(**more), device=device)


def td3(device: torch.device = CPU, **more: Any) -> Any:
    return td3_learner(td3_config(**more), device=device)


def weights_of(learner: RolloutLearner | DqnLearner) -> dict[str, torch.Tensor]:
    tensors, _ = learner.state()
    return tensors


def assert_same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        assert torch.equal(tensor, other[name]), name


@pytest.mark.long
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"advantage": "gae", "num_epochs": 2, "minibatch_size": 8},
        {"num_epochs": 2, "minibatch_size": 8},
    ],
    ids=["vtrace, whole batch", "gae, minibatches of steps", "vtrace, minibatches of rows"],
)
@pytest.mark.parametrize("by_hand", [True, False], ids=["by hand", "by autograd"])
def test_updates_from_a_graph_are_those_without_one(
    monkeypatch: pytest.MonkeyPatch, more: dict[str, Any], by_hand: bool
) -> None:
    """With another batch, learning rate and order of minibatches in every update, a loaded state
    and other hyperparameters in between. The learning rates are numbers that float32, of
    which a graph's rate is, has exactly."""
    if not by_hand:
        monkeypatch.setattr(rollout_learner, "passes_of", lambda model: None)
    chosen = config(
        **{"lr_schedule": "linear", "train_for_env_steps": 1000, "learning_rate": 2**-10, **more}
    )
    batches = [copy_of(batch) for batch in rollouts(chosen, 8)]
    graphs = RecordedGraphs()
    eager, graphed = learner_of(chosen), learner_of(chosen)
    graphed.use_graphs(graphs)
    stored: list[Any] = []
    for number, batch in enumerate(batches):
        for index, learner in enumerate((eager, graphed)):
            if number == 4:
                learner.load(*stored[index])
            if number == 6:
                learner.change({"clip_ratio": 0.05, "max_grad_norm": 0.01})
        found = [learner.update(batch, number / 8) for learner in (eager, graphed)]
        assert found[0] == found[1]
        assert eager.version == graphed.version
        assert_same(weights_of(eager), weights_of(graphed))
        if number == 2:
            stored = [learner.state() for learner in (eager, graphed)]
    assert graphs.recorded == 3, "one until the state is loaded, one until hyperparameters change"


@pytest.mark.long
@pytest.mark.parametrize("optimiser", ["adam", "rmsprop"])
def test_q_learning_from_a_graph_is_that_without_one(optimiser: Any) -> None:
    """With another exponent of the importance weights in every update; batches that lack evicted
    transitions are learned from without a graph."""
    of = DqnConfig(
        learning_rate=1e-3,
        optimiser=optimiser,
        optimiser_eps=1e-6,
        target_update_interval=2,
    )
    graphs = RecordedGraphs()
    eager, graphed = (DqnLearner(network(1), of, LearnerPlace(CPU)) for _ in range(2))
    graphed.use_graphs(graphs)
    for number, size in enumerate([6, 6, 6, 5, 6, 4, 6, 6]):
        batch, beta = transitions(size, seed=number), 0.4 + number / 20
        one, other = (
            learner.update(ReplaySample(batch, beta), 0.5) for learner in (eager, graphed)
        )
        assert one.errors is not None and other.errors is not None
        assert one.errors == pytest.approx(other.errors, rel=1e-6)
        assert one.metrics == pytest.approx(other.metrics, rel=1e-5)
    for name, tensor in weights_of(eager).items():
        assert torch.allclose(tensor, weights_of(graphed)[name], rtol=1e-5, atol=1e-7), name
    assert graphs.recorded == 1


@dataclass(frozen=True)
class Numbers:
    x: torch.Tensor


def test_work_that_waits_for_the_device_cannot_be_recorded() -> None:
    def waits(numbers: Numbers) -> dict[str, torch.Tensor]:
        return {"y": numbers.x * float(numbers.x.sum())}

    work = CapturedWork(waits, RecordedGraphs())
    work(Numbers(torch.ones(3)))
    with pytest.raises(AssertionError, match="waits for the device"):
        work(Numbers(torch.ones(3)))


def test_graphs_are_for_shapes_that_repeat_and_the_latest_are_kept() -> None:
    graphs = RecordedGraphs()
    work = CapturedWork(lambda numbers: {"y": numbers.x * 2}, graphs)

    def recorded(*sizes: int) -> int:
        before = graphs.recorded
        for size in sizes:
            x = torch.rand(size)
            assert torch.equal(work(Numbers(x))["y"], 2 * x)
        return graphs.recorded - before

    assert recorded(3, 4, 3, 4) == 0
    assert recorded(3, 3, 3, 4, 3) == 1
    assert recorded(5, 5, 6, 6, 7, 7, 3, 8, 8) == 4
    assert recorded(3) == 0, "used lately"
    assert recorded(5, 5) == 1, "dropped for newer ones"


@pytest.mark.parametrize("prioritised", [False, True])
@pytest.mark.parametrize("make", [sac, crossq, td3], ids=["sac", "crossq", "td3"])
def test_updates_of_critics_from_a_graph_are_those_without_one(
    make: Callable[..., Any], prioritised: bool
) -> None:
    """With a policy that moves in every second update, a loaded state, and another bound of the
    gradients' norms."""
    more = {"priority_alpha": 0.6} if prioritised else {}
    graphs = RecordedGraphs()
    eager, graphed = (make(actor_interval=2, max_grad_norm=10.0, **more) for _ in range(2))
    eager._passes = None  # by autograd, as in a graph
    graphed.use_graphs(graphs)
    stored: list[Any] = []
    for number in range(12):
        for index, learner in enumerate((eager, graphed)):
            if number == 6:
                learner.load(*stored[index])
            if number == 8:
                learner.change({"max_grad_norm": 0.5})
        one, other = (learner.update(sample(16, number), 0.0) for learner in (eager, graphed))
        assert one.metrics == pytest.approx(other.metrics, rel=1e-6)
        assert (one.errors is None) == (not prioritised)
        if prioritised:
            assert one.errors == pytest.approx(other.errors, rel=1e-6)
        if number == 3:
            stored = [learner.state() for learner in (eager, graphed)]
    assert_same(weights_of(eager), weights_of(graphed))
    assert graphs.recorded == 4, "with and without the policy, before and after the change"


class StreamPool:
    """Of torch.cuda what graphs and side streams use: 32 streams for each priority, in turn."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.entered: list[tuple[int, int]] = []
        self.recorded_on: list[tuple[int, int]] = []
        given: Counter[int] = Counter()

        def stream(device: torch.device, priority: int = 0) -> tuple[int, int]:
            given[priority] += 1
            return priority, given[priority] % 32

        def enter(stream: tuple[int, int]) -> nullcontext[None]:
            self.entered.append(stream)
            return nullcontext()

        def recording(graph: Any, *, stream: tuple[int, int], **_: Any) -> nullcontext[None]:
            self.recorded_on.append(stream)
            return nullcontext()

        graph = SimpleNamespace(replay=lambda: None)
        monkeypatch.setattr(torch.cuda, "Stream", stream)
        monkeypatch.setattr(torch.cuda, "stream", enter)
        monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: graph)
        monkeypatch.setattr(torch.cuda, "graph", recording)


def test_no_recording_has_the_stream_on_which_another_thread_copies(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its copies would be recorded with the work, or waiting for them would fail."""
    pool, device = StreamPool(monkeypatch), torch.device("cuda", 0)
    graphs = CudaGraphs(device)
    with side_stream(device):
        for _ in range(100):
            graphs.record(dict)
    assert len(pool.recorded_on) == 100
    assert not set(pool.entered) & set(pool.recorded_on)


def times(x: torch.Tensor, number: int) -> dict[str, torch.Tensor]:
    return {"y": x * number}


@pytest.mark.gpu
def test_a_thread_copies_on_while_more_graphs_are_recorded_than_torch_has_streams() -> None:
    device = torch.device("cuda")
    graphs, x = CudaGraphs(device), torch.ones(8, device=device)
    with copying(device):
        for number in range(70):
            replay, results = graphs.record(partial(times, x, number))
            replay()
            assert results["y"].tolist() == [float(number)] * 8


@pytest.mark.gpu
@pytest.mark.parametrize("more", [{}, {"advantage": "gae", "num_epochs": 2, "minibatch_size": 8}])
def test_updates_from_a_cuda_graph_are_near_those_without_one(more: dict[str, Any]) -> None:
    device, chosen = torch.device("cuda"), config(**more)
    eager, graphed = learner_of(chosen, device), learner_of(chosen, device)
    graphed.use_graphs(CudaGraphs(device))
    for number, batch in enumerate(rollouts(chosen, 5)):
        one, other = (learner.update(batch, number / 10) for learner in (eager, graphed))
        assert one == pytest.approx(other, rel=1e-3, abs=1e-4)
    for name, tensor in weights_of(eager).items():
        assert torch.allclose(tensor, weights_of(graphed)[name], rtol=1e-3, atol=1e-5), name


@pytest.mark.gpu
def test_q_learning_from_a_cuda_graph_is_near_that_without_one() -> None:
    device = torch.device("cuda")
    of = DqnConfig(learning_rate=1e-3, optimiser_eps=1e-6, target_update_interval=2)
    of = replace(of, optimiser="adam")
    make: Callable[[], DqnLearner] = lambda: DqnLearner(  # noqa: E731
        network(1), of, LearnerPlace(device)
    )
    eager, graphed = make(), make()
    graphed.use_graphs(CudaGraphs(device))
    for number in range(6):
        batch = transitions(64, seed=number)
        one, other = (learner.update(ReplaySample(batch, 0.4), 0.5) for learner in (eager, graphed))
        assert one.errors is not None and other.errors is not None
        assert one.errors == pytest.approx(other.errors, rel=1e-3, abs=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("prioritised", [False, True])
@pytest.mark.parametrize("make", [sac, crossq, td3], ids=["sac", "crossq", "td3"])
def test_updates_of_critics_from_a_cuda_graph_are_near_those_without_one(
    make: Callable[..., Any], prioritised: bool
) -> None:
    device, more = torch.device("cuda"), {"priority_alpha": 0.6} if prioritised else {}
    eager, graphed = (make(device, actor_interval=2, **more) for _ in range(2))
    eager._passes = None  # by autograd, as in a graph
    graphed.use_graphs(CudaGraphs(device))
    for number in range(12):
        one, other = (learner.update(sample(16, number), 0.0) for learner in (eager, graphed))
        assert one.metrics == pytest.approx(other.metrics, rel=1e-3, abs=1e-4)
        assert (one.errors is None) == (not prioritised)
        if prioritised:
            assert one.errors == pytest.approx(other.errors, rel=1e-3, abs=1e-4)
    for name, tensor in weights_of(eager).items():
        assert torch.allclose(tensor, weights_of(graphed)[name], rtol=1e-3, atol=1e-4), name


def appo(device: torch.device = CPU) -> Any:
    return learner_of(config(), device)


@pytest.mark.parametrize("there", [CPU, pytest.param(torch.device("cuda"), marks=pytest.mark.gpu)])
@pytest.mark.parametrize("make", [appo, sac, crossq, td3], ids=["appo", "sac", "crossq", "td3"])
def test_a_state_goes_from_a_gpu_to_a_cpu_and_back_unchanged(
    make: Callable[..., Any], there: torch.device
) -> None:
    """And the next update is the one that would have followed."""
    batches = [copy_of(batch) for batch in rollouts(config(), 4)]
    items: list[Any] = batches if make is appo else [sample(16, seed) for seed in range(4)]
    on_gpu, here, again = make(there), make(CPU), make(there)
    for item in items[:3]:
        on_gpu.update(item, 0.1)
    here.load(*on_gpu.state())
    again.load(*here.state())
    assert here.version == again.version == on_gpu.version
    assert_same(weights_of(on_gpu), weights_of(here))
    assert_same(weights_of(on_gpu), weights_of(again))
    again.update(items[3], 0.2)
    on_gpu.update(items[3], 0.2)
    for name, tensor in weights_of(on_gpu).items():
        assert torch.allclose(tensor, weights_of(again)[name], rtol=1e-5, atol=1e-6), name


@pytest.mark.gpu
def test_cuda_graphs_of_more_shapes_than_are_kept_stay_valid() -> None:
    """Dropping a graph must leave the memory of the others alone."""
    device = torch.device("cuda")
    of = DqnConfig(learning_rate=1e-3, optimiser_eps=1e-6, target_update_interval=2)
    of = replace(of, optimiser="adam")
    eager, graphed = (DqnLearner(network(1), of, LearnerPlace(device)) for _ in range(2))
    graphed.use_graphs(CudaGraphs(device))
    sizes = [64, 32, 48, 16, 80, 24]
    for number, size in enumerate([*sizes, *reversed(sizes), *sizes] * 2):
        for again in range(2):
            batch = transitions(size, seed=2 * number + again)
            one, other = (
                learner.update(ReplaySample(batch, 0.4), 0.5) for learner in (eager, graphed)
            )
            assert one.errors is not None and other.errors is not None
            assert one.errors == pytest.approx(other.errors, rel=1e-3, abs=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("more", [{}, {"advantage": "gae", "num_epochs": 2, "minibatch_size": 8}])
def test_cuda_graphs_follow_a_loaded_state_and_changed_hyperparameters(
    more: dict[str, Any],
) -> None:
    """While another thread copies to the device, as that which fetches the next batch."""
    device, chosen = torch.device("cuda"), config(**more)
    eager, graphed = learner_of(chosen, device), learner_of(chosen, device)
    graphed.use_graphs(CudaGraphs(device))
    stored: list[Any] = []
    with copying(device):
        for number, batch in enumerate(copy_of(batch) for batch in rollouts(chosen, 12)):
            for index, learner in enumerate((eager, graphed)):
                if number == 4:
                    learner.load(*stored[index])
                if number in (6, 9):
                    learner.change({"clip_ratio": 0.05 * number, "max_grad_norm": 0.01})
            one, other = (learner.update(batch, number / 12) for learner in (eager, graphed))
            assert one == pytest.approx(other, rel=1e-3, abs=1e-4)
            if number == 2:
                stored = [learner.state() for learner in (eager, graphed)]
    for name, tensor in weights_of(eager).items():
        assert torch.allclose(tensor, weights_of(graphed)[name], rtol=1e-3, atol=1e-5), name


@contextmanager
def copying(device: torch.device) -> Iterator[None]:
    """Let another thread copy page-locked memory to the device, through a stream of its own."""
    ended = Event()

    def copy() -> None:
        with side_stream(device):
            while not ended.is_set():
                torch.empty(1 << 16).pin_memory().to(device, non_blocking=True)
                wait_for_copies(device)

    thread = Thread(target=copy)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
