"""The trunk of a network: encoder and recurrent core, for one step or a whole rollout.

Cores work over [T, B, F], and their state is zeroed where an episode begins. The state is flat, [B,
state_size]: h of a GRU, h | c of an LSTM. State and arithmetic are float32, also under autocast:
bfloat16 would lose what the state accumulates.

On a CPU the GRU over a rollout is `gru_rollout`, with resets inside the rollout and the gradient of
the recurrent weights in one product. torch needs a rollout in which episodes end to be packed into
more and shorter sequences, and adds up a [3H, H] gradient after every step. Here the state is
multiplied by 0 where an episode begins. Measured, forward and backward of 32 steps with resets in
5% of them, on one core of an EPYC: 512 units, 16 rows 65 against 74 ms; 64 units, 64 rows 10
against 14. Without resets there is no difference beyond noise, except for small cores with many
rows (10 against 7.5 ms).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from sampleforge.models.config import ModelConfig
from sampleforge.models.encoder_registry import make_encoder
from sampleforge.models.encoders import make_orthogonal
from sampleforge.models.normaliser import normalised_leaves
from sampleforge.spec import ArraySpec


def gru_rollout(gates: Tensor, state: Tensor, keep: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return all states [T, B, H] of the GRU (Cho et al. 2014, arXiv 1406.1078) in torch's form:

        r, z = sigmoid(x_rz + U_rz h + b_rz);  n = tanh(x_n + r (U_n h + b_n));  h' = n + z (h - n)

    ``gates``: the contribution of the input x_r | x_z | x_n, float32 [T, B, 3H]; ``state`` [B, H]
    before step 0; ``keep`` float32 [T, B, 1]: 0 where the state is zeroed before the step, else 1;
    ``weight`` [3H, H] and ``bias`` [3H]: U and b.
    """
    states: Tensor = _GruRollout.apply(gates, state, keep, weight, bias)  # type: ignore[no-untyped-call]
    return states


class _GruRollout(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, gates: Tensor, state: Tensor, keep: Tensor, weight: Tensor, bias: Tensor
    ) -> Tensor:
        steps, rows, size = len(gates), *state.shape
        before = gates.new_empty(steps, rows, size)  # the state that each step begins with
        states = torch.empty_like(before)
        of_state = torch.empty_like(gates)  # U h + b
        active = torch.empty_like(gates)  # r | z | n
        transposed, h = weight.t(), state
        for t in range(steps):
            torch.mul(h, keep[t], out=before[t])
            torch.addmm(bias, before[t], transposed, out=of_state[t])
            x_rz, x_n = gates[t, :, : 2 * size], gates[t, :, 2 * size :]
            rz, n = active[t, :, : 2 * size], active[t, :, 2 * size :]
            torch.add(x_rz, of_state[t, :, : 2 * size], out=rz).sigmoid_()
            torch.addcmul(x_n, rz[:, :size], of_state[t, :, 2 * size :], out=n).tanh_()
            torch.lerp(n, before[t], rz[:, size:], out=states[t])
            h = states[t]
        ctx.save_for_backward(before, of_state, active, keep, weight)
        return states

    @staticmethod
    def backward(ctx: Any, of_states: Tensor) -> tuple[Tensor | None, ...]:
        before, of_state, active, keep, weight = ctx.saved_tensors
        r, z, n = active.chunk(3, -1)
        # The factors that do not depend on the gradient, for all steps at once.
        by_n = (1 - z) * (1 - n.square())  # dh'/d(argument of tanh)
        by_z = (before - n) * z * (1 - z)
        by_r = of_state.chunk(3, -1)[2] * r * (1 - r)  # d(argument of tanh)/d(argument of r)
        to_gates, to_state = torch.empty_like(active), torch.empty_like(active)
        size = z.shape[-1]
        d = torch.zeros_like(before[0])
        for t in reversed(range(len(z))):
            d = d + of_states[t]
            d_n = torch.mul(d, by_n[t], out=to_gates[t, :, 2 * size :])
            torch.mul(d_n, by_r[t], out=to_gates[t, :, :size])
            torch.mul(d, by_z[t], out=to_gates[t, :, size : 2 * size])
            to_state[t, :, : 2 * size] = to_gates[t, :, : 2 * size]
            torch.mul(d_n, r[t], out=to_state[t, :, 2 * size :])
            d = torch.addmm(d.mul_(z[t]), to_state[t], weight).mul_(keep[t])
        flat = to_state.flatten(0, 1)
        of_weight = flat.t() @ before.flatten(0, 1)
        return to_gates, d, None, of_weight, flat.sum(0)


