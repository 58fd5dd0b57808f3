"""Acting on inputs that are collected in host memory: operation by operation, and from graphs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sampleforge.algorithms.acting import Acting, ActingPlace
from sampleforge.algorithms.sampling import sampling
from sampleforge.models.actor_critic import ActorCritic
from sampleforge.models.config import ModelConfig
from sampleforge.rollouts.requests import InferenceRequests
from sampleforge.rollouts.slots import SlotShape, TrajectorySlots
from sampleforge.run.session import Session
from sampleforge.shared import staging
from sampleforge.shared.newest import SharedWeights
from sampleforge.shared.wakeup import Wakeup
from sampleforge.spec import ActionSpec, ArraySpec, EnvSpec
from sampleforge.topologies.pairings.critics_config import SacConfig
from sampleforge.topologies.pairings.dqn_config import ApexConfig
from sampleforge.topologies.pairings.ppo_config import AppoConfig
from sampleforge.topologies.pairings.pqn_config import PqnConfig
from sampleforge.workers import policy, staged_acting
from sampleforge.workers.staged_acting import StagedActing, fill, gather, scatter
from tests.support.posts import some_post
from tests.support.recorded_graphs import RecordedGraphs

CPU = torch.device("cpu")
SPEC = EnvSpec(
    "fake",
    {"x": ArraySpec((5,), "float32"), "image": ArraySpec((4, 6, 6), "uint8")},
    {"action": ActionSpec("discrete", (), "int64", (3,))},
)
ROWS, PLACES = 3, 4


def slots_of_random_steps() -> TrajectorySlots:
    slots = TrajectorySlots(6, SlotShape(7, ROWS, SPEC, 0))
    for column in slots.columns().values():
        column.view(torch.uint8).random_(0, 2)
    slots.obs["x"][...] = np.random.default_rng(0).normal(size=slots.obs["x"].shape)
    return slots


def acting_on(device: torch.device, seed: int = 3) -> Acting:
    torch.manual_seed(1)
    network = ActorCritic(ModelConfig(hidden_sizes=(8,)), SPEC.observations, SPEC.actions)
    weights = SharedWeights(network.state_dict())
    weights.publish(network.state_dict(), 1)
    acting = sampling(
        network, weights, ActingPlace(torch.Generator(device).manual_seed(seed), num_rows=100)
    )
    acting.refresh()
    return acting


def places(count: int) -> tuple[Any, Any]:
    random = np.random.default_rng(count)
    return random.permutation(6)[:count], random.integers(0, 7, count)


def test_what_is_gathered_and_scattered_is_what_lies_in_the_slots() -> None:
    slots = slots_of_random_steps()
    staged = StagedActing(acting_on(CPU), slots.shape, CPU, PLACES)
    for count in (4, 1, 3):
        at, inputs = places(count), staged.inputs(count)
        gather(slots, at, inputs)
        for name, leaf in slots.obs.items():
            expected = leaf[at].reshape(count * ROWS, *leaf.shape[3:])
            np.testing.assert_array_equal(inputs.obs[name], expected)
        np.testing.assert_array_equal(inputs.is_first, slots.first[at].reshape(-1))
        fill(inputs.rows, np.arange(count * ROWS).reshape(count, ROWS) + 7)
        assert inputs.rows.tolist() == list(range(7, 7 + count * ROWS))
        slots.obs["x"][at] += 1  # an actor writes the next step
        assert not np.array_equal(inputs.obs["x"], slots.obs["x"][at].reshape(-1, 5))
        acted = staged.act(inputs)
        scatter(slots, at, acted)
        for column, found in ((slots.actions, acted.actions), (slots.extras, acted.extras)):
            for name, answer in found.items():
                np.testing.assert_array_equal(column[name][at].reshape(-1), answer)


def test_a_graph_is_recorded_when_a_number_of_requests_comes_again() -> None:
    """Its answers are those without it, with new observations and random numbers each time."""
    slots, graphs = slots_of_random_steps(), RecordedGraphs()
    plain = StagedActing(acting_on(CPU), slots.shape, CPU, PLACES)
    graphed = StagedActing(acting_on(CPU), slots.shape, CPU, PLACES, graphs)
    for number, count in enumerate([4, 1, 2, 4, 2, 2, 4, 3, 1]):
        slots.obs["x"][...] = np.random.default_rng(number).normal(size=slots.obs["x"].shape)
        answers = []
        for staged in (plain, graphed):
            inputs = staged.inputs(count)
            gather(slots, places(count), inputs)
            answers.append(staged.act(inputs))
        one, other = answers
        np.testing.assert_array_equal(one.actions["action"], other.actions["action"])
        for name in ("log_prob", "value"):
            np.testing.assert_array_equal(one.extras[name], other.extras[name])
    assert graphs.recorded == 3, "for 4, 2 and 1 requests; 3 came once"


def test_as_many_requests_are_answered_as_there_is_a_graph_for() -> None:
    slots = slots_of_random_steps()
    plain = StagedActing(acting_on(CPU), slots.shape, CPU, 9)
    graphed = StagedActing(acting_on(CPU), slots.shape, CPU, 9, RecordedGraphs())
    assert [plain.at_once(n) for n in range(1, 10)] == list(range(1, 10))
    assert [graphed.at_once(n) for n in range(1, 10)] == [1, 2, 2, 4, 4, 4, 4, 8, 8]


def test_a_policy_worker_with_graphs_answers_a_power_of_two_and_the_others_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Graphed(StagedActing):
        def __init__(self, acting: Any, shape: Any, device: Any, most: int, *, spins: bool) -> None:
            super().__init__(acting, shape, device, most, RecordedGraphs(), spins=spins)

    monkeypatch.setattr(policy, "StagedActing", Graphed)
    slots = slots_of_random_steps()
    requests = InferenceRequests(slots.shape, 1, [Wakeup() for _ in range(7)], [Wakeup()])
    worker = policy.PolicyWorker(0, lambda: acting_on(CPU), slots, requests, some_post(), CPU)
    worker.start()
    answered: list[list[int]] = []
    for actor in range(7):
        requests.ask(actor, 0, slot=actor % 6, t=0)
    for _ in range(3):
        assert worker.step()
        now = [actor for actor in range(7) if requests.is_answered(actor, 0)]
        answered.append(now)
        for actor in now:  # they ask again at once
            requests.ask(actor, 0, slot=actor % 6, t=1)
    assert answered == [[0, 1, 2, 3], [0, 4, 5, 6], [1, 2, 3, 4]]


@pytest.mark.long
@pytest.mark.parametrize(
    ("cls", "more"),
    [
        (AppoConfig, {"env": "CartPole-v1", "async_rl": True}),
        (AppoConfig, {"env": "Pendulum-v1", "noise_correlation": 0.5}),
        (PqnConfig, {"env": "CartPole-v1"}),
        (ApexConfig, {"env": "CartPole-v1", "learning_starts": 200, "replay_capacity": 5000}),
        (
            SacConfig,
            {
                "env": "Pendulum-v1",
                "learning_starts": 200,
                "replay_capacity": 5000,
                "updates_per_env_step": 0.1,
                "noise_correlation": 0.5,
            },
        ),
    ],
    ids=["appo", "correlated noise", "epsilon falls", "ladder of epsilons", "uniform first"],
)
def test_a_run_with_graphs_of_its_policy_worker_is_the_run_without(
    cls: Any, more: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graphs = RecordedGraphs()

    def weights(name: str) -> dict[str, torch.Tensor]:
        config = cls(
            serial=True,
            seed=5,
            inference="worker",
            num_workers=2,
            num_envs_per_worker=2,
            train_for_env_steps=600,
            run_dir=str(tmp_path / name),
            quiet=True,
            device="cpu",
            **more,
        )
        with Session(config) as run:
            list(run.reports())
            return dict(run.graph.groups[0].learner.worker._learner.model.state_dict())  # type: ignore[attr-defined]

    plain = weights("plain")

    class Graphed(StagedActing):
        def __init__(self, acting: Any, shape: Any, device: Any, most: int, *, spins: bool) -> None:
            super().__init__(acting, shape, device, most, graphs, spins=spins)

        def at_once(self, waiting: int) -> int:
            return waiting

    monkeypatch.setattr(policy, "StagedActing", Graphed)
    through = weights("through")
    assert graphs.recorded > 0
    assert all(torch.equal(plain[name], through[name]) for name in plain)


def test_values_are_waited_for_as_actions_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """The processor's core is free meanwhile, for an actor may need it."""
    waits: list[Any] = []
    monkeypatch.setattr(
        staged_acting, "wait_for_copies", lambda device, *, spins: waits.append((device, spins))
    )
    slots = slots_of_random_steps()
    staged = StagedActing(acting_on(CPU), slots.shape, CPU, PLACES)
    gather(slots, places(2), inputs := staged.inputs(2))
    assert staged.values(inputs).shape == (2 * ROWS,)
    assert waits == [(CPU, False)]


