"""Whether a preset was made for an environment of the kind that it is used for."""

from __future__ import annotations

from sampleforge.config import ConfigError
from sampleforge.presets import preset_values
from sampleforge.run.callback import Callback
from sampleforge.run.session import Session


class PresetFit(Callback):
    """Warns before the wiring if a preset was made for an environment of another kind than that of
    the run. For one of the same kind, such as another Atari game, it is meant to be used."""

    def __init__(self, algo: str, preset: str) -> None:
        self._preset = preset
        self._env = str(preset_values(algo, preset).get("env", ""))

    def on_wire(self, session: Session) -> None:
        env = session.config.env
        if not self._env or kind_of(env) == kind_of(self._env):
            return
        session.message(
            f"--preset {self._preset} was made for {self._env}, and --env {env} is of another "
            "kind, in which its settings may learn nothing. Leave out --preset for the defaults, "
            "which are fitted to the environment",
            "warning",
        )


def kind_of(env: str) -> str:
    """Return what an environment has in common with those of its kind: the package of its class, if
    gymnasium knows it, else its family, or the module of your own; the id itself if it is not
    known."""
    import gymnasium

    from sampleforge.env.registry import find

    if ":" in env:
        return env.partition(":")[0]
    try:
        family = find(env)
    except ConfigError:  # its package is not installed
        return env
    known = gymnasium.registry.get(env)
    if known is not None and isinstance(known.entry_point, str):
        return known.entry_point.partition(":")[0].rpartition(".")[0]
    return env if family is None else family.name
