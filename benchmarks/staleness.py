"""Which measured scores are stale: older than the code that made them, or of too few seeds.

The code that decides what a preset learns follows from the registry: the functions of its pairing
(algorithm, topology, defaults), the classes of its settings, the family of its environment, and
what these import from `FOLDERS`, at the newest commit. Comments, docstrings, imports and the place
of a file are no part of it. Needs git.
"""

from __future__ import annotations

import ast
import io
import subprocess
import sys
import tarfile
from collections.abc import Collection, Mapping
from functools import cache, partial
from importlib.metadata import entry_points
from pathlib import Path

from sampleforge.env.registry import GROUP
from sampleforge.presets.scores import PresetScore
from sampleforge.topologies.builders import NetworkMaker
from sampleforge.topologies.config import ALGOS
from sampleforge.topologies.registry import pairing
from sampleforge.topologies.sampler_plan import one_row_each

REPO = Path(__file__).resolve().parent.parent
PACKAGES = ("sampleforge", "envs")
FOLDERS = ("algorithms", "data", "env", "models", "ops", "replay", "rollouts")
"""The folders of sampleforge into which imports are followed. The others (workers, shared, peers,
topologies but for what the pairing names) pass on what these compute; tests/golden has the weights
that would differ if they did more."""
FEWEST_SEEDS = 3
SHOWN = 3
"""How many of the changed files are named."""


def why_stale(score: PresetScore) -> dict[str, str]:
    """Return why a score is stale, as a mark for a table -> a sentence; empty if it is not."""
    found = {}
    if not score.is_current:
        found["older settings"] = "The settings of the preset were changed since."
    at = score.same_at or score.commit
    changed = changes(REPO, at, decisive_modules(score.algo, score.env))
    if changed is None:
        found["unknown code"] = f"The history lacks its commit {at}."
    elif changed:
        count = counted(len(changed), "file")
        found["older code"] = f"{count} changed since, the most {most_changed(changed)}."
    if len(score.seeds) < FEWEST_SEEDS:
        seeds = counted(len(score.seeds), "seed")
        found[seeds] = f"It rests on {seeds}, fewer than {FEWEST_SEEDS}."
    return found


def counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


def most_changed(changed: Mapping[str, int]) -> str:
    shown = sorted(changed, key=lambda path: -changed[path])[:SHOWN]
    return ", ".join(f"{path} ({changed[path]} lines)" for path in shown)


def decisive_modules(algo: str, env: str) -> frozenset[str]:
    """Return the modules that the registry names for an algorithm in an environment; what decides
    what is learned is in these and in what they import."""
    pair = pairing(ALGOS[algo])
    algorithm, topology = pair.algorithm, pair.topology
    parts = [algorithm.new_network, algorithm.new_learner, algorithm.new_acting, topology.plan]
    wire = topology.wire  # of two topologies it is bound to what differs between them
    parts += [wire.func, *wire.args] if isinstance(wire, partial) else [wire]
    parts += [pair.resolve_defaults, one_row_each, NetworkMaker]
    homes = {part.__module__ for part in (*parts, *ALGOS[algo].__mro__) if part is not None}
    return frozenset({*homes, *family_modules(env)})


def family_modules(env: str) -> list[str]:
    """Return the module of the family that claims an environment; none if it is of no family."""
    entries = entry_points(group=GROUP)
    return [entry.module for entry in entries if entry.load().FAMILY.claims(env)]


def changes(repo: Path, commit: str, begin: Collection[str]) -> dict[str, int] | None:
    """Return the files in which the code that begins with the modules ``begin`` has changed from a
    commit to the newest one: path -> changed lines. None: the repository lacks the commit."""
    commit = commit.removesuffix("-dirty")
    if not has_commit(repo, commit):
        return None
    newest = git(repo, "rev-parse", "HEAD").decode().strip()
    before, now = files(repo, commit), files(repo, newest)
    differing = differences(repo, commit, newest)
    return {
        path: differing[path][0]
        for path in reached(repo, newest, frozenset(begin))
        if path in differing and code(now[path]) != code(before.get(differing[path][1], ""))
    }


def check_repository(repo: Path, commits: Collection[str]) -> None:
    """End the script with a message if git cannot say what has changed since the commits."""
    lacking = sorted({c for c in commits if not has_commit(repo, c.removesuffix("-dirty"))})
    if lacking and git(repo, "rev-parse", "--is-shallow-repository").strip() == b"true":
        sys.exit(
            f"{repo} is a shallow clone and lacks {', '.join(lacking)}, so it cannot be told what "
            "has changed since; get the whole history: git fetch --unshallow"
        )


