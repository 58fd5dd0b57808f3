"""Fitted Q evaluation: the Q-function of a given policy, by regression on episodes of another one.

Targets are those of Retrace (Munos et al. 2016, arXiv 1606.02647) with lambda = 1:

    y_t = r_t + gamma (v(s_{t+1}) + min(1, ratio_{t+1}) (y_{t+1} - q(s_{t+1}, a_{t+1}))),
    v(s) = E_{a ~ pi} q(s, a),

so that rewards reach the steps before them in one iteration as far as the behaviour resembles the
policy. Nothing follows the last step of an episode: what is learned are sums of the rewards that an
episode goes on to give, truncated where it is.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sampleforge.models.config import ModelConfig
from sampleforge.models.normaliser import make_normaliser
from sampleforge.models.trunk import Trunk
from sampleforge.ops.distributions import ActionLayout
from sampleforge.spec import ArraySpec

Floats = npt.NDArray[np.float64]
HIDDEN = 128
"""Width of the layer that joins observation and action."""
CHUNK = 4096
"""States that are evaluated at a time."""


@dataclass(frozen=True)
class Decisions:
    """The steps of E episodes one after the other, M in total.

    ``obs``: leaf -> [M, ...]. ``action`` float32 [M, D], encoded by `encode_actions`. ``choices``
    float32 [M or 1, J, D]: actions of the policy, with their ``probability`` float32 [M, J], whose
    sum is 1. ``reward`` and ``ratio`` float64 [M]: pi(a|s) / mu(a|s). ``lengths`` int64 [E];
    ``horizon``: the largest length, also of episodes that are evaluated alone."""

    obs: Mapping[str, Tensor]
    action: Tensor
    choices: Tensor
    probability: Tensor
    reward: Floats
    ratio: Floats
    lengths: npt.NDArray[np.int64]
    horizon: int

    @property
    def time(self) -> Tensor:
        """The step within the episode, float32 [M, 1], as a fraction of the horizon."""
        steps = np.concatenate([np.arange(length) for length in self.lengths])
        return torch.from_numpy(steps / self.horizon).float().unsqueeze(1)


def encode_actions(actions: Mapping[str, Tensor], layout: ActionLayout) -> Tensor:
    """Return actions, leaf -> [..., *shape], as float32 [..., D]: categories one-hot, Box elements
    as they are."""
    parts, sizes = [], iter(layout.sizes)
    for leaf in layout.leaves:
        given = actions[leaf.name]
        flat = given.reshape(*given.shape[: given.ndim - len(leaf.shape)], -1)
        if leaf.is_box:
            parts.append(flat.float())
        else:
            parts += [F.one_hot(element.long(), next(sizes)).float() for element in flat.unbind(-1)]
    return torch.cat(parts, -1)


class FittedQ(nn.Module):
    """q(s, a) of one step of an episode, in units of ``scale``."""

    def __init__(
        self, config: ModelConfig, observations: Mapping[str, ArraySpec], action_size: int
    ) -> None:
        super().__init__()
        config = dataclasses.replace(config, core="none")
        self.normaliser = make_normaliser(observations, config)
        self.trunk = Trunk(config, observations)
        self.of_state = nn.Linear(self.trunk.out_features + 1, HIDDEN)
        self.of_action = nn.Linear(action_size, HIDDEN, bias=False)
        self.out = nn.Linear(HIDDEN, 1)

    def forward(self, obs: Mapping[str, Tensor], time: Tensor, actions: Tensor) -> Tensor:
        """Return the values [B, J] of J actions [B or 1, J, D] each in B states."""
        if self.normaliser is not None:
            obs = self.normaliser(obs)
        empty = time.new_zeros(len(time), 0)
        features, _ = self.trunk.step(obs, empty, torch.ones(len(time), dtype=torch.bool))
        state = self.of_state(torch.cat((features, time), -1)).unsqueeze(1)
        both = torch.relu(state + self.of_action(actions))
        values: Tensor = self.out(both).squeeze(-1)
        return values


def cross_fitted_q(
    data: Decisions,
    config: ModelConfig,
    observations: Mapping[str, ArraySpec],
    gamma: float,
    *,
    seed: int,
    estimated: npt.NDArray[np.bool_] | None = None,
    iterations: int = 20,
    updates: int = 100,
    batch_size: int = 512,
    learning_rate: float = 1e-3,
) -> tuple[Floats, Floats]:
    """Return q(s_t, a_t) and v(s_t), both float64 [M].

    The episodes are divided into two halves at random, and the values in each half are those of a
    network that was fitted to the other half. So they do not depend on the episode that they are
    used for, and the doubly robust estimate stays unbiased. Each of the ``iterations`` computes
    the targets of all steps, and then takes ``updates`` steps of Adam.

    ``estimated`` (bool [E]; None: all): the episodes that are divided. The networks are fitted to
    all others as well, whose values stay 0: what follows a state and an action does not depend on
    how the action came about."""
    q, v = np.zeros(len(data.reward)), np.zeros(len(data.reward))
    count = len(data.lengths)
    divided = np.ones(count, np.bool_) if estimated is None else estimated
    size, half = np.count_nonzero(divided), np.zeros(count, np.bool_)
    half[divided] = np.random.default_rng(seed).permutation(size) < size // 2
    episode = np.repeat(np.arange(count), data.lengths)
    for number, valued in enumerate((divided & ~half, divided & half)):
        others = torch.from_numpy(np.flatnonzero(valued[episode]))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed + number)
            network = FittedQ(config, observations, data.action.shape[1])
            fit = _Fit(network, _part(data, ~valued), gamma, batch_size, learning_rate)
            for _ in range(iterations):
                fit.iterate(updates)
        rest = _part(data, valued)
        q[others], v[others] = fit.values(rest)
    return q, v


def _part(data: Decisions, chosen: npt.NDArray[np.bool_]) -> Decisions:
    """Return the episodes where ``chosen`` (bool [E]) is True."""
    step = np.repeat(chosen, data.lengths)
    index = torch.from_numpy(np.flatnonzero(step))
    return Decisions(
        obs={name: leaf[index] for name, leaf in data.obs.items()},
        action=data.action[index],
        choices=data.choices if len(data.choices) == 1 else data.choices[index],
        probability=data.probability[index],
        reward=data.reward[step],
        ratio=data.ratio[step],
        lengths=data.lengths[chosen],
        horizon=data.horizon,
    )


class _Fit:
    """The regression of a network on the targets of one half of the episodes."""

    def __init__(
        self, network: FittedQ, data: Decisions, gamma: float, batch_size: int, rate: float
    ) -> None:
        self._network = network
        self._data = data
        self._time = data.time
        self._gamma = gamma
        self._batch_size = min(batch_size, len(data.reward))
        self._optimiser = torch.optim.Adam(network.parameters(), lr=rate)
        if network.normaliser is not None:
            network.normaliser.update(data.obs)
        self._ends = np.cumsum(data.lengths)
        first = self.targets(np.zeros(len(data.reward)), np.zeros(len(data.reward)))
        self._scale = float(np.sqrt(np.mean(first**2))) or 1.0

    def targets(self, q: Floats, v: Floats) -> Floats:
        """Return the targets y [M] from the values of all steps."""
        data, gamma = self._data, self._gamma
        trace = np.minimum(data.ratio, 1.0)
        y = np.empty(len(q))
        last = self._ends - 1
        y[last] = data.reward[last]
        for back in range(2, int(data.lengths.max(initial=0)) + 1):
            step = (self._ends - back)[data.lengths >= back]
            after = step + 1
            y[step] = data.reward[step] + gamma * (v[after] + trace[after] * (y[after] - q[after]))
        return y

    def iterate(self, updates: int) -> None:
        """Compute the targets anew, and take ``updates`` gradient steps towards them."""
        data = self._data
        targets = torch.from_numpy(self.targets(*self.values(data)) / self._scale).float()
        for _ in range(updates):
            index = torch.randint(len(targets), (self._batch_size,))
            obs = {name: leaf[index] for name, leaf in data.obs.items()}
            taken = data.action[index].unsqueeze(1)
            values = self._network(obs, self._time[index], taken).squeeze(1)
            loss = F.mse_loss(values, targets[index])
            self._optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            self._optimiser.step()

    @torch.no_grad()
    def values(self, data: Decisions) -> tuple[Floats, Floats]:
        """Return q(s_t, a_t) and v(s_t), float64 [M], of steps of the same environment."""
        q, v, time = [], [], data.time
        for start in range(0, len(data.reward), CHUNK):
            rows = slice(start, start + CHUNK)
            obs = {name: leaf[rows] for name, leaf in data.obs.items()}
            choices = data.choices if len(data.choices) == 1 else data.choices[rows]
            count = len(time[rows])
            both = torch.cat((data.action[rows].unsqueeze(1), choices.expand(count, -1, -1)), dim=1)
            values = self._network(obs, time[rows], both).double() * self._scale
            q.append(values[:, 0])
            v.append((values[:, 1:] * data.probability[rows]).sum(1))
        return torch.cat(q).numpy(), torch.cat(v).numpy()
