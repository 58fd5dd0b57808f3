"""Fast import of torch and of the modules that import it."""

from __future__ import annotations

import gc
import importlib
import sys


def import_heavy(*names: str) -> None:
    """Import modules with the garbage collector off, and exempt their objects from it permanently.

    These modules create 180,000 objects, none of them garbage, which the collector would visit
    again and again: during the import (1.7 s of processor time; 1.3 s without the collector), at
    the end of the interpreter (0.6 s; 0.15 s without these objects), and in a forked child, where
    a visit copies their memory pages.
    """
    if "torch" in sys.modules:  # a user's program, whose own objects must not be exempted
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
