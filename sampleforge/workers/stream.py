"""Streams, each of which fills one slot at a time, and the ports of an actor to policy groups."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sampleforge.data.rollout_queue import KeptEpisodes, Rollout, RolloutSender
from sampleforge.env.bounds import Bounds, Outside
from sampleforge.env.vector import EnvVector, StepOut
from sampleforge.models.normaliser import FAR, MANY_NUMBERS, WARM_UP
from sampleforge.ops.far_values import (
    FarFromMean,
    TypicalSize,
    Unusual,
    all_finite,
    bound_rewards,
    rows_not_finite,
)
from sampleforge.rollouts.exchange import RolloutExchange
from sampleforge.rollouts.overlap import Overlap
from sampleforge.rollouts.slots import TrajectorySlots, end_rollout, length
from sampleforge.workers.inference import Inference
from sampleforge.workers.policy_mapping import StreamId

MAX_IN_A_ROW = 10
"""Number of successive rollouts of a split with dropped rows that ends the run."""
Array = npt.NDArray[Any]

OF_OBSERVATIONS = ("value", "value_std")
"""Outputs of a policy that do not depend on the action."""
REWARD = "a reward"
"""Key of the first far reward among the first far values, where observations have their leaf."""


@dataclass(frozen=True, eq=False)
class PolicyPort:
    """The connection of one actor to one policy group: ``policy`` is the group's index in the
    graph, free slots come from ``exchange`` and complete ones go back to it, ``inference`` computes
    the actions. ``recorder`` gets a copy of each complete rollout (None: nothing is recorded)."""

    policy: int
    exchange: RolloutExchange
    inference: Inference
    recorder: RolloutSender | None = None


def lease(ports: Sequence[PolicyPort], actor: int) -> list[int] | None:
    """Take a free slot from the exchange of each of ``ports``, which may hold a port twice; if one
    has too few, take none and return None, so that no stream keeps a slot while another waits."""
    for port in ports:
        if port.exchange.num_free(actor) < ports.count(port):
            return None
    slots = [port.exchange.take_free(actor) for port in ports]
    return [slot for slot in slots if slot is not None]


class Stream:
    """One seat of a split: the rows that fill one slot at a time, all with the same policy.

    The policy is picked where a rollout begins, so that a slot holds the steps of one policy.
    ``port``: the port to its group (None before the first rollout); ``inference`` and ``slots`` are
    those of the port. ``slot``: None between two rollouts. ``t``: the rollout's next step;
    ``begun_at``: its first step that was not a part of the rollout before; ``env_steps``: of the
    whole run when it began. ``valuing``: values of final observations have been requested.
    ``carry`` holds the last observation of a rollout, with which the next one begins, because the
    slot belongs to the learner by then. Leaves that the slots store as single frames are written to
    ``carry`` at every step. ``overlap``: the steps that the next rollout begins with, if sequences
    are drawn. ``before``: the recurrent state of the last request. ``rollouts``: number of rollouts
    begun. ``shortened``: the rows that began the rollout in an episode that decorrelation shortens,
    bool [rows], if the rollout is recorded and there are any. ``bad_rollouts``: number of
    successive rollouts with policy outputs that are not finite. ``dropped_steps``: the number of
    dropped env steps that the counters already include. ``far_values``: number of rewards that were
    bounded, and of numbers in observations that were far from the mean of their element, since the
    actor has last counted them. ``first_far``: the first reward (under "a reward") and the first
    observation of each leaf, in words.

    ``env``: the env vector of the seat. ``index`` is the stream's index in the arrays of each
    port's `Inference`."""

    policy: int
    inference: Inference
    slots: TrajectorySlots
    before: npt.NDArray[np.float32]

    def __init__(self, stream_id: StreamId, index: int, env: EnvVector, rollouts: int = 0) -> None:
        self.id = stream_id
        self.index = index
        self.env = env
        self.rollouts = rollouts
        self.port: PolicyPort | None = None
        self.slot: int | None = None
        self.t = self.begun_at = self.env_steps = 0
        self.valuing = False
        self.bad_rollouts = 0
        self.dropped_steps = 0
        self.carry = {
            name: np.zeros((env.num_rows, *leaf.shape), leaf.dtype)
            for name, leaf in env.spec.observations.items()
        }
        self.carry_first = np.ones(env.num_rows, np.bool_)
        self.overlap: Overlap | None = None
        self._decision: dict[str, Array] | None = None
        self.shortened: Array | None = None
        self.far_values = 0
        self.first_far: dict[str, str] = {}
        self._typical_reward = TypicalSize(few=0)
        self._unusual = Unusual(env.num_rows)
        shapes = {  # of stacks of frames: of the newest one
            name: leaf.shape[leaf.stack is not None :]
            for name, leaf in env.spec.observations.items()
            if leaf.dtype.startswith("float")
        }
        self._means = {
            name: FarFromMean(shape, FAR, WARM_UP)
            for name, shape in shapes.items()
            if 0 < math.prod(shape) <= MANY_NUMBERS
        }
        self._kept = KeptEpisodes(env.num_rows)
        self._bounds: Bounds | None = None

    def _change_policy(self, port: PolicyPort) -> None:
        """Use the policy of ``port`` from now on; its recurrent state begins at zero."""
        if self.overlap is not None:
            assert self.port is not None
            raise ValueError(
                f"{self.id} changes its policy from {self.port.policy} to {port.policy} between "
                "two rollouts, but its sequences overlap: a rollout begins with the last steps of "
                "the one before, which one policy must have taken. Use a policy mapping that gives "
                "each stream one policy, such as FixedPerStream"
            )
        self.port, self.policy = port, port.policy
        self.inference, self.slots = port.inference, port.exchange.slots
        shape = self.slots.shape
        self.overlap = Overlap(self.slots) if shape.sequences else None
        self.before = np.zeros((shape.rows, shape.state_size), np.float32)
        self.inference.state[self.index] = 0.0

    def leave(self) -> None:
        """Leave the seat to a frozen policy: the next rollout begins with a recurrent state of
        zero."""
        if self.overlap is not None:
            raise ValueError(
                f"a frozen policy takes over {self.id}, but its sequences overlap: a rollout "
                "begins with the last steps of the one before, which the same policy must have "
                "taken. Use a policy mapping that gives each stream one policy"
            )
        self.port = None
        self.rollouts += 1
        self._kept.forget()

    def begin(self, port: PolicyPort, slot: int, env_steps: int) -> None:
        """Begin a rollout in ``slot``, which was leased from ``port``, with the last observation of
        the rollout before. ``env_steps``: of the run so far."""
        if port is not self.port:
            self._change_policy(port)
        slots = self.slots
        self.rollouts += 1
        t = 0 if self.overlap is None else self.overlap.restore(slot)
        for name, leaf in slots.obs.items():
            leaf[slot, t] = self.carry[name]
        for name, column in slots.stacks.items():
            column.put(slot, t, self.carry[name]) if t else column.begin(slot, self.carry[name])
        slots.first[slot, t] = self.carry_first
        if self.overlap is None:
            slots.state[slot] = self.inference.state[self.index]
        self.slot, self.t, self.begun_at, self.env_steps = slot, t, t, env_steps
        if port.recorder is not None:
            self.shortened = self.env.shortened_rows()
            self._kept.begin(admits=port.recorder.has_room())

    def ask(self) -> None:
        """Request actions for the observation at (slot, t)."""
        assert self.slot is not None
        state = self.inference.state[self.index]
        if self.overlap is not None:
            self.overlap.keep_state(self.slot, self.t, state)
        if state.size:
            self.before[...] = state
        self.inference.ask(self.index, self.slot, self.t)

    def is_answered(self) -> bool:
        """Return whether the answer to the last request is in the slot. A step that goes on since
        the rollout before has its own action there then."""
        if not self.inference.is_answered(self.index):
            return False
        if self._decision is not None:
            self._write_decision(self._decision)
        return True

    def actions(self) -> dict[str, Array]:
        """Return the actions at (slot, t)."""
        return {name: leaf[self.slot, self.t] for name, leaf in self.slots.actions.items()}

    def step_out(self) -> StepOut:
        """Return the arrays into which the environments write the step from t to t + 1."""
        slots, slot, t = self.slots, self.slot, self.t
        obs = {name: leaf[slot, t + 1] for name, leaf in slots.obs.items()}
        for name in slots.stacks:
            obs[name] = self.carry[name]
        return StepOut(
            reward=slots.reward[slot, t],
            terminated=slots.terminated[slot, t],
            truncated=slots.truncated[slot, t],
            valid=slots.valid[slot, t],
            obs=obs,
            first=slots.first[slot, t + 1],
            final_obs={n: leaf[self.index] for n, leaf in self.inference.final_obs.items()},
        )

    def keep(self, out: StepOut) -> None:
        """Write into the slot the newest frames of stacks, and final observations, which the
        environments do not write there themselves."""
        if self.slots.stacks:
            self._keep_frames()
        if self.slots.keeps_final:
            self._keep_final(out)

    def _keep_frames(self) -> None:
        """Write the newest frames into the slot. At the end of the rollout, compare the stacks with
        those that are read from the slot, which differ if the environment's metadata is wrong about
        them."""
        slots, slot, t = self.slots, self.slot, self.t + 1
        assert slot is not None
        for name, column in slots.stacks.items():
            column.put(slot, t, self.carry[name])
            if slots.debug or t == slots.shape.rollout:
                column.check(slot, t, self.carry[name])

    def _keep_final(self, out: StepOut) -> None:
        """Write the final observations after truncated steps into the slot, which stores them apart
        from ``obs``, and, for a recording, those after all steps that ended an episode."""
        slots = self.slots
        assert out.final_obs is not None
        if slots.final_obs and out.truncated.any():
            for name, column in slots.final_obs.items():
                seen = out.final_obs[name][out.truncated]
                last = seen[:, -1] if name in slots.stacks else seen
                column[self.slot, self.t, out.truncated] = last
        for name, column in slots.recorded_final.items():
            ended = out.terminated | out.truncated
            seen = out.final_obs[name][ended]
            is_stack = slots.shape.spec.observations[name].stack is not None
            column[self.slot, self.t, ended] = seen[:, -1] if is_stack else seen

    def ask_final(self, out: StepOut) -> None:
        """Request the values of the final observations of step t, if the slot stores them and there
        are any."""
        if self.slots.final_value is not None and out.truncated.any():
            assert self.slot is not None
            self.valuing = True
            self.inference.ask_final(self.index, self.slot, self.t)

    def drop_bad_outputs(self) -> tuple[int, str]:
        """Drop the rows of the complete rollout with policy outputs that are not finite. Return the
        number of dropped env steps, and the first such row and output in words ("" if none)."""
        assert self.slot is not None
        bad_outputs = outputs_not_finite(self.slots, self.slot)
        if not bad_outputs:
            self.bad_rollouts = 0
            return 0, ""
        rows = list(bad_outputs)
        steps = drop_rows(self.slots, self.slot, rows)
        self.inference.state[self.index][rows] = 0.0
        if self.overlap is not None:
            self.overlap.zero_states(rows)
        self.bad_rollouts += 1
        output = bad_outputs[rows[0]]
        return steps, f"row {rows[0]}: the policy's {output} is not finite for a finite observation"

    def out_of_bounds(self) -> Outside | None:
        """Return the first observation of the complete rollout that is outside of what its space
        declares; None if there is none. Not looked at: stacks, which are stored apart,
        and rows in which values were zeroed because they were not finite."""
        if self.env.guard.first:
            return None
        if self._bounds is None:
            self._bounds = Bounds(self.env)
        assert self.slot is not None
        end = length(self.slots, self.slot) + 1
        obs = {name: leaf[self.slot, :end] for name, leaf in self.slots.obs.items()}
        return self._bounds.fault_of_rollout(obs)

    def keep_end(self) -> None:
        """Keep the last observation of the complete rollout for the next one."""
        slots, slot = self.slots, self.slot
        for name, leaf in slots.obs.items():
            self.carry[name][...] = leaf[slot, -1]
        self.carry_first[...] = slots.first[slot, -1]

    def hand_over(self, waiting: Callable[[], None]) -> None:
        """Hand the complete rollout over to the policy group. If it is recorded, this may wait for
        the recorder, and calls ``waiting`` meanwhile."""
        assert self.slot is not None and self.port is not None
        self._send(length(self.slots, self.slot), waiting)
        self._look_for_far(self.slot, length(self.slots, self.slot))
        new = self.slot, slice(self.begun_at, None)
        self._bound_rewards(self.slots.reward[new], self.slots.terminated[new])
        if self.overlap is not None:
            self.overlap.keep(self.slot)
        self.port.exchange.hand_over(self.id.actor, self.slot)
        self.slot = None

    def _newest(self, name: str, slot: int, end: int) -> Array:
        """Return the observations of the rollout, [steps, rows, ...]; of a stack of frames the
        newest frames."""
        if name in self.slots.stacks:
            return self.slots.stacks[name].newest(slot, self.begun_at, end)
        whole: Array = self.slots.obs[name][slot, self.begun_at : end]
        return whole if self.env.spec.observations[name].stack is None else whole[:, :, -1]

    def _look_for_far(self, slot: int, end: int) -> None:
        """Look for observations of the rollout that are far from the mean of their element. What is
        learned from them is bounded by the statistics that normalise them; here they are named."""
        for name, mean in self._means.items():
            new = self._newest(name, slot, end)
            deviation = mean.deviation
            found = mean.find(new.reshape(-1, *new.shape[2:])) if len(new) else None
            if found is None:
                continue
            self.far_values += found.number
            index, *at = found.at
            away = abs(found.value - mean.mean[tuple(at)]) / deviation[tuple(at)]
            self.first_far.setdefault(
                name,
                f"{self.env.spec.env_id}, row {index % self.env.num_rows}: observation leaf "
                f"{name!r} holds {found.value:g} at {at}, {away:.0f} deviations from the mean; "
                "where observations are normalised it counts as ten",
            )

    def _bound_rewards(self, reward: Array, terminated: Array) -> None:
        """Replace rewards [T, rows] that are far beyond all others by what they count as for
        learning (`sampleforge.ops.far_values`). Returns and recordings have them as they were."""
        size = self._typical_reward.size
        found = bound_rewards(self._typical_reward, reward, terminated, self._unusual)
        if found is None:
            return
        self.far_values += found.number
        _, row = found.at
        so_far = f", whose typical size is {size:.3g}" if size else ""
        self.first_far.setdefault(
            REWARD,
            f"{self.env.spec.env_id}, row {row}: the reward is {found.value:g}, far beyond all "
            f"others{so_far}; for learning it counts as {reward[found.at]:.3g}",
        )

    def end_recording(self, waiting: Callable[[], None]) -> None:
        """Send the steps that an incomplete rollout has so far to the recorder, if there is one."""
        if self.slot is not None and self.t > self.begun_at:
            self._send(self.t, waiting)

    def _send(self, end: int, waiting: Callable[[], None]) -> None:
        """Send the new steps of the rollout, up to ``end`` - 1, to the recorder, if any."""
        assert self.port is not None and self.slot is not None
        recorder = self.port.recorder
        if recorder is None:
            return
        place = self.id.split, self.id.seat, self.policy, self.rollouts
        about = Rollout(*place, self.begun_at, end, self._kept.admits, self.env_steps)
        recorder.send(self.slots, self.slot, about, self._kept, self.shortened, waiting)

    def end_early(self) -> None:
        """End the rollout before step t, for which the policy's output is in the slot: the learner
        bootstraps from its value. The next rollout begins with the same observation and the same
        recurrent state, and requests actions again."""
        assert self.slot is not None
        self.inference.state[self.index] = self.before
        end_rollout(self.slots, self.slot, self.t)

    def keep_decision(self) -> None:
        """Keep the action at (slot, t), which was taken but has not led to anything yet, for the
        first step of the next rollout: with its version and the policy's other outputs for it. What
        the policy says of the observation alone is computed again."""
        slots = self.slots
        outputs = set(slots.extras).difference(slots.shape.finished, OF_OBSERVATIONS)
        names = [*(f"action/{name}" for name in slots.actions), *outputs, "version"]
        self._decision = {name: np.array(slots.arrays[name][self.slot, self.t]) for name in names}

    def _write_decision(self, decision: dict[str, Array]) -> None:
        """Write the action of a step that goes on since the rollout before into the slot."""
        assert self.slot is not None and self.t == 0
        for name, column in decision.items():
            self.slots.arrays[name][self.slot, 0] = column
        self._decision = None


