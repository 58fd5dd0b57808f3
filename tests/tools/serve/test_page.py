"""The page in a browser without a window: it draws what the server has and runs no foreign code."""

from __future__ import annotations

import shutil
import subprocess
from html import unescape
from pathlib import Path

import pytest

from tests.support.served import served, write_run

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "chrome"))), None)
HOSTILE = '<img src=x onerror="document.title=666">'


@pytest.mark.multiprocess(timeout=120)
@pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on this machine")
def test_the_page_shows_runs_and_treats_a_hostile_folder_as_text(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    write_run(root / "good")
    bad = write_run(root / HOSTILE.replace("/", ""), 1, **{HOSTILE: 1.0})
    (bad / "config.yaml").write_text(f"env: {HOSTILE}\nalgo: appo\n")
    with (bad / "log.txt").open("a") as log:
        log.write(f"2026-01-01 00:00:00 session          error   {HOSTILE}</pre><script>\n")
    with served(root) as server:
        run = next(row["id"] for row in server.runs.listing()["runs"] if row["id"] != "good")
        curves = dumped(server.url, tmp_path)
        detail = dumped(f"{server.url}#tab=run&run={run.replace('%', '%25')}", tmp_path)
    for text in (curves, detail):
        assert 'data-ready="1"' in text and ">live<" in text, "it has asked and drawn"
        assert "<title>SampleForge</title>" in text and "<img" not in text
        assert unescape(text).count(HOSTILE) >= 2
    assert curves.count("<canvas") == 2 and "2 runs shown" in curves
    assert f"error   {HOSTILE}</pre><script>" in unescape(detail)


def dumped(url: str, folder: Path) -> str:
    """The page's elements after its scripts have run."""
    words = [str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"]
    words += [f"--user-data-dir={folder / 'profile'}", "--virtual-time-budget=5000", url]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout
