"""Multi-agent environments: rows of one environment in which several agents act at the same time.

A *seat* is one agent slot of the environment. Each seat is an `EnvVector` of its own, with the
agent's spaces and episode statistics, so that everything that reads the rows of a single-agent
environment reads those of a seat. ``seats`` of any of them has all seats of the environment::

    vector = make_vector(config, num_rows, seeds)  # the first seat
    for seat in vector.seats:
        seat.reset(obs[seat.agent])
    ...
    for seat in vector.seats:
        seat.send(actions[seat.agent])
    for seat in vector.seats:  # the first one takes the step of all
        ended = seat.recv(out[seat.agent])

Seats whose agents have the same spaces form an *agent group*, which one policy can serve. Agents
may join late and leave early: a step in which an agent takes no part is not valid, the observation
with which it joins is ``first``, and the last one that it gets ends its episode. An episode of the
environment is over when no agent is left; the next step resets the row (NEXT_STEP).

A backend derives from `MultiAgentRows`.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from sampleforge.env.adapter import env_spec
from sampleforge.env.config import EnvConfig
from sampleforge.env.vector import Array, EnvVector, Episode, StepOut
from sampleforge.spec import ACTION_MASK, OBSERVATION, EnvSpaces, EnvSpec, leaves


class SeatVector(EnvVector):
    """One agent of every row of a multi-agent environment. ``agent``: its name; ``seat``: the index
    of the seat among those of the environment. ``stayed``: whether it was ever listed as taking
    part after its end."""

    def __init__(self, rows: MultiAgentRows, seat: int, agent: str, spec: EnvSpec) -> None:
        super().__init__(spec, rows.num_rows)
        self._rows = rows
        self.seat = seat
        self.agent = agent
        self.stayed = False

    @property
    def seats(self) -> tuple[EnvVector, ...]:
        return self._rows.seats

    def limit_episodes(self, steps: int) -> bool:
        return self._rows.limit_episodes(steps)

    def decorrelate(self, numbers: Array, total: int) -> bool:
        return self._rows.decorrelate(numbers, total)

    @property
    def present(self) -> Array:
        present: Array = self._rows.present[self.seat]
        return present

    def row_env(self, row: int) -> Any:
        return self._rows.row_env(row)

    def leave_out_first_episodes(self) -> None:
        """Do not count the first episode of any row."""
        self._leave_out_first = True

    def per_row(self, actions: Mapping[str, Array]) -> list[Any]:
        """Return one value of the action space per row, of actions in the environment's form."""
        return self._adapter.per_row(actions, self.num_rows)

    def reset(self, obs: Mapping[str, Array]) -> None:
        self._rows.reset_once()
        for name, leaf in self._rows.obs[self.seat].items():
            obs[name][...] = leaf
        np.logical_not(self._rows.present[self.seat], out=self._ended)
        self._check_first_obs(obs)

    def _begin(self, actions: dict[str, Array]) -> None:
        self._rows.begin(self.seat, actions)

    def _complete(self, out: StepOut) -> None:
        rows, seat = self._rows, self.seat
        rows.complete(seat)
        out.reward[:] = rows.reward[seat]
        out.terminated[:] = rows.terminated[seat]
        out.truncated[:] = rows.truncated[seat]
        gone = self._ended & ~rows.present[seat]
        for name, leaf in rows.obs[seat].items():
            if leaf.dtype.kind == "f" and np.count_nonzero(gone):  # the guard has met their ends
                leaf[gone] = np.where(np.isfinite(leaf[gone]), leaf[gone], 0)
            out.obs[name][...] = leaf
        self._lost += rows.lost
        if seat == 0:  # an environment that was rebuilt counts once
            self.rebuilt, self.fault = rows.rebuilt, rows.fault

    def _account(self, out: StepOut) -> list[Episode]:
        """As `EnvVector._account`. ``_ended`` are the rows in whose step the agent took no part:
        it had ended its episode, or not joined yet."""
        away, present = self._ended, self._rows.present[self.seat]
        np.logical_not(away, out=out.valid)
        np.logical_and(away, present, out=out.first)
        self.valid_rows = int(np.count_nonzero(out.valid))
        if self.valid_rows < self.num_rows:
            out.reward[away] = 0.0
            out.terminated[away] = False
            out.truncated[away] = False
        self._returns += out.reward
        self._lengths += out.valid
        self._ended = np.logical_or(out.terminated, out.truncated)
        if self._lost:
            self._drop_lost(out)
        if self.guard.drops:
            self._drop_not_finite(out)
        episodes = self._finish_episodes() if np.count_nonzero(self._ended) else []
        self._ended = np.logical_not(present)
        return episodes

    def close(self) -> None:
        self._rows.close()


