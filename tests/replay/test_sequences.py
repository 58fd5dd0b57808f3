"""Sequences out of Ape-X's replay: every step of each, and its state, is what an actor had."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
import pytest
import torch

from sampleforge.algorithms.dqn.finish_rollout import FinishRollout
from sampleforge.algorithms.learning import Update
from sampleforge.algorithms.windows import MakeWindows
from sampleforge.models.config import ModelConfig
from sampleforge.models.q_network import QNetwork
from sampleforge.ops.q_learning import initial_errors, n_step_windows
from sampleforge.replay.sample_batches import ReadySample, ReplaySample
from sampleforge.replay.samples import Gathered, SequenceReader, Sequences
from sampleforge.rollouts.batch import Taken
from sampleforge.rollouts.slots import SlotShape, TrajectorySlots
from sampleforge.topologies.config import ApexConfig
from sampleforge.topologies.graph import Graph
from sampleforge.topologies.pairings.dqn_defaults import resolve_defaults
from sampleforge.topologies.replay.plan import ReplayPlan
from tests.support.apex_graphs import (
    CheckingLearner,
    CheckingLearnerMaker,
    apex_config,
    batches_of,
    build_apex,
    check_transition,
    learner_worker,
    limiter_of,
    serial_rounds,
    with_learner,
)
from tests.support.graphs import running, spec_of, survive_kills
from tests.support.pairings import network_maker
from tests.support.variants import slow

STACKED = "tests.support.stacked_envs:stacked"


def sequence_config(core: str = "gru", **kwargs: Any) -> ApexConfig:
    """On CodeEnv: sequences of 10 steps, one every 6, 3 of them burn-in; rollouts of 12."""
    model = ModelConfig(
        encoder="mlp",
        hidden_sizes=(8,),
        core=core,  # type: ignore[arg-type]
        core_size=6,
        normalise_observations=False,
    )
    defaults: dict[str, Any] = {"sequence_length": 10, "sequence_overlap": 4, "burn_in": 3}
    return apex_config(**{"model": model, "epsilon_base": 0.9, **defaults, **kwargs})


class CheckingReader(SequenceReader):
    """Checks that Q-values of frozen weights, unrolled from the stored state, are those that the
    actor acted on."""

    def __init__(self, network: QNetwork, *args: Any) -> None:
        super().__init__(*args)
        self.network = network

    @torch.no_grad()
    def read(self, items: Any, generations: Any, scaled_probability: Any) -> Gathered:
        found = super().read(items, generations, scaled_probability)
        slots, sequences = self._slots, self._sequences
        slot, within = np.divmod(items, slots.shape.items)
        start, row = np.divmod(within, slots.shape.rows)
        t = start * sequences.stride + np.arange(sequences.length)[:, None]
        saw = {n: slots.extras[n][slot, t, row] for n in ("value", "taken")}
        still = found.still_valid & (slots.generation[slot] == generations)
        if still.any():
            batch = found.batch.pick(torch.from_numpy(still[found.still_valid]))
            q = self.network.unroll(batch.obs, batch.state, batch.is_first)[0][:-1]
            taken = q.gather(-1, batch.actions["action"].unsqueeze(-1)).squeeze(-1)
            for name, now in (("value", q.amax(-1)), ("taken", taken)):
                np.testing.assert_allclose(now, saw[name][:, still], rtol=1e-4, atol=1e-4)
        return found


def check_sequence(batch: Sequences, b: int, config: ApexConfig) -> None:
    """One sequence of CodeEnv, against the environment's own rule. Raises AssertionError."""
    assert config.n_step is not None
    obs = batch.obs["obs"][:, b].numpy()
    obs = obs[:, -1] if obs.ndim == 3 else obs  # the newest frame
    for t, steps in enumerate(batch.steps[:, b].tolist()):
        now, then = obs[t], obs[t + 1]
        assert now[0] == obs[0, 0], "one env row"
        assert bool(batch.is_first[t, b]) == (now[2] == 0)
        begins = bool(batch.is_first[t + 1, b])
        if begins:
            assert then[1] == now[1] + 1 and then[2] == 0
        else:
            assert then[1] == now[1] and then[2] == now[2] + 1, "the next step, and no other"
            assert then[3] == batch.actions["action"][t, b]
        if steps == 0:
            continue
        numbers = (batch.actions["action"], batch.returns, batch.discount)
        action, returns, discount = (float(column[t, b]) for column in numbers)
        after = obs[t + steps]
        if discount == 0 and after[1] > now[1]:  # a same-step environment's, of no account
            after = np.array([*now[:2], now[2] + steps, action], np.float32)
        check_transition(now, int(action), returns, discount, after, config)
        full = steps == config.n_step or t + steps == len(batch.returns)
        assert full or bool(batch.is_first[t + steps : t + steps + 2, b].any()), "as long as can be"