def outputs_not_finite(slots: TrajectorySlots, slot: int) -> dict[int, str]:
    """Return the rows of a complete rollout with a policy output that is not finite, row -> name of
    the output, such as "value". The env vector lets only finite observations through
    (`sampleforge.env.guard`), but a network can still overflow on them."""
    bad_outputs: dict[int, str] = {}
    for name in slots.shape.extras:
        column = slots.extras[name]
        if np.issubdtype(column.dtype, np.floating) and not all_finite(column[slot]):
            for row in np.flatnonzero(rows_not_finite(column[slot].swapaxes(0, 1))).tolist():
                bad_outputs.setdefault(row, name)
    if slots.final_value is not None:
        bad = slots.truncated[slot] & ~np.isfinite(slots.final_value[slot])  # used there only
        for row in np.flatnonzero(bad.any(0)).tolist():
            bad_outputs.setdefault(row, "final_value")
    return bad_outputs


def drop_rows(slots: TrajectorySlots, slot: int, rows: list[int]) -> int:
    """Drop ``rows`` of a complete rollout; return the number of their steps that were valid. Their
    floats are set to 0, so that masked steps cannot become NaN in a gradient."""
    dropped = int(np.count_nonzero(slots.valid[slot][:, rows]))
    slots.valid[slot][:, rows] = False
    outputs = [slots.extras[name] for name in slots.shape.extras]
    for column in (slots.reward, *outputs, *slots.obs.values(), *slots.actions.values()):
        if np.issubdtype(column.dtype, np.floating):
            column[slot][:, rows] = 0.0
    if slots.final_value is not None:
        slots.final_value[slot][:, rows] = 0.0
    if slots.shape.sequences is None:
        slots.state[slot][rows] = 0.0
    else:
        slots.states[slot][:, rows] = 0.0
    return dropped
