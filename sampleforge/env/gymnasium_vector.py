"""The env vector over a gymnasium VectorEnv, of any autoreset mode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from sampleforge.config import ConfigError
from sampleforge.env.adapter import ObservationAdapter, env_spec
from sampleforge.env.config import EnvConfig
from sampleforge.env.env_code import making
from sampleforge.env.interface import check_apart, checked_reset, own_limit_of_rows, refuse_step
from sampleforge.env.step_values import (
    EPISODE_STATS,
    SUCCESSES,
    TRUE_OBJECTIVE,
    check_info,
    offered_shaping,
    refuse,
    write_flags,
    write_rewards,
)
from sampleforge.env.tasks import RowTasks, task_setter
from sampleforge.env.vector import Array, EnvVector, Episode, StepOut
from sampleforge.spec import ACTION, ACTION_MASK, EnvSpaces, unflatten


def autoreset_mode(env: VectorEnv[Any, Any, Any], env_id: str) -> AutoresetMode:
    """Return the autoreset mode in the environment's metadata. Raises ConfigError if there is
    none."""
    mode = (env.metadata or {}).get("autoreset_mode")
    try:
        return AutoresetMode(mode)
    except ValueError as error:
        raise ConfigError(
            f"{env_id}: the VectorEnv's metadata['autoreset_mode'] is {mode!r}, but must be a "
            "gymnasium.vector.AutoresetMode: nothing else tells a reset observation from a final "
            "one. Set it in the class, e.g. metadata = "
            "{'autoreset_mode': AutoresetMode.NEXT_STEP}"
        ) from error


class GymnasiumVector(EnvVector):
    """The adapter of a gymnasium VectorEnv.

    NEXT_STEP gives the canonical layout. SAME_STEP and DISABLED give the layout "same_step": under
    DISABLED the rows that ended are reset at once (``reset_mask``), because a VectorEnv can only
    step all its rows together. gymnasium's AsyncVectorEnv starts stepping in ``send``. An exception
    in a step ends the run, because a VectorEnv has one state for all its rows.
    """

    def __init__(
        self,
        config: EnvConfig,
        env: VectorEnv[Any, Any, Any],
        seeds: Sequence[int],
        *,
        frame_skip: int = 1,
        protocol: str = "",
        max_episode_steps: int | None = None,
        asynchronous: bool = False,
    ) -> None:
        self._mode = autoreset_mode(env, config.env)
        if (own := own_limit_of_rows(env)) is not None:
            max_episode_steps = min(own, max_episode_steps or own)
        space, action_space = env.single_observation_space, env.single_action_space
        spec = env_spec(
            config.env,
            EnvSpaces(space, action_space),
            metadata=env.metadata,
            autoreset="next_step" if self._mode is AutoresetMode.NEXT_STEP else "same_step",
            frame_skip=frame_skip,
            max_episode_steps=max_episode_steps,
            protocol=protocol,
            asynchronous=asynchronous or isinstance(env, AsyncVectorEnv),
            reward_shaping=offered_shaping(env, config.env),
            takes_task=task_setter(env) is not None,
        )
        super().__init__(spec, len(seeds))
        if env.num_envs != len(seeds):
            raise ConfigError(
                f"{config.env}: the VectorEnv has num_envs {env.num_envs}, but {len(seeds)} were "
                "asked for; its factory must honour its argument num_envs"
            )
        if isinstance(env.unwrapped, SyncVectorEnv):
            check_apart(env.unwrapped.envs)
        if _OPEN.setdefault(id(env.unwrapped), self) is not self:
            raise ConfigError(
                f"{config.env}: its factory returned the same VectorEnv again, and two workers or "
                "splits of one process would step it in turns; return a new one at each call"
            )
        self._env = env
        self._tasks = RowTasks.of_this_call(1)
        self._step_info: Mapping[str, Any] = {}
        self._all_rows = f"all {env.num_envs} rows"
        self._seeds = list(seeds)
        self._observations = ObservationAdapter(spec, self.converted)
        self._is_gymnasiums_own = isinstance(env.unwrapped, SyncVectorEnv | AsyncVectorEnv)
        self._resets_rows = self._is_gymnasiums_own or self._mode is AutoresetMode.DISABLED

    def reset(self, obs: Mapping[str, Array]) -> None:
        if self._tasks is not None:
            self._tasks.follow(0, self._env)
        # Only gymnasium's own VectorEnvs take a seed per row; others are promised to take an int.
        seed: Any = self._seeds if self._is_gymnasiums_own else self._seeds[0]
        with making():
            result = self._env.reset(seed=seed)
        observations, info = checked_reset(result, self.spec.env_id, self._all_rows)
        self._check_info(info)
        self._write(observations, obs)
        self._check_masks(obs)
        self._check_first_obs(obs)

    def _restart(self, row: int, obs: Mapping[str, Array]) -> bool:
        if not self._resets_rows:
            return False
        self._reset_rows(np.arange(self.num_rows) == row, obs)
        return True

    def _reset_rows(self, rows: Array, obs: Mapping[str, Array]) -> None:
        """Reset the rows ``rows``, bool [rows], at once, and write their first observations."""
        result = self._env.reset(options={"reset_mask": rows})
        observations, info = checked_reset(result, self.spec.env_id, self._all_rows)
        self._check_info(info)
        self._write(observations, obs, rows)
        self._check_masks(obs)

    def _begin(self, actions: dict[str, Array]) -> None:
        # It may write to what it is given, and the slots keep a Discrete leaf that is passed on.
        own = {name: array.copy() for name, array in actions.items()}
        self._actions = unflatten(self.action_space, own, ACTION)
        if isinstance(self._env, AsyncVectorEnv):
            self._env.step_async(self._actions)

    def _step(self) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        if isinstance(self._env, AsyncVectorEnv):
            return self._env.step_wait()
        result = self._env.step(self._actions)
        if len(result) != 5:
            refuse_step(result, self.spec.env_id, self._all_rows)
        return result

    def _complete(self, out: StepOut) -> None:
        env_id = self.spec.env_id
        observations, reward, terminated, truncated, info = self._step()
        write_rewards(out.reward, reward, env_id)
        write_flags(out.terminated, terminated, "terminated", env_id)
        write_flags(out.truncated, truncated, "truncated", env_id)
        self._check_info(info)
        self._step_info = info
        ended = out.terminated | out.truncated
        if info:
            self._take_results(info, ended)
        self._write(observations, out.obs)
        if not self._same_step:
            self._check_masks(out.obs, ended)
            return
        if ended.any():
            assert out.final_obs is not None, "the layout same_step needs final_obs"
            if self._mode is AutoresetMode.DISABLED:
                self._write(observations, out.final_obs, ended)
                self._reset_rows(ended, out.obs)
            else:
                self._write_final(info, ended, out.final_obs)
            self._check_masks(out.final_obs, np.ones_like(ended))
        self._check_masks(out.obs)

    def _check_info(self, info: Any) -> None:
        """Raise ConfigError for an info that is no dict, or has masks that nothing would read."""
        check_info(info, f"{self.spec.env_id}, {self._all_rows}")
        if ACTION_MASK in info and not self._observations.has_mask:
            raise ConfigError(
                f"{self.spec.env_id}: this VectorEnv has its masks in info[{ACTION_MASK!r}]; "
                f"give them as the observation leaf {ACTION_MASK!r} of a Dict space, or use "
                "--env-backend single"
            )

    def _take_results(self, info: Mapping[str, Any], ended: Array) -> None:
        """Take the results and the statistics of episodes from the info of a step with which the
        rows ``ended``, bool [rows], have ended. Those of rows that SAME_STEP has reset are in
        info["final_info"]; what is beside it is of their resets."""
        stepped = np.ones_like(ended) if self._same_step else np.logical_not(self._ended)
        final = info.get("final_info")
        if self._mode is AutoresetMode.SAME_STEP and isinstance(final, Mapping):
            self._take_results_of(final, ended, ended)
            stepped &= ~ended
        self._take_results_of(info, stepped, ended | self._due())

    def _due(self) -> Array:
        """Return the rows whose episodes end with this step because their time is over, which the
        environment does not know, bool [rows]."""
        return np.zeros(self.num_rows, np.bool_)

    def _take_results_of(self, info: Mapping[str, Any], rows: Array, ended: Array) -> None:
        """Take them of the ``rows``, bool [rows]; statistics and successes of those among them that
        have ended (``ended``), because a VectorEnv may give all rows some at every step."""
        of_ends = [name for name in (EPISODE_STATS,) if name in info]
        of_ends += [name for name in SUCCESSES if _is_by_row(info.get(name), self.num_rows)]
        at_all = [name for name in (TRUE_OBJECTIVE,) if name in info]
        which = rows if at_all else rows & ended if of_ends else ()
        for row in np.flatnonzero(which).tolist():
            found = {
                name: value_of_row(info, name, row, self.num_rows, self.spec.env_id)
                for name in [*at_all, *(of_ends if ended[row] else ())]
            }
            own = {name: value for name, value in found.items() if value is not NOTHING}
            self.take_results(row, own, f"{self.spec.env_id}, row {row}")

    def row_info(self, row: int) -> Mapping[str, Any]:
        """Return the entries of ``row``, and what the info has for all rows together."""
        final, info, rows = self._step_info.get("final_info"), self._step_info, self.num_rows
        if self._same_step and self._ended[row] and isinstance(final, Mapping):
            info = final  # what is beside it is of the reset
        masks = {f"_{name}" for name in info}
        found = {
            name: value_of_row(info, name, row, rows, self.spec.env_id)
            if isinstance(info[name], Mapping) or _is_by_row(info[name], rows)
            else info[name]
            for name in info
            if name not in masks
        }
        return {name: value for name, value in found.items() if value is not NOTHING}

    def _check_masks(self, obs: Mapping[str, Array], ended: Array | None = None) -> None:
        """Check the masks of observations, as `ObservationAdapter.check_masks` does."""
        if self._observations.has_mask:
            none = np.zeros(self.num_rows, np.bool_)
            self._observations.check_masks(obs[ACTION_MASK], none if ended is None else ended)

    def _write(
        self, observations: Any, obs: Mapping[str, Array], rows: Array | slice = slice(None)
    ) -> None:
        """Write the rows ``rows`` of batched observations into the slots' arrays. Raises
        ConfigError for a missing leaf, and for a wrong shape or dtype."""
        self._observations.write_rows(rows, observations, obs)

    def _write_final(
        self, info: Mapping[str, Any], ended: Array, final_obs: Mapping[str, Array]
    ) -> None:
        """Write the final observations in ``info`` of the rows that ended. Raises ConfigError if
        there are none."""
        final = info.get("final_obs")
        if final is None:
            raise ConfigError(
                f"{self.spec.env_id}: a SAME_STEP VectorEnv must give the final observations in "
                f"info['final_obs'], but the info has {sorted(info)}; without them a truncated "
                "episode cannot be bootstrapped"
            )
        if not isinstance(final, np.ndarray) or final.dtype != object:  # one batch for all rows
            self._write(final, final_obs, ended)
            return
        for row in np.flatnonzero(ended).tolist():  # an object array: one observation per row
            self._observations.write(row, final[row], {}, final_obs)

    def _finish_episodes(self) -> list[Episode]:
        if self._tasks is not None:  # for the next resets, which are the VectorEnv's own
            self._tasks.follow(0, self._env)
        return super()._finish_episodes()

    @property
    def mode(self) -> AutoresetMode:
        """The autoreset mode of the VectorEnv."""
        return self._mode

    def set_reward_shaping(self, numbers: Mapping[str, float]) -> None:
        if not self.spec.reward_shaping:
            super().set_reward_shaping(numbers)
        self._env.unwrapped.reward_shaping.update(numbers)  # type: ignore[attr-defined]

    def row_env(self, row: int) -> VectorEnv[Any, Any, Any]:
        return self._env

    def close(self) -> None:
        _OPEN.pop(id(self._env.unwrapped), None)
        self._env.close()


_OPEN: WeakValueDictionary[int, GymnasiumVector] = WeakValueDictionary()
"""The vectors of this process that step a VectorEnv, by its id."""


class TruncatedVector(GymnasiumVector):
    """A `GymnasiumVector` whose episodes are truncated after ``config.max_episode_steps`` steps.
    Raises ConfigError if its rows cannot be reset one by one."""

    def __init__(
        self, config: EnvConfig, env: VectorEnv[Any, Any, Any], seeds: Sequence[int]
    ) -> None:
        assert config.max_episode_steps is not None
        self._limit = config.max_episode_steps
        super().__init__(config, env, seeds, max_episode_steps=self._limit)
        self._cut = np.zeros(self.num_rows, np.bool_)
        """Rows that were truncated here in the step before, which the environment does not know."""
        if not self._resets_rows:
            raise ConfigError(
                f"{config.env} makes rows of its own (it takes num_envs), and --max-episode-steps "
                f"{self._limit} does not reach them, because a VectorEnv with autoreset mode "
                f"{self._mode.name} resets no single row; give the limit to the environment, as "
                "an argument of its own in --env-kwargs, or use AutoresetMode.DISABLED"
            )

    def _complete(self, out: StepOut) -> None:
        super()._complete(out)
        due = self._due()
        if self._same_step:
            self._cut_same_step(out, due)
            return
        if self._cut.any():  # they were stepped once more; their flags are ignored
            self._reset_rows(self._cut, out.obs)
        self._cut = due & ~(out.terminated | out.truncated)
        out.truncated |= due

    def _due(self) -> Array:
        due: Array = self._lengths + 1 >= self._limit
        return due if self._same_step else due & ~self._ended

    def _cut_same_step(self, out: StepOut, due: Array) -> None:
        """Truncate the rows ``due``, and reset those that the environment has not reset."""
        cut = due & ~(out.terminated | out.truncated)
        out.truncated |= due
        if cut.any():
            assert out.final_obs is not None, "the layout same_step needs final_obs"
            for name, leaf in out.obs.items():
                out.final_obs[name][cut] = leaf[cut]
            self._reset_rows(cut, out.obs)


NOTHING = object()
"""In place of the value of a row that has none."""


def value_of_row(info: Mapping[str, Any], name: str, row: int, rows: int, env_id: str) -> Any:
    """Return what ``info`` holds under ``name`` for one ``row`` of ``rows``; `NOTHING` if it has
    nothing for it.

    gymnasium gives an array (or list) with an entry per row, or a dict of such, and beside it, as
    ``_name``, a bool array of the rows that have one (none: all have). Raises ConfigError for
    anything else."""
    if name not in info:
        return NOTHING
    value, having = info[name], info.get(f"_{name}")
    if having is not None and not _entry(having, f"_{name}", row, rows, env_id):
        return NOTHING
    if not isinstance(value, Mapping):
        return _entry(value, name, row, rows, env_id)
    masks = {f"_{key}" for key in value}
    own = {k: value_of_row(value, k, row, rows, env_id) for k in value if k not in masks}
    return {key: each for key, each in own.items() if each is not NOTHING}


def _is_by_row(column: Any, rows: int) -> bool:
    """Return whether a value of an info has an entry for each of the ``rows``."""
    if isinstance(column, np.ndarray):
        return bool(column.shape[:1] == (rows,))
    return isinstance(column, list | tuple) and len(column) == rows


def _entry(column: Any, name: str, row: int, rows: int, env_id: str) -> Any:
    if _is_by_row(column, rows):
        return column[row]
    refuse(
        f"{env_id}, all {rows} rows",
        f"info[{name!r}]",
        f"an array with an entry for each of the {rows} rows",
        column,
        f"return one, and beside it _{name}, a bool array of the rows that have an entry",
    )
