"""The Trainer: a run that a script or a notebook follows step by step."""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

import numpy.typing as npt
import torch

from sampleforge.learner_states import LearnerStates
from sampleforge.loaded_policy import LoadedPolicy
from sampleforge.names import says_stochastic
from sampleforge.newest_policies import NewestPolicies
from sampleforge.populations.callbacks import population_callbacks, with_schedule_seed
from sampleforge.result import Result, dataframe
from sampleforge.run.callback import Callback, checked
from sampleforge.run.reports.metrics import read_metrics
from sampleforge.run.screen import screen
from sampleforge.run.session import Session
from sampleforge.runtime.config import StopCondition
from sampleforge.runtime.interrupts import DeferredInterrupt
from sampleforge.runtime.torch_settings import usual_torch
from sampleforge.tools.tracking import tracking_callbacks
from sampleforge.topologies.config import AnyConfig

if TYPE_CHECKING:
    import pandas

    from sampleforge.tools.export.write import Format

Report = dict[str, float]
"""The scalars of a report, by name; docs/metrics.md explains them."""


TRAINING = weakref.WeakSet["Trainer"]()
"""The Trainers of this program whose workers work. Several threads may begin and end some."""
_CHANGING_TRAINING = threading.RLock()  # a signal's handler may call stop_all() while it is held


