"""The result of a run that has ended."""

from __future__ import annotations

import importlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sampleforge.config import ConfigError
from sampleforge.run.folder.run_folder import RunFolder
from sampleforge.run.reports.metrics import read_metrics

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class Result:
    """A run that has ended: its folder, and the contents of summary.json."""

    run_dir: Path
    summary: dict[str, Any]

    @classmethod
    def of(cls, folder: RunFolder) -> Result:
        """Return the result of the run in ``folder``, which has ended."""
        return cls(folder.path, json.loads(folder.summary_file.read_text()))

    @property
    def history(self) -> list[dict[str, Any]]:
        """The reports of the run, in order, as metrics.jsonl has them: earlier parts of a resumed
        run included, and None where a value was not finite."""
        return read_metrics(RunFolder(self.run_dir).metrics_file)

    def dataframe(self) -> pandas.DataFrame:
        """Return the `history` as a table: a row per report, a column per metric, NaN where a
        report lacks it. Raises ConfigError if pandas is missing."""
        return dataframe(self.history)


def dataframe(history: list[dict[str, Any]]) -> pandas.DataFrame:
    """Return reports as a table of pandas. Raises ConfigError if pandas is missing."""
    try:
        pd: Any = importlib.import_module("pandas")
    except ModuleNotFoundError as error:
        raise ConfigError(
            'dataframe() needs pandas, which is not installed: pip install "sampleforge[notebook]"'
        ) from error
    table: pandas.DataFrame = pd.DataFrame(history)
    return table
