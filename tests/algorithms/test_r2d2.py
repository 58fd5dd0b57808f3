"""Recurrent Q-learning against literal formulas, step by step."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from sampleforge.algorithms.dqn.config import DqnConfig
from sampleforge.algorithms.dqn.loss import burnt_in, r2d2_loss
from sampleforge.models.config import ModelConfig
from sampleforge.models.q_network import QNetwork
from sampleforge.ops.q_learning import n_step_windows, rescale, sequence_priority, unrescale
from sampleforge.replay.samples import Sequences
from sampleforge.spec import ActionSpec, ArraySpec

ACTIONS, LENGTH, BATCH, BURN_IN, N, GAMMA = 2, 12, 4, 5, 3, 0.9
CONFIG = DqnConfig(n_step=N, gamma=GAMMA, value_rescaling=True)


def network(seed: int, core: str = "gru") -> QNetwork:
    torch.manual_seed(seed)
    config = ModelConfig(
        encoder="mlp",
        hidden_sizes=(8,),
        core=core,  # type: ignore[arg-type]
        core_size=6,
        normalise_observations=False,
    )
    discrete = {"action": ActionSpec("discrete", (), "int64", (ACTIONS,))}
    leaves = {"obs": ArraySpec((2,), "float32")}
    return QNetwork(config, leaves, discrete, dueling=True, head_size=0)


def sequences(model: QNetwork, ends: tuple[int, ...] = (8,)) -> tuple[Sequences, np.ndarray]:
    """Row 0 has episodes that terminate at ``ends``, each followed by a step that is ignored, as
    with autoreset at the next step; and the rewards."""
    torch.manual_seed(5)
    reward = torch.randn(LENGTH, BATCH).numpy()
    terminated = np.zeros((LENGTH, BATCH), bool)
    valid, first = np.ones_like(terminated), np.zeros((LENGTH + 1, BATCH), bool)
    for end in ends:
        terminated[end, 0], valid[end + 1, 0], first[end + 2, 0] = True, False, True
    never = np.zeros_like(terminated)
    windows = n_step_windows(reward, terminated, never, valid, N, GAMMA)
    found = Sequences(
        obs={"obs": torch.randn(LENGTH + 1, BATCH, 2)},
        is_first=torch.from_numpy(first),
        state=torch.randn(BATCH, model.state_size).tanh(),
        actions={"action": torch.randint(0, ACTIONS, (LENGTH, BATCH))},
        returns=torch.from_numpy(windows.returns),
        discount=torch.from_numpy(windows.discount),
        steps=torch.from_numpy(windows.steps).long(),
        scaled_probability=torch.rand(BATCH, dtype=torch.float64) + 0.5,
    )
    return found, reward


@torch.no_grad()
def by_steps(model: QNetwork, batch: Sequences) -> torch.Tensor:
    """Q-values [L+1, B, A] as an actor gets them, one step at a time."""
    state, found = batch.state, []
    for t in range(LENGTH + 1):
        output = model.step({"obs": batch.obs["obs"][t]}, state, batch.is_first[t])
        state = output.state
        found.append(output.parameters)
    return torch.stack(found)


@pytest.mark.parametrize("core", ["gru", "lstm"])
def test_the_unroll_from_the_stored_state_is_what_the_actor_saw(core: str) -> None:
    model = network(1, core)
    batch, _ = sequences(model)
    found, _ = model.unroll(batch.obs, batch.state, batch.is_first)
    torch.testing.assert_close(found, by_steps(model, batch), atol=1e-5, rtol=0)


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("core", ["gru", "lstm"])
def test_loss_and_priorities_are_the_literal_sums(core: str, double: bool) -> None:
    online, target = network(1, core), network(2, core)
    batch, reward = sequences(online)
    found = r2d2_loss(
        online, target, batch, 0.6, dataclasses.replace(CONFIG, double=double), BURN_IN
    )
    of_online, of_target = by_steps(online, batch), by_steps(target, batch)
    chooser = of_online if double else of_target
    scaled_probability = [float(o) ** -0.6 for o in batch.scaled_probability]
    total, count = 0.0, 0
    for b in range(BATCH):
        sizes = []
        for t in range(BURN_IN, LENGTH):
            if b == 0 and t == 9:  # ignored by the environment
                continue
            end = 9 if b == 0 and t <= 8 else LENGTH
            last = min(t + N, end)
            goal = sum(GAMMA ** (k - t) * float(reward[k, b]) for k in range(t, last))
            if not (b == 0 and last == 9):  # else it terminated
                value = of_target[last, b, int(chooser[last, b].argmax())]
                goal += GAMMA ** (last - t) * float(unrescale(value))
            error = float(
                rescale(torch.tensor(goal)) - of_online[t, b, batch.actions["action"][t, b]]
            )
            sizes.append(abs(error))
            total += (
                scaled_probability[b]
                / max(scaled_probability)
                * (error**2 / 2 if abs(error) < 1 else abs(error) - 0.5)
            )
            count += 1
        wanted = 0.9 * max(sizes) + 0.1 * sum(sizes) / len(sizes)
        assert found.errors[b].item() == pytest.approx(wanted, abs=1e-4)
    assert found.loss.item() == pytest.approx(total / count, abs=1e-4)


def test_the_burn_in_gets_no_gradient() -> None:
    online, target = network(1), network(2)
    batch, _ = sequences(online)
    seen = batch.obs["obs"].requires_grad_()
    batch.state.requires_grad_()
    loss = r2d2_loss(online, target, batch, 0.4, CONFIG, BURN_IN).loss
    loss.backward()  # type: ignore[no-untyped-call]
    assert seen.grad is not None
    assert not seen.grad[:BURN_IN].any() and seen.grad[BURN_IN:-1].abs().sum() > 0
    assert batch.state.grad is None
    assert all(p.grad is None for p in target.parameters())
    assert not burnt_in(online, batch, BURN_IN).requires_grad


def test_errors_of_an_episode_do_not_depend_on_the_one_before_or_after() -> None:
    """What comes before an episode does not change the errors of it, nor the other way round."""
    online, target = network(1), network(2)
    batch, _ = sequences(online, ends=(BURN_IN + 1,))
    begins = BURN_IN + 3

    def errors(batch: Sequences, counted: slice) -> torch.Tensor:
        steps = torch.zeros_like(batch.steps)
        steps[counted] = batch.steps[counted]
        kept = dataclasses.replace(batch, steps=steps)
        return r2d2_loss(online, target, kept, 0.4, CONFIG, BURN_IN).errors

    for changed, watched in (
        (slice(None, begins), slice(begins, None)),
        (slice(begins, None), slice(None, begins)),
    ):
        obs = batch.obs["obs"].clone()
        obs[changed] += 1.0
        other = dataclasses.replace(batch, obs={"obs": obs})
        before, after = errors(batch, watched), errors(other, watched)
        torch.testing.assert_close(before[0], after[0])
        assert (before[1:] != after[1:]).all(), "the other rows are one episode each"


def test_the_priority_of_a_sequence_mixes_its_largest_and_its_mean_error() -> None:
    errors = torch.tensor([[1.0, 7.0, 2.0], [-4.0, 7.0, 9.0]])
    counted = torch.tensor([[True, False, True], [True, False, False]])
    wanted = torch.tensor([0.9 * 4 + 0.1 * 2.5, 0.0, 2.0])
    torch.testing.assert_close(sequence_priority(errors, counted), wanted)


def test_a_burn_in_as_long_as_the_sequence_is_refused() -> None:
    model = network(1)
    with pytest.raises(ValueError, match="burn-in of 12 steps leaves nothing"):
        r2d2_loss(model, model, sequences(model)[0], 0.4, CONFIG, LENGTH)


CORRIDOR = 6
"""Steps of an episode of the maze: a cue at the first, the junction at the last."""


def maze(batch: int, state_size: int) -> tuple[Sequences, torch.Tensor, torch.Tensor]:
    """Random play in `tests.support.envs.MemoryTMaze`, from any step of an episode on and without
    the state of before; where the junctions are after the burn-in, and the right answers there."""
    length = 3 * CORRIDOR
    time = torch.arange(length + 1).unsqueeze(1) + torch.randint(0, CORRIDOR, (batch,))
    cues = torch.randint(0, 2, (5, batch)).gather(0, time // CORRIDOR)
    first, junction = time % CORRIDOR == 0, time % CORRIDOR == CORRIDOR - 1
    action = torch.randint(0, 2, (length, batch))
    reward = torch.where(action == cues[:-1], 1.0, -1.0) * junction[:-1]
    terminated = junction[:-1].numpy()
    never, always = np.zeros_like(terminated), np.ones_like(terminated)
    windows = n_step_windows(reward.numpy(), terminated, never, always, N, GAMMA)
    found = Sequences(
        obs={"obs": torch.stack((first * (2.0 * cues - 1), junction.float()), -1)},
        is_first=first,
        state=torch.zeros(batch, state_size),
        actions={"action": action},
        returns=torch.from_numpy(windows.returns),
        discount=torch.from_numpy(windows.discount),
        steps=torch.from_numpy(windows.steps).long(),
        scaled_probability=torch.ones(batch, dtype=torch.float64),
    )
    junction[:CORRIDOR] = False
    return found, junction, cues


@pytest.mark.long
@pytest.mark.parametrize("core", ["gru", "lstm", "none"])
def test_a_core_learns_to_remember(core: str) -> None:
    """The answer is right always, and half of the time without memory."""
    online, target = network(1, core), network(1, core)
    optimiser = torch.optim.Adam(online.parameters(), lr=2e-2)
    for step in range(200):
        if step % 20 == 0:
            target.load_state_dict(online.state_dict())
        optimiser.zero_grad()
        batch, _, _ = maze(32, online.state_size)
        loss = r2d2_loss(online, target, batch, 0.4, CONFIG, CORRIDOR).loss
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    batch, junction, cues = maze(500, online.state_size)
    q, _ = online.unroll(batch.obs, batch.state, batch.is_first)
    right = (q.argmax(-1) == cues)[junction].float().mean().item()
    assert abs(right - 0.5) < 0.1 if core == "none" else right > 0.95, f"{right:.0%} right"
