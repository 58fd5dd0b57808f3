"""Opens damaged and hostile run folders: none may run code, load other weights, or reach outside.

A short run is trained, and its folder is damaged again and again: files truncated, bits flipped,
huge headers, other dtypes and shapes, hostile YAML and JSON, pickles, links, names with "..". Each
is opened as `sampleforge eval` and `load_policy` open a folder, and its checkpoints as a resumed
run does. Every one must be refused with a reason, or give the actions of the undamaged folder's
newest checkpoint that is whole. Python's audit events show what it does meanwhile.

    python benchmarks/damaged_folders.py --count 10000 --seed 1
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import os
import pickle
import random
import resource
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import safetensors.torch
import torch
import yaml
from machine import describe, table

import sampleforge.loaded_policy
from sampleforge.api import load_policy, train
from sampleforge.config import ConfigError
from sampleforge.models.config import ModelConfig
from sampleforge.run.folder.checkpoint import CheckpointError, CheckpointStore
from sampleforge.run.folder.run_folder import RunFolder
from sampleforge.run.folder.stored_config import read_yaml
from sampleforge.topologies.config import AppoConfig

REFUSALS = (ConfigError, CheckpointError)
SLOW_S = 10.0
"""Seconds after which an opening counts as hanging."""
RUNS_CODE = {
    *("os.system", "os.exec", "os.fork", "os.posix_spawn", "subprocess.Popen", "pty.spawn"),
    *("pickle.find_class", "socket.connect", "ctypes.dlopen"),
}
CHANGES = {
    *("os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.truncate", "os.link", "os.symlink"),
    *("os.chmod", "os.chown", "shutil.rmtree"),
}
HUGE = (1 << 63) - 1
WORDS = ("subprocess:getoutput", "evil:Encoder", "os:system", "../../evil", "evil:CartPole-v1")
YAML_TAGS = (
    "!!python/object/apply:os.system ['touch evil']",
    "!!python/object/new:subprocess.Popen [['touch', 'evil']]",
    "!!python/name:os.system",
    "&a [*a, *a]",
    "[" * 2000,
    "{x: " * 500,
    "1" * 5000,
    ".nan",
    "-1",
    "null",
    "'\\0'",
    "2001-01-01",
)


class Watched:
    """Counts what audit events say that an opening does: ``code`` that it runs, files ``outside``
    of its folder that it changes or, where they are secret, reads."""

    def __init__(self) -> None:
        self.folder: Path | None = None
        self.secret = Path("/nonexistent")
        self.code: list[str] = []
        self.outside: list[str] = []
        sys.addaudithook(self._hook)

    def _hook(self, event: str, args: tuple[Any, ...]) -> None:
        if self.folder is None:
            return
        if event in RUNS_CODE:
            self.code.append(event)
        elif event == "import" and str(args[0]).split(".")[0] in ("evil", "subprocess_evil"):
            self.code.append(f"import {args[0]}")
        elif event == "open" and isinstance(args[0], str | bytes | os.PathLike):
            self._opened(Path(os.fsdecode(args[0])), int(args[2] or 0))
        elif event in CHANGES and isinstance(args[0], str | bytes | os.PathLike):
            self._changed(event, Path(os.fsdecode(args[0])))

    def _opened(self, path: Path, flags: int) -> None:
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            self._changed("open to write", path)
        elif os.path.realpath(path).startswith(str(self.secret)):
            self.outside.append(f"read {path}")

    def _changed(self, what: str, path: Path) -> None:
        assert self.folder is not None
        if path != Path(os.devnull) and not Path(os.path.realpath(path)).is_relative_to(
            self.folder
        ):
            self.outside.append(f"{what} {path}")

    @contextlib.contextmanager
    def opening(self, folder: Path) -> Iterator[None]:
        self.folder = Path(os.path.realpath(folder))
        try:
            yield
        finally:
            self.folder = None


class Pickled:
    """A pickle of it makes a file when it is loaded."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.canary}",)