class Trainer:
    """A run step by step, for scripts and notebooks::

        with sf.Trainer(config) as trainer:
            for report in trainer:      # a dict of scalars per report interval, and per evaluation
                ...
            trainer.save()

        trainer = sf.Trainer(config)    # or without ``with``, as in the cells of a notebook
        trainer.train_until(env_steps=100_000)
        trainer.stop()

    The first call that needs the workers starts them. Between two calls they train on, as long as
    their queues have room. `stop`, or the end of the ``with`` block, ends them after a checkpoint;
    so does the end of the program.

    A Ctrl-C (in a notebook: "interrupt the kernel") raises KeyboardInterrupt within a moment, where
    nothing is half done: the Trainer can go on, save or stop. A second Ctrl-C raises it at once,
    wherever the program is. Any other error of the training ends the run, after a checkpoint if one
    can be written. All methods belong to one thread, which may be any; several Trainers may be open
    at once.

    ``callbacks``, ``policies``: see `Session`. ``display``: show the run as the command line does;
    None: in a notebook only, unless ``config.quiet``. Methods take a policy by its number, from 0,
    or its id. Raises ConfigError for a config that cannot run.
    """

    def __init__(
        self,
        config: AnyConfig,
        callbacks: Sequence[Callback] = (),
        *,
        policies: Sequence[str] | None = None,
        display: bool | None = None,
    ) -> None:
        self._config = with_schedule_seed(config)
        self._given_callbacks = checked(callbacks)
        self._policy_ids = policies
        self._display = screen.in_notebook() and not config.quiet if display is None else display
        self._pace = _Pace()
        self.session = self._new_session()
        """The run itself, see `Session`."""
        self.iteration = 0
        """Number of reports so far."""
        self._begun = self._ended = False
        self._reports: Iterator[Report] | None = None
        self._policies: NewestPolicies | None = None
        self._generator = torch.Generator()
        self._release: weakref.finalize[Any, Any] | None = None

    def _new_session(self) -> Session:
        callbacks = [
            *population_callbacks(self._config),
            *tracking_callbacks(self._config),
            *self._given_callbacks,
            self._pace,
        ]
        if self._display:
            callbacks.append(screen.Screen())
        return Session(self._config, callbacks, policies=self._policy_ids)

    # ---- beginning and ending ----

    def __enter__(self) -> Trainer:
        try:
            self._working()
        except BaseException as error:  # such as a Ctrl-C while the workers start
            self._end(error)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: Any, trace: Any) -> None:
        self._end(error)

    def stop(self) -> Result:
        """End the run in order, after a checkpoint; return its result. May be called again. Raises
        RuntimeError if the run was never started: there is nothing to end."""
        with DeferredInterrupt():
            self._end(None)
        return self.result

    @staticmethod
    def stop_all() -> None:
        """Stop every Trainer of this program that still trains, also one that no name is left for:
        a notebook holds what an interrupted cell has made, and its workers go on."""
        with _CHANGING_TRAINING:
            training = list(TRAINING)
        for trainer in training:
            trainer.stop()

    def _working(self) -> Session:
        """Return the session with its workers, which the first call starts. Raises RuntimeError if
        the run has ended."""
        if self._ended:
            raise RuntimeError(
                "this run has ended; a new Trainer with the same run_dir goes on from its last "
                "checkpoint"
            )
        if not self._begun:
            self._begin()
        return self.session

    @usual_torch()
    def _begin(self) -> None:
        try:
            self.session.open()
            with DeferredInterrupt():
                self.session.start()
                self._begun = True
                self._release = weakref.finalize(self, _end_forgotten, self.session, os.getpid())
                self._release.atexit = False  # these come after multiprocessing's wait for workers
                atexit.register(self._release)
                self._generator.manual_seed(self.session.resume_point.seed)
                self._join_others()
        except BaseException:
            if not self._begun:
                self.session = self._new_session()  # a session cannot be opened twice
            raise

    def _join_others(self) -> None:
        """Count this one among those that train, and name the others. Their user may have
        forgotten them."""
        with _CHANGING_TRAINING:
            others = list(TRAINING)
            TRAINING.add(self)
        for other in others:
            self.session.message(
                f"The Trainer of {other.run_dir} trains beside this one; its stop(), or "
                "Trainer.stop_all(), ends it"
            )

    def _wired(self) -> Session:
        """Return the session for what needs no workers: it can be asked after the end, too."""
        return self.session if self._ended and self._begun else self._working()

    @usual_torch()
    def _end(self, error: BaseException | None) -> None:
        if self._ended:
            return
        self._ended = True
        with _CHANGING_TRAINING:
            TRAINING.discard(self)
        if self._release is not None:
            self._release.detach()
            atexit.unregister(self._release)
            trace = None if error is None else error.__traceback__
            self.session.__exit__(None if error is None else type(error), error, trace)

    # ---- training ----

    @property
    def done(self) -> bool:
        """Whether the run has reached its stop condition, or was stopped."""
        return self._ended or (self._begun and self.session.graph.progress.done)

    def train(self) -> Report:
        """Train until the next report is due, or an evaluation was made; return the report. Raises
        RuntimeError after the last report of a run, and WorkerDied if a worker has died for
        good."""
        report = self._next()
        if report is None:
            raise _nothing_to_train()
        return report

    def __iter__(self) -> Iterator[Report]:
        """Train until the stop condition; yield each report."""
        while (report := self._next()) is not None:
            yield report

    def train_until(
        self,
        *conditions: str | Callable[[Report], bool],
        env_steps: int | None = None,
        seconds: float | None = None,
    ) -> Report:
        """Train until one of these conditions holds, or the run's own stop condition; return the
        last report.

        ``conditions``: each a metric compared with a number, such as "return_mean>=475" (with >=,
        <=, > or <), or a function that returns True for a report. ``env_steps``: those of the run
        in total, earlier parts included. ``seconds``: since this call. Raises ValueError if there
        is no condition, TypeError for what can be none, ConfigError for a text that is none, or a
        metric that no report can have; otherwise as `train`.
        """
        if not conditions and env_steps is None and seconds is None:
            raise ValueError(
                "train_until() has no condition; give one, or iterate over the Trainer to train to "
                "the stop condition of the run"
            )
        for each in conditions:
            if not isinstance(each, str) and not callable(each):
                raise TypeError(
                    f"train_until({each!r}): a condition is a text, such as "
                    '"return_mean>=475", or a function of the report; a number of env steps is '
                    f"train_until(env_steps={each!r})"
                )
        parsed = [StopCondition.parse(c) if isinstance(c, str) else c for c in conditions]
        session = self._working()
        for condition in parsed:
            if isinstance(condition, StopCondition):
                session.check_stop(condition)
        met = [c.is_met if isinstance(c, StopCondition) else c for c in parsed]
        progress = session.graph.progress
        deadline = None if seconds is None else monotonic() + seconds

        def enough() -> bool:
            late = deadline is not None and monotonic() >= deadline
            return late or (env_steps is not None and progress.env_steps >= env_steps)

        last: Report | None = None
        while (report := self._next(enough)) is not None:
            last = report
            if enough() or any(condition(report) for condition in met):
                break
        if last is None:
            raise _nothing_to_train()
        return last

    @usual_torch()
    def _next(self, enough: Callable[[], bool] | None = None) -> Report | None:
        """Return the next report, which is made as soon as it is due or ``enough`` returns True;
        None after the last one."""
        session = self._working()
        if self._reports is None:
            self._reports = session.reports()
        with DeferredInterrupt() as interrupt, self._pace.set(interrupt.check, enough):
            try:
                report = next(self._reports, None)
            except KeyboardInterrupt:
                self._reports = None  # what has raised is over; the session is not
                raise
            except BaseException as error:
                self._end(error)
                raise
        if report is not None:
            self.iteration += 1
        return report

    # ---- the folder of the run ----

    @property
    def run_dir(self) -> Path:
        """The run folder. Raises RuntimeError before the start if the config does not name it."""
        if self._begun:
            return self.session.folder.path
        if self._config.run_dir is None:
            raise RuntimeError("the run has no folder yet: it gets one when it starts")
        return Path(self._config.run_dir).absolute()

    @property
    def history(self) -> list[dict[str, Any]]:
        """The reports so far, see `Result.history`."""
        return read_metrics(self.session.folder.metrics_file) if self._begun else []

    def dataframe(self) -> pandas.DataFrame:
        """Return the `history` as a table, see `Result.dataframe`."""
        return dataframe(self.history)

    @property
    def result(self) -> Result:
        """The result of the run. Raises RuntimeError before its end, or if it was never started."""
        if not self._begun:
            raise RuntimeError("the run has no result: it was not started")
        if not self._ended:
            raise RuntimeError("the run has no result yet: it has one after stop()")
        return Result.of(self.session.folder)

    @usual_torch()
    def save(self, path: str | Path | None = None) -> Path:
        """Write a checkpoint into the run folder now; return that folder.

        With ``path``, also copy it to this new folder, and return that one. It is a run folder with
        this checkpoint only (without the replay): `restore`, `load_policy`, ``sampleforge eval``
        and a new run with it as run_dir take it. Raises OSError if a file cannot be written, and
        ConfigError if ``path`` is not empty.
        """
        from sampleforge.run.folder.checkpoint import check_empty, copy_newest

        session = self._working()
        to = None if path is None else check_empty(path)
        with DeferredInterrupt():
            session.save()
            if to is not None:
                stores = [policy.store for policy in session.opened.policies]
                copy_newest(session.folder, stores, to)
        return session.folder.path if to is None else to

    @usual_torch()
    def restore(self, path: str | Path, with_: Mapping[str, Any] | None = None) -> None:
        """Have every policy continue from the newest checkpoint in the run folder ``path``: with
        its weights, optimiser, hyperparameters and random generators. Env steps, statistics and
        the replay stay those of this run, and so do hyperparameters that its config sets (to
        another value than the default). ``with_``: values that take the place of both, such as
        ``{"learning_rate": 1e-4}``, as those of a resumed run on the command line do. config.yaml
        has what is used.

        Raises ConfigError if ``path`` has no checkpoint of each policy, or of another algorithm,
        for a value that no learner can have or that has no effect, and in a run with pbt or a
        schedule; ValueError if it is of another model, or for a hyperparameter that cannot change,
        which names those that can; and CheckpointError if it is damaged.
        """
        LearnerStates(self._learning()).restore(path, with_ or {})

    def export(
        self, path: str | Path, format: Format | None = None, policy: int | str = 0
    ) -> dict[str, Any]:
        """Write a policy, with its newest weights, to a file that runs without SampleForge; return
        the file's metadata. ``format``, the metadata and the errors are those of
        `sampleforge.tools.export.write.export_policy`."""
        from sampleforge.tools.export.write import export_policy

        acting, ids = self._acting(policy), self.policies
        details: dict[str, Any] = {"env_steps": self.session.graph.progress.env_steps}
        if len(ids) > 1:
            details["policy"] = self._newest().group(policy).id
        return export_policy(acting, path, format, details=details)

    # ---- the policies ----

    @property
    def policies(self) -> tuple[str, ...]:
        """The ids of the policies that are trained, in the order of their numbers."""
        return tuple(group.id for group in self._wired().graph.groups)

    def get_policy(self, policy: int | str = 0) -> LoadedPolicy:
        """Return a policy with a copy of its newest weights, which do not change any more."""
        newest = self._newest()
        return newest.copy(newest.group(policy))

    @says_stochastic
    def compute_action(
        self,
        obs: Any,
        state: torch.Tensor | npt.NDArray[Any] | None = None,
        *,
        mask: Any = None,
        stochastic: bool = False,
        policy: int | str = 0,
    ) -> Any:
        """Return the action for one observation, computed with the newest weights; for a policy
        with a recurrent core (action, next state).

        The most likely action, or, if ``stochastic``, one that is drawn from the policy (of a
        Q-network always the one with the largest value). The other arguments, the action and the
        errors are those of `LoadedPolicy.act`; for a batch there is `compute_actions`.
        """
        acting = self._acting(policy)
        if acting.is_batch(obs):
            raise ValueError("this is a batch of observations; give it to compute_actions()")
        return self._act(acting, obs, state, mask, stochastic=stochastic)

    @says_stochastic
    def compute_actions(
        self,
        obs: Any,
        states: torch.Tensor | npt.NDArray[Any] | None = None,
        *,
        mask: Any = None,
        stochastic: bool = False,
        policy: int | str = 0,
    ) -> Any:
        """Return the actions for a batch of observations, as gymnasium's vector environments give
        and take them: every array has a leading axis [B]. For a policy with a recurrent core return
        (actions, next states), with states float32 [B, S]; rows of zeros begin an episode. The rest
        is as in `compute_action`."""
        acting = self._acting(policy)
        if not acting.is_batch(obs):
            raise ValueError("this is a single observation; give it to compute_action()")
        return self._act(acting, obs, states, mask, stochastic=stochastic)

    def _acting(self, policy: int | str) -> LoadedPolicy:
        newest = self._newest()
        return newest.newest(newest.group(policy))

    def _act(
        self,
        acting: LoadedPolicy,
        obs: Any,
        state: torch.Tensor | npt.NDArray[Any] | None,
        mask: Any,
        *,
        stochastic: bool,
    ) -> Any:
        action, after = acting.act(
            obs, state, mask=mask, stochastic=stochastic, generator=self._generator
        )
        return action if after is None else (action, after)

    def get_weights(self, policy: int | str = 0) -> dict[str, npt.NDArray[Any]]:
        """Return a copy of a policy's newest weights, by name: those of its model's
        ``state_dict``, running statistics included."""
        return {n: t.numpy() for n, t in self.get_policy(policy).model.state_dict().items()}

    @usual_torch()
    def set_weights(self, weights: Mapping[str, Any], policy: int | str = 0) -> None:
        """Have a policy's learners, and all workers that act with it, continue from ``weights``,
        arrays or tensors with the names and shapes of `get_weights`.

        The optimiser keeps its state; a target network gets the weights, too. The policy version is
        raised by so much that experience of the weights before is stale (see max_policy_lag).
        Raises ValueError, before anything changes, for weights that are not those of the model or
        not finite.
        """
        states = LearnerStates(self._learning())
        states.set_weights(self._newest().group(policy), weights)

    @says_stochastic
    @usual_torch()
    def evaluate(
        self,
        episodes: int | None = None,
        *,
        policy: int | str = 0,
        stochastic: bool | None = None,
        seed: int | None = None,
    ) -> dict[str, Any]:
        """Play ``episodes`` episodes with a policy's newest weights in this process, while the
        workers train on; return return_mean, return_std, return_min, return_max, length_mean and
        episodes. Returns are of raw rewards.

        The defaults and the environment are those of the run's own evaluations: evaluate_episodes,
        evaluate_stochastic, evaluate_env, the evaluation task, and a seed that makes every
        evaluation play the same episodes. With an evaluate_function, return the metrics that it
        returns; it gets ``episodes``, ``stochastic`` and ``seed`` in its context. Raises ValueError
        for fewer episodes than 1.
        """
        newest = self._newest()
        return newest.evaluate(newest.group(policy), episodes, stochastic=stochastic, seed=seed)

    @usual_torch()
    def _newest(self) -> NewestPolicies:
        """Return the policies of the run with their newest weights."""
        session = self._wired()
        if self._policies is None:
            self._policies = NewestPolicies(session)
        return self._policies

    def _learning(self) -> Session:
        """Return the session, whose learners can be changed. Raises RuntimeError if they cannot."""
        session = self._working()
        if session.graph.progress.done:
            raise _nothing_to_train()
        if session.config.sampler_only:
            raise RuntimeError("with sampler_only there is no learner that could take weights")
        return session


