"""A yardstick: the least program that does the work of APPO on Breakout.

Two samplers with inline inference (ALE's vector env, 16 rows, Nature CNN, one action sampled per
row) write rollouts into shared tensors; one learner takes the newest ones, steps, and publishes its
weights. No checks, no statistics, no back-pressure: samplers overwrite what the learner has not
taken in time. Each sampler is kept on a core of its own. `--no-learner` measures samplers alone.

    taskset -c 0,1 python benchmarks/prototype_breakout.py --precision bf16
"""

from __future__ import annotations

import argparse
import contextlib
import time
from typing import Any

import ale_py
import numpy as np
import torch
import torch.multiprocessing as mp
from machine import describe, pin, table
from torch import Tensor, nn

FRAME_SKIP = 4
ROWS, ROLLOUT = 16, 32
SAMPLERS, SLOTS = 2, 2


class NatureCnn(nn.Module):
    """uint8 images [B, 4, 84, 84] -> logits [B, A], value [B]."""

    def __init__(self, num_actions: int) -> None:
        super().__init__()
        convolutions = [
            *(nn.Conv2d(4, 32, 8, stride=4), nn.ReLU()),
            *(nn.Conv2d(32, 64, 4, stride=2), nn.ReLU()),
            *(nn.Conv2d(64, 64, 3, stride=1), nn.ReLU()),
        ]
        self.body = nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(3136, 512), nn.ReLU())
        self.heads = nn.Linear(512, num_actions + 1)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        output = self.heads(self.body(images.float() / 255)).float()
        return output[:, :-1], output[:, -1]


class Shared:
    """Rollouts [samplers, slots, T, rows, ...], weights and counters, in shared memory."""

    def __init__(self, num_actions: int) -> None:
        shape = (SAMPLERS, SLOTS, ROLLOUT, ROWS)
        self.images = torch.zeros(*shape, 4, 84, 84, dtype=torch.uint8).share_memory_()
        self.actions = torch.zeros(shape, dtype=torch.int64).share_memory_()
        self.log_probs = torch.zeros(shape).share_memory_()
        self.returns = torch.zeros(shape).share_memory_()
        self.policy = NatureCnn(num_actions).share_memory()
        self.sampled = torch.zeros(SAMPLERS, dtype=torch.int64).share_memory_()
        self.trained = torch.zeros(1, dtype=torch.int64).share_memory_()


def autocast(precision: str) -> contextlib.AbstractContextManager[Any]:
    return torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "bf16")


def parent_lives() -> bool:
    parent = mp.parent_process()
    return parent is not None and parent.is_alive()


def sample(me: int, shared: Shared, filled: Any, precision: str) -> None:
    """Rolls out until it is killed; hands on the index of each rollout's slot."""
    torch.set_num_threads(1)
    pin(me)
    env = ale_py.AtariVectorEnv("breakout", ROWS, num_threads=1)
    actions: Any = env.single_action_space
    policy = NatureCnn(int(actions.n))
    images, _ = env.reset(seed=me)
    slot = 0
    while parent_lives():
        policy.load_state_dict(shared.policy.state_dict())
        rewards = np.zeros((ROLLOUT, ROWS), dtype=np.float32)
        for t in range(ROLLOUT):
            at = (me, slot, t)
            shared.images[at] = torch.from_numpy(images)
            with torch.inference_mode(), autocast(precision):
                log_probs = policy(shared.images[at])[0].log_softmax(-1)
            # Gumbel's trick: one sample per row without torch.distributions
            noise = -torch.empty_like(log_probs).exponential_().log()
            actions = (log_probs + noise).argmax(-1)
            shared.actions[at] = actions
            shared.log_probs[at] = log_probs.gather(-1, actions[:, None])[:, 0]
            images, rewards[t], _, _, _ = env.step(actions.numpy())
            shared.sampled[me] += ROWS
        shared.returns[me, slot] = torch.from_numpy(rewards[::-1].cumsum(0)[::-1].copy())
        filled[me] = slot
        slot = (slot + 1) % SLOTS


def learn(shared: Shared, filled: Any, precision: str) -> None:
    """Steps on the newest rollout of each sampler in turn, in minibatches of 256."""
    torch.set_num_threads(1)
    optimiser = torch.optim.Adam(shared.policy.parameters(), 1e-4)
    me = 0
    while parent_lives():
        me = (me + 1) % SAMPLERS
        slot = filled[me]
        if slot < 0:
            time.sleep(0.001)
            continue
        filled[me] = -1
        columns = (shared.images, shared.actions, shared.log_probs, shared.returns)
        parts = [column[me, slot].flatten(0, 1).split(256) for column in columns]
        for images, actions, log_probs, returns in zip(*parts, strict=True):
            with autocast(precision):
                logits, values = shared.policy(images)
            target = logits.log_softmax(-1).gather(-1, actions[:, None])[:, 0]
            advantages = (returns - values).detach()
            ratio = (target - log_probs).exp()
            surrogate = torch.min(ratio * advantages, ratio.clamp(0.9, 1.1) * advantages)
            loss = (returns - values).square().mean() - surrogate.mean()
            optimiser.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(shared.policy.parameters(), 0.5)
            optimiser.step()
            shared.trained += len(actions)


def measure(precision: str, learner: bool, seconds: float, warm_up: float) -> tuple[float, float]:
    """Env steps sampled and samples trained per second, over `seconds` after `warm_up`."""
    context = mp.get_context("fork")
    shared = Shared(num_actions=4)
    filled = context.Array("i", [-1] * SAMPLERS, lock=False)
    jobs = [
        context.Process(target=sample, args=(i, shared, filled, precision)) for i in range(SAMPLERS)
    ]
    if learner:
        jobs.append(context.Process(target=learn, args=(shared, filled, precision)))
    for job in jobs:
        job.start()
    try:
        time.sleep(warm_up)
        assert all(job.is_alive() for job in jobs)  # it has printed its traceback
        start, sampled, trained = time.perf_counter(), shared.sampled.sum(), shared.trained.clone()
        time.sleep(seconds)
        wall = time.perf_counter() - start
        return float(shared.sampled.sum() - sampled) / wall, float(shared.trained - trained) / wall
    finally:
        for job in jobs:
            job.kill()
            job.join()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--precision", choices=["fp32", "bf16", "both"], default="both")
    parser.add_argument("--learner", action=argparse.BooleanOptionalAction, default=None)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--warm-up", type=float, default=5.0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    print(describe("torch", "ale-py", "numpy"), end="\n\n")
    rows = []
    for precision in ["fp32", "bf16"] if args.precision == "both" else [args.precision]:
        for learner in [True, False] if args.learner is None else [args.learner]:
            sampled, trained = measure(precision, learner, args.seconds, args.warm_up)
            rates = [f"{sampled * FRAME_SKIP:,.0f}", f"{sampled:,.0f}", f"{trained:,.0f}"]
            rows.append([precision, "yes" if learner else "no", *rates])
    rates = ["frames/s sampled", "env steps/s sampled", "samples/s trained"]
    print(table(["precision", "learner", *rates], rows))


if __name__ == "__main__":
    main()
