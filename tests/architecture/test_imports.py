"""The floors of the code base hold: imports point down, never in a circle; what parses flags needs
no torch."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.support import REPO
from tests.support.imports import Import, imports_of

FLOORS = {
    0: "version names ops runtime config encoding spec",
    1: "shared",
    2: "models env rollouts replay peers data",
    3: "algorithms",
    4: "workers",
    5: "topologies runners",
    6: "run",
    7: "populations",
    8: "loaded_policy evaluation newest_policies learner_states result presets",
    9: "tools",
    10: "trainer torchrun api __init__",
    11: "cli __main__",
}
"""Of `sampleforge.<name>`; `__init__` is the package itself, that is, the public API."""
FLOOR_OF = {name: floor for floor, names in FLOORS.items() for name in names.split()}
STRANGERS = {frozenset({"models", "env"})}
"""On one floor, but do not know each other."""
OPEN_TO_ENVS = ("sampleforge.env", "sampleforge.spec")


OF_WORKERS = tuple(
    f"sampleforge.{name}."
    for floor in range(1, 5)
    for name in FLOORS[floor].split()
    if name != "env"  # some of it is for environments of one kind, or for their end
)
"""Beginnings of the names of what workers consist of."""


def module_name(path: Path) -> str:
    """`envs/atari.py` is sampleforge_envs.atari: setup.py installs it under that name."""
    parts = list(path.relative_to(REPO).with_suffix("").parts)
    if parts[0] == "envs":
        parts[0] = "sampleforge_envs"
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def sources() -> dict[str, Path]:
    """Full module name -> file, of the library and the bundled environment families."""
    folders = (REPO / "sampleforge", REPO / "envs")
    return {module_name(path): path for folder in folders for path in sorted(folder.rglob("*.py"))}


@cache
def all_imports() -> list[Import]:
    modules = sources()
    return [
        found
        for module, path in modules.items()
        for found in imports_of(module, path.name == "__init__.py", path.read_text(), modules)
    ]


def unit(module: str) -> str:
    """The part of the library that a module belongs to: sampleforge.ops.vtrace -> ops."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def peer_mismatch(found: Import) -> str | None:
    """What is wrong with an import of ours, if anything."""
    importer, target = found.importer, found.target
    from_envs = importer.split(".")[0] == "sampleforge_envs"
    if target.split(".")[0] == "sampleforge_envs":
        return None if from_envs else f"{importer} imports {target}: use the entry-point group"
    if target.split(".")[0] != "sampleforge":
        return None
    if from_envs:
        allowed = any(target == name or target.startswith(f"{name}.") for name in OPEN_TO_ENVS)
        return None if allowed else f"{importer} imports {target}: envs know {OPEN_TO_ENVS} only"
    lower, upper = FLOOR_OF[unit(target)], FLOOR_OF[unit(importer)]
    if lower > upper or {unit(target), unit(importer)} in STRANGERS:
        return f"{importer} imports {target}: from floor {upper} to floor {lower}"
    return None


def circle(edges: Iterable[tuple[str, str]]) -> list[str] | None:
    """The names on a circle of edges, if there is one."""
    graph: dict[str, set[str]] = {}
    for importer, target in edges:
        if importer != target:
            graph.setdefault(importer, set()).add(target)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return None


@pytest.mark.long
def test_every_module_of_ours_that_is_imported_exists() -> None:
    """Also within functions and for types alone, where neither mypy nor Python would say so."""
    known = set(sources())
    others = {
        path: imports_of(str(path.relative_to(REPO)), False, path.read_text(), known)
        for folder in ("tests", "benchmarks", "examples")
        for path in (REPO / folder).rglob("*.py")
    }
    imports = [*all_imports(), *(each for found in others.values() for each in found)]
    ours = [each for each in imports if each.target.split(".")[0] == "sampleforge"]
    assert len(ours) > 1000
    assert [f"{i.importer} imports {i.target}" for i in ours if i.target not in known] == []


def test_every_part_has_a_floor() -> None:
    parts = {unit(module) for module in sources() if module.split(".")[0] == "sampleforge"}
    assert parts <= set(FLOOR_OF), "write these into FLOORS: where do they belong?"


@pytest.mark.long
def test_imports_point_down() -> None:
    """Lazy imports and those for type checkers count: they are knowledge too."""
    assert [text for found in all_imports() if (text := peer_mismatch(found))] == []


@pytest.mark.long
def test_parts_do_not_import_each_other_in_a_circle() -> None:
    ours = [f for f in all_imports() if f.importer.startswith("sampleforge.")]
    edges = [
        (unit(f.importer), unit(f.target)) for f in ours if f.target.startswith("sampleforge.")
    ]
    assert circle(edges) is None


@pytest.mark.long
def test_modules_do_not_import_each_other_in_a_circle() -> None:
    assert circle((f.importer, f.target) for f in all_imports() if f.at_import) is None


@pytest.mark.long
def test_flags_are_parsed_without_torch() -> None:
    """In a fresh interpreter, one after another, so that the first to bring torch is named; `env`
    and `check-env` too: their child process must start fast."""
    names = [
        name
        for name in sources()
        if name.split(".")[-1] in ("config", "spec")
        or name in ("sampleforge", "sampleforge.cli", "sampleforge.cli.running")
        or name.startswith(("sampleforge.env", "sampleforge.tools.check_env"))
    ]
    script = (
        "import importlib, sys\n"
        f"for name in {names}:\n"
        "    importlib.import_module(name)\n"
        "    assert 'torch' not in sys.modules, name\n"
    )
    run_python(script)


@pytest.mark.long
def test_torch_is_imported_beside_the_probe_of_the_environment() -> None:
    """Not before it: the start would take a second longer."""
    script = (
        "import sys\n"
        "import sampleforge.env.probe as probe\n"
        "import sampleforge.run.deployment as deployment\n"
        "from sampleforge.cli import main\n"
        "deployment.import_beside = lambda *names: lambda: None\n"
        "def asked(config):\n"
        "    assert 'torch' not in sys.modules\n"
        "    raise SystemExit(0)\n"
        "probe.probe = asked\n"
        "command = ['train', 'appo', '--env', 'CartPole-v1', '--serial', '--quiet']\n"
        "assert main([*command, '--run-dir', '/nonexistent/run']) == 0\n"
    )
    run_python(script)


RUNS = {
    "appo": "ppo",
    "apex --learning-starts 500": "dqn",
    "apex --learning-starts 500 --optimiser rmsprop": "dqn",
    "ddppo": "ppo",
}
"""Command lines, each with the folder of its algorithm."""


