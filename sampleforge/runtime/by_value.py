"""Objects that a program sends to its own workers together with their code, by cloudpickle: what is
defined in a notebook, or inside a function, no worker can import.

Bytes of cloudpickle can hold any code. So no file of a run folder holds them, and only `dumps` of
the program that started the workers makes what `loads` is given.
"""

from __future__ import annotations

from typing import Any


def dumps(value: Any) -> bytes:
    """Return ``value`` as bytes, with the classes and functions that no worker could import."""
    import cloudpickle

    pickled: bytes = cloudpickle.dumps(value)
    return pickled


def loads(pickled: bytes) -> Any:
    """Return a new object from the bytes of `dumps`."""
    import cloudpickle

    return cloudpickle.loads(pickled)