class Core(nn.Module):
    """A GRU or LSTM of one layer, [T, B, in_features] -> [T, B, out_features]."""

    def __init__(self, kind: Literal["gru", "lstm"], in_features: int, size: int) -> None:
        super().__init__()
        self.rnn = (nn.GRU if kind == "gru" else nn.LSTM)(in_features, size)
        self.is_lstm = kind == "lstm"
        self.out_features = size
        self.state_size = 2 * size if self.is_lstm else size
        for name, parameter in self.rnn.named_parameters():
            if name.startswith("weight"):
                make_orthogonal(parameter)
            else:
                nn.init.zeros_(parameter)

    def step(self, x: Tensor, state: Tensor, is_first: Tensor) -> tuple[Tensor, Tensor]:
        """Return outputs [B, out_features] and the state [B, S] after one step, from x [B, F],
        state [B, S], is_first bool [B] (the state is zeroed there)."""
        state = state.masked_fill(is_first.unsqueeze(-1), 0.0)
        rnn = self.rnn
        weights = (rnn.weight_ih_l0, rnn.weight_hh_l0, rnn.bias_ih_l0, rnn.bias_hh_l0)
        if not self.is_lstm:
            h = torch.gru_cell(x, state, *weights)  # type: ignore[arg-type]
            return h, h
        h, c = torch.lstm_cell(x, state.chunk(2, -1), *weights)  # type: ignore[arg-type]
        return h, torch.cat((h, c), -1)

    def forward(self, x: Tensor, state: Tensor, is_first: Tensor) -> tuple[Tensor, Tensor]:
        """Return outputs [T, B, out_features] and the state [B, S] after step T - 1, from x
        [T, B, F], state [B, S] before step 0, is_first bool [T, B] (the state is zeroed before step
        t where is_first[t])."""
        shapes = tuple(x.shape), tuple(is_first.shape)
        assert x.ndim == 3 and is_first.shape == x.shape[:2], shapes
        if x.shape[0] == 1:
            y, state = self.step(x[0], state, is_first[0])
            return y.unsqueeze(0), state
        if not self.is_lstm and x.device.type == "cpu":
            return self._gru(x, state, is_first)
        begins = is_first.cpu()
        state = state.masked_fill(is_first[0].unsqueeze(-1), 0.0)
        if begins[1:].any():
            return self._segments(x, state, begins)
        y, hidden = self.rnn(x, self._hidden(state))
        return y, self._flat(hidden)

    def _gru(self, x: Tensor, state: Tensor, is_first: Tensor) -> tuple[Tensor, Tensor]:
        rnn = self.rnn
        gates = F.linear(x, rnn.weight_ih_l0, rnn.bias_ih_l0)  # type: ignore[arg-type]
        keep = (~is_first).to(x.dtype).unsqueeze(-1)
        y = gru_rollout(gates, state, keep, rnn.weight_hh_l0, rnn.bias_hh_l0)  # type: ignore[arg-type]
        return y, y[-1]

    def _segments(self, x: Tensor, state: Tensor, is_first: Tensor) -> tuple[Tensor, Tensor]:
        """Run one pass over the segments between resets, packed as separate sequences."""
        steps, rows, _ = x.shape
        plan = _Packing(is_first, x.device)
        start = torch.zeros(plan.num_segments, state.shape[1], device=x.device, dtype=state.dtype)
        start = start.index_copy(0, plan.first_segment, state)
        packed = PackedSequence(x.reshape(steps * rows, -1)[plan.order], plan.batch_sizes)
        y, hidden = self.rnn(packed, self._hidden(start))
        outputs = y.data[plan.place].reshape(steps, rows, -1)
        return outputs, self._flat(hidden)[plan.last_segment]

    def _hidden(self, state: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        """Return the flat state [B, S] in torch's form: [1, B, size], twice for an LSTM."""
        if not self.is_lstm:
            return state.unsqueeze(0)
        h, c = state.unsqueeze(0).chunk(2, -1)
        return h.contiguous(), c.contiguous()

    def _flat(self, hidden: Tensor | tuple[Tensor, Tensor]) -> Tensor:
        return (
            hidden[0] if isinstance(hidden, Tensor) else torch.cat((hidden[0][0], hidden[1][0]), -1)
        )


class _Packing:
    """The place of each of the T * B elements when the segments between resets are packed.

    ``is_first``: bool [T, B] on the CPU. Segments are sorted by length, longest first, as
    PackedSequence requires; its data hold step 0 of all segments, then step 1 of all segments that
    have one, and so on.
    """

    def __init__(self, is_first: Tensor, device: torch.device) -> None:
        steps, rows = is_first.shape
        starts = is_first.t().clone()  # row-major: a row's segments are neighbours
        starts[:, 0] = True
        flat = starts.flatten()
        begin = flat.nonzero().squeeze(1)
        lengths = torch.diff(begin, append=torch.tensor([steps * rows]))
        by_length = lengths.argsort(descending=True, stable=True)
        rank = torch.empty_like(by_length)
        rank[by_length] = torch.arange(len(by_length))

        segment = flat.cumsum(0) - 1
        step = torch.arange(steps * rows) - begin[segment]
        self.batch_sizes = torch.bincount(step)  # on the CPU, as PackedSequence requires
        offsets = self.batch_sizes.cumsum(0) - self.batch_sizes
        place = (offsets[step] + rank[segment]).reshape(rows, steps).t().flatten()
        of_row = segment.reshape(rows, steps)

        self.num_segments = len(begin)
        self.place = place.to(device)
        """Packed position of element t * B + b; ``order`` is its inverse."""
        self.order = place.argsort().to(device)
        self.first_segment = rank[of_row[:, 0]].to(device)
        self.last_segment = rank[of_row[:, -1]].to(device)


class Trunk(nn.Module):
    """Encoder and, unless ``config.core`` is none, recurrent core: ``out_features`` float32
    features, ``state_size`` floats of recurrent state per row."""

    def __init__(self, config: ModelConfig, observations: Mapping[str, ArraySpec]) -> None:
        super().__init__()
        floats = normalised_leaves(observations, config)
        self.encoder = make_encoder(config, observations, floats)
        self.out_features: int = self.encoder.out_features  # type: ignore[assignment]
        self.core, self.state_size = None, 0
        if config.core != "none":
            self.core = Core(config.core, self.out_features, config.core_size)
            self.out_features, self.state_size = self.core.out_features, self.core.state_size

    def step(
        self, obs: Mapping[str, Tensor], state: Tensor, is_first: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return features [B, F] and state [B, S] after one step, from leaves [B, ...], state
        [B, S], is_first bool [B]."""
        features = self.encoder(obs).float()
        if self.core is None:
            return features, state
        with torch.autocast(features.device.type, enabled=False):
            return self.core.step(features, state, is_first)

    def forward(
        self, obs: Mapping[str, Tensor], state: Tensor, is_first: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return features [T, B, F] and the state [B, S] after a rollout, from leaves [T, B, ...],
        state [B, S], is_first bool [T, B]."""
        flat = {name: x.flatten(0, 1) for name, x in obs.items()}
        features = self.encoder(flat).float().unflatten(0, is_first.shape)
        if self.core is None:
            return features, state
        with torch.autocast(features.device.type, enabled=False):
            outputs, state = self.core(features, state, is_first)
            return outputs, state
