"""The session: one training run from its config to its summary, without signals and printing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from time import time_ns
from typing import TYPE_CHECKING, Any

from sampleforge.config import ConfigError
from sampleforge.run import ending
from sampleforge.run.callback import (
    Callback,
    Callbacks,
    Level,
    Message,
    UntilWired,
    callbacks_of,
)
from sampleforge.run.deployment import Deployment
from sampleforge.run.reports.due import ReportTimes
from sampleforge.run.reports.reporter import RunFiles
from sampleforge.topologies.config import AnyConfig
from sampleforge.topologies.policy_roles import roles_of_policies

if TYPE_CHECKING:
    from sampleforge.runners.base import Runner
    from sampleforge.runtime.by_value import Definitions
    from sampleforge.topologies.graph import Graph, PolicyGroup
    from sampleforge.workers.learner_change import LearnerChange

POLL = 0.1
"""Seconds between two looks at the workers."""


class Session:
    """A run as a context: entering starts the workers, leaving ends them and writes summary.json.

    ::

        with Session(config, callbacks=[Mine()]) as session:
            for report in session.reports():
                ...

    Raises ConfigError for what cannot run, before anything starts; what a worker died of comes out
    of `reports` as WorkerDied. Entering is `open` and `start`, for those who have something to do
    between the two. A session can be entered once. It works in any thread, but all of its methods
    other than `stop`, `interrupt` and `kill` belong to one thread.

    ``policies``: the ids of the policy groups, each of which learns a policy of its own from the
    same actors (None: as many as ``config.num_policies``). With several, each has a folder of
    checkpoints of its own, named by its id, and the names of its metrics begin with ``<id>/``.
    """

    hyperparameters: UntilWired[Mapping[str, Mapping[str, Any]]] = UntilWired({})
    """Hyperparameters in which a policy that begins differs from the config, by its id."""
    env_steps_of: UntilWired[Mapping[str, int]] = UntilWired({})
    """Each policy's own env steps in earlier runs of the folder, by its id, if policies count
    them."""
    schedule: UntilWired[tuple[LearnerChange, ...] | None] = UntilWired(None)
    """Changes of the policy's hyperparameters during the run, if there is one policy. None: its
    learner cannot change them, and so cannot tell environments other reward-shaping numbers."""

    definitions: Definitions | None
    """What the workers have of the main module, if they cannot import it."""

    check_stop: Callable[[Any], None]
    """Raises ConfigError for a `StopCondition` whose metric no report of an open session can have.
    """

    def __init__(
        self,
        config: AnyConfig,
        callbacks: Sequence[Callback] = (),
        *,
        deployment: Deployment | None = None,
        policies: Sequence[str] | None = None,
    ) -> None:
        roles = roles_of_policies(config, policies)
        if not config.env:
            raise ConfigError("no environment; give one, such as --env CartPole-v1")
        self.asked = config
        """The config as it was asked for, with an encoder's import string in the place of its
        registered name; ``config`` is what the run folder made of it, and ``resolved`` what it is
        with all defaults."""
        self.roles = roles
        self._deployment = deployment or Deployment(serial=config.serial)
        self._callbacks = Callbacks(self, callbacks_of(callbacks, config.callbacks))
        self._files = RunFiles()
        self._resources = ExitStack()
        self._runner: Runner | None = None
        self._is_open = self._has_begun = self._has_ended = False
        self._ending = ending.Ending()
        self._report_now = False
        self._warned: set[str] = set()

    # ---- beginning ----

    def __enter__(self) -> Session:
        if not self._is_open:
            self.open()
        self.start()
        return self

    def open(self) -> None:
        """Try the environment, open the run folder, wire the topology: nothing runs yet. Only then
        is anything written, so that a run which is refused leaves the folder as it was."""
        with self.ending_on_error():
            self._open()
            self._wire()
            self._write_beginning()
        self._is_open = True

    def start(self) -> None:
        """Start the workers of an open session."""
        with self.ending_on_error():
            self._start()

    def _open(self) -> None:
        self.asked = self.asked.as_now()
        self.spec = self._deployment.try_environment(self.asked)
        from sampleforge.run.opening import open_run, with_code

        self.asked = with_code(self.asked)
        self.opened = open_run(
            self.asked, self.spec, self.roles, self._resources, self._ending.is_early
        )
        self.config, self.folder = self.opened.config, self.opened.folder
        self.spec = self.opened.spec
        self._callbacks.insert(0, self._files)
        for text in self.opened.warnings:
            self.alert(text)

    def _wire(self) -> None:
        from sampleforge.run.beginning import plan_run, wire_session
        from sampleforge.run.hyperparameters import SetHyperparameters
        from sampleforge.run.screen.messages import opening_messages
        from sampleforge.run.tasks import Tasks

        deployment = self._deployment
        self.resume_point = self.opened.resume_point
        chosen = deployment.pairing(self.asked, self.config, self.spec, self.resume_point)
        self.run_plan = plan_run(chosen, self.config, self.spec, self.roles, self.opened)
        self.resolved, self.plan = self.run_plan.resolved, self.run_plan.sizes
        self.tasks = Tasks(self.spec, self.opened.earlier, shared=deployment.shares_memory)
        self._newest_request = self.opened.newest_request
        self._set_hyperparameters = SetHyperparameters(reaches_all=deployment.shares_memory)
        self._callbacks.tell("on_wire")
        self.graph = wire_session(self, self._callbacks, processes=not deployment.has_workers_here)
        self._follow_graph()
        for text, level in opening_messages(self, self.run_plan.config):
            self.message(text, level)
        for text in (*self.opened.notes, *self.opened.notes_of_learning(self.run_plan.config_of)):
            self.message(text)
        for text in self._callbacks.uncalled_hooks():
            self.message(text, "warning")
        resumed = self.resume_point.env_steps if self.opened.earlier else None
        for text in deployment.notices(resumed):
            self.message(text, "warning")

    def _write_beginning(self) -> None:
        """Write what the folder has of a run from its beginning on."""
        self.opened.prepare(self._resources, self.graph.frozen)
        self._files.begin(self, self._resources)
        self.write_config()
        self.folder.write_spec(self.spec)
        self._has_begun = True

    def write_config(self) -> None:
        """Write config.yaml: the config as it was asked for, and what the run uses."""
        self.folder.write_config(self.run_plan.on_machine(self.resolved), self.opened.asked)

    def _follow_graph(self) -> None:
        """Make what follows the run: its clock, statistics and checkpoints, and the callbacks of
        the session itself."""
        from sampleforge.run.checkpoints import Checkpoints
        from sampleforge.run.reports.statistics import statistics_of
        from sampleforge.run.reports.workers import RunWatch
        from sampleforge.run.watches import own_callbacks

        self.ticker = self.graph.new_ticker()
        self._resources.callback(self.ticker.close)
        self.statistics = statistics_of(self)
        self.worker_states = RunWatch.of(self)
        self._callbacks.insert(1, self.worker_states)
        self.checkpoints = Checkpoints(self)
        self._callbacks += own_callbacks(self, self._callbacks)

    @property
    def has_own_code(self) -> bool:
        """Whether code of the user's own takes part, see `has_own_code`."""
        from sampleforge.run.own_code import has_own_code

        return has_own_code(self.config, self._callbacks)

    def _start(self) -> None:
        self._runner = self.runner_of(self.graph)
        self.ticker.start()
        self._runner.start()
        self._set_hyperparameters.ask(self)
        self._callbacks.tell("on_start")

    @property
    def has_workers(self) -> bool:
        """Whether the workers have been started."""
        return self._runner is not None

    @property
    def runner(self) -> Runner:
        """What runs the workers, once they have been started."""
        assert self._runner is not None, "the session has not been started"
        return self._runner

    def runner_of(self, graph: Graph) -> Runner:
        """Return a runner for the session's graph, or for another graph of the same workers."""
        return self._deployment.runner(graph, self)

    # ---- running ----

    def reports(self) -> Iterator[dict[str, float]]:
        """Train until a stop condition, `stop` or `interrupt`; yields the scalars of each report:
        one per report interval (of thousands of env steps where reports are to be deterministic),
        more at the beginning (`ReportTimes`), and one per evaluation. After a stop condition the
        last weights are evaluated. After an interrupt the last report is made when the session is
        left, and not waited for here."""
        interval, by_env_steps = self.config.report_interval, self._deployment.by_env_steps
        times = ReportTimes(self.graph.progress, interval, by_env_steps=by_env_steps)
        while not self.is_ending:
            self.work()
            if times.is_due() or self.statistics.evaluation_waits or self._report_now:
                self._report_now = False
                yield self.report()
            self.tell_poll()
        if not self.is_interrupted():
            yield self.report()
            while self.statistics.evaluation_waits:
                yield self.report()
        if self.graph.progress.done and not self.is_interrupted():
            self.graph.progress.end()
            yield from ending.last_evaluation(self)

    def report_soon(self) -> None:
        """Have `reports` yield its next report now, before the interval has passed."""
        self._report_now = True

    def tell_poll(self) -> None:
        """Tell the callbacks that the workers work: `Callback.on_poll`."""
        self._callbacks.tell("on_poll")

    def work(self) -> None:
        """Let the workers work for a moment, and take what they have to tell."""
        try:
            self.runner.poll(POLL)
        except Exception as error:
            # The signal may have ended what an environment in this process runs on.
            if not (self._deployment.has_workers_here and self.is_interrupted()):
                raise
            self.note(f"after the interrupt: {ending.describe(error)}")
        self.take_results()

    def take_results(self) -> None:
        """Take finished episodes and evaluations, and what went wrong in environments. Callbacks
        are not told of episodes that come once the workers have ended."""
        self._take_events()
        episodes = self.graph.episodes.take()
        self._files.take_episodes(self, episodes)
        self.statistics.take_episodes(episodes)
        if self._callbacks.having("on_episode_record") and not self._has_ended:
            for record in episodes:
                self._callbacks.tell("on_episode_record", record)
        if (first := self.statistics.first_nonfinite()) is not None:
            self.message(first, "warning")
        self.statistics.take_evaluations()

    def _take_events(self) -> None:
        """Take the statistics and the log lines that workers have sent; a warning that several of
        them have is given once."""
        # Before the start there is no runner, when a benchmark measures the simulator alone.
        for event in self._runner.take_events() if self._runner is not None else ():
            if event.kind == "episode_stats":
                self.statistics.take_stats(*event.payload)
                self._files.take_stats(*event.payload)
            else:
                level, text = event.payload
                if level == "warning":
                    level = "debug" if text in self._warned else "warning"
                    self._warned.add(text)
                self.message(text, "warning" if level == "critical" else level, event.source)

    def report(self) -> dict[str, float]:
        """Make a report now: ask the learners for their metrics, and tell the callbacks."""
        if self.is_interrupted():
            metrics = {group.id: ending.answer_at_once(self, group) for group in self.graph.groups}
        else:
            self._set_hyperparameters.ask(self)
            metrics = {group.id: self.ask_learner(group, "metrics") for group in self.graph.groups}
        self.ticker.look()
        self.take_results()  # after the learners, which may take long to answer
        scalars = self.statistics.scalars(metrics)
        for text in self.statistics.nonfinite_metrics():
            self.message(text, "warning")
        self._callbacks.report(scalars)
        return scalars

    def ask_learner(self, group: PolicyGroup, kind: str) -> Any:
        """Return the answer of a policy's learner to a request, while all workers work. Raises
        TimeoutError or WorkerDied, see `Runner.ask`."""
        return self.runner.ask(group.learner, kind, None, self.run_plan.answer_timeout)

    def callback_state(self) -> dict[str, Any]:
        """Return the plain values that the callbacks keep in checkpoints, and the tasks."""
        return {**self.tasks.state(), **self._callbacks.states()}

    def next_request(self) -> int:
        """Return a number for a `ChangeRequest`, larger than all earlier ones: also than those of
        the part of the run before, whose machine's clock may be ahead of this one's."""
        self._newest_request = max(time_ns() // 1000, self._newest_request + 1)
        return self._newest_request  # exact as a float64, in which learners compare it

    def saved_state(self, callback: Callback) -> dict[str, Any]:
        """Return what `Callback.checkpoint_state` of ``callback``, one of the run's, returned for
        the checkpoint that the run has resumed from; empty if there is none."""
        return self._callbacks.state(callback, self.opened.earlier)

    def save(self) -> None:
        """Write a checkpoint now. Raises OSError if it cannot be written."""
        self.checkpoints.save(self)

    def checkpoint_written(self, env_steps: int) -> None:
        """Tell the callbacks that there is a new checkpoint, of so many env steps."""
        self._callbacks.tell("on_checkpoint", env_steps)

    def restarted(self, text: str) -> None:
        """Tell the callbacks, and the user, that a worker was restarted."""
        self._callbacks.tell("on_restart", text)
        self.alert(text)

    # ---- what callbacks change ----

    def set_hyperparameter(self, name: str, value: Any, policy: str | None = None) -> None:
        """Change a hyperparameter of the learners while they train: of ``policy``, by its id (None:
        of all policies). It takes effect from the next update on (with several learners of a
        policy from the one after the next), is part of the checkpoints, and so of a resumed run.
        Callable from every hook of the session's process until the workers end.

        Raises ConfigError for a name that cannot change during the training, a value out of range,
        and where it would have no effect: the hyperparameter follows ``--anneal``, a population
        changes it, or nothing reads it, such as ``vtrace_rho`` without V-trace. With ``linear`` or
        ``cosine`` without numbers it is the value to begin with."""
        if self._has_ended:
            raise RuntimeError(f"set_hyperparameter({name!r}, {value!r}): the training has ended")
        self._set_hyperparameters.set(self, name, value, policy)

    @property
    def task(self) -> Any:
        """The newest task of the environments that train; None if none has been set."""
        board = self.tasks.training
        return None if board is None else board.read()[1]

    def set_task(self, task: Any) -> None:
        """Give a task to all environments that train: the method ``set_task(task)`` of each is
        called before its next reset, also where a worker is replaced later. The checkpoints keep
        the task, and a resumed run begins with it. Callable from `Callback.on_wire` on.

        ``task`` consists of values that JSON has. Raises ConfigError if it does not, or if the
        environment has no ``set_task``."""
        self.tasks.set(self.tasks.training, task)

    def set_evaluation_task(self, task: Any) -> None:
        """Like `set_task`, for the environments of the evaluator: from its next evaluation on.
        Otherwise these keep the task that the environment begins with."""
        self.tasks.set(self.tasks.evaluation, task)

    # ---- talking ----

    def message(self, text: str, level: Level = "info", source: str = "session") -> None:
        """Tell the callbacks what the user is to know."""
        self._callbacks.tell("on_message", Message(text, level, source))

    def note(self, text: str) -> None:
        """A message for the log alone."""
        self.message(text, "debug")

    def alert(self, text: str) -> None:
        """A warning that is shown even where only errors and results are."""
        self.message(text, "alert")

    # ---- ending ----

    def stop(self) -> None:
        """Ask the session to finish now, with a checkpoint: in order, from any thread."""
        self._ending.stopping = True

    def interrupt(self) -> None:
        """As `stop`, but within seconds; from a signal handler, too."""
        self._ending.interrupt()

    @property
    def is_ending(self) -> bool:
        """Whether training has reached its end, or was asked to."""
        return self.graph.progress.done or self._ending.stopping

    def is_interrupted(self) -> bool:
        """Whether `interrupt` was called: what ends now may have been ended by the same signal."""
        return self._ending.interrupted

    @property
    def has_failed(self) -> bool:
        """Whether an error has ended the session: some workers may be gone."""
        return self._ending.failed

    @property
    def ends_early(self) -> bool:
        """Whether the session was interrupted or has failed: the last checkpoint must not take
        long."""
        return self._ending.is_early()

    def pids(self) -> dict[str, int]:
        """Return the process id of each worker that has one, by its name; none before the start."""
        return {} if self._runner is None else self._runner.pids()

    def kill(self) -> None:
        """End the workers at once; nothing is saved."""
        if self._runner is not None:
            self._runner.kill()

    def __exit__(self, kind: type[BaseException] | None, error: Any, trace: Any) -> None:
        if isinstance(error, KeyboardInterrupt):
            self.interrupt()
        try:
            if error is None or isinstance(error, KeyboardInterrupt):
                self.take_results()  # with which the last checkpoint begins
                if self.is_interrupted() and not self.config.benchmark:
                    ending.last_report(self)
                self._callbacks.tell("on_stop")
            else:
                self._save_after(error)
        except BaseException as problem:
            self._save_after(problem)
            error = problem
            raise
        finally:
            self._end(error)

    def _save_after(self, error: BaseException) -> None:
        """Save what the learners have, if they can still say it. Raises nothing: the error that has
        ended the session is what the user is to see."""
        if self.has_failed or not self._deployment.saves_after(error):
            return
        if self.is_interrupted() and isinstance(error, TimeoutError):
            return  # the learner has had its time
        self._ending.failed = True
        try:
            env_steps = self.checkpoints.save_after_failure(self)
            if env_steps is not None:
                self.alert(
                    f"The run has failed. A checkpoint was written at {env_steps:,} env steps; the "
                    "reason of the failure follows"
                )
        except Exception as problem:
            with suppress(OSError):  # a disk that is full for log.txt, too
                self.note(f"no checkpoint after the failure: {ending.describe(problem)}")

    def ending_on_error(self) -> ExitStack:
        """Return a context that ends an open session with the error that is raised in it."""
        stack = ExitStack()

        def end(kind: Any, error: BaseException | None, trace: Any) -> None:
            if error is not None:
                self._end(error)

        stack.push(end)
        return stack

    def _end(self, error: BaseException | None) -> None:
        """Close everything, whatever fails; write the summary if there is anything to sum up.
        Raises the first thing that fails, unless the session has ended with an error."""
        failure = None if isinstance(error, KeyboardInterrupt) else error

        def end(step: Callable[[], object]) -> None:
            nonlocal failure
            try:
                step()
            except Exception as problem:
                failure = failure or problem

        if self._runner is not None:
            end(self.ticker.close)  # what follows is no training
            end(self._runner.close)
            self._has_ended = True
            end(self.take_results)  # of the last moments
            if failure is not None:
                ending.note_sizes(self, failure)
                end(lambda: self.message(ending.describe(failure), "error"))
            end(lambda: self._sum_up(failure))
        self._runner = None  # it refers back to this object, which is freed at once now
        end(self._resources.close)
        if not self._has_begun and hasattr(self, "folder"):
            self.folder.discard()
        if failure is not None and failure is not error:
            raise failure

    def _sum_up(self, error: BaseException | None) -> None:
        """Write the summary, and tell the callbacks of the end. A resumed run that has failed
        without an env step or update leaves what describes the earlier run as it was."""
        summary = self._summary(error)
        with ExitStack() as after:  # also if a callback fails
            after.callback(self._callbacks.tell, "on_end", summary)
            after.callback(self._store, summary, error)
            self._callbacks.extend_summary(summary)

    def _store(self, summary: dict[str, Any], error: BaseException | None) -> None:
        if error is not None and self.opened.earlier and not self.graph.has_begun():
            self.folder.put_back()
        else:
            self.folder.write_summary(summary)

    def _summary(self, error: BaseException | None) -> dict[str, Any]:
        status = "failed" if error else "interrupted" if self.is_interrupted() else "finished"
        return {
            "status": status,
            "algo": self.config.algo,
            "env": self.config.env,
            "seed": self.config.seed,
            **self.statistics.summary(),
            "error": None if error is None else ending.describe(error),
        }
