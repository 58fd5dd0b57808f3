"""The hooks of callbacks that run in workers, and the way of the callbacks to the workers.

Hooks are looked up once, when a worker starts: one that no callback overrides is not called at all.
This module imports neither torch nor numpy, because `sampleforge.Callback` derives from its class.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, Any, NamedTuple

from sampleforge.config import ConfigError

if TYPE_CHECKING:
    from sampleforge.shared.newest import TaskBoard
    from sampleforge.workers.hooks import EpisodeHandle, LearnerUpdate, RolloutView


class WorkerCallback:
    """The hooks that run in workers; every method does nothing here.

    Every worker calls them on its own copy of the object, as it was before the workers started. So
    what a hook keeps in ``self`` stays in its worker: numbers for the reports go into
    ``custom_metrics``. A worker that replaces a killed one begins with a new copy, and its rows
    begin new episodes.
    """

    def on_episode_start(self, episode: EpisodeHandle) -> None:
        """In the actor (DD-PPO: the rank): an episode of an env row begins; its environment has
        been reset."""

    def on_episode_step(self, episode: EpisodeHandle) -> None:
        """In the actor: the episode's environment has taken a step."""

    def on_episode_end(self, episode: EpisodeHandle) -> None:
        """In the actor: the episode has terminated or was truncated. An episode that is dropped,
        because its environment raised an error or gave a value that is not finite, has no end."""

    def on_rollout_end(self, rollout: RolloutView) -> None:
        """In the actor: a rollout is complete, and about to be handed to the learner (Ape-X: to the
        replay). Its arrays can be read; copy what you keep."""

    def on_learner_update(self, update: LearnerUpdate) -> None:
        """In every learner (DD-PPO: the rank): it has learned from a batch. Add numbers to
        ``update.custom_metrics``; those of learner 0 are reported."""


EPISODE_HOOKS = ("on_episode_start", "on_episode_step", "on_episode_end")
WORKER_HOOKS = (*EPISODE_HOOKS, "on_rollout_end", "on_learner_update")


class Hook(NamedTuple):
    """A hook that a callback overrides. ``name``: package.module:Class.hook."""

    name: str
    function: Callable[[Any], None]


def hook_name(callback: object, hook: str) -> str:
    """Return the name of a callback's hook as error messages have it."""
    cls = type(callback)
    return f"{cls.__module__}:{cls.__qualname__}.{hook}"


def overrides(callback: WorkerCallback, hook: str) -> bool:
    """Return whether a callback overrides one of `WORKER_HOOKS`, by its class or on the object."""
    own = getattr(callback, hook)
    return getattr(own, "__func__", own) is not getattr(WorkerCallback, hook)


CAUSE = "raised by the callback "


def name_cause(error: Exception, hook: str) -> None:
    """Add a note to an exception that names the hook which has raised it, unless it has one: hooks
    may lead to calls of other hooks."""
    if not any(note.startswith(CAUSE) for note in getattr(error, "__notes__", ())):
        error.add_note(f"{CAUSE}{hook}")


def call(hooks: Sequence[Hook], argument: EpisodeHandle | RolloutView | LearnerUpdate) -> None:
    """Call ``hooks`` with their argument, in their order. An exception passes through, with a note
    that names the callback, the hook and the place."""
    for hook in hooks:
        try:
            hook.function(argument)
        except Exception as error:
            name_cause(error, f"{hook.name} in {argument.place}")
            raise


def numbers(metrics: Mapping[str, Any], place: str) -> dict[str, float]:
    """Return ``custom_metrics`` as floats. Raises TypeError, which names ``place``, for a value
    that is not a number."""
    plain = {}
    for name, value in metrics.items():
        try:
            plain[str(name)] = float(value)
        except (TypeError, ValueError) as error:
            raise TypeError(
                f"{place}: custom_metrics[{name!r}] is {value!r:.80}, but must be a number"
            ) from error
    return plain


class WorkerCallbacks:
    """The callbacks of one worker: a copy of each of ``callbacks``, which is made when the worker
    first needs it. ``worker``: the worker's number among those of its kind. ``policies``: the ids
    of the policies that it deals with, by their index. It can be pickled to the worker's process.
    """

    def __init__(
        self, callbacks: Sequence[WorkerCallback], worker: int, policies: Sequence[str]
    ) -> None:
        self.worker = worker
        self.policies = tuple(policies)
        self._originals = tuple(callbacks)
        self._copies: tuple[WorkerCallback, ...] | None = None

    def hooks(self, hook: str) -> tuple[Hook, ...]:
        """Return the hooks of this name, of the callbacks that override it."""
        if self._copies is None:
            self._copies = copy.deepcopy(self._originals)
        return tuple(
            Hook(hook_name(callback, hook), getattr(callback, hook))
            for callback in self._copies
            if overrides(callback, hook)
        )


@dataclass(frozen=True)
class RunHooks:
    """What connects the workers of a run with its callbacks: the ``callbacks`` that have hooks in
    workers, the ids of all ``policies``, by their index, and the tasks of the training and of its
    evaluator (None: the environment takes none)."""

    callbacks: tuple[WorkerCallback, ...] = ()
    policies: tuple[str, ...] = ()
    tasks: TaskBoard | None = None
    evaluation_tasks: TaskBoard | None = None

    def of_worker(
        self, worker: int, policies: Sequence[str] | None = None
    ) -> WorkerCallbacks | None:
        """Return the callbacks of one worker, None if there are none. ``policies``: those that it
        deals with (default: all)."""
        if not self.callbacks:
            return None
        own = self.policies if policies is None else policies
        return WorkerCallbacks(self.callbacks, worker, own)


NO_HOOKS = RunHooks()


def for_workers(
    callbacks: Sequence[WorkerCallback], *, processes: bool
) -> tuple[WorkerCallback, ...]:
    """Return copies of those of ``callbacks`` that have hooks in workers, as they are now.

    Raises ConfigError for an object that cannot be copied, or, if workers are ``processes``, that
    cannot be sent to one."""
    copies = []
    for callback in callbacks:
        hook = next((hook for hook in WORKER_HOOKS if overrides(callback, hook)), None)
        if hook is None:
            continue
        try:
            copies.append(copy.deepcopy(callback))
            if processes:
                ForkingPickler.dumps(callback)
        except Exception as error:
            raise ConfigError(
                f"the callback {hook_name(callback, hook)} runs in the workers, each of which gets "
                f"a copy of the object, but that is not possible: {error}. Define the class at the "
                "top of a module or script, make the object anew if its class was defined anew, "
                "and make what cannot be pickled in the first hook that needs it, or leave it out "
                "in __getstate__"
            ) from error
    return tuple(copies)
