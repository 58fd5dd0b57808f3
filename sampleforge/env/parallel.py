"""Rows of PettingZoo environments (``ParallelEnv``), or of any environment with their interface.

Environments in which the agents act one after the other (``AECEnv``) are converted by PettingZoo
itself. Agents whose turn it is not have one allowed action, so that nothing is learned from it.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from traceback import walk_tb
from typing import Any

from sampleforge.config import ConfigError
from sampleforge.env.adapter import ObservationAdapter
from sampleforge.env.config import EnvConfig
from sampleforge.env.env_code import as_error, env_code, making
from sampleforge.env.interface import check_apart, stage, tell_of_row
from sampleforge.env.multi_agent import MultiAgentRows
from sampleforge.env.place import next_seed
from sampleforge.env.single import MAX_REBUILDS
from sampleforge.env.step_values import check_info, flag_of, refuse, reward_of
from sampleforge.env.tasks import RowTasks, task_setter
from sampleforge.env.vector import Array
from sampleforge.spec import ACTION_MASK, EnvSpaces

_FIVE_DICTS = [dict] * 5
Reset = tuple[Mapping[str, Any], Mapping[str, Any]]


def is_multi_agent(env: Any) -> bool:
    """Return whether an object has the interface of PettingZoo's environments."""
    return hasattr(env, "possible_agents") and callable(getattr(env, "observation_space", None))


def as_parallel(env: Any, env_id: str, row: int) -> Any:
    """Return ``env``, that of ``row``, with the interface of a ``ParallelEnv``. An ``AECEnv``, in
    which agents act one after the other, is converted. Raises ConfigError for anything else."""
    if not is_multi_agent(env):
        raise ConfigError(
            f"{env_id} returned a {type(env).__name__}, but must return a PettingZoo environment: "
            "a ParallelEnv or an AECEnv"
        )
    if not hasattr(env, "agent_iter"):
        return env
    from pettingzoo.utils import conversions

    at_once = env.metadata.get("is_parallelizable")
    convert = conversions.aec_to_parallel if at_once else conversions.turn_based_aec_to_parallel
    return Turns(convert(env), env_id, row)


