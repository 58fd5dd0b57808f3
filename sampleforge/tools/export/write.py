"""The writing of an exported policy: a torch.export program (.pt2) or an ONNX file.

The file carries metadata, one JSON object: what wrote it, its inputs and outputs, the spaces of the
environment, and the result of the check. In a .pt2 it is the extra file `EXTRA_FILE`, in an ONNX
file the property `sampleforge.run.onnx_policy.METADATA_KEY`.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import io
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch

from sampleforge.config import ConfigError, UserError
from sampleforge.env.spec_json import spec_to_plain
from sampleforge.loaded_policy import LoadedPolicy, load_policy_and_state
from sampleforge.models.trunk import Trunk
from sampleforge.run.folder.trust import Trust
from sampleforge.run.onnx_policy import INSTALL, METADATA_KEY, OnnxSession
from sampleforge.runtime.files import to_json, write_atomically
from sampleforge.runtime.torch_settings import tame_tqdm
from sampleforge.tools.export.program import OBSERVATIONS, Columns, PolicyProgram, max_error
from sampleforge.version import __version__

Format = Literal["torch", "onnx"]
SUFFIXES: dict[str, Format] = {".pt2": "torch", ".onnx": "onnx"}
OPSET = 18
"""Version of the ONNX operators: the one that torch's exporter is written for."""
TOLERANCE = 1e-4
"""Error of the check above which nothing is written."""
EXTRA_FILE = "sampleforge.json"


class ExportError(UserError, RuntimeError):
    """A policy could not be exported, or what was exported computes something else."""


def export_run(
    run_dir: str | Path,
    path: str | Path,
    format: Format,
    *,
    which: str = "latest",
    policy: str | None = None,
    trust: Trust,
) -> dict[str, Any]:
    """Export the policy of a run folder's latest or best checkpoint; see `export_policy`.
    ``policy``: its id, if the run has several. Raises ConfigError as `load_policy` does."""
    check_packages(format)
    loaded, state = load_policy_and_state(run_dir, which, trust, policy)
    details = {"env_steps": state["env_steps"], "checkpoint": which, "policy": policy}
    return export_policy(loaded, path, format, details=details)


