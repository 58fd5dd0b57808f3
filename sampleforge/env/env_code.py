"""Settings of the process that the code of environments may change, and that the rest of it keeps.

A module that calls ``torch.set_default_dtype(torch.float64)``, turns logging off or changes the
working directory would do so for its whole process, also for the policy and the learner in it. So
code of environments runs in `env_code`, and what imports, constructs or renews an environment in
`making`: at the end the settings are as they were before, and the next code of environments in this
thread finds its own ones again. (A few are never the environment's: see `_Kept`.)

SystemExit, KeyboardInterrupt and GeneratorExit of an environment become `EnvironmentExit`, an error
like others.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np

from sampleforge.runtime.processes import MissingMainGuard

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""Signals by which a run is ended with a checkpoint, a worker outlives the end of its terminal, or
the stacks are dumped."""

log = logging.getLogger(__name__)


class EnvironmentExit(RuntimeError):
    """An environment has raised SystemExit or KeyboardInterrupt, as if the user had, or
    GeneratorExit."""


def as_error(raised: BaseException) -> Exception:
    """Return what the code of an environment has ``raised``: SystemExit, KeyboardInterrupt and
    GeneratorExit as an EnvironmentExit. Raises ``raised`` itself if it is the user's Ctrl-C, or no
    error at all."""
    if isinstance(raised, Exception):
        return raised
    of_user = isinstance(raised, MissingMainGuard) or (
        isinstance(raised, KeyboardInterrupt)
        and threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )
    ending = SystemExit | KeyboardInterrupt | GeneratorExit
    if of_user or not isinstance(raised, ending):
        raise raised
    found = EnvironmentExit(
        f"the environment raised {raised!r}, which would end the whole program; an environment "
        "must raise an Exception"
    )
    found.__cause__ = raised
    found.__dict__.update(raised.__dict__)  # such as the stage in which it was raised
    return found


class _Torch(NamedTuple):
    """Settings of torch, which any step may change."""

    dtype: Any
    grad: bool
    device: Any

    def write(self) -> None:
        torch = sys.modules["torch"]
        torch.set_default_dtype(self.dtype)
        torch.set_grad_enabled(self.grad)
        torch.set_default_device(self.device)


def _read_torch() -> tuple[Any, ...] | None:
    """Return the fields of `_Torch` as they are; None as long as torch is not imported. It takes
    0.5 us."""
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "set_default_device"):
        return None
    # Asking for the device takes 3 us; as long as no mode is active, there is none.
    modes = torch._C._len_torch_function_stack()
    device = torch.get_default_device() if modes else None
    return torch.get_default_dtype(), torch.is_grad_enabled(), device


def _torch_at_import() -> tuple[Any, ...] | None:
    """Return the settings that torch is imported with; None as long as it is not."""
    torch = sys.modules.get("torch")
    return None if torch is None else (torch.float32, True, None)


class _Surroundings(NamedTuple):
    """Settings that a module or constructor may change. ``errors``: what numpy does on
    floating-point errors; ``silenced``: the level of ``logging.disable``."""

    errors: Any
    silenced: int
    folder: str | None
    stdout: Any
    stderr: Any

    @classmethod
    def read(cls) -> _Surroundings:
        folder = None
        with suppress(OSError):  # it was removed
            folder = os.getcwd()
        return cls(np.geterr(), logging.root.manager.disable, folder, sys.stdout, sys.stderr)

    def write(self) -> None:
        np.seterr(**self.errors)
        logging.disable(self.silenced)
        if self.folder is not None:
            with suppress(OSError):  # it was removed meanwhile
                os.chdir(self.folder)
        sys.stdout, sys.stderr = self.stdout, self.stderr


