"""The epoch of a group, whose writers are killed at any instant: the driver, and the ranks."""

from __future__ import annotations

from collections.abc import Callable

from sampleforge.peers.boards import GroupEpoch
from tests.support.kills import (
    Publication,
    check_killed_writers,
    check_overtaken_readers,
    kills,
    watched,
)


def reports() -> Publication:
    """Reports of restarts, each with one number as its version and as its lost steps."""
    epoch = GroupEpoch(100, ranks=2)
    versions: dict[int, int] = {}

    def read() -> int:
        report = epoch.resumed
        assert report.version == report.lost, "a mixture of two reports"
        assert versions.setdefault(report.number, report.version) == report.version
        return report.version

    return Publication(lambda number: epoch.report_resumed(number, number), read)


def test_a_report_is_read_whole_wherever_the_rank_that_writes_it_is_killed() -> None:
    check_killed_writers(reports)


def test_a_report_is_read_whole_while_the_next_ones_are_written() -> None:
    check_overtaken_readers(reports)


def test_the_agreed_version_never_goes_back_wherever_a_rank_is_killed() -> None:
    """Each rank records the version in turn; any of them is killed, and its successor agrees on a
    later one together with the other rank."""
    epochs: list[GroupEpoch] = []

    def agreement() -> Callable[[], object]:
        epochs.append(GroupEpoch(100, ranks=2))
        for rank in (0, 1):
            epochs[-1].set_agreed_version(rank, 3)

        def agree() -> None:
            for rank in (0, 1):
                epochs[-1].set_agreed_version(rank, 5)

        return agree

    instants = 0
    for _ in kills(agreement):
        instants += 1
        epoch = epochs.pop()
        before = epoch.agreed_version
        assert before in (3, 5)
        seen: list[int] = []
        resumed = max(before, 4)

        def successors(epoch: GroupEpoch = epoch, version: int = resumed) -> None:
            for rank in (1, 0):
                epoch.set_agreed_version(rank, version)

        watched(successors, lambda: seen.append(epoch.agreed_version))  # noqa: B023
        assert seen == sorted(seen) and seen[0] == before and seen[-1] == resumed
    assert instants >= 2, "instants"


def test_no_update_begins_before_all_ranks_have_their_batch() -> None:
    """Wherever a rank is killed that records its batch: its successor begins without one."""
    epochs: list[GroupEpoch] = []

    def marks() -> Callable[[], object]:
        epochs.append(GroupEpoch(100, ranks=2))
        return lambda: epochs[-1].mark_batch(0, 1)

    instants = 0
    for _ in kills(marks):
        instants += 1
        epoch = epochs.pop()
        epoch.mark_batch(0, 0)  # its successor, which starts
        assert not epoch.mark_batch(1, 1)
        assert epoch.mark_batch(0, 1) and epoch.mark_batch(1, 1)
    assert instants >= 2, "instants"


def test_a_generation_is_counted_once_or_not_at_all_wherever_the_count_stops() -> None:
    epochs: list[GroupEpoch] = []

    def restart() -> Callable[[], object]:
        epochs.append(GroupEpoch(limit=2, ranks=1))
        assert epochs[-1].begin()
        return epochs[-1].begin

    instants = 0
    for _ in kills(restart):
        instants += 1
        epoch = epochs.pop()
        counted = epoch.generation
        assert counted in (1, 2)
        assert epoch.begin() == (counted < 2) and not epoch.begin()
        assert epoch.generation == epoch.life(0) == 2
    assert instants, "instants"
