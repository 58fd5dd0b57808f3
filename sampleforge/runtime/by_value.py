"""Objects that a program sends to its own workers together with their code, by cloudpickle: what is
defined in a notebook, or inside a function, no worker can import.

Bytes of cloudpickle can hold any code. So no file of a run folder holds them, and only `dumps` of
the program that started the workers makes what `loads` is given.
"""

from __future__ import annotations

import functools
import io
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import MISSING
from multiprocessing.reduction import ForkingPickler
from typing import Any

from sampleforge.config import ConfigError
from sampleforge.runtime.processes import is_interactive


def dumps(value: Any) -> bytes:
    """Return ``value`` as bytes, with the classes and functions that no worker could import."""
    import cloudpickle

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        def reducer_override(self, value: Any) -> Any:
            # The mark for "no default" of a dataclass's fields is told by its identity.
            own = "MISSING" if value is MISSING else _of_functools(value)
            return super().reducer_override(value) if own is None else own

    file = io.BytesIO()
    Pickler(file).dump(value)
    return file.getvalue()


def _of_functools(value: Any) -> tuple[Any, ...] | None:
    """Return how to make ``value`` again, if it is a decorated function that cloudpickle would send
    by a name that no worker finds (`functools.cache`), or not at all (up to Python 3.11 a
    `functools.cached_property` has a lock); else None."""
    if isinstance(value, functools.cached_property):
        return functools.cached_property, (value.func,), {"attrname": value.attrname}
    if isinstance(value, functools._lru_cache_wrapper):
        name = getattr(value, "__qualname__", "")
        if getattr(value, "__module__", None) == "__main__" or "<locals>" in name:
            return _cached, (value.__wrapped__, value.cache_parameters())
    return None


def _cached(function: Any, parameters: dict[str, Any]) -> Any:
    return functools.lru_cache(**parameters)(function)


def loads(pickled: bytes) -> Any:
    """Return a new object from the bytes of `dumps`."""
    import cloudpickle

    return cloudpickle.loads(pickled)


class Definitions:
    """The classes, functions and other objects of an interactive session or a notebook that
    ``values`` refer to, or name in a text as ``__main__:NAME``: as they are now, with what they
    use.

    A worker that is sent this object first finds them in its own main module. Raises ConfigError
    for what cannot be sent.
    """

    def __init__(self, values: Any) -> None:
        main, found, new = vars(sys.modules["__main__"]), dict[str, Any](), values
        try:
            while new:
                names = _names(new, by_name=new is values) & main.keys() - found.keys()
                new = {name: main[name] for name in sorted(names)}
                found |= new
            self._pickled, self._found = dumps(found) if found else b"", found
        except Exception as error:
            raise ConfigError(
                f"{', '.join(found) or 'what the config names'}: defined in an interactive "
                "session, a notebook or a __main__.py, so that the "
                f"workers get a copy of it, with what it uses, but that is not possible: {error!r}."
                " Make what cannot be pickled inside it, put it into a module, or train in this "
                "process alone (--serial)"
            ) from error

    @property
    def are_any(self) -> bool:
        """Whether the values refer to anything in the main module."""
        return bool(self._found)

    def __reduce__(self) -> tuple[Any, ...]:
        return _define, (self._pickled,)


_CHANGING = threading.RLock()
"""Held while the main module is changed: several threads may have sessions."""


@contextmanager
def as_sent(definitions: Definitions | None) -> Iterator[None]:
    """Have the main module hold what ``definitions`` were made of: a cell may have defined it anew
    since then, and an object of a class is pickled by the name that the class has there."""
    main, found = vars(sys.modules["__main__"]), {} if definitions is None else definitions._found
    with _CHANGING:
        now = {name: main[name] for name in found.keys() & main.keys()}
        main.update(found)
        try:
            yield
        finally:
            for name in found:
                main.pop(name, None)
            main.update(now)


def of_main(name: str) -> Any:
    """Return what ``__main__:NAME`` is in an interactive session or a notebook; None for any other
    name."""
    own = name.removeprefix("__main__:")
    return vars(sys.modules["__main__"]).get(own) if own != name and is_interactive() else None


def definitions(*values: Any) -> Definitions | None:
    """Return the `Definitions` of values that are sent to workers, None if there are none, or if
    the main module is a script, which workers import."""
    found = Definitions(values) if is_interactive() else None
    return found if found is not None and found.are_any else None


class _Pickler(ForkingPickler):
    """Collects in ``names`` what of the main module a pickle refers to. ``by_name``: others have to
    find it by the name that it has there."""

    def __init__(self, file: io.BytesIO, *, by_name: bool) -> None:
        super().__init__(file)
        self.names: set[str] = set()
        self._of_main = NotImplemented if by_name else (str, ())

    def reducer_override(self, value: Any) -> Any:
        if getattr(value, "__module__", None) == "__main__" and hasattr(value, "__qualname__"):
            if "<locals>" not in value.__qualname__:
                self.names.add(value.__qualname__.partition(".")[0])
            return self._of_main
        return NotImplemented


def _names(value: Any, *, by_name: bool) -> set[str]:
    """Return the names in the main module that a pickle of ``value`` refers to or has in a text."""
    file = io.BytesIO()
    pickler = _Pickler(file, by_name=by_name)
    pickler.dump(value)
    return pickler.names | {
        name.decode() for name in re.findall(rb"__main__:(\w+)", file.getvalue())
    }


def _define(pickled: bytes) -> None:
    vars(sys.modules["__main__"]).update(loads(pickled))