@dataclass
class Damaging:
    """One damage: ``folder`` is a copy of the undamaged one, ``canary`` a file that hostile code
    would make, ``secret`` a folder outside."""

    folder: Path
    random: random.Random
    canary: Path
    secret: Path

    def checkpoints(self) -> list[Path]:
        """Checkpoint files, the latest first."""
        return sorted((self.folder / "checkpoints").glob("*.safetensors"), reverse=True)

    def some_file(self) -> Path:
        names = ("config.yaml", "spec.json", "checkpoints/manifest.json")
        return self.random.choice([*self.checkpoints(), *(self.folder / name for name in names)])

    def replace(self, checkpoint: Path, data: bytes, *, alone: bool = True) -> None:
        """Put ``data`` in the place of a checkpoint, under the name of its own checksum, as one who
        means harm would. ``alone``: without a manifest that says otherwise."""
        steps = checkpoint.name.partition("-")[0]
        checkpoint.unlink()
        digest = hashlib.sha256(data).hexdigest()[:16]
        checkpoint.with_name(f"{steps}-{digest}.safetensors").write_bytes(data)
        if alone:
            (self.folder / "checkpoints" / "manifest.json").unlink(missing_ok=True)


def truncate(d: Damaging) -> None:
    path = d.some_file()
    data = path.read_bytes()
    path.write_bytes(data[: d.random.randrange(len(data))])


def flip_bits(d: Damaging) -> None:
    path = d.some_file()
    data = bytearray(path.read_bytes())
    for _ in range(d.random.choice((1, 1, 1, 2, 8, 64))):
        data[d.random.randrange(len(data))] ^= 1 << d.random.randrange(8)
    path.write_bytes(data)


def random_bytes(d: Damaging) -> None:
    d.some_file().write_bytes(d.random.randbytes(d.random.choice((0, 1, 7, 8, 9, 500, 70_000))))


def huge_header(d: Damaging) -> None:
    path = d.checkpoints()[0]
    data = path.read_bytes()
    length = d.random.choice((0, 1, 7, len(data), len(data) * 2, 1 << 31, 1 << 40, HUGE, 2**64 - 1))
    d.replace(path, length.to_bytes(8, "little") + data[8:])


def lying_header(d: Damaging) -> None:
    """Offsets, dtypes and shapes that contradict each other, or nested or long beyond reason."""
    path = d.checkpoints()[0]
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    name = d.random.choice([key for key in header if key != "__metadata__"])
    lies: list[Callable[[], Any]] = [
        lambda: header[name].update(data_offsets=[0, HUGE]),
        lambda: header[name].update(data_offsets=[10, 0]),
        lambda: header[name].update(data_offsets=[-8, 0]),
        lambda: header[name].update(shape=[1 << 62, 4]),
        lambda: header[name].update(shape=[-1]),
        lambda: header[name].update(dtype=d.random.choice(("F64", "I8", "BOOL", "XX", None))),
        lambda: header["__metadata__"].pop("state"),
        lambda: header["__metadata__"].update(state=d.random.choice(("[]", "{", "[" * 9999, "1"))),
        lambda: header["__metadata__"].update(about=d.random.choice(("[]", "{}", '{"file": 1}'))),
        lambda: header.update({"x" * 100_000: header[name]}),
        lambda: header.pop(name),
    ]
    d.random.choice(lies)()
    text = json.dumps(header).encode()
    d.replace(path, len(text).to_bytes(8, "little") + text + data[8 + length :])


def other_tensors(d: Damaging) -> None:
    """A checkpoint that is well formed, whose tensors are not those of the model."""
    path = d.checkpoints()[0]
    data = path.read_bytes()
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]
    tensors = safetensors.torch.load(data)
    name = d.random.choice([n for n in tensors if n.startswith("model/")] or list(tensors))
    tensor = tensors[name]
    others: list[Callable[[], torch.Tensor]] = [
        lambda: tensor.double(),
        lambda: tensor.half(),
        lambda: tensor.to(torch.int32),
        lambda: tensor.bool(),
        lambda: tensor[None].contiguous(),
        lambda: tensor.flatten()[:0].clone(),
        lambda: torch.cat([tensor.flatten(), tensor.flatten()]),
        lambda: (
            torch.full_like(tensor, float("nan")) if tensor.is_floating_point() else tensor.double()
        ),
        lambda: (
            torch.full_like(tensor, float("inf")) if tensor.is_floating_point() else tensor.half()
        ),
    ]
    tensors[name] = d.random.choice(others)()
    d.replace(path, safetensors.torch.save(tensors, header))


