"""An ONNX policy, run by onnxruntime: its session, and the policy that plays episodes with it."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sampleforge.config import ConfigError
from sampleforge.env.adapter import offset
from sampleforge.env.spec_json import spec_from_plain
from sampleforge.spec import ACTION, ACTION_MASK, OBSERVATION, EnvSpec, leaves

METADATA_KEY = "sampleforge"
"""Property of the file that has the metadata of the export."""
STATE, NEXT_STATE = "state", "next_state"
"""Columns of the recurrent state, before and after the step."""
INSTALL = 'pip install "sampleforge[export]"'
Array = np.ndarray[Any, Any]


def column_name(leaf: str, plain: str) -> str:
    """Return the name of a leaf's input or output. ``plain`` (obs or action) is the name of the
    only leaf of a plain space, and the prefix of the leaves of a Dict or Tuple."""
    return plain if leaf == plain else f"{plain}.{leaf}"


class OnnxSession:
    """Maps the inputs of one batch, name -> array, to the outputs. ``contents``: those of an ONNX
    file. It uses one thread. Raises ConfigError if onnxruntime is not installed or refuses the
    file."""

    def __init__(self, contents: bytes) -> None:
        if importlib.util.find_spec("onnxruntime") is None:
            raise ConfigError(f"ONNX files need onnxruntime, which is not installed: {INSTALL}")
        import onnxruntime

        self.version: str = onnxruntime.__version__
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        try:
            self._session = onnxruntime.InferenceSession(
                contents, options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # onnxruntime's errors have no common base class
            raise ConfigError(f"onnxruntime {self.version} cannot load it: {error}") from error
        self.metadata: Mapping[str, str] = self._session.get_modelmeta().custom_metadata_map
        self._outputs = [output.name for output in self._session.get_outputs()]

    def __call__(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        return dict(zip(self._outputs, self._session.run(None, dict(inputs)), strict=True))


class OnnxPolicy:
    """The policy of an ONNX file that `sampleforge export` has written, for an episode player.

    ``spec`` is the spec of the environment it was trained in, ``metadata`` what the export wrote.
    Actions come in the environment's form, so the env vector must be told to
    `EnvVector.take_converted_actions`. Raises ConfigError if the file cannot be read, or was not
    written by an export.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = path
        try:
            contents = Path(path).read_bytes()
        except OSError as error:
            raise ConfigError(f"--onnx {path}: {error.strerror}") from error
        try:
            self._session = OnnxSession(contents)
            self.metadata = _metadata(self._session.metadata)
            self.spec: EnvSpec = spec_from_plain(self.metadata.get("spec"))
        except ConfigError as error:
            raise ConfigError(f"--onnx {path}: {error}") from error
        assert self.spec.spaces is not None
        self._observations = {
            name: (column_name(name, OBSERVATION), np.dtype(space.dtype), offset(space))
            for name, space in leaves(self.spec.spaces.observation, OBSERVATION)
        }
        self._actions = {name: column_name(name, ACTION) for name in self.spec.actions}
        shapes = {column["name"]: column["shape"] for column in self.metadata["inputs"]}
        self._state_size = shapes[STATE][1] if STATE in shapes else 0

    def check_spaces(self, present: EnvSpec) -> None:
        """Raise ConfigError, with the difference, if the spaces of ``present`` are not those that
        the policy was trained in."""
        trained, now = self.spec.spaces, present.spaces
        assert trained is not None and now is not None
        lines = [
            f"{words}: {before} in the file, {after} in {present.env_id}"
            for words, before, after in (
                ("observations", trained.observation, now.observation),
                ("actions", trained.action, now.action),
                ("action mask in the info", trained.mask_in_info, now.mask_in_info),
            )
            if before != after
        ]
        if lines:
            text = "\n  ".join(lines)
            raise ConfigError(
                f"--onnx {self.path}: the file is of {self.spec.env_id} and does not fit "
                f"{present.env_id}:\n  {text}\ngive a file that was exported from a run in this "
                "environment"
            )

    def initial_state(self, rows: int) -> torch.Tensor:
        """Return the recurrent state [rows, S] to begin with."""
        return torch.zeros(rows, self._state_size)

    def act(
        self,
        obs: Mapping[str, Array],
        state: torch.Tensor,
        is_first: Array,
        *,
        stochastic: bool = False,
        generator: torch.Generator | None = None,
    ) -> tuple[dict[str, Array], torch.Tensor]:
        """Return (actions, next state) like `FrozenPolicy.act`, but with actions in the
        environment's form. The file has the most likely actions only: ``stochastic`` must be
        False."""
        assert not stochastic
        inputs = {
            key: obs[name].astype(dtype) + (0 if start is None else start)
            for name, (key, dtype, start) in self._observations.items()
        }
        if self.spec.spaces is not None and self.spec.spaces.mask_in_info:
            inputs[ACTION_MASK] = obs[ACTION_MASK]
        if self._state_size:
            kept = torch.from_numpy(~is_first).unsqueeze(1)
            inputs[STATE] = torch.where(kept, state, 0.0).numpy()
        outputs = self._session(inputs)
        if self._state_size:
            state = torch.from_numpy(outputs[NEXT_STATE])
        return {name: outputs[key] for name, key in self._actions.items()}, state


def _metadata(properties: Mapping[str, str]) -> dict[str, Any]:
    """Return the metadata of an export. Raises ConfigError if there is none."""
    try:
        metadata = json.loads(properties[METADATA_KEY])
        if not isinstance(metadata, dict) or not isinstance(metadata["inputs"], list):
            raise TypeError("no object with inputs")
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            "it has no metadata of an export, so that it is unknown which spaces it is for; write "
            "it with `sampleforge export RUN_DIR --format onnx`"
        ) from error
    return metadata
