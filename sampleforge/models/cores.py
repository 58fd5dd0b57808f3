"""Recurrent cores over [T, B, F], whose state is zeroed where an episode begins.

The state is flat, [B, state_size]: h of a GRU, h | c of an LSTM. State and arithmetic are float32,
also under autocast: bfloat16 would lose what the state accumulates.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from sampleforge.models.gru import gru_rollout


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
                nn.init.orthogonal_(parameter)
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
