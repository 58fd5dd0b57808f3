"""The recorder of a run, and the queue through which actors and ranks send it their rollouts."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from sampleforge.config import ConfigError, typed
from sampleforge.data.rollout_queue import PATIENCE, RolloutQueue
from sampleforge.data.writer import DatasetFormat, DatasetWriter, check_folder, stored_dropped
from sampleforge.rollouts.slots import SlotShape
from sampleforge.shared.counters import RestartBudget
from sampleforge.shared.wakeup import Wakeup
from sampleforge.spec import EnvSpec
from sampleforge.topologies.config import SamplingConfig
from sampleforge.topologies.graph import GraphBuilder, Recording
from sampleforge.topologies.restarts import RestartAlone
from sampleforge.workers.recorder import RecorderWorker
from sampleforge.workers.worker import Placement

LEAST_WAITING, MOST_WAITING = 4, 32
"""Rollouts of each stream of an actor that can wait for the recorder: as many as `WAITING_BYTES`
hold for an actor, within these limits."""
WAITING_BYTES = 64 << 20


def check_recording(
    config: SamplingConfig, spec: EnvSpec, squashed: bool | None = None
) -> Path | None:
    """Return the absolute path of the dataset that the run writes, or None. ``squashed``: as in
    `check_folder`. Raises ConfigError for what cannot be recorded, or not there."""
    if config.record is None:
        return None
    if spec.other_groups:
        raise ConfigError(
            f"{typed('record', config.record)}: the agents of {spec.env_id} have different spaces, "
            "and a dataset has one; record an environment whose agents have the same spaces"
        )
    folder = Path(config.record).absolute()
    for source in getattr(config, "datasets", ()):  # some algorithms have no --input
        if Path(source.name).resolve() == folder.resolve():
            raise ConfigError(
                f"{typed('record', config.record)}: --input reads the same dataset, which would "
                "grow while it is read; record into another folder"
            )
    check_folder(folder, spec, squashed)
    return folder


def rollout_queue(
    config: SamplingConfig, spec: EnvSpec, shape: SlotShape, actors: int, streams: int
) -> RolloutQueue | None:
    """Return the queue to the recorder of a run with so many actors and ``streams`` of each; None
    if nothing is recorded."""
    if config.record is None:
        return None
    check_recording(config, spec, config.model.squash_actions)
    fitting = WAITING_BYTES // (streams * RolloutQueue.nbytes(shape, 1))
    depth = streams * max(LEAST_WAITING, min(MOST_WAITING, fitting))
    patience = 0.0 if config.serial else PATIENCE
    return RolloutQueue(shape, actors, depth, Wakeup(), patience)


def add_recorder(
    graph: GraphBuilder,
    config: SamplingConfig,
    queue: RolloutQueue | None,
    policies: int = 1,
    cores: tuple[int, ...] | None = None,
) -> Recording | None:
    """Add the recorder of a run with so many policies, if there is a ``queue`` to it. ``cores``: on
    which it may run (None: on all)."""
    if queue is None:
        return None
    spec = queue.shape.spec
    folder = check_recording(config, spec)
    assert folder is not None
    form = DatasetFormat(
        spec,
        algorithm=config.algo,
        squashed=config.model.squash_actions,
        several_policies=policies > 1,
        segment_bytes=int(config.record_segment_mb * 1e6),
        compression=config.record_compression,
        dropped=stored_dropped(folder),
    )
    post = graph.post(queue.wakeup)
    worker = RecorderWorker(
        queue,
        partial(DatasetWriter, folder, form),
        config.record_max_gb * 1e9,
        post,
    )
    node = graph.add(
        "recorder",
        worker,
        post,
        Placement(cores, config.worker_niceness),
        RestartAlone(RestartBudget(1, config.max_worker_restarts), 0),
    )
    return Recording(node, queue)
