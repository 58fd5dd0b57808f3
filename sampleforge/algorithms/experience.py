"""Experience: a sampled batch with shaped rewards and masks, and its division into minibatches.

The number of steps of a batch may vary, in total and from env to env (variable experience rollout;
Wijmans et al. 2022, arXiv 2210.05064). Fast envs give more steps than slow ones, so their states
would be over-represented: a sample comes from env e with the probability n_e / sum(n); with equal
shares it would be 1 / envs. The importance weight of the steps of env e is m / n_e, truncated at 1,
where m = sum(n) / envs is the equal share. (The steps of a slow env are few: weights above 1 would
only add variance.) So all steps of an env together count for at most m, however many they are. In a
complete round m is the rollout length T, as in the paper; m is less if the round is cut short, and
more if it continues for late ranks.

Means are divided by the sum of the weights. (The paper's own code divides by the number of steps,
so that its gradients become smaller, the more uneven the envs are.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from sampleforge.algorithms.config import LearnerConfig
from sampleforge.ops.returns import gae, learned_rewards
from sampleforge.ops.running_stats import Gather, alone
from sampleforge.rollouts.batch import Batch
from sampleforge.rollouts.slots import NOT_TAKEN
from sampleforge.shared.staging import page_locked


def env_share(step_mask: Tensor, env_row: Tensor, gather: Gather = alone) -> Tensor:
    """Return the weight of each step, min(1, m / n_e) [T, B] for env row e, and 0 where no step was
    taken.

    ``step_mask`` (bool [T, B]) marks the steps that were taken; ``env_row`` (int64 [B]) is the env
    row of each column. Every env row of this rank has a column, if need be an empty one. n_e counts
    the steps of all columns of e; m is the mean of n_e over the env rows of all ranks.
    """
    shapes = step_mask.shape, env_row.shape
    assert step_mask.ndim == 2 and env_row.shape == step_mask.shape[1:], shapes
    per_column = step_mask.sum(0).float()
    per_env = per_column.new_zeros(int(env_row.max()) + 1).index_add_(0, env_row, per_column)
    sizes = torch.stack((per_env.sum(), torch.ones_like(per_env).sum()))
    steps, env_rows = gather(sizes).sum(0)
    share = (steps / env_rows / per_env.clamp(min=1.0)).clamp(max=1.0).float()
    return torch.where(step_mask, share[env_row], 0.0)


def minibatch_indices(
    step_mask: Tensor, count: int, *, whole_rows: bool, generator: torch.Generator
) -> tuple[Tensor, ...]:
    """Divide the steps that were taken into ``count`` random minibatches, whose sizes differ by at
    most one.

    ``step_mask`` (bool [T, B]) marks the steps that were taken. The results are positions in the
    flattened [T * B], or, with ``whole_rows``, columns. Ranks wait for each other at every
    minibatch, so each rank makes ``count`` of them, none empty: if there are fewer steps (columns)
    than minibatches, steps that were not taken and count for nothing are dealt out as well, and if
    need be some twice.
    """
    wanted = step_mask.any(0) if whole_rows else step_mask.flatten()
    indices = wanted.nonzero().squeeze(1)
    if len(indices) < count:
        indices = torch.arange(max(count, len(wanted)), device=step_mask.device) % len(wanted)
    # Ranks compare their generators: each rank draws one number, however many steps it shuffles.
    seed = int(torch.randint(2**62, (), generator=generator))
    order = torch.randperm(len(indices), generator=torch.Generator().manual_seed(seed))
    order = order.to(indices.device)
    return torch.tensor_split(indices[order], count)


@dataclass(frozen=True)
class Experience:
    """A batch, or some of its rows, or some of its single steps (then T is 1), ready for a loss.

    ``obs`` and ``is_first`` have T+1 time steps if the loss needs the values after the last step,
    otherwise T. ``advantages`` and ``targets`` are set if they were computed for the whole batch.
    ``share`` is set if env rows gave different numbers of steps: see `env_share`.
    """

    obs: dict[str, torch.Tensor]  # [T or T+1, B, ...]
    is_first: torch.Tensor  # bool [T or T+1, B]
    state: torch.Tensor  # float32 [B, S]
    actions: dict[str, torch.Tensor]  # [T, B, ...]
    acted: dict[str, torch.Tensor]  # [T, B] each: what acting recorded
    reward: torch.Tensor  # [T, B], scaled and clipped
    terminated: torch.Tensor  # bool [T, B]
    truncated: torch.Tensor  # bool [T, B]
    trace_cut: torch.Tensor  # bool [T, B]: step t+1 does not continue step t
    step_mask: torch.Tensor  # bool [T, B]: steps that were taken; rollouts may be shorter than T
    mask: torch.Tensor  # bool [T, B]: steps that count in the loss
    final_value: torch.Tensor | None = None  # [T, B]
    advantages: torch.Tensor | None = None  # [T, B]
    targets: torch.Tensor | None = None  # [T, B]
    share: torch.Tensor | None = None  # [T, B]: weight of each step; 0 where none was taken

    @property
    def value(self) -> torch.Tensor:
        """The values by the behaviour policy [T, B]."""
        return self.acted["value"]

    @property
    def log_prob(self) -> torch.Tensor:
        """The log-probabilities of the actions by the behaviour policy [T, B]."""
        return self.acted["log_prob"]

    @property
    def counts(self) -> torch.Tensor:
        """The weight of each step in the loss [T, B]: the mask (bool), or the masked ``share``."""
        return self.mask if self.share is None else torch.where(self.mask, self.share, 0.0)

    def rows(self, index: torch.Tensor) -> Experience:
        """Return the rows ``index`` (int64 [n]) with all of their steps."""
        return self._select(lambda x: x[:, index], self.state[index])

    def steps(self, index: torch.Tensor) -> Experience:
        """Return single steps, as T = 1: the positions ``index`` (int64 [n]) of the flattened
        [T * B]."""
        rollout = self.reward.shape[0]
        empty = self.state.new_zeros(len(index), self.state.shape[1])
        return self._select(lambda x: x[:rollout].flatten(0, 1)[index].unsqueeze(0), empty)

    def _select(
        self, pick: Callable[[torch.Tensor], torch.Tensor], state: torch.Tensor
    ) -> Experience:
        picked: dict[str, Any] = {
            name: None if getattr(self, name) is None else pick(getattr(self, name))
            for name in _COLUMNS
        }
        return replace(
            self,
            obs={name: pick(leaf) for name, leaf in self.obs.items()},
            actions={name: pick(leaf) for name, leaf in self.actions.items()},
            acted={name: pick(column) for name, column in self.acted.items()},
            state=state,
            **picked,
        )

    def next_values(self, values: torch.Tensor) -> torch.Tensor:
        """Return the values [T, B] of the state after each step, given ``values`` [T+1, B] of
        obs[0..T].

        After a truncation it is the value of the final observation: of obs[t+1] under next-step
        autoreset; under same-step autoreset the value that was computed at sampling.
        """
        if self.final_value is None:
            return values[1:]
        return torch.where(self.truncated, self.final_value, values[1:])

    def with_values_raised(self, by: Tensor) -> Experience:
        """Return the experience with ``by`` (float32 []) added to all values by the behaviour
        policy."""
        final = None if self.final_value is None else self.final_value + by
        return replace(self, acted={**self.acted, "value": self.value + by}, final_value=final)

    def advantages_at_sampling(self, last_value: Tensor, gamma: float, lam: float) -> Tensor:
        """Return the generalised advantage estimates [T, B] from the values by the behaviour
        policy. ``last_value`` [B]: that of the last observation."""
        values = torch.cat((self.value, last_value.unsqueeze(0)))
        return gae(
            self.reward,
            self.value,
            self.next_values(values),
            self.terminated,
            self.trace_cut,
            gamma,
            lam,
        )

    def without_last_observation(self, **columns: Any) -> Experience:
        """Return the experience with these ``columns``, and with T time steps in all others."""
        rollout = self.reward.shape[0]
        obs = {name: leaf[:rollout] for name, leaf in self.obs.items()}
        return replace(self, obs=obs, is_first=self.is_first[:rollout], **columns)


_COLUMNS = (
    "is_first",
    "reward",
    "terminated",
    "truncated",
    "trace_cut",
    "step_mask",
    "mask",
    "final_value",
    "advantages",
    "targets",
    "share",
)


def experience_of(
    batch: Batch, config: LearnerConfig, version: int, gather: Gather = alone
) -> Experience:
    """Return the experience of a batch, with the loss mask and with scaled and clipped rewards.

    The mask leaves out steps whose action the environment ignored, and steps whose policy is more
    than ``max_policy_lag`` versions older than ``version`` (None: steps may be of any age). A step
    that is not valid also cuts the trace of the step before it. If env rows give different numbers
    of steps, ``gather`` collects the numbers of all ranks, to give each env row an equal weight.
    """
    reward = learned_rewards(batch.reward, config.reward_scale, config.reward_clip)
    valid_next = torch.ones_like(batch.valid)
    valid_next[:-1] = batch.valid[1:]
    own = batch.env_row
    step_mask = batch.version != NOT_TAKEN
    mask, limit = batch.valid, config.max_policy_lag
    if limit is not None:
        mask = mask & (version - batch.version <= limit)
    return Experience(
        obs=batch.obs,
        is_first=batch.is_first,
        state=batch.state,
        actions=batch.actions,
        acted=batch.acted,
        reward=reward,
        terminated=batch.terminated,
        truncated=batch.truncated,
        trace_cut=batch.terminated | batch.truncated | ~valid_next,
        step_mask=step_mask,
        mask=mask,
        final_value=batch.final_value,
        share=None if own is None else env_share(step_mask, own, gather),
    )


class Share(NamedTuple):
    """The part of each batch that one of ``learners`` learners has: the ``learner``-th of equal
    parts of the rows. All learners draw the same minibatches of the whole batch, which a single
    learner would draw too, and each learns from those of its steps that are in a minibatch."""

    learner: int = 0
    learners: int = 1

    def own(self, positions: torch.Tensor, rows: int) -> torch.Tensor:
        """Return those of ``positions`` (int64 [n]) in the whole batch, flattened [T * B] or
        columns [B], that this learner has, as positions in its own part with B = ``rows``."""
        time, row = positions // (rows * self.learners), positions % (rows * self.learners)
        mine = row // rows == self.learner
        return (time * rows + row - self.learner * rows)[mine]


WHOLE = Share()


def minibatch_positions(
    experience: Experience,
    size: int,
    *,
    whole_rows: bool,
    generator: torch.Generator,
    due: int | None = None,
    share: Share = WHOLE,
) -> Iterator[torch.Tensor | None]:
    """Yield one pass over the experience in random minibatches of ``size`` env steps: what is in
    each, int64 [n].

    With ``whole_rows`` each minibatch holds columns with all of their steps (for losses and cores
    that look along time), otherwise single steps, as positions in the flattened [T * B]. If one
    minibatch of columns covers the batch, it is None. ``due`` is the nominal number of env steps of
    a batch whose size varies: such a batch is divided into as many minibatches as a nominal one, of
    another size. ``size`` is that of all learners' parts together, and ``share`` says which part
    the experience is; only such a part may be empty.
    """
    rollout, rows = experience.reward.shape
    if size >= (due or rollout * rows * share.learners) and whole_rows:
        yield None
        return
    if due is not None:
        count = max(1, due // size)
        mask = experience.step_mask
        yield from minibatch_indices(mask, count, whole_rows=whole_rows, generator=generator)
        return
    device = experience.reward.device
    count, per = (rows, size // rollout) if whole_rows else (rollout * rows, size)
    if share.learners > 1:
        order = torch.randperm(count * share.learners, generator=generator)
        for drawn in torch.split(order, per):
            yield share.own(drawn, rows).to(device)
        return
    # From page-locked memory the copy does not block.
    on_host = page_locked(torch.randperm(count, generator=generator), device)
    order = on_host.to(device, non_blocking=True)
    yield from torch.split(order, per)


def part_of_minibatch(
    experience: Experience, index: torch.Tensor, *, whole_rows: bool
) -> Experience:
    """Return one learner's part of a minibatch. If it has none of the steps, return one step that
    does not count in the loss, because all learners make the same passes."""
    empty = len(index) == 0
    index = index.new_zeros(1) if empty else index
    part = experience.rows(index) if whole_rows else experience.steps(index)
    return replace(part, mask=torch.zeros_like(part.mask)) if empty else part


class Minibatches:
    """The minibatches of an update, one after the other, as places in the flattened [T * B] of its
    experience.

    ``drawn``: of each, int64 [n], its positions in [T * B], or with ``whole_rows`` its columns
    [B], which it has with all their steps (None: the whole experience). Only a learner's part of a
    minibatch may be empty; it gets a step, or column, that does not count, because all learners
    make the same passes. ``index``: what is drawn in the end.

    A column of all minibatches is [S, N], a row for each, so that an operation does the work of
    all. If they differ in size, the ends of the shorter rows do not count.
    """

    def __init__(
        self, drawn: Sequence[Tensor | None], experience: Experience, *, whole_rows: bool
    ) -> None:
        self.whole_rows = whole_rows
        self._drawn = drawn
        self.index = [each if each is None or len(each) else each.new_zeros(1) for each in drawn]
        rollout, rows = experience.reward.shape
        self._starts = torch.arange(0, rollout * rows, rows, device=experience.reward.device)
        self._every = torch.arange(rollout * rows, device=experience.reward.device)
        places = [self._places(each) for each in self.index]
        sizes = [len(each) for each in places]
        real = [
            0 if each is not None and not len(each) else size
            for each, size in zip(drawn, sizes, strict=True)
        ]
        self._sizes = None if min(real) == max(real) else sizes
        at = self.whole(places)
        self.shape = at.shape
        # A single minibatch of all steps takes the columns as they are.
        self._flat = None if self.index == [None] else at.flatten()
        self._within: Tensor | None = None
        if min(real) < at.shape[1]:
            self._within = torch.ones_like(at, dtype=torch.bool)
            for row, size in zip(self._within, real, strict=True):
                row[size:] = False

    def __len__(self) -> int:
        return len(self.index)

    def flat(self, column: Tensor) -> Tensor:
        """Return the steps [S * N, ...] of all minibatches of a column [T, B, ...]."""
        flat = column.flatten(0, 1)
        if self._flat is None:
            return flat[: self.shape[1]]
        return flat.index_select(0, self._flat)

    def pick(self, column: Tensor) -> Tensor:
        """Return the steps [S, N, ...] of all minibatches of a column [T, B, ...]."""
        return self.flat(column).view(*self.shape, *column.shape[2:])

    def counts(self, experience: Experience) -> Tensor:
        """Return how much each step counts, bool or float [S, N]: see `Experience.counts`."""
        counts = self.pick(experience.counts)
        return counts if self._within is None else counts * self._within

    def parts(self, column: Tensor) -> Sequence[Tensor]:
        """Return the steps [N, ...] of each minibatch of a column [S, N, ...]."""
        parts = column.unbind()
        if self._sizes is None:
            return parts
        return [part[:size] for part, size in zip(parts, self._sizes, strict=True)]

    def whole(self, parts: Sequence[Tensor]) -> Tensor:
        """Return the column [S, N, ...] of the minibatches' ``parts``."""
        if len(parts) == 1:
            return parts[0].unsqueeze(0)
        if self._sizes is None:
            return torch.stack(list(parts))
        return pad_sequence(list(parts), batch_first=True)

    def part(self, number: int, experience: Experience) -> Experience:
        """Return the experience of a minibatch."""
        drawn = self._drawn[number]
        if drawn is None:
            return experience
        return part_of_minibatch(experience, drawn, whole_rows=self.whole_rows)

    def _places(self, index: Tensor | None) -> Tensor:
        if index is None:
            return self._every
        return (self._starts.unsqueeze(1) + index).flatten() if self.whole_rows else index