class MultiAgentRows(ABC):
    """``num_rows`` rows of one multi-agent environment: the backend of its seats.

    ``agents``: the spaces of every agent, by name. Seats are in the order of the agent groups, and
    within a group in the order of ``agents``. ``more``: fields of `EnvSpec`, the same for all.

    A backend implements `reset_rows` and `step_rows`, which write into these arrays:

    * ``obs[seat]``: observation leaves [rows, ...], as slots hold them;
    * ``reward`` float32 [seats, rows], ``terminated`` and ``truncated`` bool [seats, rows], of the
      step;
    * ``present`` bool [seats, rows]: whether the agent takes part in the next step. The row's
      episode is over when no agent does;
    * ``lost``: rows whose environment raised an error in this step and was replaced; ``rebuilt``
      counts them, ``fault`` is the traceback of the first.

    The time limit of ``config.max_episode_steps`` or ``limit`` is enforced here.
    """

    def __init__(
        self,
        config: EnvConfig,
        agents: Mapping[str, EnvSpaces],
        num_rows: int,
        *,
        limit: int | None = None,
        metadata: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> None:
        self.num_rows = num_rows
        self._limit = config.max_episode_steps or limit
        more["max_episode_steps"] = self._limit
        members: list[tuple[EnvSpaces, list[str]]] = []
        for agent, declared in agents.items():
            own = next((names for other, names in members if other == declared), None)
            if own is None:
                members.append((declared, [agent]))
            else:
                own.append(agent)
        groups = [
            env_spec(config.env, declared, metadata=metadata, agents=tuple(names), **more)
            for declared, names in members
        ]
        groups[0] = dataclasses.replace(groups[0], other_groups=tuple(groups[1:]))
        of_seat = [(agent, spec) for spec in groups for agent in spec.agents]
        self.seats = tuple(
            SeatVector(self, seat, agent, spec) for seat, (agent, spec) in enumerate(of_seat)
        )
        each = (len(self.seats), num_rows)
        self.obs = [
            {n: np.zeros((num_rows, *x.shape), x.dtype) for n, x in spec.observations.items()}
            for _, spec in of_seat
        ]
        for (_, spec), obs in zip(of_seat, self.obs, strict=True):
            _begin_within_bounds(spec, obs)
        self.reward = np.zeros(each, np.float32)
        self.terminated, self.truncated = np.zeros(each, np.bool_), np.zeros(each, np.bool_)
        self.present = np.zeros(each, np.bool_)
        self.lost: list[int] = []
        self.rebuilt = 0
        self.fault: str | None = None
        self._actions: list[dict[str, Array]] = [{} for _ in self.seats]
        self._sent = 0
        self._received = len(self.seats)
        self._is_reset = False
        self._over = np.zeros(num_rows, np.bool_)
        self._lengths = np.zeros(num_rows, np.int64)
        self._limits = np.full(num_rows, self._limit or 0, np.int64)

    @abstractmethod
    def reset_rows(self) -> None:
        """Reset every row, and write ``obs`` and ``present``. Called once, before the first
        step."""

    @abstractmethod
    def step_rows(self, actions: Sequence[Mapping[str, Array]], over: Array) -> None:
        """Step every row with ``actions[seat]``, leaf -> [rows, ...] in the environment's form; but
        reset the rows ``over`` (bool [rows]). Actions of agents that are not present are
        ignored."""

    @abstractmethod
    def close(self) -> None:
        """Release the environments; a second call is allowed."""

    def row_env(self, row: int) -> Any:
        """Return the Python object that steps ``row``; see `EnvVector.row_env`."""
        return self

    def decorrelate(self, numbers: Array, total: int) -> bool:
        """Truncate the first episode of each row earlier; see `EnvVector.decorrelate`."""
        if self._limit is None:
            return False
        self._limits[:] = np.maximum(1, self._limit * (numbers + 1) // total)
        for seat in self.seats:
            seat.leave_out_first_episodes()
        return True

    def limit_episodes(self, steps: int) -> bool:
        """Truncate every episode after ``steps`` steps of the environment; see
        `EnvVector.limit_episodes`."""
        self._limit = steps
        self._limits[:] = steps
        for seat in self.seats:
            seat.spec = dataclasses.replace(seat.spec, max_episode_steps=steps)
        return True

    def reset_once(self) -> None:
        """Reset all rows when the first seat asks for it."""
        if not self._is_reset:
            self._is_reset = True
            self.reset_rows()

    def begin(self, seat: int, actions: dict[str, Array]) -> None:
        """Keep the actions of one seat for the next step."""
        assert self._received == len(self.seats), "a seat has not received the step before"
        self._actions[seat] = actions
        self._sent += 1

    def complete(self, seat: int) -> None:
        """Take the step, if ``seat`` is the first one to receive it."""
        if self._sent:
            assert self._sent == len(self.seats), (
                f"{self._sent} of {len(self.seats)} agents have actions: every seat must send "
                "before one receives"
            )
            self._sent = self._received = 0
            self._step()
        self._received += 1

    def _step(self) -> None:
        over = self._over
        self.lost = []
        self.step_rows(self._actions, over)
        self._lengths += 1
        self._lengths[over] = 0
        self._lengths[self.lost] = 0
        if self._limit is not None:
            self._limits[over] = self._limit
            cut = self._lengths >= self._limits
            if np.count_nonzero(cut):
                self.truncated |= self.present & cut
                self.present[:, cut] = False
        self._over = np.logical_not(self.present.any(axis=0))


def _begin_within_bounds(spec: EnvSpec, obs: Mapping[str, Array]) -> None:
    """Set the observations of agents that have not joined yet to values within their bounds."""
    assert spec.spaces is not None
    for name, space in leaves(spec.spaces.observation, OBSERVATION):
        if isinstance(space, spaces.Box) and name != ACTION_MASK:
            obs[name][...] = np.clip(0, space.low, space.high).astype(space.dtype)
    if ACTION_MASK in obs:
        obs[ACTION_MASK][...] = True
