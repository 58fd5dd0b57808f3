"""A wired topology: workers, the channels between them, and a figure of both."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sampleforge.distributed.group_epoch import GroupEpoch
from sampleforge.env.vector import EnvVector
from sampleforge.replay.histograms import ReplayHistograms
from sampleforge.replay.snapshot import ReplayArchive
from sampleforge.rollouts.exchange import RolloutExchange
from sampleforge.shared.counters import Counters, Progress
from sampleforge.shared.records import Episodes, Evaluations
from sampleforge.shared.restart_budget import RestartBudget
from sampleforge.shared.state_snapshot import StateSnapshot
from sampleforge.shared.wakeup import Wakeup
from sampleforge.shared.weights import SharedWeights
from sampleforge.workers.worker import Placement, StopFlag, Worker

EVERYWHERE = Placement()


@dataclass(frozen=True)
class Node:
    """A worker, where it runs, how it is woken; ``envs`` make the env vectors that it steps."""

    worker: Worker
    wakeup: Wakeup
    placement: Placement = EVERYWHERE
    envs: tuple[Callable[[], EnvVector], ...] = ()


@dataclass(frozen=True)
class Edge:
    """One arrow of the figure."""

    source: str
    target: str
    what: str


Row = tuple[int, int, int]
"""An env row: (actor, split, row)."""


@dataclass(frozen=True)
class Exploration:
    """``third`` of the ladder that each env row is in, 0 for those that explore least, whose
    returns are the run's; and its ``epsilon``."""

    third: Mapping[Row, int]
    epsilon: Mapping[Row, float]


@dataclass(frozen=True)
class Evaluator:
    """The node that evaluates, what it finds, its own row of counters, and how often it may be
    replaced. It is not among the nodes of its graph, which need not know of it."""

    node: Node
    results: Evaluations
    counters: Counters
    restart_budget: RestartBudget


@dataclass(frozen=True)
class Graph:
    """What a topology function returns. ``learner`` is the node that answers the driver.
    Row i of ``counters`` is that of ``nodes[i]``. ``exploration``, where env rows differ in it.
    """

    name: str
    nodes: tuple[Node, ...]
    learner: Node
    edges: tuple[Edge, ...]
    notes: tuple[str, ...]
    progress: Progress
    counters: Counters
    episodes: Episodes
    exchange: RolloutExchange
    weights: SharedWeights
    stop: StopFlag
    exploration: Exploration | None = None
    histograms: ReplayHistograms | None = None
    archive: ReplayArchive | None = None
    """Where the replay is saved."""
    group_epoch: GroupEpoch | None = None
    """Where nodes that are killed are replaced, and the others then form a new group."""
    snapshot: StateSnapshot | None = None
    """The learner's state as it was a moment ago, where it is kept."""
    restart_budget: RestartBudget | None = None
    """Where actors, the first nodes, are replaced one by one."""
    evaluator: Evaluator | None = None
    """Beside the nodes, where policies are evaluated while they are trained."""
    held: tuple[object, ...] = ()
    """What must be there as long as the graph."""

    def stop_all(self) -> None:
        """Ask every worker to leave its loop."""
        self.stop.set()
        for node in self.nodes:
            node.wakeup.set()

    def describe(self) -> str:
        """The topology as text: workers, channels, sizes."""
        width = max(len(edge.source) for edge in self.edges)
        lines = [f"topology {self.name}"]
        lines += [f"  {e.source:>{width}} --> {e.target}: {e.what}" for e in self.edges]
        return "\n".join(lines + [f"  {note}" for note in self.notes])


COUNTERS = (
    "heartbeat",  # seconds since the epoch at the latest step
    "env_steps",
    "env_frames",
    "episodes",
    "restarts",  # of this worker
    "env_restarts",  # environments that raised and were rebuilt
    "nonfinite_steps",  # env steps dropped because of values that are not finite
    "split_steps",
    "rollouts",
    "preempted",  # of rounds of rollouts, cut short
    "ended",  # 1 for a rank that has ended, after the same update as all others
    "rollout_s",  # seconds of a rank from an update to its next complete rollouts
    "step_s",  # seconds of an actor in its loop, waiting left out
    "env_s",  # ... in the environments
    "infer_s",  # ... in forward passes, or, in an actor with policy workers, asking for them
    "gather_s",  # ... of infer_s, collecting the observations
    "wait_s",  # ... waiting for somebody else
    "insert_s",  # ... putting rollouts into the replay
    "draw_s",  # ... drawing samples, taking new priorities
    "batch_s",  # ... copying experience into batches
    "learn_s",  # ... in gradient steps
    "publish_s",  # ... publishing weights
    "updates",
    "checksums_compared",  # times that all ranks held the same state after an update (--debug)
    "trained_steps",
    "forwards",
    "rows",
)