@pytest.mark.parametrize("refuses", [True, False])
def test_there_are_no_graphs_where_the_machine_refuses_to_page_lock(
    monkeypatch: pytest.MonkeyPatch, refuses: bool
) -> None:
    """Torch records no copy from or to other memory."""

    def pin(tensor: torch.Tensor) -> torch.Tensor:
        if refuses:
            raise RuntimeError("CUDA error: operation not supported")
        return tensor

    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    monkeypatch.setattr(staging, "_forget_error", lambda: None)
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda tensor: not refuses)
    slots = slots_of_random_steps()
    staged = StagedActing(acting_on(CPU), slots.shape, torch.device("cuda"), PLACES)
    assert staged.at_once(3) == (3 if refuses else 2)
    refuses = True  # only the places of the answers
    staged._place(torch.zeros(3))
    assert staged.at_once(3) == 3


@pytest.mark.gpu
def test_a_gpu_answers_what_the_cpu_does_from_graphs_too() -> None:
    slots, there = slots_of_random_steps(), torch.device("cuda")
    here = StagedActing(acting_on(CPU), slots.shape, CPU, PLACES)
    on_gpu = StagedActing(acting_on(there), slots.shape, there, PLACES)
    drawn: list[Any] = []
    for number in range(60):
        count = (4, 1, 2, 4)[number % 4]
        slots.obs["x"][...] = np.random.default_rng(number).normal(size=slots.obs["x"].shape)
        values = []
        for staged in (here, on_gpu):
            gather(slots, places(count), inputs := staged.inputs(count))
            acted = staged.act(inputs)
            values.append(acted.extras["value"].copy())
        drawn += acted.actions["action"].tolist()
        np.testing.assert_allclose(values[0], values[1], rtol=1e-3, atol=1e-4)
    counts = np.bincount(drawn, minlength=3) / len(drawn)
    assert counts.min() > 0.1, "graphs draw new numbers at each launch"


@pytest.mark.gpu
def test_graphs_of_a_gpu_draw_as_their_seed_says() -> None:
    """And a generator that is seeded anew begins anew."""
    slots, there = slots_of_random_steps(), torch.device("cuda")
    staged = [StagedActing(acting_on(there), slots.shape, there, PLACES) for _ in range(2)]

    def draw(one: StagedActing) -> list[list[int]]:
        found = []
        for _ in range(6):
            gather(slots, places(2), inputs := one.inputs(2))
            found.append(one.act(inputs).actions["action"].tolist())
        return found

    first, second = (draw(one) for one in staged)
    assert first == second
    staged[0]._acting.generator.manual_seed(9)
    staged[1]._acting.generator.manual_seed(9)
    assert draw(staged[0]) == draw(staged[1]) != first