def pickles(d: Damaging) -> None:
    path = d.some_file()
    protocol = d.random.randrange(pickle.HIGHEST_PROTOCOL + 1)
    data = pickle.dumps(Pickled(d.canary), protocol)
    if d.random.random() < 0.5:
        buffer = io.BytesIO()
        torch.save({"model": Pickled(d.canary)}, buffer)
        data = buffer.getvalue()
    if path.suffix == ".safetensors":
        d.replace(path, data)
    else:
        path.write_bytes(data)


def hostile_yaml(d: Damaging) -> None:
    path = d.folder / "config.yaml"
    lines = path.read_text().splitlines()
    at = d.random.randrange(len(lines))
    key = lines[at].partition(":")[0]
    lines[at] = f"{key}: {d.random.choice(YAML_TAGS)}"
    path.write_text("\n".join(lines))


def code_in_config(d: Damaging) -> None:
    path = d.folder / "config.yaml"
    stored = read_yaml(path)
    word = d.random.choice(WORDS)
    where = d.random.choice(("env", "env_kwargs", "encoder", "algo", "left_open"))
    if where == "encoder":
        stored["model"]["encoder"] = word
    elif where == "env_kwargs":
        stored["env_kwargs"] = {"cmd": f"touch {d.canary}", "entry_point": word}
    elif where == "left_open":
        stored["left_open"] = {"env": word, "model.encoder": word}
        stored["env"] = word
    else:
        stored[where] = word
    path.write_text(yaml.safe_dump(stored))
    if d.random.random() < 0.5:  # then the environment would have to be constructed
        (d.folder / "spec.json").unlink()


def hostile_json(d: Damaging) -> None:
    path = d.random.choice((d.folder / "spec.json", d.folder / "checkpoints" / "manifest.json"))
    found = json.loads(path.read_text())
    values: list[Any] = [
        None,
        -1,
        1e400,
        HUGE,
        "x" * 10_000,
        [],
        {},
        [[[]]],
        True,
        "../../evil",
        "\0",
        "float",
    ]
    places = list(_places(found))
    place, key = d.random.choice(places)
    place[key] = d.random.choice(values)
    text = json.dumps(found)
    if d.random.random() < 0.1:
        text = "[" * 100_000
    path.write_text(text)


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield value, key
            yield from _places(value[key])


def links(d: Damaging) -> None:
    """Links out of the folder, to files that are whole, and things that are no files."""
    path = d.random.choice([d.some_file(), d.folder / "checkpoints"])
    kind = d.random.choice(("file", "folder", "loop", "pipe", "device"))
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()
    if kind == "file":
        path.symlink_to(d.secret / path.relative_to(d.folder))
    elif kind == "folder":
        path.symlink_to(d.secret)
    elif kind == "loop":
        path.symlink_to(path)
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")


def names_outside(d: Damaging) -> None:
    """A manifest that names files outside of the folder."""
    path = d.folder / "checkpoints" / "manifest.json"
    found = json.loads(path.read_text())
    latest = d.checkpoints()[0].name
    for entry in found["entries"]:
        outside = (f"../../secret/checkpoints/{latest}", str(d.secret / "checkpoints" / latest))
        entry["file"] = d.random.choice((*outside, "..", "", "/etc/passwd", "../config.yaml"))
    path.write_text(json.dumps(found))


