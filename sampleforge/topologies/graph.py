"""A wired topology: workers, the policy groups that they serve, and a figure of both.

A topology function makes a `GraphBuilder`, adds workers to it, and says which of them learn which
policy; `GraphBuilder.build` returns the `Graph` that a runner runs.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from sampleforge.data.rollout_queue import RolloutQueue
from sampleforge.env.vector import EnvVector
from sampleforge.models.actor_critic import ActorCritic
from sampleforge.models.q_network import QNetwork
from sampleforge.replay.histograms import Histogram, ReplayHistograms
from sampleforge.replay.snapshot import ReplayArchive
from sampleforge.rollouts.exchange import RolloutExchange
from sampleforge.runtime.machine import human_bytes
from sampleforge.shared.counters import ClockTicker, Counters, Progress, TrainingClock
from sampleforge.shared.newest import SharedWeights, StateSnapshot
from sampleforge.shared.records import DividedEvaluations, Episodes, Evaluations
from sampleforge.shared.snapshots import SnapshotPool
from sampleforge.shared.wakeup import Wakeup
from sampleforge.topologies.config import AnyConfig
from sampleforge.topologies.members import MemberChannels
from sampleforge.topologies.restarts import END_RUN, RestartRule
from sampleforge.topologies.starts import ResumePoint
from sampleforge.workers.callback import NO_HOOKS, RunHooks
from sampleforge.workers.worker import EVERYWHERE, Placement, Post, StopFlag, Worker

Role = Literal["actor", "policy", "replay", "learner", "rank", "evaluator", "recorder", "dataset"]
"""The kind of a worker; a rank is an actor and a learner in one process, a dataset an actor that
reads its steps from a dataset."""


@dataclass(frozen=True)
class Node:
    """A worker, and the settings with which a runner runs it.

    ``counter_row``: its row in the graph's counters. ``restart``: the reaction to its death.
    ``envs``: functions that make the env vectors that it steps. ``in_checkpoint``: whether a
    checkpoint can only be written while it runs.
    """

    worker: Worker
    role: Role
    wakeup: Wakeup
    counter_row: int
    placement: Placement = EVERYWHERE
    restart: RestartRule = END_RUN
    envs: tuple[Callable[[], EnvVector], ...] = ()
    in_checkpoint: bool = False

    @property
    def name(self) -> str:
        return self.worker.name


@dataclass(frozen=True)
class Edge:
    """A channel between workers, as `Graph.describe` prints it."""

    source: str
    target: str
    what: str


Row = tuple[int, int, int]
"""An env row: (actor, split, row)."""


@dataclass(frozen=True)
class Exploration:
    """The exploration of each env row: its ``epsilon``, and the ``third`` of the ladder of epsilons
    that it is in. The rows of third 0 explore least; their returns are reported as the policy's."""

    third: Mapping[Row, int]
    epsilon: Mapping[Row, float]


@dataclass(frozen=True)
class PolicyGroup:
    """One policy: its learners, its exchange of experience (None: it learns from recorded data) and
    its weights.

    ``learners[0]`` publishes the weights, answers the driver's requests and writes checkpoints.
    ``max_policy_lag``: largest lag of experience that is learned from, in versions (None: any).
    ``synchronous``: sampling and learning take turns. ``snapshot``: the learner's newest state, in
    shared memory. ``exploration`` is set if env rows explore differently; ``archive`` and
    ``histograms`` belong to a replay, and ``refused`` says why a saved one is not restored;
    ``evaluations`` is the queue of the evaluators' results.
    ``resources``: objects that must exist for as long as the group does. ``member`` is set for a
    member of a population, and for a policy with a schedule.
    """

    id: str
    learners: tuple[Node, ...]
    exchange: RolloutExchange | None
    weights: SharedWeights
    max_policy_lag: int | None = None
    synchronous: bool = False
    snapshot: StateSnapshot | None = None
    exploration: Exploration | None = None
    archive: ReplayArchive | None = None
    histograms: ReplayHistograms | None = None
    refused: str = ""
    evaluations: Evaluations | DividedEvaluations | None = None
    resources: tuple[object, ...] = ()
    member: MemberChannels | None = None

    @property
    def learner(self) -> Node:
        """The learner that publishes the weights, answers the driver and writes checkpoints."""
        return self.learners[0]


@dataclass(frozen=True)
class FrozenGroup:
    """A policy that acts but is not trained. Self-play fills its ``pool`` of snapshots, and sets
    how likely each is; see `sampleforge.shared.snapshots`. ``new_model`` makes a model with their
    names and shapes; ``start``: of the run, with the seed of its draws and actions."""

    id: str
    pool: SnapshotPool
    new_model: Callable[[], ActorCritic | QNetwork]
    start: ResumePoint