class CheckingSequences(CheckingLearner):
    def update(self, sample: ReplaySample, progress: float) -> Update:  # type: ignore[override]
        batch: Any = sample.items
        assert (
            torch.isfinite(batch.scaled_probability).all() and (batch.scaled_probability > 0).all()
        )
        for b in range(len(batch.scaled_probability)):
            check_sequence(batch, b, self.config)
        assert (batch.steps[self.config.burn_in :] > 0).any(0).all(), "something to learn"
        self.checked += len(batch.scaled_probability)
        self.version += 1
        errors = self.random.gamma(0.5, size=len(batch.scaled_probability)).astype(np.float32)
        return Update({"checked": float(self.checked)}, sample.trained, errors)


class Maker(CheckingLearnerMaker):
    def __call__(self) -> CheckingLearner:
        return CheckingSequences(self.new_network(), self.config)


class MakeReader:
    """Makes a CheckingReader, in any process."""

    def __init__(self, new_network: Any, config: ApexConfig, graph: Graph, frames: Any) -> None:
        self.new_network = new_network
        self.windows = MakeWindows(config, graph.groups[0].exchange.slots.shape.drops_truncated)
        self.slots, self.frames = graph.groups[0].exchange.slots, frames

    def __call__(self, device: str) -> CheckingReader:
        return CheckingReader(self.new_network(), self.slots, self.windows, self.frames)


def checking_graph(config: ApexConfig) -> tuple[Graph, ReplayPlan]:
    graph, plan = build_apex(config)
    spec = spec_of(config)
    fitted, new_network = (
        resolve_defaults(config, spec),
        network_maker(config, spec, config.seed or 0),
    )
    frames = batches_of(graph).make_reader.args[3]  # type: ignore[attr-defined]
    checking = MakeReader(new_network, fitted, graph, frames)
    object.__setattr__(batches_of(graph), "make_reader", checking)
    return with_learner(graph, Maker(new_network, fitted)), plan


@pytest.mark.long
@pytest.mark.parametrize(
    ("core", "change"),
    [
        ("gru", {"inference": "inline"}),
        ("lstm", {"inference": "worker", "num_replay_shards": 3, "n_step": 1}),
        ("gru", {"inference": "worker", "priority_alpha": 0.0, "num_replay_shards": 2}),
        ("gru", {"sequence_length": 9, "sequence_overlap": 6, "burn_in": 6, "rollout": 3}),
        ("gru", {"sequence_length": 7, "sequence_overlap": 0, "burn_in": 0, "rollout": 7}),
        ("lstm", {"sequence_length": 20, "sequence_overlap": 1, "burn_in": 1, "n_step": 7}),
        (
            "gru",
            {"env": "tests.support.envs:CountingVectorEnv", "env_kwargs": {"mode": "same_step"}},
        ),
        ("gru", {"env": STACKED, "env_kwargs": {"padding": "zero"}}),
        ("gru", {"env": STACKED, "env_kwargs": {"padding": "reset"}, "sequence_length": 7}),
        ("gru", {"env": STACKED, "replay_compression": "lz4", "replay_compression_ratio": 1.0}),
    ],
)
def test_every_sequence_is_read_from_its_slot_step_and_row(
    core: str, change: dict[str, Any]
) -> None:
    """Through many turns of a small replay: obs, first, action, windows and the very state."""
    if "replay_compression" in change:
        pytest.importorskip("lz4")
    graph, plan = checking_graph(sequence_config(core, **change))
    limiter = limiter_of(graph)
    inserted = limiter.replay_counters.inserted
    for done in serial_rounds(graph, 2000):
        worker = learner_worker(graph)
        assert abs(limiter.balance) <= plan.tolerance or not limiter.replay_counters.learning[0]
        went_round = inserted.sum() * plan.item_steps.inserted > 2 * plan.capacity
        if done >= 350 and went_round and worker._learner.checked > 300:
            break
    assert went_round and worker._learner.checked > 300
    reported = worker.handle("metrics", None)["samples_per_insert"]
    assert reported == pytest.approx(1.0, rel=0.5), "in env steps, whatever a sequence shares"


