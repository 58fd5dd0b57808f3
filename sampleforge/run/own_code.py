"""Whether code of the user's own takes part in a run or in a game, and the working directory of its
processes: the caller's where it does."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from sampleforge.algorithms.annealing import annealings
from sampleforge.env.user_code import keeps_directory, make_cwd_importable, scratch_directory
from sampleforge.run.folder.trust import IMPORTABLE, imports_code


@contextmanager
def playing_directory(*configs: Any) -> Iterator[None]:
    """Play in the caller's working directory, whose modules are importable, if an environment or a
    policy of these configs is code of the user's own, which may read files by relative paths;
    otherwise in a temporary one."""
    if any(keeps_directory(config.env) or imports_code(config) for config in configs):
        make_cwd_importable()
        yield
    else:
        with scratch_directory(cwd_importable=False):
            yield


def has_own_code(config: Any, callbacks: Iterable[object] = ()) -> bool:
    """Return whether code of the user's own takes part in a run: an environment or a policy, an
    algorithm, a schedule, a mapping, what measures an evaluation, or one of the ``callbacks``. It
    may read and write files by paths relative to the directory in which the run was started."""
    homes = [config.pairing, *(type(each).__module__ for each in (config, *callbacks))]
    return (
        keeps_directory(config.env, config.evaluate_env)
        or imports_code(config, IMPORTABLE)
        or any(schedule.is_code for schedule in annealings(config).values())
        or not all(home.startswith("sampleforge.") for home in homes)
    )
