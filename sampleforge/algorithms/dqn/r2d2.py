"""Recurrent Q-learning from sequences (Kapturowski et al. 2019, R2D2): stored state and burn-in."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from sampleforge.algorithms.dqn.config import DqnConfig
from sampleforge.algorithms.dqn.loss import DqnOutput
from sampleforge.models.q_network import QNetwork
from sampleforge.ops.r2d2 import rescale, sequence_priority, unrescale
from sampleforge.ops.running_stats import Gather, alone
from sampleforge.replay.importance import importance_weights
from sampleforge.replay.samples import Sequences
from sampleforge.spec import ACTION


def burnt_in(model: QNetwork, batch: Sequences, burn_in: int) -> torch.Tensor:
    """Return the recurrent state [B, S] after the first ``burn_in`` steps, without gradient.

    The stored state was computed by older weights; the burn-in brings it nearer to the state that
    the present weights would have computed."""
    if not burn_in:
        return batch.state
    obs = {name: leaf[:burn_in] for name, leaf in batch.obs.items()}
    with torch.no_grad():
        return model.unroll(obs, batch.state, batch.is_first[:burn_in])[1]


def sequence_q_values(model: QNetwork, batch: Sequences, burn_in: int) -> torch.Tensor:
    """Return the Q-values [L+1 - burn_in, B, A] of the observations after the burn-in."""
    state = burnt_in(model, batch, burn_in)
    obs = {name: leaf[burn_in:] for name, leaf in batch.obs.items()}
    return model.unroll(obs, state, batch.is_first[burn_in:])[0]


@torch.no_grad()
def sequence_targets(
    online_q: torch.Tensor,
    target_q: torch.Tensor,
    online: QNetwork,
    batch: Sequences,
    burn_in: int,
    *,
    double: bool,
    rescaled: bool,
) -> torch.Tensor:
    """Return the targets [L - burn_in, B]: h(returns + discount * h^-1(Q_target(s', a*))).

    s' is the state at the end of the step's window, a* the best action by the online network
    (``double``) or by the target network; h is the identity unless ``rescaled``. Targets of steps
    without a window (``steps`` is 0) have no meaning."""
    later = {name: leaf[burn_in:] for name, leaf in batch.obs.items()}
    best = online.distribution(online_q if double else target_q, later).best.actions
    values = target_q.gather(-1, best.unsqueeze(-1)).squeeze(-1)
    steps = batch.steps[burn_in:]
    at = torch.arange(len(steps), device=steps.device).unsqueeze(1) + steps
    next_values = values.gather(0, at)
    returns, discount = batch.returns[burn_in:], batch.discount[burn_in:]
    if rescaled:
        return rescale(returns + discount * unrescale(next_values))
    return returns + discount * next_values


def r2d2_loss(
    online: QNetwork,
    target: QNetwork,
    batch: Sequences,
    beta: float | torch.Tensor,
    config: DqnConfig,
    burn_in: int,
    gather: Gather = alone,
) -> DqnOutput:
    """Return the importance-weighted Huber loss, the mean over the steps after the burn-in that
    have a window. ``errors`` of the output are the sequences' priorities [B]. Raises ValueError if
    no step is left after the burn-in."""
    length = len(batch.returns)
    if not 0 <= burn_in < length:
        raise ValueError(
            f"a burn-in of {burn_in} steps leaves nothing to learn of sequences of {length}; "
            "take fewer, or longer sequences"
        )
    online_q = sequence_q_values(online, batch, burn_in)
    with torch.no_grad():
        target_q = sequence_q_values(target, batch, burn_in)
    targets = sequence_targets(
        online_q,
        target_q,
        online,
        batch,
        burn_in,
        double=config.double,
        rescaled=bool(config.value_rescaling),
    )
    q_taken = online_q[:-1].gather(-1, batch.actions[ACTION][burn_in:].unsqueeze(-1)).squeeze(-1)
    counted = batch.steps[burn_in:] > 0
    if config.huber_delta:
        each = F.huber_loss(q_taken, targets, reduction="none", delta=config.huber_delta)
    else:
        each = 0.5 * F.mse_loss(q_taken, targets, reduction="none")
    weights, share = importance_weights(batch.scaled_probability, beta, counted.sum, gather)
    count = counted.sum().clamp(min=1)
    loss = (weights * each).masked_fill(~counted, 0.0).sum() / count
    errors = (targets - q_taken).detach().masked_fill(~counted, 0.0)
    metrics = {
        "loss": loss.detach(),
        "td_error_max": errors.abs().max(),
        "q_mean": q_taken.detach().masked_fill(~counted, 0.0).sum() / count,
        "importance_weight_mean": weights.mean(),
    }
    return DqnOutput(loss, sequence_priority(errors, counted), metrics, share)