DAMAGES: dict[str, Callable[[Damaging], None]] = {
    "truncated": truncate,
    "bits flipped": flip_bits,
    "random bytes": random_bytes,
    "huge header": huge_header,
    "lying header": lying_header,
    "other dtypes, shapes, NaN": other_tensors,
    "pickles": pickles,
    "hostile YAML": hostile_yaml,
    "code named in the config": code_in_config,
    "hostile JSON": hostile_json,
    "links, pipes, devices": links,
    "names with ..": names_outside,
}


@dataclass
class Tally:
    """What came of the folders with one kind of damage."""

    refused: int = 0
    earlier: int = 0  # the checkpoint before was used, and said so
    harmless: int = 0
    wrong: list[str] = field(default_factory=list)
    reasons: Counter[str] = field(default_factory=Counter)


class Opener:
    """Opens folders and compares what they give with the checkpoints of the undamaged one."""

    def __init__(self, undamaged: Path, watched: Watched) -> None:
        self._watched = watched
        self._observations = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)
        self._known = [self._of(folder) for folder in _with_each_checkpoint(undamaged)]
        assert len(set(self._known)) == len(self._known), "checkpoints cannot be told apart"

    def _of(self, folder: Path) -> bytes:
        policy = load_policy(folder)
        actions = [policy.act(observation)[0] for observation in self._observations]
        weights = b"".join(t.numpy().tobytes() for t in policy.model.state_dict().values())
        return hashlib.sha256(np.asarray(actions).tobytes() + weights).digest()

    def open(self, folder: Path, tally: Tally) -> None:
        said, started = io.StringIO(), time.perf_counter()
        try:
            with (
                self._watched.opening(folder),
                contextlib.redirect_stdout(said),
                contextlib.redirect_stderr(said),
            ):
                self._resume(folder)
                found = self._of(folder)
        except REFUSALS as error:
            reason = str(error)
            tally.refused += 1
            tally.reasons[reason.replace(str(folder), "")[:60]] += 1
            if len(reason) < 10:
                tally.wrong.append(f"no reason: {reason!r}")
        except BaseException as error:
            tally.wrong.append(f"{type(error).__name__}: {str(error)[:200]}")
        else:
            if found == self._known[0]:
                tally.harmless += 1
            elif found in self._known and said.getvalue():
                tally.earlier += 1
            else:
                tally.wrong.append("other weights or actions")
        if time.perf_counter() - started > SLOW_S:
            tally.wrong.append(f"took {time.perf_counter() - started:.0f} s")

    def _resume(self, folder: Path) -> None:
        """Read what a resumed run reads, but for the config, which is compared with its own."""
        opened = RunFolder.existing(folder)
        with contextlib.suppress(*REFUSALS):  # the reason comes again
            CheckpointStore(opened.checkpoints, 2).load("latest", log=print)
            CheckpointStore(opened.checkpoints, 2).load("best", log=print)


def _with_each_checkpoint(undamaged: Path) -> Iterator[Path]:
    """Copies of the folder that have only one of its checkpoints, the latest first."""
    for kept in sorted((undamaged / "checkpoints").glob("*.safetensors"), reverse=True):
        copy = undamaged.with_name(f"only {kept.name}")
        shutil.copytree(undamaged, copy)
        for path in (copy / "checkpoints").iterdir():
            if path.name != kept.name:
                path.unlink()
        yield copy


def trained(folder: Path) -> Path:
    """A run of some hundred steps, with two checkpoints, and without the files that no opening
    reads."""
    run = folder / "run"
    for steps in (300, 600):
        config = AppoConfig(
            env="CartPole-v1",
            run_dir=str(run),
            seed=5,
            serial=True,
            quiet=True,
            train_for_env_steps=steps,
            num_envs_per_worker=4,
            rollout=16,
            batch_size=64,
            minibatch_size=64,
            keep_checkpoints=2,
            model=ModelConfig(hidden_sizes=(16,)),
        )
        train(config)
    shutil.rmtree(run / "tb")
    for name in ("metrics.jsonl", "log.txt"):
        (run / name).unlink()
    assert len(list((run / "checkpoints").glob("*.safetensors"))) == 2
    return run


