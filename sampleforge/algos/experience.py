"""From a batch as it was sampled to what a loss is computed on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from sampleforge.algos.config import LearnerConfig
from sampleforge.algos.minibatches import env_share, parts
from sampleforge.ops.running_stats import Gather, alone
from sampleforge.rollouts.batch import Batch
from sampleforge.rollouts.slots import NOT_TAKEN


@dataclass(frozen=True)
class Experience:
    """A batch, or some of its rows, or some of its single steps (then T is 1), ready for a loss.

    ``obs`` and ``first`` have T+1 rows of time where the loss needs the values after the last step,
    else T. ``advantages`` and ``targets`` are there if they were computed for the whole batch, and
    ``share`` where envs have given different numbers of steps: see `sampleforge.algos.minibatches`.
    """

    obs: dict[str, torch.Tensor]  # [T or T+1, B, ...]
    first: torch.Tensor  # bool [T or T+1, B]
    state: torch.Tensor  # float32 [B, S]
    actions: dict[str, torch.Tensor]  # [T, B, ...]
    log_prob: torch.Tensor  # [T, B]
    value: torch.Tensor  # [T, B]
    reward: torch.Tensor  # [T, B], scaled and clipped
    terminated: torch.Tensor  # bool [T, B]
    truncated: torch.Tensor  # bool [T, B]
    cut: torch.Tensor  # bool [T, B]: nothing flows from t+1 back to t
    taken: torch.Tensor  # bool [T, B]: rollouts may be shorter than T
    mask: torch.Tensor  # bool [T, B]: of these, what counts in the loss
    final_value: torch.Tensor | None = None  # [T, B]
    advantages: torch.Tensor | None = None  # [T, B]
    targets: torch.Tensor | None = None  # [T, B]
    share: torch.Tensor | None = None  # [T, B]: how much a step counts; 0 where none was taken

    @property
    def counts(self) -> torch.Tensor:
        """[T, B]: the mask, or how much the steps that it leaves count."""
        return self.mask if self.share is None else torch.where(self.mask, self.share, 0.0)

    def rows(self, index: torch.Tensor) -> Experience:
        """The rows ``index`` over all time."""
        return self._select(lambda x: x[:, index], self.state[index])

    def steps(self, index: torch.Tensor) -> Experience:
        """Single steps: positions ``index`` of the flattened [T * B], as T = 1."""
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
            state=state,
            **picked,
        )

    def next_values(self, values: torch.Tensor) -> torch.Tensor:
        """Values [T, B] of the state after each step, from those of obs[0..T] [T+1, B].

        After a truncation that is the final observation's: obs[t+1] itself under next-step
        autoreset; under same-step autoreset the value the sampler gave it.
        """
        if self.final_value is None:
            return values[1:]
        return torch.where(self.truncated, self.final_value, values[1:])


_COLUMNS = (
    "first",
    "log_prob",
    "value",
    "reward",
    "terminated",
    "truncated",
    "cut",
    "taken",
    "mask",
    "final_value",
    "advantages",
    "targets",
    "share",
)


def experience_of(
    batch: Batch, config: LearnerConfig, version: int, gather: Gather = alone
) -> Experience:
    """Mark what counts and shape the rewards.

    Masked: rows whose action the environment ignored, and rows whose policy is more than
    ``max_policy_lag`` versions older than ``version`` (None: rows may be of any age). A row that is
    not valid also cuts the trace of the step before it. Where envs give different numbers of steps,
    ``gather`` tells what an equal share over all ranks would be.
    """
    reward = batch.reward * config.reward_scale
    if config.reward_clip is not None:
        reward = reward.clamp(-config.reward_clip, config.reward_clip)
    valid_next = torch.ones_like(batch.valid)
    valid_next[:-1] = batch.valid[1:]
    own = batch.env_row
    taken = batch.version != NOT_TAKEN
    mask, limit = batch.valid, config.max_policy_lag
    if limit is not None:
        mask = mask & (version - batch.version <= limit)
    return Experience(
        obs=batch.obs,
        first=batch.first,
        state=batch.state,
        actions=batch.actions,
        log_prob=batch.log_prob,
        value=batch.value,
        reward=reward,
        terminated=batch.terminated,
        truncated=batch.truncated,
        cut=batch.terminated | batch.truncated | ~valid_next,
        taken=taken,
        mask=mask,
        final_value=batch.final_value,
        share=None if own is None else env_share(taken, own, gather),
    )


def minibatches(
    experience: Experience,
    size: int,
    *,
    whole_rows: bool,
    generator: torch.Generator,
    due: int | None = None,
) -> Iterator[Experience]:
    """One pass over the experience in random minibatches of ``size`` env steps.

    With ``whole_rows`` each minibatch holds rows over all of their time (for losses and cores that
    look along time), else single steps. A single minibatch is the experience itself. Where batches
    have more or fewer env steps than they are ``due`` to have, the minibatches are of another size,
    but as many.
    """
    rollout, rows = experience.reward.shape
    if size >= (due or rollout * rows) and whole_rows:
        yield experience
        return
    if due is not None:
        count = max(1, due // size)
        for index in parts(experience.taken, count, whole_rows=whole_rows, generator=generator):
            yield experience.rows(index) if whole_rows else experience.steps(index)
        return
    device = experience.reward.device
    count, per = (rows, size // rollout) if whole_rows else (rollout * rows, size)
    # From page-locked memory the copy waits for nobody.
    on_host = torch.randperm(count, generator=generator, pin_memory=device.type == "cuda")
    order = on_host.to(device, non_blocking=True)
    for index in torch.split(order, per):
        yield experience.rows(index) if whole_rows else experience.steps(index)
