"""The probabilities that a trained policy gives to recorded actions, and to those it might take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sampleforge.config import ConfigError
from sampleforge.models.actor_critic import ActorCritic
from sampleforge.models.q_network import EVALUATION_EPSILON, QNetwork
from sampleforge.ops.distributions import ActionDistribution, ActionLayout, action_layout
from sampleforge.spec import ACTION, ActionSpec
from sampleforge.tools.estimate.fitted_q import encode_actions

CHUNK = 4096
"""Steps that are computed at a time."""
SAMPLES = 16
"""Actions that are drawn in each state to average over, where there are too many to enumerate."""

Leaves = Mapping[str, Tensor]


class ActionProbabilities(NamedTuple):
    """Of M recorded steps: ``log_prob`` float64 [M], log pi(a|s) of the recorded action, -inf if
    the policy never takes it; ``choices`` float32 [M or 1, J, D], actions of the policy as
    `encode_actions` gives them, with their ``probability`` float32 [M, J]: all actions of one
    Discrete action, else `SAMPLES` of them that were drawn."""

    log_prob: npt.NDArray[np.float64]
    choices: Tensor
    probability: Tensor


@torch.no_grad()
def action_probabilities(
    model: ActorCritic | QNetwork,
    specs: Mapping[str, ActionSpec],
    obs: Leaves,
    actions: Leaves,
    lengths: npt.NDArray[np.int64],
    *,
    greedy: bool,
    seed: int,
) -> ActionProbabilities:
    """Return the probabilities under the policy of ``model``, in evaluation mode.

    ``obs`` and ``actions``: leaf -> [M, ...], the steps of complete episodes of ``lengths`` (int64
    [E]) one after the other. ``greedy``: of the policy that takes the most likely action always,
    otherwise of the one that samples (a Q-network's takes a random action with the probability of
    `EVALUATION_EPSILON`). Raises ConfigError for a greedy policy of Box actions, which has no
    density."""
    layout = action_layout(specs)
    if greedy and layout.num_boxes:
        raise ConfigError(
            "--no-stochastic: the most likely Box action has no density, so no recorded action "
            "says anything about it; leave it out to estimate the policy that samples"
        )
    parameters = _parameters(model, obs, lengths)
    generator = torch.Generator().manual_seed(seed)
    parts = []
    for start in range(0, len(parameters), CHUNK):
        rows = slice(start, start + CHUNK)
        chunk = {name: leaf[rows] for name, leaf in obs.items()}
        taken = {name: leaf[rows] for name, leaf in actions.items()}
        if isinstance(model, QNetwork):
            parts.append(_of_q_network(model, parameters[rows], chunk, taken, greedy=greedy))
        else:
            distribution = model.distribution(parameters[rows], chunk)
            parts.append(_of_actor(distribution, layout, taken, generator, greedy=greedy))
    return ActionProbabilities(
        torch.cat([part[0] for part in parts]).double().numpy(),
        parts[0][1] if len(parts[0][1]) == 1 else torch.cat([part[1] for part in parts]),
        torch.cat([part[2] for part in parts]),
    )


def _parameters(
    model: ActorCritic | QNetwork, obs: Leaves, lengths: npt.NDArray[np.int64]
) -> Tensor:
    """Return the parameters [M, P] of the policy's distribution in each step."""
    steps = int(lengths.sum())
    if model.state_size == 0:
        chunks = []
        for start in range(0, steps, CHUNK):
            chunk = {name: leaf[start : start + CHUNK] for name, leaf in obs.items()}
            count = len(next(iter(chunk.values())))
            is_first = torch.ones(count, dtype=torch.bool)
            chunks.append(model.step(chunk, torch.zeros(count, 0), is_first).parameters)
        return torch.cat(chunks)
    begins = np.cumsum(lengths) - lengths
    state, parameters = torch.zeros(len(lengths), model.state_size), None
    for t in range(int(lengths.max())):
        going = np.flatnonzero(lengths > t)  # all episodes step together, as long as they last
        at = torch.from_numpy(begins[going] + t)
        rows = torch.from_numpy(going)
        is_first = torch.full((len(going),), t == 0)
        output = model.step({n: leaf[at] for n, leaf in obs.items()}, state[rows], is_first)
        state[rows] = output.state
        if parameters is None:
            parameters = output.parameters.new_zeros(steps, output.parameters.shape[-1])
        parameters[at] = output.parameters
    assert parameters is not None
    return parameters


def _of_actor(
    distribution: ActionDistribution,
    layout: ActionLayout,
    taken: Leaves,
    generator: torch.Generator,
    *,
    greedy: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return log-probability [B], choices and their probability, under an actor-critic."""
    if greedy:
        best = distribution.mode()
        count = len(next(iter(taken.values())))
        same = torch.ones(count, dtype=torch.bool)
        for name, leaf in taken.items():
            same &= (leaf == best[name]).reshape(count, -1).all(1)
        choices = encode_actions(best, layout).unsqueeze(1)
        return torch.where(same, 0.0, -torch.inf), choices, torch.ones(count, 1)
    log_prob = distribution.log_prob(taken)
    if len(layout.sizes) == 1 and layout.num_boxes == 0:
        name, dtype = layout.leaves[0].name, layout.leaves[0].dtype
        categories, shape = layout.sizes[0], taken[name].shape
        each = [
            distribution.log_prob({name: torch.full(shape, a, dtype=dtype)})
            for a in range(categories)
        ]
        return log_prob, torch.eye(categories).unsqueeze(0), torch.stack(each, -1).exp()
    drawn = [encode_actions(distribution.sample(generator), layout) for _ in range(SAMPLES)]
    return log_prob, torch.stack(drawn, 1), torch.full((len(log_prob), SAMPLES), 1 / SAMPLES)


def _of_q_network(
    model: QNetwork, q: Tensor, obs: Leaves, taken: Leaves, *, greedy: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Return log-probability [B], choices and their probability, under the greedy or
    epsilon-greedy policy of Q-values [B, A]."""
    actions = model.distribution(q, obs)
    allowed = torch.ones_like(q) if actions.mask is None else actions.mask.float()
    probability = torch.zeros_like(q).scatter_(-1, actions.best.actions.unsqueeze(-1), 1.0)
    if not greedy:
        uniform = allowed / allowed.sum(-1, keepdim=True)
        probability = (1 - EVALUATION_EPSILON) * probability + EVALUATION_EPSILON * uniform
    chosen = probability.gather(-1, taken[ACTION].long().unsqueeze(-1)).squeeze(-1)
    return chosen.log(), torch.eye(q.shape[-1]).unsqueeze(0), probability