def code_commit(repo: Path) -> str:
    """Return the newest commit, with -dirty where code or presets have uncommitted changes."""
    commit = git(repo, "rev-parse", "--short", "HEAD").decode().strip()
    scores = ":!sampleforge/presets/scores.jsonl"  # written after each measurement
    changed = git(repo, "status", "--porcelain", "--", *PACKAGES, scores)
    return f"{commit}-dirty" if changed else commit


def has_commit(repo: Path, commit: str) -> bool:
    words = ("rev-parse", "--quiet", "--verify", f"{commit}^{{commit}}")
    return bool(git(repo, *words, failing=b""))


@cache
def reached(repo: Path, commit: str, begin: frozenset[str]) -> list[str]:
    """Return the files of the modules ``begin``, and of what they import from `FOLDERS`, at a
    commit."""
    paths = {module_name(path): path for path in files(repo, commit)}
    found: dict[str, None] = {}
    waiting = sorted(begin & paths.keys())
    while waiting:
        module = waiting.pop()
        if module not in found:
            found[module] = None
            waiting += [name for name in imported(repo, commit, paths[module]) if is_followed(name)]
    return sorted(paths[module] for module in found)


@cache
def imported(repo: Path, commit: str, path: str) -> list[str]:
    """Return the modules of the repository that a file imports at a commit, or names in a string,
    as a table of classes does."""
    texts = files(repo, commit)
    names = set[str]()
    for node in ast.walk(ast.parse(texts[path])):
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{each.name}" for each in node.names)}
        elif isinstance(node, ast.Import):
            names |= {each.name for each in node.names}
        elif text := text_of(node):
            names.add(text.partition(":")[0])
    return sorted(names & set(map(module_name, texts)))


def is_followed(module: str) -> bool:
    package, folder = [*module.split("."), ""][:2]
    return package == "sampleforge_envs" or folder in FOLDERS


def module_name(path: str) -> str:
    """Return the module of a file; setup.py installs envs/ as sampleforge_envs."""
    parts = path.removesuffix(".py").removesuffix("/__init__").split("/")
    return ".".join(["sampleforge_envs" if parts[0] == "envs" else parts[0], *parts[1:]])


@cache
def files(repo: Path, commit: str) -> dict[str, str]:
    """Return the Python files of the package and the environments at a commit: path -> text."""
    packed = git(repo, "archive", "--format=tar", commit, *PACKAGES)
    found = {}
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        for member in archive:
            file = archive.extractfile(member)
            if file is not None and member.name.endswith(".py"):
                found[member.name] = file.read().decode()
    return found


@cache
def differences(repo: Path, commit: str, newest: str) -> dict[str, tuple[int, str]]:
    """Return the files that differ between two commits: path -> changed lines, and the path in the
    first."""
    words = ("diff", "--numstat", "-z", "--find-renames", commit, newest)
    fields = iter(git(repo, *words).decode().split("\0")[:-1])
    found = {}
    for field in fields:
        added, deleted, path = field.split("\t")
        before, path = (path, path) if path else (next(fields), next(fields))
        if path.endswith(".py"):
            found[path] = (int(added) + int(deleted), before)
    return found


@cache
def code(text: str) -> str:
    """Return the syntax tree of a file without docstrings and imports: what a name is imported from
    is compared in the file where it is defined."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = [each for each in node.body if not is_text_or_import(each)]
    return ast.dump(tree)


def is_text_or_import(statement: ast.stmt) -> bool:
    text = isinstance(statement, ast.Expr) and text_of(statement.value) is not None
    return text or isinstance(statement, ast.Import | ast.ImportFrom)


def text_of(node: ast.AST) -> str | None:
    value = node.value if isinstance(node, ast.Constant) else None
    return value if isinstance(value, str) else None


def git(repo: Path, *words: str, failing: bytes | None = None) -> bytes:
    """Return what a git command prints; if it fails, ``failing``, or None: end the script."""
    try:
        done = subprocess.run(["git", *words], cwd=repo, capture_output=True, check=False)
    except FileNotFoundError:
        sys.exit(
            "git is not installed; which scores are stale follows from the history: install git"
        )
    if done.returncode and failing is None:
        sys.exit(
            f"git {' '.join(words)} failed in {repo}: {done.stderr.decode().strip()}. How old a "
            "score is follows from the history: use a clone of the repository"
        )
    return failing if done.returncode and failing is not None else done.stdout