class ParallelRows(MultiAgentRows):
    """One environment per row, stepped one after the other in this process.

    If an environment raises, it alone is rebuilt: the step of its agents is masked, and their
    episodes are dropped. A row that is rebuilt more than `MAX_REBUILDS` times without finishing an
    episode raises the first error.
    """

    def __init__(
        self,
        config: EnvConfig,
        make: Callable[[int], Any],
        num_rows: int,
        seeds: Sequence[int],
        **options: Any,
    ) -> None:
        """``make``: is given the number of the row. ``options``: ``limit`` of an episode's env
        steps, and fields of `EnvSpec`."""
        self._make: Callable[[int], Any] = lambda row: as_parallel(make(row), config.env, row)
        self._seeds = list(seeds)
        self._envs: list[Any] = []
        self._tasks = RowTasks.of_this_call(num_rows)
        for row in range(num_rows):
            self._envs.append(self._make(row))
            tell_of_row()
        check_apart(self._envs)
        self._first: list[Reset] = []
        for row, (env, seed) in enumerate(zip(self._envs, seeds, strict=True)):
            if self._tasks is not None:
                self._tasks.follow(row, env)
            with stage("reset"):
                result = env.reset(seed=seed)
            self._first.append(_checked_reset(result, config.env))
            tell_of_row()
        env, infos = self._envs[0], self._first[0][1]
        if not env.possible_agents:
            raise ConfigError(
                f"{config.env}: possible_agents is empty, but must name every agent that can ever "
                "take part"
            )
        agents = {
            agent: EnvSpaces(
                env.observation_space(agent),
                env.action_space(agent),
                ACTION_MASK in infos.get(agent, {}),
            )
            for agent in env.possible_agents
        }
        super().__init__(
            config,
            agents,
            num_rows,
            metadata=getattr(env, "metadata", None),
            takes_task=task_setter(env) is not None,
            **options,
        )
        self._possible = {seat.agent for seat in self.seats}
        self._observations = [ObservationAdapter(seat.spec, seat.converted) for seat in self.seats]
        for adapter, seat in zip(self._observations, self.seats, strict=True):
            adapter.env_id += f", agent {seat.agent}"
        self._faults: dict[int, tuple[int, Exception]] = {}

    def reset_rows(self) -> None:
        for row, (observations, infos) in enumerate(self._first):
            self._begin_episode(row, observations, infos)
        self._first = []
        self._complete_masks()

    def step_rows(self, actions: Sequence[Mapping[str, Array]], over: Array) -> None:
        self.reward[:] = 0.0
        self.terminated[:] = False
        self.truncated[:] = False
        chosen = [seat.per_row(own) for seat, own in zip(self.seats, actions, strict=True)]
        is_over, present = over.tolist(), self.present.T.tolist()
        for row, env in enumerate(self._envs):
            try:
                if is_over[row]:
                    self._faults.pop(row, None)
                    if self._tasks is not None:
                        self._tasks.follow(row, env)
                    with stage("reset"):
                        result = env.reset()
                    first = _checked_reset(result, self.seats[0].spec.env_id)
                else:
                    acting = [seat for seat in self.seats if present[row][seat.seat]]
                    given = {seat.agent: chosen[seat.seat][row] for seat in acting}
                    self._write_step(row, env, env.step(given), present[row])
                    continue
            except ConfigError:
                raise  # another environment would give the same
            except BaseException as error:
                first = self._rebuild(row, as_error(error))
            self._begin_episode(row, *first)
        self._complete_masks()

    def _write_step(self, row: int, env: Any, result: Any, present: Sequence[bool]) -> None:
        """Write the step of one row. ``present``: whether each seat's agent took part in it."""
        _check_dicts(result, self.seats[0].spec.env_id, row)
        observations, rewards, terminations, truncations, infos = result
        agents = self._listed(env)
        for seat in self.seats:
            index, agent = seat.seat, seat.agent
            stays, terminated = agent in agents, terminations.get(agent, False)
            truncated, reward = truncations.get(agent, False), rewards.get(agent, 0.0)
            if type(terminated) is not bool:
                terminated = flag_of(terminated, "terminated", self._where(index, row))
            if type(truncated) is not bool:
                truncated = flag_of(truncated, "truncated", self._where(index, row))
            if present[index]:
                if type(reward) is not float:
                    reward = reward_of(reward, self._where(index, row))
                self.reward[index, row] = reward
                # An agent that is gone without a flag has terminated, too.
                terminated = terminated or not (stays or truncated)
                self.terminated[index, row] = terminated
                self.truncated[index, row] = truncated
                info = infos.get(agent, {})
                if info.__class__ is not dict or info:
                    self._take_info(index, row, info)
            if stays and (terminated or truncated):  # one that has ended may stay listed
                seat.stayed = True
                stays = False
            self.present[index, row] = stays
            if stays or (present[index] and agent in observations):
                self._write(index, row, observations, infos)

    def _where(self, seat: int, row: int) -> str:
        return f"{self._observations[seat].env_id}, row {row}"

    def _take_info(self, seat: int, row: int, info: Any) -> None:
        where = self._where(seat, row)
        check_info(info, where)
        self._observations[seat].check_masks_in(row, info)
        self.seats[seat].take_results(row, info, where)

    def _listed(self, env: Any) -> set[str]:
        """Return the agents that an environment lists. Raises ConfigError for one that was not
        possible at the start: it has no seat, and nothing that it does would be seen."""
        agents = set(env.agents)
        if not agents <= self._possible:
            foreign = ", ".join(sorted(map(str, agents - self._possible)))
            raise ConfigError(
                f"{self.seats[0].spec.env_id}: the agents list {foreign}, which possible_agents "
                "does not; possible_agents must name every agent that can ever take part"
            )
        return agents

    def _begin_episode(
        self, row: int, observations: Mapping[str, Any], infos: Mapping[str, Any]
    ) -> None:
        """Write the first observations of a row, and which agents take part."""
        agents = self._listed(self._envs[row])
        if not agents:
            raise ConfigError(
                f"{self.seats[0].spec.env_id}, row {row}: `agents` must name at least one agent "
                "after reset(), but is empty, so that no agent can act; fill it in reset()"
            )
        for seat in self.seats:
            self.present[seat.seat, row] = seat.agent in agents
            if seat.agent in agents:
                self._write(seat.seat, row, observations, infos)

    def _write(
        self, seat: int, row: int, observations: Mapping[str, Any], infos: Mapping[str, Any]
    ) -> None:
        agent = self.seats[seat].agent
        if agent not in observations:
            raise ConfigError(
                f"{self._observations[seat].env_id}, row {row}: an agent in `agents` must have an "
                f"observation, but the environment gave those of {sorted(map(str, observations))}; "
                "return one for every agent that takes part"
            )
        info = infos.get(agent, {})
        self._observations[seat].write(row, observations[agent], info, self.obs[seat])

    def _complete_masks(self) -> None:
        """Allow one action to agents that may take none, because it is not their turn, and every
        action to those that take no part."""
        for adapter, obs, present in zip(self._observations, self.obs, self.present, strict=True):
            if adapter.has_mask:
                adapter.complete_masks(obs[ACTION_MASK], present)

    def _rebuild(self, row: int, error: Exception) -> Reset:
        """Create a new environment for ``row``; return its first observations and infos. Raises the
        first error of a succession if there have been too many."""
        count, first = self._faults.get(row, (0, error))
        if self.fault is None:
            text = "".join(traceback.format_exception(error)).rstrip()
            self.fault = f"{text}\n({self.seats[0].spec.env_id}, row {row})"
        while count < MAX_REBUILDS:
            count += 1
            self._faults[row] = count, first
            self.rebuilt += 1
            with suppress(Exception), env_code:  # a broken one may fail to close as well
                self._envs[row].close()
            try:
                with making():
                    fresh = self._renewed(row)
            except Exception as again:
                error = again
                continue
            self.lost.append(row)
            return fresh
        first.add_note(
            f"{self.seats[0].spec.env_id}, row {row}: the first of {count + 1} errors in a row, "
            f"between which the environment was rebuilt {count} times"
        )
        raise first

    def _renewed(self, row: int) -> Reset:
        """Construct and reset the environment of ``row`` anew."""
        env = self._envs[row] = self._make(row)
        if self._tasks is not None:
            self._tasks.renew(row, env)
        fresh: Reset = env.reset(seed=next_seed(self._seeds[row], self.rebuilt))
        return fresh

    def row_env(self, row: int) -> Any:
        return self._envs[row]

    def close(self) -> None:
        """Close every environment, even where another one's ``close`` raises."""
        envs, self._envs = self._envs, []
        with ExitStack() as stack:
            for env in reversed(envs):
                stack.callback(env.close)