class _Kept(NamedTuple):
    """Settings that stay ours also while code of environments runs."""

    handlers: dict[signal.Signals, Any]
    threads: int | None
    warnings: list[Any]
    log_handlers: list[logging.Handler]

    @classmethod
    def read(cls) -> _Kept:
        torch = sys.modules.get("torch")
        return cls(
            {number: signal.getsignal(number) for number in SIGNALS},
            torch.get_num_threads() if torch is not None else None,
            list(warnings.filters),
            list(logging.root.handlers),
        )

    def write(self) -> None:
        if threading.current_thread() is threading.main_thread():
            for number, handler in self.handlers.items():
                if handler is not None and signal.getsignal(number) is not handler:
                    signal.signal(number, handler)
        if self.threads is not None and sys.modules["torch"].get_num_threads() != self.threads:
            sys.modules["torch"].set_num_threads(self.threads)
        # Warnings that it ignores or shows may stay so; those that it makes errors would be ours.
        ours = [each for each in warnings.filters if each[0] != "error" or each in self.warnings]
        if len(ours) < len(warnings.filters):
            warnings.filters[:] = ours  # type: ignore[index]
        for lost in self.log_handlers:
            logging.root.addHandler(lost)  # does nothing if it is there
        for name, logger in logging.root.manager.loggerDict.items():
            if name.partition(".")[0] == "sampleforge" and isinstance(logger, logging.Logger):
                logger.disabled = False  # logging.config's default disables it


class _Sides:
    """The settings of both sides in one thread: ours, and those that environments have changed, or
    None. Contexts may be nested: the outermost one, of ``depth`` 1, acts. ``beside_others``:
    whether the thread steps environments while other threads compute; then settings of the whole
    process are never the environments'."""

    __slots__ = ("beside_others", "depth", "our_torch", "ours", "their_torch", "theirs")

    def __init__(self) -> None:
        self.beside_others = False
        self.depth = 0
        self.our_torch: tuple[Any, ...] | None = None
        self.their_torch: tuple[Any, ...] | None = None
        self.ours: _Surroundings | None = None
        self.theirs: _Surroundings | None = None

    def enter(self) -> None:
        self.our_torch = _read_torch()
        if self.their_torch is not None:
            _Torch(*self.their_torch).write()
        if self.theirs is not None:
            self.ours = _Surroundings.read()
            self.theirs.write()

    def leave(self) -> None:
        torch, ours = _read_torch(), self.our_torch or _torch_at_import()
        self.their_torch = None
        if ours is not None and torch != ours:
            self.their_torch = torch
            _Torch(*ours).write()
        if self.ours is not None:
            now = _Surroundings.read()
            self.theirs = now if now != self.ours else None
            if self.theirs is not None:
                self.ours.write()
            self.ours = None


class _OfThread(threading.local):
    def __init__(self) -> None:
        self.sides = _Sides()


_of_thread = _OfThread()


class _EnvCode:
    """The context in which code of environments runs."""

    def __enter__(self) -> None:
        sides = _of_thread.sides
        sides.depth += 1
        if sides.depth == 1 and not sides.beside_others:
            sides.enter()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        raised: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        sides = _of_thread.sides
        sides.depth -= 1
        if not (sides.depth or sides.beside_others):
            sides.leave()
        if raised is not None and (error := as_error(raised)) is not raised:
            raise error


env_code = _EnvCode()


def begin_process() -> None:
    """Take over, as the environments', the defaults of torch that the main module of the driver's
    script has set in this process, which imports it: it may be their module."""
    torch, first = _read_torch(), _torch_at_import()
    if torch != first and first is not None:
        _of_thread.sides.their_torch = torch
        _Torch(*first).write()


def begin_thread() -> None:
    """Have settings of the process stay as they are in steps of environments in this thread,
    because other threads compute beside it."""
    _of_thread.sides.beside_others = True


@contextmanager
def making() -> Iterator[None]:
    """Run code that imports, constructs or renews environments in the body."""
    kept, sides = _Kept.read(), _of_thread.sides
    try:
        if sides.beside_others:
            with _given_back():
                yield
            return
        with env_code:
            if sides.ours is None:
                sides.ours = _Surroundings.read()  # which the outermost context gives back
            yield
    finally:
        kept.write()


@contextmanager
def _given_back() -> Iterator[None]:
    """Give back the settings of the process after the body, in a thread beside others."""
    torch, surroundings = _read_torch(), _Surroundings.read()
    try:
        with env_code:
            yield
    finally:
        surroundings._replace(errors=np.geterr()).write()
        now, ours = _read_torch(), torch or _torch_at_import()
        if now is not None and ours is not None and now[0] is not ours[0]:
            sys.modules["torch"].set_default_dtype(ours[0])
            log.warning(
                "the environment sets torch's default dtype to %s, but its steps have %s: they "
                "are taken in a thread (--variable-experience), and the default is that of the "
                "whole process; name the dtype where the environment creates tensors",
                now[0],
                ours[0],
            )
