"""APPO in one process and one page, made of the parts that `sampleforge train appo` is made of.

    python examples/minimal_appo.py

The path of an observation: an env vector steps rows of an environment, a model draws their actions,
a slot keeps the rollout, a batch is gathered from slots, and a learner makes gradient steps. What
the real topology adds is that actors, policy workers and learners are processes: slots are then
handed over by their index, and weights by their version (docs/architecture.md).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import numpy as np
import torch

import sampleforge as sf
from sampleforge.algorithms.learning import LearnerPlace
from sampleforge.algorithms.ppo.loss import PpoLoss
from sampleforge.algorithms.rollout_learner import RolloutLearner
from sampleforge.env.probe import probe
from sampleforge.env.registry import make_vector
from sampleforge.env.vector import EnvVector, StepOut
from sampleforge.models.actor_critic import ActorCritic
from sampleforge.rollouts.batch import BatchBuilder
from sampleforge.rollouts.slots import SlotShape, TrajectorySlots

ROWS, ROLLOUT, SLOTS_PER_BATCH = 16, 32, 2
CPU = torch.device("cpu")


class Actor:
    """Steps an env vector with the newest weights; writes one rollout at a time into a slot."""

    def __init__(self, env: EnvVector, model: ActorCritic, slots: TrajectorySlots) -> None:
        self.env = env
        self.model = model
        self.slots = slots
        self.returns: deque[float] = deque(maxlen=100)
        # What the next rollout begins with: an observation, and whether it begins an episode.
        self.obs = {
            name: np.zeros((env.num_rows, *leaf.shape), leaf.dtype)
            for name, leaf in env.spec.observations.items()
        }
        self.first = np.ones(env.num_rows, np.bool_)
        env.reset(self.obs)

    def write_rollout(self, slot: int, version: int) -> None:
        """Fill a slot: observations [T+1, rows, ...], and what each of the T steps gave."""
        slots = self.slots
        slots.state[slot] = 0.0  # this model has no recurrent state
        for name, leaf in slots.obs.items():
            leaf[slot, 0] = self.obs[name]
        slots.first[slot, 0] = self.first
        for t in range(ROLLOUT):
            self.act(slot, t)
            slots.version[slot, t] = version
            self.env.send({name: leaf[slot, t] for name, leaf in slots.actions.items()})
            episodes = self.env.recv(self.step_out(slot, t))
            self.returns.extend(episode.ret for episode in episodes)
        for name, leaf in slots.obs.items():  # obs[T] is obs[0] of the next rollout
            self.obs[name][:] = leaf[slot, ROLLOUT]
        self.first[:] = slots.first[slot, ROLLOUT]

    @torch.inference_mode()
    def act(self, slot: int, t: int) -> None:
        """Draw the actions of step t; keep their log-probabilities and values beside them."""
        slots = self.slots
        obs = {name: torch.from_numpy(leaf[slot, t]) for name, leaf in slots.obs.items()}
        state, first = torch.from_numpy(slots.state[slot]), torch.from_numpy(slots.first[slot, t])
        output = self.model.step(obs, state, first)
        distribution = self.model.distribution(output.parameters, obs)
        actions = distribution.sample()
        for name, leaf in slots.actions.items():
            leaf[slot, t] = actions[name].numpy()
        slots.extras["log_prob"][slot, t] = distribution.log_prob(actions).numpy()
        slots.extras["value"][slot, t] = output.values.numpy()

    def step_out(self, slot: int, t: int) -> StepOut:
        """Return the places in the slot that the environments write the result of step t to."""
        slots = self.slots
        return StepOut(
            reward=slots.reward[slot, t],
            terminated=slots.terminated[slot, t],
            truncated=slots.truncated[slot, t],
            valid=slots.valid[slot, t],
            obs={name: leaf[slot, t + 1] for name, leaf in slots.obs.items()},
            first=slots.first[slot, t + 1],
        )


def train(config: sf.AppoConfig) -> Iterator[tuple[int, float, dict[str, float]]]:
    """Yield (env steps, mean return of the last 100 episodes, metrics) after each update."""
    torch.manual_seed(1)
    torch.set_num_threads(1)  # for networks this small, threads cost more than they save
    spec = probe(config)
    model = ActorCritic(config.model, spec.observations, spec.actions)
    loss = PpoLoss(config, config.gamma)
    learner = RolloutLearner(model, loss, config, LearnerPlace(CPU, seed=1))
    shape = SlotShape(ROLLOUT, ROWS, spec, model.state_size)
    slots = TrajectorySlots(SLOTS_PER_BATCH, shape)
    batches = BatchBuilder(slots, SLOTS_PER_BATCH)
    env = make_vector(config, ROWS, seeds=range(ROWS))
    actor = Actor(env, model, slots)
    limit = config.train_for_env_steps
    assert limit is not None
    while learner.env_steps < limit:
        for slot in range(SLOTS_PER_BATCH):
            actor.write_rollout(slot, learner.version)
            batches.add(slot)
        metrics = learner.update(batches.take(), learner.env_steps / limit).metrics
        yield learner.env_steps, float(np.mean(actor.returns or [0.0])), metrics
    env.close()


def main() -> None:
    config = sf.AppoConfig(  # `train appo` chooses what is left out here, to suit env and machine
        env="CartPole-v1",
        train_for_env_steps=80_000,
        num_epochs=4,
        minibatch_size=256,
        learning_rate=1e-3,
        lr_schedule="linear",
        advantage="vtrace",
        exploration_coeff=0.01,
    )
    for update, (env_steps, mean, metrics) in enumerate(train(config)):
        if update % 10 == 9:
            print(f"{env_steps:7,d} env steps, mean return {mean:5.1f}, loss {metrics['loss']:.3f}")
    print(f"mean return at the end: {mean:.1f}")


if __name__ == "__main__":
    main()
