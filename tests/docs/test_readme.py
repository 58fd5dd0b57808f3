"""README and guides tell the truth: commands parse and links lead somewhere.

`.ci/run` runs the README's blocks themselves, word for word, the tests among them.
"""

from __future__ import annotations

import re
import runpy
import shlex
from pathlib import Path
from typing import Any

import pytest

from sampleforge.cli import flags, main
from sampleforge.cli.train import parse_config
from tests.support import PAGES, REPO
from tests.support.processes import RunCli

TEXTS = {str(path.relative_to(REPO)): path.read_text(encoding="utf-8") for path in PAGES}
README = TEXTS["README.md"]
BLOCK = re.compile(r"```(\w*)\n(.*?)```", re.DOTALL)


def commands(program: str, text: str) -> list[list[str]]:
    """The words after ``program`` in every command of a page's shell blocks that runs it."""
    found = []
    for language, block in BLOCK.findall(text):
        whole = block.replace("\\\n", " ")
        lines = whole.splitlines() if language == "bash" else []
        for part in (part.strip() for line in lines for part in line.split("&&")):
            if not re.match(r"(\S*/)?(python|torchrun|sampleforge) ", part):
                continue
            words = shlex.split(part, comments=True)
            at = next((i for i, word in enumerate(words) if word.endswith(program)), None)
            if at is not None:
                found.append(words[at + 1 :])
    return found


TRAININGS = [
    pytest.param(words, id=f"{page}: {' '.join(words)}")
    for page, text in TEXTS.items()
    for words in [
        *commands("train.py", text),
        *(words[1:] for words in commands("sampleforge", text) if words[0] == "train"),
    ]
]


@pytest.mark.long
@pytest.mark.parametrize("words", TRAININGS)
def test_training_commands_parse(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(REPO / "examples")  # where the page says it is run
    assert parse_config(words[0], words[1:]).env


class Parsed(Exception):
    """The flags of a command are known to it."""


COMMANDS = [
    pytest.param(words, id=f"{page}: {' '.join(words)}")
    for page, text in TEXTS.items()
    for words in commands("sampleforge", text)
    if words[0] != "train"
]


@pytest.mark.parametrize("words", COMMANDS)
def test_commands_parse(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    parse = flags.parse_shown

    def stop(*args: Any) -> None:
        parse(*args)
        raise Parsed

    monkeypatch.setattr(flags, "parse_shown", stop)
    with pytest.raises(Parsed):
        main(words)


def test_the_pages_show_only_verbs_that_there_are(run_cli: RunCli) -> None:
    shown = {words[0] for text in TEXTS.values() for words in commands("sampleforge", text)}
    listed = run_cli("--help").stdout
    assert shown >= {"eval", "plot", "tune", "doctor"}
    assert all(f"  {verb} " in listed for verb in shown)


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
    code = next(block for _, block in BLOCK.findall(text) if block.startswith("# my_model.py"))
    (tmp_path / "my_model.py").write_text(code)
    flags = next(words for words in commands("train.py", text) if "my_model:Encoder" in words)
    limits = ["--train-for-env-steps", "3000", "--serial", "--run-dir", "run", "--quiet"]
    done = run_cli("train.py", *flags, *limits)
    assert done.returncode == 0, done.stderr
    assert run_cli("eval", "run", "--episodes", "3").returncode == 2, "a folder may be foreign"
    assert run_cli("eval", "run", "--episodes", "3", *flags[-2:]).returncode == 0


def test_ci_runs_the_blocks_of_the_readme() -> None:
    script = (REPO / ".ci" / "run").read_text(encoding="utf-8")
    assert "readme_blocks.py" in script
    blocks = runpy.run_path(str(REPO / ".ci" / "readme_blocks.py"))["blocks"](README)
    assert [content for _, content in blocks] == [
        c for language, c in BLOCK.findall(README) if language
    ]
    set_ups = [content for _, content in blocks if "-m venv" in content]
    assert len(set_ups) == 2
    assert "train.py" in set_ups[0] and "-m pytest -q" in set_ups[1]
    tests = [content for _, content in blocks if "pytest" in content]
    assert tests == set_ups[1:], "the script tells them apart by this word"


def test_the_tests_have_every_optional_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second command of the README installs what the tests of every family need."""
    found: dict[str, Any] = {}
    monkeypatch.setattr("setuptools.setup", lambda **settings: found.update(settings))
    runpy.run_path(str(REPO / "setup.py"))
    extras = found["extras_require"]
    assert set(extras["all"]) <= set(extras["test"]) <= set(extras["dev"])


def test_all_pages_name_one_command_for_the_tests() -> None:
    command = "python -m pytest -q -n 2 --dist worksteal"
    for page in ("README.md", "CONTRIBUTING.md", "docs/contributing.md"):
        assert command in TEXTS[page], page
