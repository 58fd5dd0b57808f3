"""Milliseconds of one gradient step of small networks on one core: the learner's way against
autograd of the same loss.

A PPO step of 256 rows of CartPole, and a Q step of 128 transitions, of two layers of 64 units. A
PPO step is a part of an update of 2048 env steps, with its share of all that an update does once:
experience, advantages, minibatches, metrics. Asynchronous APPO takes one step of 4096 env steps
per update, with V-trace. Both ways take the same steps, in turn, and the differences of their
gradients are shown.

    PYTHONPATH=. taskset -c 0 python benchmarks/learner_step.py
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections.abc import Callable
from dataclasses import replace

import torch
from cases import CPU, filled_slots, prepared
from machine import describe, table

from sampleforge.algorithms.dqn.config import DqnConfig
from sampleforge.algorithms.dqn.learner import DqnLearner
from sampleforge.algorithms.learning import LearnerPlace
from sampleforge.algorithms.ppo.loss import PpoLoss
from sampleforge.algorithms.rollout_learner import RolloutLearner
from sampleforge.models.config import ModelConfig
from sampleforge.models.q_network import QNetwork
from sampleforge.replay.sample_batches import ReplaySample
from sampleforge.replay.samples import Transitions
from sampleforge.rollouts.batch import Batch, BatchBuilder
from sampleforge.runtime.processes import keep_freed_memory
from sampleforge.topologies.config import AppoConfig
from tests.support.literal_ppo import LiteralLoss
from tests.support.pairings import seeded_model

ROLLOUT, ROWS, MINIBATCH, TRANSITIONS = 64, 32, 256, 128
VTRACE_ROLLOUT, VTRACE_ROWS = 32, 128


def ppo(
    separate_critic: bool, *, traced: bool = False
) -> tuple[Callable[[], None], Callable[[], None], int, float]:
    """Return an update by each way, the number of steps of an update, and the largest difference of
    the gradients of their first step, as a part of the gradient's norm."""
    config, spec = prepared("cartpole")
    rollout, rows = (VTRACE_ROLLOUT, VTRACE_ROWS) if traced else (ROLLOUT, ROWS)
    minibatch = rollout * rows if traced else MINIBATCH
    config = replace(
        config,
        async_rl=traced,
        advantage="vtrace" if traced else "gae",
        num_epochs=1,
        rollout=rollout,
        batch_size=rollout * rows,
        minibatch_size=minibatch,
        max_policy_lag=None,
        model=replace(config.model, hidden_sizes=(64, 64), separate_critic=separate_critic),
    )
    slots = filled_slots(config, spec, rows, 1)
    slots.version[...] = 0
    slots.extras["log_prob"][...] = -0.7
    builder = BatchBuilder(slots, 1, CPU)
    builder.add(0)
    batch = builder.take()

    def learner(loss: type[PpoLoss]) -> RolloutLearner:
        return RolloutLearner(
            seeded_model(config.model, spec, 1),
            loss(config, config.gamma, normalises_returns=config.normalise_returns),
            config,
            LearnerPlace(CPU, seed=1),
        )

    ours, plain = learner(PpoLoss), learner(LiteralLoss)
    difference = first_difference(config, learner, batch)
    return (
        lambda: void(ours.update(batch, 0.0)),
        lambda: void(plain.update(batch, 0.0)),
        rollout * rows // minibatch,
        difference,
    )


def first_difference(
    config: AppoConfig, learner: Callable[[type[PpoLoss]], RolloutLearner], batch: Batch
) -> float:
    """Return the largest difference of the gradients of an update of a single step."""
    found = []
    for loss in (PpoLoss, LiteralLoss):
        one = learner(loss)
        one._config = replace(config, minibatch_size=config.batch_size, max_grad_norm=0.0)
        one.update(batch, 0.0)
        found.append(one._optimiser.flat.chunks[0].gradient.clone())
    return float((found[0] - found[1]).abs().max() / found[1].norm())