@dataclass(frozen=True)
class Recording:
    """The recording of a run: the recorder's ``node``, and its ``queue`` of rollouts."""

    node: Node
    queue: RolloutQueue

    def edge(self, workers: str) -> Edge:
        """Return the channel from the ``workers`` that send their rollouts."""
        queue = self.queue
        size = human_bytes(queue.nbytes(queue.shape, queue.actors * queue.depth))
        copies = f"copy of each complete rollout (up to {queue.depth} of each wait; {size})"
        return Edge(f"{queue.actors} {workers}", "recorder", copies)


@dataclass(frozen=True)
class Graph:
    """The result of a topology function: the workers of a run (``nodes``), their channels
    (``edges``), and what the runner and the session need of them. ``groups`` are the policies that
    are trained, ``frozen`` the others. ``recording``: set if a dataset is written."""

    name: str
    nodes: tuple[Node, ...]
    groups: tuple[PolicyGroup, ...]
    edges: tuple[Edge, ...]
    notes: tuple[str, ...]
    progress: Progress
    counters: Counters
    episodes: Episodes
    stop: StopFlag
    frozen: tuple[FrozenGroup, ...] = ()
    recording: Recording | None = None

    def prefix(self, group: PolicyGroup) -> str:
        """Return what the names of a group's metrics begin with, see `group_prefix`."""
        return group_prefix(group.id, len(self.groups))

    def having(self, *roles: Role) -> list[Node]:
        """Return the nodes of these roles, in the graph's order."""
        return [node for node in self.nodes if node.role in roles]

    def total(self, name: str) -> float:
        """Return the sum of one counter over all workers that take part in the training."""
        return self.totals([name])[0]

    def totals(self, names: Sequence[str]) -> list[float]:
        """Return the sums of some counters over these workers, all of one moment."""
        columns = self.counters.columns(names)
        for node in self.having("evaluator"):
            columns[:, node.counter_row] = 0.0
        totals: list[float] = columns.sum(axis=1).tolist()
        return totals

    def restarts(self) -> dict[str, int]:
        """Return how often workers of each role were restarted."""
        counts = self.counters.column("restarts")
        totals: dict[str, int] = {}
        for node in self.nodes:
            totals[node.role] = totals.get(node.role, 0) + int(counts[node.counter_row])
        return totals

    def histograms(self) -> dict[str, Histogram]:
        """Return the newest histograms of the replays, by name, where there are any."""
        return {
            self.prefix(group) + name: histogram
            for group in self.groups
            if group.histograms is not None
            for name, histogram in group.histograms.read().items()
        }

    def new_ticker(self) -> ClockTicker:
        """Return what counts the seconds of training, from when it `has_begun`."""
        return ClockTicker(self.progress.clock, self.has_begun)

    def has_begun(self) -> bool:
        """Return whether there was an env step or an update: a resumed learner may have much to
        learn from its replay before the actors go on."""
        return any(self.totals(("env_steps", "trained_steps")))

    def stop_all(self) -> None:
        """Ask every worker to leave its loop."""
        self.stop.set()
        for node in self.nodes:
            node.wakeup.set()

    def describe(self) -> str:
        """Return the topology as text: workers, channels, sizes."""
        width = max(len(edge.source) for edge in self.edges)
        lines = [f"topology {self.name}"]
        lines += [f"  {e.source:>{width}} --> {e.target}: {e.what}" for e in self.edges]
        return "\n".join(lines + [f"  {note}" for note in self.notes])


def group_prefix(group: str, groups: int) -> str:
    """Return what the names of a policy group's workers and metrics begin with: its id and a slash,
    or nothing if it is the only one of the graph's ``groups``."""
    return "" if groups == 1 else f"{group}/"


class AddedGroup(NamedTuple):
    """A policy group whose workers were added, with its channels (``edges``), those of its
    evaluator (``evaluation``), and notes about it."""

    group: PolicyGroup
    edges: tuple[Edge, ...]
    evaluation: tuple[Edge, ...] = ()
    notes: tuple[str, ...] = ()


