"""The lineage of a population of runs, merged from those of its members."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sampleforge.populations import lineage
from sampleforge.tools.population.member import LINEAGES, lineage_file


class MergedLineage:
    """Appends to lineage.jsonl the events of all members as they appear in the members' own files.

    Each file has one writer at a time. The number of a member's lines that have been merged is that
    of its lines in lineage.jsonl, so that a launcher which is killed leaves nothing to repair.
    """

    def __init__(self, folder: Path, members: Sequence[str]) -> None:
        (folder / LINEAGES).mkdir(exist_ok=True)
        self._folder, self._members = folder, members
        self._path = folder / lineage.FILE
        self._merged = dict.fromkeys(members, 0)
        if self._path.is_file():
            for event in lineage.read(self._path):
                self._merged[event["member"]] = self._merged.get(event["member"], 0) + 1
        self._sizes = dict.fromkeys(members, 0)
        lineage.Lineage(self._path).close()  # cuts off an incomplete line

    def update(self) -> None:
        """Append the new events of all members."""
        for member in self._members:
            path = lineage_file(self._folder, member)
            size = path.stat().st_size if path.is_file() else 0
            if size == self._sizes[member]:
                continue
            self._sizes[member] = size
            self._append(member, lineage.read(path))

    def _append(self, member: str, events: list[dict[str, Any]]) -> None:
        merged = lineage.Lineage(self._path)
        try:
            for event in events[self._merged[member] :]:
                merged.append(event)
                self._merged[member] += 1
        finally:
            merged.close()

    def read(self) -> list[dict[str, Any]]:
        """Return all merged events."""
        return lineage.read(self._path)