def export_policy(
    policy: LoadedPolicy,
    path: str | Path,
    format: Format | None = None,
    *,
    details: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Write ``policy`` to the file ``path``; return the metadata that the file carries.

    ``format`` is "torch" (a torch.export program) or "onnx"; None: by the suffix of the file, .pt2
    or .onnx. What is written is first compared with our own forward pass on random observations
    (see `sampleforge.tools.export.program`): ONNX with onnxruntime, or, where that is missing, the
    program that it was made of; ``checked_with`` in the metadata says which, ``max_error`` is
    the result. ``details`` are further values for the metadata.

    Raises ConfigError for an unknown suffix or a package that is missing, and ExportError if the
    model cannot be exported or the error is above `TOLERANCE`; no file is written then.
    """
    path = Path(path)
    format = format_of(path) if format is None else format
    check_packages(format)
    program = PolicyProgram(policy)
    with _quiet():
        exported = _trace(policy, program)
        write = _to_onnx if format == "onnx" else _to_torch
        error, checked_with, encode, more = write(policy, program, exported)
    if not error <= TOLERANCE:
        raise ExportError(
            f"the exported policy differs from the model by {error:g} on {OBSERVATIONS} random "
            f"observations ({checked_with}), at most {TOLERANCE:g} is accepted; {path} is not "
            "written"
        )
    metadata = {
        "format": format,
        "sampleforge": __version__,
        "torch": torch.__version__,
        **more,
        **(details or {}),
        "env": policy.spec.env_id,
        "inputs": [column.to_plain() for column in program.inputs],
        "outputs": [column.to_plain() for column in program.outputs],
        "value_scale": float(policy.model.value_scale),
        "checked_with": checked_with,
        "observations": OBSERVATIONS,
        "max_error": error,
        "spec": spec_to_plain(dataclasses.replace(policy.spec, other_groups=())),
    }
    with _quiet():
        contents = encode(to_json(metadata))
    write_atomically(path, contents)
    return metadata


def format_of(path: Path) -> Format:
    """Return the format that the suffix of a file means. Raises ConfigError for another suffix."""
    if path.suffix not in SUFFIXES:
        raise ConfigError(f"{path}: the file must end in .onnx or .pt2 (a torch.export program)")
    return SUFFIXES[path.suffix]


def check_packages(format: Format) -> None:
    """Raise ConfigError, which names the pip command, if a package is missing that the format
    needs."""
    needed = ("onnx", "onnxscript") if format == "onnx" else ()
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        are = "are" if len(missing) > 1 else "is"
        raise ConfigError(
            f"ONNX needs {' and '.join(missing)}, which {are} not installed: {INSTALL}"
        )


def _trace(policy: LoadedPolicy, program: PolicyProgram) -> torch.export.ExportedProgram:
    """Return the program as a graph with a dynamic batch axis."""
    # Two rows, because torch.export takes a size of 1 for a constant.
    example = {
        column.name: torch.zeros((2, *column.shape), dtype=getattr(torch, column.dtype))
        for column in program.inputs
    }
    with torch.inference_mode():  # constants which `sampleforge.ops` caches while it is traced
        program(example)  # would be symbols without values, for the rest of the process
    batch = torch.export.Dim("batch", min=1)
    shapes = ({name: {0: batch} for name in example},)
    try:
        with torch.no_grad():
            return torch.export.export(program, (example,), dynamic_shapes=shapes)
    except Exception as error:
        encoder = type(next(_encoders(program.model))).__name__
        raise ExportError(
            f"torch.export cannot express this model (encoder {encoder}). What an encoder does may "
            "not depend on the number of rows or on values of its input; torch's reason:\n"
            f"{error}"
        ) from error


def _encoders(model: torch.nn.Module) -> Iterator[torch.nn.Module]:
    return (module.encoder for module in model.modules() if isinstance(module, Trunk))


Written = tuple[float, str, Callable[[str], bytes], dict[str, Any]]
"""The error, what computed it, the function from metadata to the file's contents, and further
metadata."""


def _to_torch(
    policy: LoadedPolicy, program: PolicyProgram, exported: torch.export.ExportedProgram
) -> Written:
    def encode(metadata: str) -> bytes:
        contents = io.BytesIO()
        torch.export.save(exported, contents, extra_files={EXTRA_FILE: metadata})
        return contents.getvalue()

    loaded = torch.export.load(io.BytesIO(encode("")))
    error = max_error(policy, _runner(loaded))
    return error, f"torch {torch.__version__}", encode, {}


def _to_onnx(
    policy: LoadedPolicy, program: PolicyProgram, exported: torch.export.ExportedProgram
) -> Written:
    made = torch.onnx.export(
        exported,
        dynamo=True,
        opset_version=OPSET,
        input_names=[column.name for column in program.inputs],
        output_names=[column.name for column in program.outputs],
        verbose=False,
    )
    assert made is not None
    proto = made.model_proto
    _name_batch_axis(proto)

    def encode(metadata: str) -> bytes:
        del proto.metadata_props[:]
        proto.metadata_props.add(key=METADATA_KEY, value=metadata)
        return bytes(proto.SerializeToString())

    if importlib.util.find_spec("onnxruntime") is None:
        checked_with = f"torch {torch.__version__} (onnxruntime is not installed)"
        return max_error(policy, _runner(exported)), checked_with, encode, {"opset": OPSET}
    session = OnnxSession(encode(""))
    error = max_error(policy, session)
    return error, f"onnxruntime {session.version}", encode, {"opset": OPSET}


def _name_batch_axis(proto: Any) -> None:
    """Give the batch axis, which is the first of every input and output, its name in the whole
    graph."""
    symbol = proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param
    for value in (*proto.graph.input, *proto.graph.output, *proto.graph.value_info):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param == symbol:
                dim.dim_param = "batch"


def _runner(exported: torch.export.ExportedProgram) -> Callable[[Columns], Columns]:
    module = exported.module()

    @torch.inference_mode()
    def run(inputs: Columns) -> Columns:
        given = {name: torch.from_numpy(column) for name, column in inputs.items()}
        return {name: column.numpy() for name, column in module(given).items()}

    return run


@contextmanager
def _quiet() -> Iterator[None]:
    """Return a context in which torch's exporters warn of nothing and leave no thread behind. They
    warn of their own calls and of packages that no policy needs (torchvision)."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)
    restore_tqdm = tame_tqdm()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)
        restore_tqdm()