@pytest.mark.long
def test_a_run_imports_what_it_needs(tmp_path: Path) -> None:
    """Its workers find all of it in their fork server, also what they are sent, and there is
    nothing else: no other algorithm, nothing of the screen. Without compilation there is no
    compiler, which takes as long as torch itself. The runs are forks of one process that has
    imported torch, and so are their fork servers."""
    more = "--env CartPole-v1 --serial --quiet --train-for-env-steps 3000 --run-dir"
    runs = [
        (f"train {words} {more} {tmp_path / str(number)}".split(), own)
        for number, (words, own) in enumerate(RUNS.items())
    ]
    script = f"""
import io, os, pickle, sys, types
import gymnasium, torch
for words, own in {runs}:
    if os.fork() == 0:
        break
    assert os.wait()[1] == 0, words
else:
    sys.exit()
asked, answered = os.pipe(), os.pipe()
if os.fork() == 0:  # the fork server
    os.close(answered[0])
    from sampleforge.runtime.processes import PRELOADED
    os.environ[PRELOADED] = os.read(asked[0], 10_000).decode()
    import sampleforge.runners.preload
    os.write(answered[1], " ".join(sys.modules).encode())
    os._exit(0)
os.close(answered[1])
from sampleforge.cli.train import parse_config
from sampleforge.topologies.config_classes import run_modules
names = {{"ppo", "pqn", "dqn", "sac", "td3", "marwil"}} - {{own}}
others = {{f"sampleforge.algorithms.{{name}}" for name in names}}
config = parse_config(words[1], words[2:])
assert not others & set(sys.modules)
os.write(asked[1], " ".join(run_modules(config)).encode())
with open(answered[0]) as answer:
    preloaded = set(answer.read().split())
assert not others & preloaded
assert not {{"rich", "tensorboardX", "pandas", "matplotlib"}} & preloaded
import sampleforge.run.beginning as beginning
sent = set()
class Sent(pickle.Pickler):
    def persistent_id(self, part):
        sent.add(getattr(part, "__module__", None))
        return "as it is" if isinstance(part, (torch.Tensor, types.FunctionType)) else None
def wired(*args, wire=beginning.wire_session, **kwargs):
    graph = wire(*args, **kwargs)
    for node in graph.nodes:
        Sent(io.BytesIO()).dump(node.worker)
    return graph
beginning.wire_session = wired
from sampleforge.cli import main
assert main(words) == 0
assert "torch._dynamo" not in sys.modules
needed = (sent - {{None}}) | {{name for name in sys.modules if name.startswith({OF_WORKERS})}}
late = {{name for name in needed - preloaded if name.startswith("sampleforge")}}
assert not late, late
os._exit(0)
"""
    run_python(script)


def run_python(script: str) -> None:
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, cwd=REPO)
    assert done.returncode == 0, done.stderr


# ---- the checks themselves, on code that does wrong ----


def parsed(text: str, module: str = "sampleforge.shared.rings") -> list[Import]:
    known = ["sampleforge.models.cnn", "sampleforge.shared.arrays", "sampleforge.spec"]
    return list(imports_of(module, False, text, known))


@pytest.mark.parametrize(
    ("text", "target", "at_import"),
    [
        ("import sampleforge.models.cnn", "sampleforge.models.cnn", True),
        ("from sampleforge.models import cnn", "sampleforge.models.cnn", True),
        ("from sampleforge.models import thing", "sampleforge.models", True),
        ("from . import arrays", "sampleforge.shared.arrays", True),
        ("from ..models.cnn import x", "sampleforge.models.cnn", True),
        ("def f():\n    import torch", "torch", False),
        ("if TYPE_CHECKING:\n    import torch", "torch", False),
        ("try:\n    import torch\nfinally:\n    pass", "torch", True),
    ],
)
def test_imports_are_found(text: str, target: str, at_import: bool) -> None:
    assert parsed(text) == [Import("sampleforge.shared.rings", target, at_import)]


@pytest.mark.parametrize(
    ("importer", "target", "wrong"),
    [
        ("sampleforge.rollouts.slots", "sampleforge.spec", False),
        ("sampleforge.shared.rings", "sampleforge.models.cnn", True),
        ("sampleforge.rollouts.slots", "sampleforge", True),
        ("sampleforge.models.cnn", "sampleforge.env.vector", True),
        ("sampleforge.env.vector", "sampleforge_envs.atari", True),
        ("sampleforge_envs.atari", "sampleforge.env.family", False),
        ("sampleforge_envs.atari", "sampleforge.environments", True),
        ("sampleforge_envs.atari", "sampleforge.rollouts.slots", True),
        ("sampleforge_envs.atari", "sampleforge_envs.classic", False),
        ("sampleforge_envs.atari", "ale_py", False),
    ],
)
def test_wrong_imports_are_named(importer: str, target: str, wrong: bool) -> None:
    assert (peer_mismatch(Import(importer, target, True)) is not None) == wrong


def test_circles_are_found() -> None:
    assert circle([("a", "b"), ("b", "c"), ("a", "a")]) is None
    assert set(circle([("a", "b"), ("b", "c"), ("c", "b")]) or []) == {"b", "c"}