@pytest.mark.long
@pytest.mark.parametrize(("length", "overlap", "burn_in"), [(10, 4, 4), (8, 6, 6), (9, 5, 2)])
def test_no_step_is_left_out_between_sequences(length: int, overlap: int, burn_in: int) -> None:
    """Where the burn-in is the overlap, each step is learned from in exactly one sequence."""
    config = sequence_config(
        sequence_length=length, sequence_overlap=overlap, burn_in=burn_in, rollout=2 * length
    )
    graph, _ = build_apex(config)
    seen: dict[int, list[tuple[int, int]]] = {}
    exchange: Any = graph.groups[0].exchange
    take_ready = exchange.take_ready

    def watch(shard: int, actor: int) -> int | None:
        slot: int | None = take_ready(shard, actor)
        if slot is not None:
            slots, shape = exchange.slots, exchange.slots.shape
            for start in range(shape.starts):
                for t in range(burn_in, length):
                    at = slot, start * (length - overlap) + t
                    for row in np.flatnonzero(slots.valid[at]):
                        env, episode, step, _ = slots.obs["obs"][at][row].astype(int).tolist()
                        seen.setdefault(env, []).append((episode, step))
        return slot

    exchange.take_ready = watch
    for _ in serial_rounds(graph, 200):
        pass
    assert len(seen) == 12 and min(map(len, seen.values())) > 50
    for env, steps in seen.items():
        counts = Counter(steps)
        assert max(counts.values()) == 1 or burn_in < overlap, env
        episodes = sorted({episode for episode, _ in steps})[1:-1]
        for episode in episodes:
            there = [step for e, step in counts if e == episode]
            assert sorted(there) == list(range(len(there))), "every step of whole episodes"
            assert (episode + 1, 0) in counts


def test_first_priorities_are_those_of_the_steps_that_are_learned_from() -> None:
    config = sequence_config(n_step=2, gamma=0.9, value_rescaling=False, reward_clip=None)
    spec, random = spec_of(config), np.random.default_rng(0)
    sequences = config.sequences
    assert sequences is not None and sequences.starts(16) == 2
    shape = SlotShape(16, 3, spec, 6, {"value": "float32", "taken": "float32"}, sequences=sequences)
    slots = TrajectorySlots(2, shape)
    slots.reward[1] = random.normal(size=(16, 3))
    slots.valid[1] = True
    slots.valid[1, 3:10, 0] = False  # all that the first sequence of row 0 would learn from
    slots.terminated[1, 5, 1] = slots.truncated[1, 12, 2] = True
    for name in ("value", "taken"):
        slots.extras[name][1] = random.normal(size=(16, 3))
    FinishRollout(config)(slots, 1)
    ends = slots.terminated[1], slots.truncated[1]
    windows = n_step_windows(slots.reward[1], *ends, slots.valid[1], 2, 0.9)
    of_steps = slots.extras["value"][1], slots.extras["taken"][1]
    errors = initial_errors(windows, slots.reward[1], *of_steps, 0.9)
    for start in range(2):
        for row in range(3):
            learned = range(6 * start + 3, 6 * start + 10)
            sizes = [float(errors[t, row]) for t in learned if slots.valid[1, t, row]]
            assert slots.sequence_usable[1, start, row] == bool(sizes)
            wanted = 0.9 * max(sizes) + 0.1 * np.mean(sizes) if sizes else 0.0
            assert slots.sequence_error[1, start, row] == pytest.approx(wanted, rel=1e-5)
    assert not slots.sequence_usable[1, 0, 0] and slots.sequence_usable[1, 1, 0]


