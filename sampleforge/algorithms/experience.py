"""Experience: a sampled batch with shaped rewards and masks, and its division into minibatches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch

from sampleforge.algorithms.config import LearnerConfig
from sampleforge.algorithms.minibatches import env_share, minibatch_indices
from sampleforge.ops.rewards import learned_rewards
from sampleforge.ops.running_stats import Gather, alone
from sampleforge.rollouts.batch import Batch
from sampleforge.rollouts.slots import NOT_TAKEN


@dataclass(frozen=True)
class Experience:
    """A batch, or some of its rows, or some of its single steps (then T is 1), ready for a loss.

    ``obs`` and ``is_first`` have T+1 time steps if the loss needs the values after the last step,
    otherwise T. ``advantages`` and ``targets`` are set if they were computed for the whole batch.
    ``share`` is set if env rows gave different numbers of steps: see
    `sampleforge.algorithms.minibatches`.
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
    on_host = torch.randperm(count, generator=generator, pin_memory=device.type == "cuda")
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
