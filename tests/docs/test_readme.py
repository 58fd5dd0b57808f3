"""README and guides tell the truth: links lead somewhere, and .ci/run runs the README's blocks.

`.ci/run` runs the README's blocks themselves, word for word, the tests among them.
"""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import pytest

from tests.support import REPO
from tests.support.pages import TEXTS, arguments, blocks
from tests.support.processes import RunCli

README = TEXTS["README.md"]


def test_the_readme_is_short() -> None:
    assert len(README.split()) <= 1000


@pytest.mark.parametrize("page", TEXTS)
def test_links_lead_to_files_and_headings(page: str) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", TEXTS[page]):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        path = (REPO / page).parent / name if name else REPO / page
        assert path.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in {slug(heading) for heading in headings}, target


def slug(heading: str) -> str:
    """The anchor of a heading, as both GitHub and the site make it of plain ones."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")


def test_the_model_of_the_guide_learns_a_little(tmp_path: Path, run_cli: RunCli) -> None:
    text = TEXTS["docs/models.md"]
    code = next(block.text for block in blocks(text) if block.text.startswith("# my_model.py"))
    (tmp_path / "my_model.py").write_text(code)
    flags = next(words for words in arguments("train.py", text) if "my_model:Encoder" in words)
    limits = ["--train-for-env-steps", "3000", "--serial", "--run-dir", "run", "--quiet"]
    done = run_cli("train.py", *flags, *limits)
    assert done.returncode == 0, done.stderr
    assert run_cli("eval", "run", "--episodes", "3").returncode == 2, "a folder may be foreign"
    assert run_cli("eval", "run", "--episodes", "3", *flags[-2:]).returncode == 0


def test_ci_runs_the_blocks_of_the_readme() -> None:
    script = (REPO / ".ci" / "run").read_text(encoding="utf-8")
    assert "readme_blocks.py" in script
    run = runpy.run_path(str(REPO / ".ci" / "readme_blocks.py"))["blocks"](README)
    assert [text for _, text in run] == [block.text for block in blocks(README) if block.language]
    set_ups = [content for _, content in run if "-m venv" in content]
    assert len(set_ups) == 2
    assert "train.py" in set_ups[0] and "-m pytest -q" in set_ups[1]
    tests = [content for _, content in run if "pytest" in content]
    assert tests == set_ups[1:], "the script tells them apart by this word"


def test_the_tests_have_every_optional_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second command of the README installs what the tests of every family need."""
    found: dict[str, Any] = {}
    monkeypatch.setattr("setuptools.setup", lambda **settings: found.update(settings))
    runpy.run_path(str(REPO / "setup.py"))
    extras = found["extras_require"]
    assert set(extras["all"]) <= set(extras["test"]) <= set(extras["dev"])


def test_all_pages_name_one_command_for_the_tests() -> None:
    command = "python -m pytest -q -n 3 --dist worksteal"
    for page in ("README.md", "CONTRIBUTING.md", "docs/contributing.md"):
        assert command in TEXTS[page], page
