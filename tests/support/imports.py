"""The imports that a Python file makes, read from its text."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Import:
    """`importer` imports `target`, both full names of modules."""

    importer: str
    target: str
    at_import: bool
    """It runs when the importer is imported: not in a function, not for type checkers only."""


def imports_of(
    module: str, is_package: bool, text: str, known: Collection[str]
) -> Iterator[Import]:
    """Every import in the text, wherever it stands. `from a import b` means a.b if that is a module
    we know, else a."""
    for node, at_import in walk(ast.parse(text), True):
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = base_of(node, module, is_package)
            named = [f"{base}.{alias.name}" for alias in node.names]
            targets = [name if name in known else base for name in named]
        else:
            continue
        yield from (Import(module, target, at_import) for target in targets)


def base_of(node: ast.ImportFrom, module: str, is_package: bool) -> str:
    """The module after `from`, with leading dots resolved."""
    if not node.level:
        return node.module or ""
    package = module.split(".") if is_package else module.split(".")[:-1]
    package = package[: len(package) - node.level + 1]
    return ".".join([*package, *filter(None, [node.module])])


def walk(node: ast.AST, at_import: bool) -> Iterator[tuple[ast.AST, bool]]:
    """Each node, and whether it runs when the module is imported."""
    yield node, at_import
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        at_import = False
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        at_import = False
    for child in ast.iter_child_nodes(node):
        yield from walk(child, at_import)