class _Pace(Callback):
    """Lets a Trainer in between two looks at the workers: it raises what was deferred, and asks for
    a report as soon as there was enough training."""

    def __init__(self) -> None:
        self._check: Callable[[], None] | None = None
        self._enough: Callable[[], bool] | None = None

    def set(self, check: Callable[[], None], enough: Callable[[], bool] | None) -> ExitStack:
        """Return a context in which ``check`` and ``enough`` are called."""
        self._check, self._enough = check, enough
        stack = ExitStack()
        stack.callback(self._clear)
        return stack

    def _clear(self) -> None:
        self._check = self._enough = None

    def on_poll(self, session: Session) -> None:
        if self._check is not None:
            self._check()
        if self._enough is not None and self._enough():
            session.report_soon()


def _nothing_to_train() -> RuntimeError:
    return RuntimeError(
        "the run has reached its stop condition, such as train_for_env_steps: there is nothing "
        "more to train; give a later one to a new Trainer with the same run_dir"
    )


def _end_forgotten(session: Session, pid: int) -> None:
    """End the run of a Trainer that was not stopped: it is gone, or the program ends. The workers
    would outlive it, and the program would wait for them for ever."""
    if os.getpid() == pid:
        with suppress(Exception):  # the summary has it; nothing is left to raise it to
            session.__exit__(None, None, None)