@pytest.mark.long
def test_action_masks_and_normalisation_work_with_sequences() -> None:
    """MaskedEnv itself asserts that no masked action is taken."""
    model = ModelConfig(hidden_sizes=(8,), core="gru", core_size=6, normalise_observations=True)
    masked: dict[str, Any] = {"env": "tests.support.envs:MaskedEnv", "env_kwargs": {"where": "obs"}}
    graph, plan = build_apex(sequence_config(model=model, **masked))
    for _ in serial_rounds(graph, 200):
        pass
    learner = learner_worker(graph)._learner
    assert learner.version > 20
    (statistics,) = learner.model.normaliser.leaves.values()
    inserted = graph.counters.total("rollouts") * plan.rollout * plan.rows
    assert 0.5 * inserted < int(statistics.count) <= inserted, "each once, however often drawn"
    assert all(torch.isfinite(p).all() for p in learner.model.parameters())


@pytest.mark.multiprocess(timeout=120)
@pytest.mark.parametrize("inference", [slow("inline"), "worker"])
def test_no_wrong_sequence_with_real_processes(inference: str, tmp_path: Path) -> None:
    """As fast as they can, on a replay of a few slots that is overwritten all the time: what was
    evicted before it was read is dropped and counted."""
    chosen = sequence_config(
        inference=inference, samples_per_insert=None, prefetch_batches=16, num_replay_shards=2
    )
    graph, plan = checking_graph(chosen)
    with running(graph, tmp_path) as runner:
        counters = limiter_of(graph).replay_counters
        deadline = monotonic() + 100
        while (
            counters.stale_updates.sum() < 50
            or graph.counters.total("trained_steps") < 5000
            or counters.inserted.sum() * plan.item_steps.inserted <= 5 * plan.capacity
        ):
            runner.poll(0.05)
            assert monotonic() < deadline, (counters.stale_updates, counters.inserted)


@pytest.mark.long
def test_items_that_were_evicted_before_reading_are_left_out() -> None:
    chosen = sequence_config(replay_capacity=36 * 8, learning_starts=100)
    burn_in, (graph, _) = chosen.burn_in, build_apex(chosen)
    for _ in serial_rounds(graph, 150):
        pass
    sample_requests, reader, slots = (
        batches_of(graph).requests,
        batches_of(graph).make_reader("cpu"),
        graph.groups[0].exchange.slots,
    )
    items, scaled_probability = np.arange(12), np.arange(12.0)
    generations = slots.generation[items // slots.shape.items].copy()
    whole = reader.read(items, generations, scaled_probability)
    assert whole.still_valid.all() and whole.trained > 0 and len(sample_requests.items)
    gone = items // slots.shape.items == 1
    generations[gone] -= 1
    part = reader.read(items, generations, scaled_probability)
    assert 0 < gone.sum() < 12 and (part.still_valid == ~gone).all()
    assert part.batch.scaled_probability.tolist() == scaled_probability[~gone].tolist()
    left = torch.from_numpy(~gone)
    assert torch.equal(part.batch.state, whole.batch.state[left])
    assert torch.equal(part.batch.obs["obs"], whole.batch.obs["obs"][:, left])
    counted = part.batch.steps[burn_in:] > 0
    assert part.trained == int(counted.sum()) < whole.trained
    worker = learner_worker(graph)
    request = worker._source.samples._spare.pop()
    sample_requests.items[request] = np.resize(items, sample_requests.items.shape[1])
    sample_requests.generations[request] = np.resize(generations, sample_requests.items.shape[1])
    sample_requests.scaled_probability[request] = 1.0
    worker._source._taken = ReadySample(0, request)
    worker._taken = Taken(request, 0.0)
    assert worker.step()
    stale = np.resize(gone, sample_requests.items.shape[1])
    assert worker.handle("metrics", None)["late_samples"] == stale.sum() > 0
    assert (sample_requests.errors[request] > 0).tolist() == (~stale).tolist()


@pytest.mark.multiprocess(timeout=60)
def test_no_sequence_is_wrong_after_an_actor_was_killed(tmp_path: Path) -> None:
    """Its successor begins without what the rollouts of the killed one ended with."""
    graph, _ = checking_graph(sequence_config(max_worker_restarts=2))
    survive_kills(graph, tmp_path, ("actor 0", "actor 1"))
