"""The sink that writes metrics.csv: a row per report, a column per metric."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sampleforge.run.folder.atomic_file import write_atomically
from sampleforge.run.folder.line_file import LineFile
from sampleforge.tools.tracking.sink import TrackedRun

STEP = "env_steps"


class CsvFile:
    """Writes metrics.csv of the run folder; a metric that a report lacks is an empty field.

    A metric that appears for the first time gets a column at the end, for which the file is written
    anew. A resumed run drops the rows of the steps that it does again.
    """

    name = "csv"

    def __init__(self) -> None:
        self._columns: list[str] = []
        self._lines: LineFile | None = None

    def start(self, run: TrackedRun) -> str:
        self._path = run.folder / "metrics.csv"
        rows = read_rows(self._path) if run.env_steps else []
        kept = [row for row in rows if float(row[STEP]) <= run.env_steps]
        self._rewrite(list(rows[0]) if rows else [STEP], kept)
        return f"Reports go to {self._path.name} in the run folder, too"

    def report(
        self, values: Mapping[str, float], env_steps: int, policies: Sequence[str] = ()
    ) -> None:
        new = [name for name in values if name not in self._columns]
        if new:
            self._rewrite([*self._columns, *new], read_rows(self._path))
        assert self._lines is not None
        self._lines.write(_line([values.get(name, "") for name in self._columns]))

    def state(self) -> Mapping[str, Any]:
        return {}

    def finish(self, summary: Mapping[str, Any]) -> None:
        self._close()

    def _close(self) -> None:
        if self._lines is not None:
            self._lines.close()
            self._lines = None

    def _rewrite(self, columns: Sequence[str], rows: Sequence[Mapping[str, str]]) -> None:
        """Write the file with these columns, and open it for more rows."""
        self._close()
        self._columns = list(columns)
        lines = [_line(columns), *(_line([row.get(n, "") for n in columns]) for row in rows)]
        write_atomically(self._path, "".join(f"{line}\n" for line in lines).encode())
        self._lines = LineFile(self._path)


def read_rows(path: Path) -> list[dict[str, str]]:
    """Return the rows of a metrics.csv by column; none if there is no file. An incomplete last line
    is left out."""
    if not path.is_file():
        return []
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    return list(csv.DictReader(line for line in lines if line.endswith("\n")))


def _line(values: Sequence[Any]) -> str:
    """Return one line of CSV, without its end."""
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow(values)
    return text.getvalue()
