"""Functions and modules of the user's own, which flags name as package.module:function."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

from sampleforge.config import ConfigError
from sampleforge.env.env_code import making
from sampleforge.env.scratch import make_cwd_importable


def import_function(flag: str, name: str) -> Callable[..., Any]:
    """Return the function ``name``, package.module:function, which ``flag`` names. Raises
    ConfigError if there is no such function."""
    attribute = name.partition(":")[2]
    module = import_user_module(flag, name)
    function = getattr(module, attribute, None)
    if not callable(function):
        raise ConfigError(f"{flag} {name}: {module.__name__} has no function {attribute!r}")
    found: Callable[..., Any] = function
    return found


def import_user_module(flag: str, name: str) -> ModuleType:
    """Return the module of ``name``, package.module:attribute, which ``flag`` names. It may be in
    the working directory. Raises ConfigError if there is no such module."""
    module_name = name.partition(":")[0]
    make_cwd_importable()
    try:
        with making():
            return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # the module exists, but one that it imports does not
        raise ConfigError(
            f"{flag} {name}: there is no module {error.name!r}; modules are looked for in the "
            "working directory and where Python finds packages"
        ) from error