def _checked_reset(result: Any, env_id: str) -> Reset:
    """Return ``result``, what ``reset`` has returned. Raises ConfigError if it is not
    (observations, infos)."""
    if isinstance(result, tuple) and len(result) == 2 and all(map(_is_mapping, result)):
        return result
    raise ConfigError(
        f"{env_id}: reset() must return (observations, infos), dicts with an entry per agent, but "
        f"returned a {type(result).__name__}"
    )


def _check_dicts(result: Any, env_id: str, row: int) -> None:
    """Raise ConfigError if what ``step`` has returned is not five dicts."""
    if isinstance(result, tuple) and list(map(type, result)) == _FIVE_DICTS:
        return
    if not isinstance(result, tuple) or len(result) != 5 or not all(map(_is_mapping, result)):
        given = result if isinstance(result, tuple) else (result,)
        types = ", ".join(type(part).__name__ for part in given)
        raise ConfigError(
            f"{env_id}, row {row}: step() must return (observations, rewards, terminations, "
            f"truncations, infos), dicts with an entry per agent, but the environment gave "
            f"{types}; return a dict for each"
        )


def _is_mapping(value: Any) -> bool:
    return isinstance(value, dict | Mapping)


class Turns:
    """An ``AECEnv`` with the interface of a ``ParallelEnv``: PettingZoo's own ``converted`` one.

    The conversion reads and adds up what the environment has in its dicts of rewards, flags and
    infos before it returns them. Where that fails, the value that it fails at is refused by name,
    as those that it returns are; any other error is the environment's own, and stays as it is."""

    def __init__(self, converted: Any, env_id: str, row: int) -> None:
        self._converted = converted
        self._env_id = env_id
        self._row = row

    def __getattr__(self, name: str) -> Any:
        return getattr(self._converted, name)

    def reset(self, **options: Any) -> Any:
        try:
            return self._converted.reset(**options)
        except Exception as error:
            self._refuse_values(error)
            raise

    def step(self, actions: Mapping[str, Any]) -> Any:
        try:
            return self._converted.step(actions)
        except Exception as error:
            self._refuse_values(error)
            raise

    def _refuse_values(self, error: Exception) -> None:
        """Raise ConfigError for a value of the environment at which PettingZoo has failed."""
        if not _is_pettingzoos(error):
            return
        env = self._converted.aec_env.unwrapped
        for name, check in _CHECKS.items():
            given = getattr(env, name, None)
            where = f"{self._env_id}, row {self._row}"
            if not isinstance(given, Mapping):
                refuse(where, name, "a dict with an entry per agent", given, _REMEDY)
            for agent in env.agents:
                if agent not in given:
                    refuse(where, name, f"a dict with an entry of {agent}", dict(given), _REMEDY)
                check(given[agent], f"{self._env_id}, agent {agent}, row {self._row}")


_REMEDY = "give one entry for each agent in `agents`"
_CHECKS: dict[str, Callable[[Any, str], object]] = {
    "rewards": reward_of,
    "terminations": lambda value, where: flag_of(value, "terminated", where),
    "truncations": lambda value, where: flag_of(value, "truncated", where),
    "infos": check_info,
}
"""The dicts of an ``AECEnv`` that the conversion reads."""


def _is_pettingzoos(error: Exception) -> bool:
    """Return whether PettingZoo's own code has raised ``error``."""
    frames = [frame for frame, _ in walk_tb(error.__traceback__)]
    return str(frames[-1].f_globals.get("__name__")).startswith("pettingzoo.utils.")
