"""PettingZoo's conversion of environments in which the agents act one after the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from traceback import walk_tb
from typing import Any

from sampleforge.env.step_values import check_info, flag_of, refuse, reward_of


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