def of_known_environment(spec: Any) -> Callable[[Any], Any]:
    """In the place of the probe, which would start a process to construct the environment."""

    def probe(config: Any) -> Any:
        if config.env != "CartPole-v1" or config.env_kwargs:
            raise ConfigError(f"Unknown environment {config.env}.")
        return spec

    return probe


class Result(NamedTuple):
    """A tally of each damage; what ran as code, what was touched outside of the folders, and the
    files that lay there afterwards."""

    tallies: dict[str, Tally]
    code: list[str]
    outside: list[str]
    left: list[str]


def measure(numbers: range, seed: int) -> Result:
    """Open the damaged folders with these numbers, which all differ."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as made:
        return _measure(numbers, seed, Path(made).resolve())


def _measure(numbers: range, seed: int, folder: Path) -> Result:
    undamaged = trained(folder)
    secret = folder / "secret"
    shutil.copytree(undamaged, secret)
    spec = RunFolder.existing(undamaged).read_spec()
    setattr(sampleforge.loaded_policy, "probe", of_known_environment(spec))  # noqa: B010
    watched = Watched()
    opener = Opener(undamaged, watched)
    watched.secret = secret
    tallies = {name: Tally() for name in DAMAGES}
    canary, work = folder / "canary", folder / "work"
    work.mkdir()
    (work / "evil.py").write_text(f"open({str(canary)!r}, 'w').close()\n")
    before, here = _files(folder, work), Path.cwd()
    sys.path.insert(0, str(work))
    os.chdir(work)
    try:
        for number in numbers:
            name = list(DAMAGES)[number % len(DAMAGES)]
            copy = work / "damaged"
            shutil.copytree(undamaged, copy)
            DAMAGES[name](Damaging(copy, random.Random(f"{seed} {number}"), canary, secret))
            opener.open(copy, tallies[name])
            shutil.rmtree(copy)
        left = sorted(str(path) for path in _files(folder, work) ^ before)
        left += [path.name for path in work.iterdir() if path.name not in ("evil.py",)]
    finally:
        os.chdir(here)
        sys.path.remove(str(work))
    return Result(tallies, watched.code, watched.outside, left)


def _sum(tallies: list[Tally]) -> Tally:
    return Tally(
        sum(tally.refused for tally in tallies),
        sum(tally.earlier for tally in tallies),
        sum(tally.harmless for tally in tallies),
        [text for tally in tallies for text in tally.wrong],
        sum((tally.reasons for tally in tallies), Counter()),
    )


def _files(folder: Path, but: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if not path.is_relative_to(but)}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    started = time.perf_counter()
    processes = min(len(os.sched_getaffinity(0)), 1 + args.count // 500)  # a start takes a while
    parts = [range(first, args.count, processes) for first in range(processes)]
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        in_turn = map if processes == 1 else pool.map
        results = list(in_turn(partial(measure, seed=args.seed), parts))
    took, used = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    tallies = {name: _sum([r.tallies[name] for r in results]) for name in DAMAGES}
    code, outside, left = ([x for r in results for x in r[i]] for i in (1, 2, 3))
    print(describe("torch", "safetensors", "PyYAML"), end="\n\n")
    rows = [
        [name, *map(str, (t.refused, t.earlier, t.harmless, len(t.wrong), len(t.reasons)))]
        for name, t in tallies.items()
    ]
    head = ["damage", "refused", "earlier one used", "harmless", "wrong", "kinds of reasons"]
    print(table(head, rows))
    wrong = [f"{name}: {text}" for name, t in tallies.items() for text in t.wrong]
    print(
        f"\n{args.count} folders in {took:.0f} s, with {used.ru_utime + used.ru_stime:.0f} s of "
        f"processor time: {len(code)} code executions, "
        f"{len(wrong)} wrong, {len(outside)} accesses outside, {len(left)} files outside"
    )
    for line, times in Counter([*wrong, *code, *outside, *left]).most_common(20):
        print(f"  {times} x {line}")
    return int(bool(wrong or code or outside or left))


if __name__ == "__main__":
    sys.exit(main())
