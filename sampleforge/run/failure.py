"""What has ended a run, in words."""

from __future__ import annotations

import traceback


def describe(error: BaseException) -> str:
    """Return an error as text: a worker's death ends with the worker's own traceback, and where the
    session was when it noticed says nothing; so it is with a lost rank, or a full disk."""
    from sampleforge.peers.group import RankLost
    from sampleforge.run.folder.checkpoint import CheckpointError
    from sampleforge.run.folder.files import CannotWrite
    from sampleforge.run.folder.run_folder import RunFolderGone
    from sampleforge.run.folder.saving import CheckpointNotWritten
    from sampleforge.run.reports.env_restarts import EnvironmentFails
    from sampleforge.runners.base import WorkerDied
    from sampleforge.workers.metrics import DivergedError

    of_folder = (CannotWrite, CheckpointError, CheckpointNotWritten, RunFolderGone)
    if isinstance(error, (WorkerDied, RankLost, EnvironmentFails, DivergedError, *of_folder)):
        return str(error)
    return "".join(traceback.format_exception(error)).rstrip()