def q_learning() -> tuple[Callable[[], None], Callable[[], None], int, float]:
    """Return an update by each way, 1, and the difference of their gradients, as `ppo` does."""
    _, spec = prepared("cartpole")
    torch.manual_seed(0)
    model = QNetwork(
        ModelConfig(encoder="mlp", hidden_sizes=(64, 64)),
        spec.observations,
        spec.actions,
        dueling=True,
        head_size=0,
    )
    config = DqnConfig(
        learning_rate=5e-4, optimiser="adam", optimiser_eps=1e-6, target_update_interval=100
    )
    (name,) = spec.observations
    batch = Transitions(
        obs={name: torch.randn(TRANSITIONS, 4)},
        actions={"action": torch.randint(0, 2, (TRANSITIONS,))},
        returns=torch.randn(TRANSITIONS),
        discount=torch.full((TRANSITIONS,), 0.97),
        next_obs={name: torch.randn(TRANSITIONS, 4)},
        scaled_probability=torch.rand(TRANSITIONS, dtype=torch.float64) + 0.1,
        reward=torch.ones(TRANSITIONS),
    )

    def learner(by_hand: bool) -> DqnLearner:
        one = DqnLearner(copy.deepcopy(model), config, LearnerPlace(CPU))
        assert one._passes is not None
        one._passes = one._passes if by_hand else None
        return one

    gradients = []
    for by_hand in (True, False):
        one = learner(by_hand)
        one.update(ReplaySample(batch, 0.4), 0.0)
        gradients.append(one._optimiser.flat.chunks[0].gradient.clone())
    difference = float((gradients[0] - gradients[1]).abs().max() / gradients[1].norm())
    ours, plain = learner(True), learner(False)
    return (
        lambda: void(ours.update(ReplaySample(batch, 0.4), 0.0)),
        lambda: void(plain.update(ReplaySample(batch, 0.4), 0.0)),
        1,
        difference,
    )


def void(_: object) -> None:
    pass


def milliseconds(
    ways: tuple[Callable[[], None], ...], calls: int, rounds: int
) -> list[list[float]]:
    """Return milliseconds of processor time of a call of each way, by round; the ways take
    turns."""
    found: list[list[float]] = [[] for _ in ways]
    for number in range(rounds + 1):
        for way, figures in zip(ways, found, strict=True):
            begun = time.thread_time()
            for _ in range(calls):
                way()
            if number:  # after a warm-up
                figures.append((time.thread_time() - begun) / calls * 1e3)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--steps", type=int, default=64, help="gradient steps per round")
    args = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()  # as the process of a learner does
    print(describe("torch"), end="\n\n")
    cases = {
        f"PPO, {MINIBATCH} rows, 2 x 64": ppo(separate_critic=False),
        f"PPO, {MINIBATCH} rows, 2 x 64, separate critic": ppo(separate_critic=True),
        f"V-trace, {VTRACE_ROLLOUT * VTRACE_ROWS} env steps, 2 x 64": ppo(False, traced=True),
        f"Q-learning, {TRANSITIONS} transitions, 2 x 64": q_learning(),
    }
    rows = []
    for name, (ours, plain, steps, difference) in cases.items():
        found = milliseconds((plain, ours), max(1, args.steps // steps), args.rounds)
        eager, by_hand = ([figure / steps for figure in each] for each in found)
        ratio = statistics.median(a / b for a, b in zip(eager, by_hand, strict=True))
        shown = [f"{statistics.median(each):.3f} ({min(each):.3f})" for each in (eager, by_hand)]
        rows.append([name, *shown, f"{ratio:.1f}x", f"{difference:.1e}"])
    header = ["ms per step: median (least)", "autograd", "ours", "ratio", "gradients differ by"]
    print(table(header, rows))


if __name__ == "__main__":
    main()
