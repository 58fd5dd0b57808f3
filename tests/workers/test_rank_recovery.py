"""DD-PPO goes on from what was learned, whichever ranks die: not from random weights."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from sampleforge.run.reports.metrics import read_metrics
from sampleforge.shared.newest import StateSnapshot
from tests.support.processes import StartCli
from tests.support.rank_learners import config as learner_config
from tests.support.rank_learners import learner_of
from tests.support.runs import last_report, until
from tests.support.variants import slow

LEARNING = (
    "train ddppo --preset cartpole --device cpu --report-interval 0.3 --run-dir run --seed 1 "
    "--train-for-env-steps 10000000 --checkpoint-interval 2 --debug"
)


def ranks_of(driver: int) -> list[int]:
    """Process ids of the ranks that run."""
    found = []
    for process in psutil.Process(driver).children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # it has just ended
            if "sampleforge: rank" in " ".join(process.cmdline()):
                found.append(process.pid)
    return found


def checkpoints(run: Path) -> list[int]:
    """Version of each checkpoint of the manifest, oldest first."""
    manifest = run / "checkpoints" / "manifest.json"
    entries = json.loads(manifest.read_text())["entries"] if manifest.exists() else []
    return [entry["version"] for entry in sorted(entries, key=lambda entry: entry["number"])]


def until_learned(process: subprocess.Popen[str], run: Path, wanted: float) -> dict[str, Any]:
    """The first report with a mean return of ``wanted``, once there is a checkpoint as well."""

    def learned() -> bool:
        metrics = run / "metrics.jsonl"
        if not metrics.exists() or "\n" not in metrics.read_text() or not checkpoints(run):
            return False
        return float(last_report(run).get("return_mean", 0)) > wanted

    until(learned, process)
    return last_report(run)


@pytest.mark.multiprocess(timeout=150)
@pytest.mark.parametrize("ranks", [slow(1), 2])
def test_new_ranks_resume_from_the_snapshot_if_all_ranks_die_at_once(
    start_cli: StartCli, tmp_path: Path, ranks: int
) -> None:
    run = tmp_path / "run"
    process = start_cli(*LEARNING.split(), "--num-ranks", str(ranks))
    before = until_learned(process, run, 60.0)
    saved = checkpoints(run)
    victims = ranks_of(process.pid)
    assert len(victims) == ranks
    for victim in victims:
        os.kill(victim, signal.SIGKILL)
    until(lambda: "the ranks go on from" in (run / "log.txt").read_text(), process)
    seen = last_report(run)
    until(lambda: last_report(run)["updates"] > seen["updates"] + 20, process)
    until(lambda: checkpoints(run)[-1] > saved[-1] + 20, process)
    process.terminate()
    _, shown = process.communicate(timeout=20)
    assert process.returncode == 143
    found = re.search(
        r"the ranks go on from update ([\d,]+): (\d+|1) updates? (is|are) lost", shown
    )
    assert found is not None, shown
    assert found[0] in (run / "log.txt").read_text()
    version, lost = int(found[1].replace(",", "")), int(found[2])
    assert version >= saved[-1], "no older than the newest checkpoint"
    assert version + lost >= before["updates"], "all that was on the screen is accounted for"
    reports = read_metrics(run / "metrics.jsonl")
    later = [report for report in reports if report["restarts"] == ranks]
    assert later and all(report["updates"] >= version for report in later)
    assert all(report["return_mean"] > 40 for report in later), "20 is random"
    versions = checkpoints(run)
    assert versions == sorted(versions) and versions[0] > 0


def test_a_snapshot_returns_the_published_state_and_never_an_incomplete_one() -> None:
    learner = learner_of(learner_config())
    snapshot = StateSnapshot(learner.state()[0])
    assert snapshot.version == -1
    with pytest.raises(LookupError):
        snapshot.read()
    tensors, plain = learner.state()
    snapshot.publish(tensors, {**plain, "version": 7})
    arrays = snapshot._arrays
    arrays["begun"][0] = 2  # the writer was killed in the middle of the next one
    arrays["0"][:100] = 255
    assert snapshot.version == 7
    found, values = snapshot.read()
    assert values == {**plain, "version": 7}
    assert found.keys() == tensors.keys()
    assert all(torch.equal(found[name], tensors[name]) for name in tensors)


@pytest.mark.multiprocess(timeout=120)
def test_a_new_rank_that_is_stopped_while_all_others_are_new_is_replaced(
    start_cli: StartCli, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    limits = "--rank-timeout 4 --max-rank-restarts 9"  # new ranks may be silent that long, too
    process = start_cli(*LEARNING.split(), "--num-ranks", "2", *limits.split())
    until_learned(process, run, 30.0)
    victims = ranks_of(process.pid)
    for victim in victims:
        os.kill(victim, signal.SIGKILL)
    new = until(lambda: [rank for rank in ranks_of(process.pid) if rank not in victims], process)
    os.kill(new[0], signal.SIGSTOP)  # before it has joined: it has only just got its title
    until(lambda: "was silent for 4 s" in (run / "log.txt").read_text(), process)
    until(lambda: "the ranks go on from" in (run / "log.txt").read_text(), process)
    seen = last_report(run)
    until(lambda: last_report(run)["updates"] > seen["updates"] + 20, process)
    process.terminate()
    process.communicate(timeout=20)
    assert process.returncode == 143
