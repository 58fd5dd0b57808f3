"""Prints the size of the code: `python tests/architecture/size.py`, in a checkout.

The trainer is `sampleforge/` without `sampleforge/tools`, and `envs/`. All lines are counted, blank
ones, comments and docstrings too. It needs nothing but Python.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeGuard

Function = ast.FunctionDef | ast.AsyncFunctionDef
ROOT = Path(__file__).resolve().parents[2]
PARTS = ("trainer", "tools", "benchmarks", "tests")
MANY_PARAMETERS = 8


@dataclass(frozen=True)
class Size:
    """The size of some files. ``largest_constructor`` and ``most_imports``: the place and how many
    parameters or imported names it has, empty and 0 if there is none. ``functions_used_once``: the
    names of functions and methods that one other place mentions."""

    lines: int
    files: int
    classes: int
    protocols: int
    functions: int
    functions_used_once: int
    constructors_beyond_limit: int
    largest_constructor: tuple[int, str]
    most_imports: tuple[int, str]
    partials_in_topologies: int

    def rows(self) -> Iterator[tuple[str, str]]:
        """Yield what was counted and the number, as text."""
        yield "lines", f"{self.lines:,}"
        yield "files", f"{self.files:,}"
        yield "classes", f"{self.classes:,}"
        yield "protocols", f"{self.protocols:,}"
        yield "functions and methods", f"{self.functions:,}"
        yield "of these used in one place", f"{self.functions_used_once:,}"
        yield f"constructors beyond {MANY_PARAMETERS}", f"{self.constructors_beyond_limit:,}"
        yield "parameters of a constructor", at_most(self.largest_constructor)
        yield "names imported by a file", at_most(self.most_imports)
        yield "partials in topologies", f"{self.partials_in_topologies:,}"


def at_most(largest: tuple[int, str]) -> str:
    count, place = largest
    return f"at most {count} ({place})" if place else "none"


def size_of(files: Mapping[str, str]) -> Size:
    """Return the size of files: path relative to the checkout -> text."""
    trees = {path: ast.parse(text) for path, text in files.items()}
    nodes = [(path, node) for path, tree in trees.items() for node in ast.walk(tree)]
    classes = [(path, node) for path, node in nodes if isinstance(node, ast.ClassDef)]
    functions = [node.name for _, node in nodes if is_function(node)]
    mentions = Counter(name for _, node in nodes for name in mentioned(node))
    constructors = [
        (parameters(method), f"{cls.name}, {path}")
        for path, cls in classes
        for method in cls.body
        if is_function(method) and method.name == "__init__"
    ]
    return Size(
        lines=sum(text.count("\n") for text in files.values()),
        files=len(files),
        classes=len(classes),
        protocols=sum(is_protocol(cls) for _, cls in classes),
        functions=len(functions),
        functions_used_once=sum(mentions[name] == 1 for name in set(functions)),
        constructors_beyond_limit=sum(count > MANY_PARAMETERS for count, _ in constructors),
        largest_constructor=max(constructors, default=(0, "")),
        most_imports=max(((imported(tree), path) for path, tree in trees.items()), default=(0, "")),
        partials_in_topologies=sum(
            is_partial(node) for path, node in nodes if path.startswith("sampleforge/topologies/")
        ),
    )


def is_function(node: ast.AST) -> TypeGuard[Function]:
    return isinstance(node, Function)


def is_protocol(cls: ast.ClassDef) -> bool:
    """Whether `Protocol` is a base, also as `Protocol[T]`."""
    bases = [base.value if isinstance(base, ast.Subscript) else base for base in cls.bases]
    return any(last_name(base) == "Protocol" for base in bases)


def is_partial(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and last_name(node.func) == "partial"


def last_name(node: ast.AST) -> str:
    """The name, or the last part of a dotted one; empty for another expression."""
    if isinstance(node, ast.Name):
        return node.id
    return node.attr if isinstance(node, ast.Attribute) else ""


def mentioned(node: ast.AST) -> Iterator[str]:
    """Yield the names that a node mentions, without that of a definition or an import."""
    if name := last_name(node):
        yield name


def parameters(method: Function) -> int:
    """How many parameters a method has beside the first one."""
    arguments = method.args
    return len(arguments.posonlyargs + arguments.args + arguments.kwonlyargs) - 1


def imported(tree: ast.Module) -> int:
    """How many names the file imports, wherever the import stands."""
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    return sum(len(node.names) for node in imports)


def part_of(path: str) -> str:
    """Return the part of the checkout that a path is in; empty for one that is not counted."""
    if path.startswith("sampleforge/tools/"):
        return "tools"
    first = path.split("/")[0]
    return "trainer" if first in ("sampleforge", "envs") else first if first in PARTS else ""


def files_of_checkout(root: Path) -> dict[str, dict[str, str]]:
    """Return the text of the Python files: part -> path relative to the root -> text."""
    found: dict[str, dict[str, str]] = {part: {} for part in PARTS}
    for folder in ("sampleforge", "envs", "benchmarks", "tests"):
        for file in sorted((root / folder).rglob("*.py")):
            path = file.relative_to(root).as_posix()
            found[part_of(path)][path] = file.read_text(encoding="utf-8")
    return found


def table(sizes: Mapping[str, Size]) -> str:
    """Return the sizes as text, a paragraph for each."""
    paragraphs = []
    for name, size in sizes.items():
        rows = [f"  {what:<28} {count}" for what, count in size.rows()]
        paragraphs.append("\n".join([name, *rows]))
    return "\n\n".join(paragraphs)


def main(root: Path = ROOT) -> None:
    files = files_of_checkout(root)
    both = {"trainer and tools": {**files["trainer"], **files["tools"]}}
    print(table({name: size_of(part) for name, part in {**both, **files}.items()}))


if __name__ == "__main__":
    main()