class GraphBuilder:
    """Collects the workers of a topology; gives each a counter row, and all one stop flag.

    ``start``: of the run. ``hooks``: of the callbacks of the run. The ``counters`` have their rows
    when the graph is built, before any worker starts.
    """

    def __init__(self, config: AnyConfig, start: ResumePoint, hooks: RunHooks = NO_HOOKS) -> None:
        self._name = config.algo
        self.start = start
        self.hooks = hooks
        self._nodes: list[Node] = []
        self._rows: list[int] = []
        self._prefix = ""
        self.counters = Counters(COUNTERS, 0)
        self.stop = StopFlag()
        self.progress = Progress(
            self.counters,
            TrainingClock(),
            start.env_steps,
            start.wall_s,
            config.train_for_env_steps,
            config.train_for_seconds,
        )

    def of_group(self, prefix: str) -> GraphBuilder:
        """Return a builder of the same graph that adds ``prefix`` to the names of its workers."""
        same = copy.copy(self)
        same._prefix = prefix
        return same

    def new_row(self) -> int:
        """Return the counter row of one more worker, which may run on another machine."""
        self._rows.append(len(self._rows))
        return self._rows[-1]

    def post(self, wakeup: Wakeup | None = None, row: int | None = None, spin: float = 0.0) -> Post:
        """Return the post of one more worker, with a `new_row` unless it has one already."""
        row = self.new_row() if row is None else row
        return Post(row, wakeup or Wakeup(), self.progress, spin)

    def add(
        self,
        role: Role,
        worker: Worker,
        post: Post,
        placement: Placement = EVERYWHERE,
        restart: RestartRule = END_RUN,
        envs: Sequence[Callable[[], EnvVector]] = (),
        *,
        in_checkpoint: bool = False,
    ) -> Node:
        """Add a worker, which is at this ``post``."""
        worker.name = self._prefix + worker.name
        assert all(node.name != worker.name for node in self._nodes), worker.name
        node = Node(
            worker,
            role,
            post.wakeup,
            post.row,
            placement,
            restart,
            tuple(envs),
            in_checkpoint,
        )
        self._nodes.append(node)
        return node

    def having(self, *roles: Role) -> list[Node]:
        """Return the nodes of these roles that were added so far."""
        return [node for node in self._nodes if node.role in roles]

    def build(
        self,
        groups: Sequence[PolicyGroup],
        edges: Sequence[Edge],
        notes: Sequence[str],
        episodes: Episodes,
        progress: Progress | None = None,
        frozen: Sequence[FrozenGroup] = (),
        recording: Recording | None = None,
    ) -> Graph:
        """Return the graph of all added workers. ``progress`` replaces the builder's own, for a run
        that ends by another rule."""
        if recording is not None:
            what = "ranks" if self.having("rank") else "actors"
            edges = [*edges, recording.edge(what)]
        self.counters.resize(len(self._rows))
        return Graph(
            name=self._name,
            nodes=tuple(self._nodes),
            groups=tuple(groups),
            edges=tuple(edges),
            notes=tuple(notes),
            progress=progress or self.progress,
            counters=self.counters,
            episodes=episodes,
            stop=self.stop,
            frozen=tuple(frozen),
            recording=recording,
        )


COUNTERS = (
    "starting",  # 1 while an actor makes and resets its environments
    "started_rows",  # env rows of an actor: half a row when constructed, half when reset
    "heartbeat",  # seconds of the monotonic clock at the latest step
    "silent_s",  # seconds that its group waited for it until the group's time-out, else 0
    "env_steps",
    "env_frames",
    "episodes",
    "restarts",  # of this worker
    "env_restarts",  # environments that raised and were rebuilt
    "far_values",  # numbers of observations, and rewards, that were far beyond all others
    "nonfinite_steps",  # env steps dropped because of values that are not finite
    "split_steps",
    "rollouts",
    "preempted",  # rounds of rollouts that were cut short
    "ended",  # 1 for a rank that has ended, after the same update as all other ranks
    "rollout_s",  # seconds of a rank from an update to its next complete rollouts
    "step_s",  # seconds of an actor in its loop, waiting left out
    "env_s",  # ... in the environments
    "infer_s",  # ... in forward passes; of an actor with policy workers, in sending requests
    "gather_s",  # ... of infer_s, collecting the observations
    "wait_s",  # ... waiting for other workers
    "insert_s",  # ... putting rollouts into the replay
    "draw_s",  # ... drawing samples, taking new priorities
    "batch_s",  # ... copying experience into batches
    "learn_s",  # ... in gradient steps
    "publish_s",  # ... publishing weights
    "updates",
    "skipped_updates",  # those of them that were not applied: the gradient was not finite
    "checksums_compared",  # times that all ranks held the same state after an update (--debug)
    "trained_steps",
    "forwards",
    "rows",
    "recorded_steps",  # in closed segments of the dataset
    "recorded_episodes",
    "recorded_bytes",
)
