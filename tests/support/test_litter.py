"""What lies in the checkout is known at any moment, though most folders are not read again."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.support.litter import Listing


def age(folder: Path, seconds: int = 3600) -> None:
    """Give a folder a time at which it was changed last, long ago."""
    long_ago = folder.stat().st_mtime_ns - seconds * 10**9
    os.utime(folder, ns=(long_ago, long_ago))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder in which nothing has changed for an hour."""
    for name in ("a/b", ".git", "__pycache__", "x.egg-info"):
        (tmp_path / name).mkdir(parents=True)
    for file in ("top.txt", "a/code.py", "a/b/deep.txt", ".git/HEAD", "x.egg-info/PKG-INFO"):
        (tmp_path / file).touch()
    for folder in (tmp_path, tmp_path / "a", tmp_path / "a" / "b"):
        age(folder)
    return tmp_path


def names(listing: Listing, root: Path) -> set[str]:
    return {os.path.relpath(file, root) for file in listing.files()}


def test_files_that_come_and_go_are_seen(root: Path) -> None:
    listing = Listing(root)
    assert names(listing, root) == {"top.txt", "a/b/deep.txt"}
    (root / "a" / "b" / "new.txt").touch()
    (root / "a" / "c" / "d").mkdir(parents=True)
    (root / "a" / "c" / "d" / "newer.txt").touch()
    (root / "top.txt").unlink()
    assert names(listing, root) == {"a/b/deep.txt", "a/b/new.txt", "a/c/d/newer.txt"}
    shutil.rmtree(root / "a" / "b")
    assert names(listing, root) == {"a/c/d/newer.txt"}


def test_a_folder_that_has_not_changed_is_not_read_again(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listing, scan = Listing(root), os.scandir
    read: list[str] = []

    def scandir(path: str) -> Any:
        read.append(path)
        return scan(path)

    first = listing.files()
    (root / "a" / "b" / "new.txt").touch()
    monkeypatch.setattr("os.scandir", scandir)
    assert listing.files() == first | {str(root / "a" / "b" / "new.txt")}
    assert read == [str(root / "a" / "b")]


def test_a_change_within_the_tick_of_a_clock_is_seen(root: Path) -> None:
    """A folder's time need not differ between a reading and a change right after it."""
    listing = Listing(root)
    (root / "a" / "one.txt").touch()
    at = (root / "a").stat().st_mtime_ns
    assert "a/one.txt" in names(listing, root)
    (root / "a" / "two.txt").touch()
    os.utime(root / "a", ns=(at, at))
    assert "a/two.txt" in names(listing, root)


def test_links_are_not_followed_and_what_leads_nowhere_is_a_file(root: Path) -> None:
    (root / "loop").symlink_to(root)
    (root / "broken").symlink_to(root / "missing")
    assert names(Listing(root), root) == {"top.txt", "a/b/deep.txt", "broken"}
