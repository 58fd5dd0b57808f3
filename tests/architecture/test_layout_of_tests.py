"""The tests lie where the code that they test lies, and no test module imports another one."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from tests.support import REPO
from tests.support.imports import imports_of

OF_THE_WHOLE = {
    "architecture": "which module may import which, here and in the package",
    "end_to_end": "the command line from its flags to the end of a run, also when something breaks",
    "golden": "weights and losses of short runs, as they were recorded",
    "product": "what every algorithm does on its topology",
    "learning": "trainings that are judged by the returns at their end",
    "support": "what more than one test module uses",
}
"""Folders under tests/ that mirror no folder of code, and what is in them."""
PACKAGE, BESIDE = REPO / "sampleforge", ("docs", "envs", "examples")
"""The folders that tests/ mirrors: those of the package, and these of the checkout."""


def modules_of_tests() -> list[Path]:
    return sorted((REPO / "tests").rglob("test_*.py"))


def folders(files: list[Path]) -> set[str]:
    """The folders of the files, relative to tests/; without tests/ itself."""
    return {str(file.parent.relative_to(REPO / "tests")) for file in files} - {"."}


def misplaced(folder: str) -> bool:
    """Whether a folder under tests/ neither mirrors a folder of code nor is of the whole."""
    first = folder.split("/")[0]
    if first in OF_THE_WHOLE:
        return False
    root = REPO if first in BESIDE else PACKAGE
    return not (root / folder).is_dir()


def unmirrored(module: str) -> bool:
    """Whether a module directly in tests/ is named after no module directly in the package."""
    return not (PACKAGE / f"{module.removeprefix('test_')}.py").is_file()


@cache
def modules() -> frozenset[str]:
    """The full names of all modules under tests/."""
    return frozenset(map(dotted, (REPO / "tests").rglob("*.py")))


def foreign_tests(module: str, text: str) -> list[str]:
    """The test modules, and the conftests, that a module imports."""
    return [
        found.target
        for found in imports_of(module, False, text, modules())
        if found.target.split(".")[0] == "tests" and is_of_pytest(found.target)
    ]


def is_of_pytest(module: str) -> bool:
    """Whether pytest collects the module, or imports it for its fixtures."""
    name = module.split(".")[-1]
    return name.startswith("test_") or name == "conftest"


def dotted(path: Path) -> str:
    return ".".join(path.relative_to(REPO).with_suffix("").parts)


def test_every_folder_of_tests_mirrors_a_folder_of_code() -> None:
    wrong = sorted(filter(misplaced, folders(modules_of_tests())))
    assert wrong == [], "move these to the folder of what they test"


def test_every_test_directly_in_tests_is_of_a_module_directly_in_the_package() -> None:
    wrong = [path.stem for path in (REPO / "tests").glob("test_*.py") if unmirrored(path.stem)]
    assert wrong == [], "move these to the folder of what they test"


def test_every_folder_of_the_whole_exists() -> None:
    missing = [name for name in OF_THE_WHOLE if not (REPO / "tests" / name).is_dir()]
    assert missing == []


@pytest.mark.long
def test_no_module_imports_a_test_module() -> None:
    wrong = {
        dotted(path): targets
        for path in (REPO / "tests").rglob("*.py")
        if (targets := foreign_tests(dotted(path), path.read_text()))
    }
    assert wrong == {}, "move what both use to tests/support"


# ---- the checks themselves, on what is wrong ----


@pytest.mark.parametrize(
    ("folder", "wrong"),
    [
        ("ops", False),
        ("topologies/replay", False),
        ("topologies/dqn", True),
        ("envs", False),
        ("learning", False),
        ("figures", True),
        ("benchmarks", True),
    ],
)
def test_misplaced_folders_are_found(folder: str, wrong: bool) -> None:
    assert misplaced(folder) == wrong


@pytest.mark.parametrize(
    ("module", "wrong"),
    [("test_config", False), ("test_rollout_learner", True), ("test_ops", True)],
)
def test_misplaced_modules_are_found(module: str, wrong: bool) -> None:
    assert unmirrored(module) == wrong


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("from tests.test_config import x", ["tests.test_config"]),
        ("from tests import test_config", ["tests.test_config"]),
        ("def f():\n    import tests.test_config", ["tests.test_config"]),
        ("from tests.conftest import x", ["tests.conftest"]),
        ("from . import test_rollout_learner", ["tests.algorithms.test_rollout_learner"]),
        ("from tests.support.envs import CodeEnv", []),
        ("import torch.testing", []),
    ],
)
def test_imports_of_test_modules_are_found(text: str, found: list[str]) -> None:
    assert foreign_tests("tests.algorithms.test_dqn", text) == found


def test_every_folder_of_modules_is_a_package() -> None:
    """Else setuptools leaves it out of the wheel, and only a checkout has it."""
    folders = {module.parent for module in PACKAGE.rglob("*.py")}
    without = [str(f.relative_to(REPO)) for f in folders if not (f / "__init__.py").is_file()]
    assert not without
