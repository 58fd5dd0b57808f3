"""The notebook in examples/ runs from top to bottom, shows what it trains, and can be
interrupted."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import nbclient
import nbformat
import pytest

from tests.support import REPO

NOTEBOOK = REPO / "examples" / "notebook.ipynb"
INTERRUPTED = """
import os, signal, threading
threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    trainer.train_until(seconds=50)
except KeyboardInterrupt:
    print("interrupted;", trainer.train()["env_steps"] > report["env_steps"])
"""
"""A cell: Jupyter interrupts a kernel by this signal."""


def executed(folder: Path) -> Any:
    """The notebook after all its cells were run, with a cell that is interrupted before its
    evaluation."""
    notebook: Any = nbformat.read(NOTEBOOK, as_version=4)  # type: ignore[no-untyped-call]
    assert not any(cell.get("outputs") for cell in notebook.cells), "clear the outputs before"
    at = next(i for i, cell in enumerate(notebook.cells) if cell.id == "about-acting")
    cell = nbformat.v4.new_code_cell(INTERRUPTED, id="interrupted")  # type: ignore[no-untyped-call]
    notebook.cells.insert(at, cell)
    client = nbclient.NotebookClient(
        notebook, timeout=60, resources={"metadata": {"path": str(folder)}}
    )
    client.execute()
    return notebook


@pytest.mark.multiprocess(timeout=110)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_notebook_runs_shows_a_panel_per_cell_and_survives_an_interrupt(
    tmp_path: Path,
) -> None:
    cells = {cell.id: cell for cell in executed(tmp_path).cells}
    for name in ("train", "interrupted"):
        shown = [out.data for out in cells[name].outputs if "text/html" in out.get("data", {})]
        (panel,) = (data for data in shown if "env steps/s" in data["text/html"])
        assert "monospace" in panel["text/html"] and "env steps/s" in panel["text/plain"]
    said = "".join(out.get("text", "") for out in cells["interrupted"].outputs)
    assert "interrupted; True" in said
    (result,) = [out.data for out in cells["train"].outputs if out.output_type == "execute_result"]
    found = re.search(r"mean return ([\d.]+)", result["text/plain"])
    assert found is not None and float(found[1]) >= 60
    (table,) = [out.data for out in cells["stop"].outputs if out.output_type == "execute_result"]
    assert "return_mean" in table["text/plain"]
    assert any("image/png" in out.data for out in cells["plot"].outputs)
    outputs = [out for cell in cells.values() for out in cell.get("outputs", [])]
    assert not any(out.output_type == "error" for out in outputs)
