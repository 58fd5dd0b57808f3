"""The probe of an environment, remembered."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from sampleforge.env import probe
from sampleforge.env.config import EnvConfig
from sampleforge.spec import EnvSpec
from tests.support.command_server import COMMAND_SERVER

STEADY = ("CartPole-v1", "Acrobot-v1", "Pendulum-v1", "MinAtar/Breakout", "PaddleDuel-v0")
"""Environments that no test changes; nor those of the tests' own modules."""
_by_probe = probe.probe


class Remembered:
    """What `probe` returns, once only for each steady environment with its settings, if there was
    nothing to warn of. A probe is the start of an interpreter: a fifth of a second of a core, two
    seconds if the environment's module imports torch. With a ``folder``, forks of this process
    find there what another one has probed. ``popen``: what starts the probe's child in the place of
    `subprocess.Popen`."""

    def __init__(self, folder: Path | None = None, popen: Any = subprocess.Popen) -> None:
        self._folder, self._popen = folder, popen
        self._specs: dict[str, EnvSpec] = {}
        self._patching = threading.Lock()

    def __call__(
        self,
        config: EnvConfig,
        warn: Callable[[str], None] = probe.log.warning,
        not_closed: Callable[[str], None] | None = None,
    ) -> EnvSpec:
        steady = config.env in STEADY or config.env.startswith("tests.")
        if not steady or not_closed is not None:
            return self._probed(config, warn, not_closed)
        key = json.dumps(probe._own_part(config), sort_keys=True, default=str)
        if key not in self._specs and not self._read(key):
            warnings = list[str]()
            spec = self._probed(config, warnings.append)
            for warning in warnings:
                warn(warning)
            if warnings:
                return spec
            self._specs[key] = spec
            self._write(key)
        return self._specs[key]

    def _probed(
        self,
        config: EnvConfig,
        warn: Callable[[str], None],
        not_closed: Callable[[str], None] | None = None,
    ) -> EnvSpec:
        ours = SimpleNamespace(**{**vars(subprocess), "Popen": self._popen})
        with self._patching, pytest.MonkeyPatch.context() as patched:
            patched.setattr(probe, "subprocess", ours)
            return _by_probe(config, warn, not_closed)

    def _file(self, key: str) -> Path | None:
        name = hashlib.sha256(key.encode()).hexdigest()
        return None if self._folder is None else self._folder / name

    def _read(self, key: str) -> bool:
        """Take what another process has written, if there is anything."""
        file = self._file(key)
        if file is None or not file.exists():
            return False
        self._specs[key] = pickle.loads(file.read_bytes())
        return True

    def _write(self, key: str) -> None:
        file = self._file(key)
        if file is not None:
            whole = file.with_suffix(f".{os.getpid()}")
            whole.write_bytes(pickle.dumps(self._specs[key]))
            whole.replace(file)


def probe_by(spec_of: Callable[[EnvConfig], EnvSpec], monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the sessions of this process get the specs of environments from ``spec_of``."""
    for module in ("sampleforge.run.beginning", "sampleforge.env.probe"):
        monkeypatch.setattr(f"{module}.probe", lambda config, *_: spec_of(config))


def with_probe() -> list[ModuleType]:
    """The modules of the package that have the probe by its name, among those that are imported
    now. Those that are imported later take it from the module that defines it, the first here."""
    ours = [module for name, module in sys.modules.items() if name.startswith("sampleforge.")]
    importers = [each for each in ours if vars(each).get("probe") is _by_probe]
    return [probe, *(each for each in importers if each is not probe)]


def _forked(words: list[str], *, process_group: int, **options: Any) -> subprocess.Popen[Any]:
    """Start a probe's child as a fork of the command server, which leads a session, and with it a
    process group."""
    assert process_group == 0 and words[1:3] == ["-P", "-c"], words[:3]
    return COMMAND_SERVER.popen(words[2:], **options)


remembered_probe = Remembered(popen=_forked if sys.platform == "linux" else subprocess.Popen)
"""For the sessions of this process."""
