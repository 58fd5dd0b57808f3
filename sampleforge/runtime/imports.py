"""Importing torch and what hangs on it, faster."""

from __future__ import annotations

import gc
import importlib
import sys


def import_heavy(*names: str) -> None:
    """Import modules without the garbage collector, and exempt what they made from it for good.

    They make 180,000 objects, none of them garbage, and the collector looks at all of them again
    and again: while they are imported (1.7 s of processor time, 1.3 s without it), when the
    interpreter ends (0.6 s, 0.15 s without them), and in a forked child, where it copies them.
    """
    if "torch" in sys.modules:  # a user's program: its objects are not ours to exempt
        for name in names:
            importlib.import_module(name)
        return
    gc.disable()
    try:
        for name in names:
            importlib.import_module(name)
        gc.freeze()
    finally:
        gc.enable()
