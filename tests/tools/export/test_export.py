"""An exported policy computes what the loaded policy does, in torch and in onnxruntime."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from gymnasium import spaces

from sampleforge.config import ConfigError
from sampleforge.env.adapter import ActionAdapter, ObservationAdapter, env_spec
from sampleforge.env.random_play import random_actions
from sampleforge.loaded_policy import LoadedPolicy
from sampleforge.models.encoders import MLP
from sampleforge.spec import ACTION, OBSERVATION, EnvSpaces, action_specs, leaves, rescaled
from sampleforge.tools.export import write as export
from sampleforge.tools.export.program import (
    PolicyProgram,
    max_error,
    random_steps,
    to_env,
    to_slots,
)
from sampleforge.tools.export.write import EXTRA_FILE, ExportError, Format, export_policy
from tests.support import exports
from tests.support.exports import CASES, SLOW_CASES, policy_of

MLP_CASE, GRU_CASE, LSTM_CASE = (
    next(name for name in CASES if name.startswith(kind)) for kind in ("mlp", "gru", "lstm")
)
SUFFIX = {"torch": ".pt2", "onnx": ".onnx"}
PARITY = 1e-5


def columns_of(path: Path) -> dict[str, list[tuple[str, list[Any]]]]:
    """Names and shapes of the inputs and outputs of an ONNX file, as onnxruntime reads them."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return {
        "inputs": [(x.name, x.shape) for x in session.get_inputs()],
        "outputs": [(x.name, x.shape) for x in session.get_outputs()],
    }


@pytest.mark.long
@pytest.mark.parametrize("name", CASES)
def test_an_onnx_file_agrees_with_the_policy(name: str, tmp_path: Path) -> None:
    """On 1,000 observations, in batches of 1 and 64; and it says so itself."""
    path = tmp_path / "policy.onnx"
    metadata = export_policy(policy_of(CASES[name]), path)
    assert metadata["max_error"] <= PARITY and metadata["observations"] == 1000
    assert metadata["checked_with"] == f"onnxruntime {onnxruntime.__version__}"
    assert metadata["opset"] == 18
    stored = onnxruntime.InferenceSession(path).get_modelmeta().custom_metadata_map
    assert json.loads(stored["sampleforge"]) == metadata
    listed = {
        kind: [(column["name"], column["shape"]) for column in metadata[kind]]
        for kind in ("inputs", "outputs")
    }
    assert columns_of(path) == listed
    assert [path.name for path in tmp_path.iterdir()] == ["policy.onnx"], "weights included"
    names = [column for column, _ in listed["outputs"]]
    assert ("value" in names) == CASES[name].has_values


@pytest.mark.long
@pytest.mark.parametrize("name", [LSTM_CASE])
def test_a_torch_program_agrees_with_the_policy(name: str, tmp_path: Path) -> None:
    path, policy = tmp_path / "policy.pt2", policy_of(CASES[name])
    metadata = export_policy(policy, path)
    assert metadata["max_error"] <= PARITY and metadata["format"] == "torch"
    files = {EXTRA_FILE: ""}
    loaded = torch.export.load(path, extra_files=files).module()
    assert json.loads(files[EXTRA_FILE]) == metadata
    inputs, reference = random_steps(policy, 3, seed=9)
    outputs = loaded({key: torch.from_numpy(column) for key, column in inputs.items()})
    assert list(outputs) == ["action", "value", "mean", "log_std", "next_state"]
    for key, column in outputs.items():
        np.testing.assert_allclose(column.numpy(), reference[key], rtol=PARITY, atol=PARITY)


@pytest.mark.slow
@pytest.mark.parametrize("format", ["torch", "onnx"])
@pytest.mark.parametrize("name", [*CASES, *SLOW_CASES])
def test_every_policy_agrees_in_both_formats(name: str, format: Format, tmp_path: Path) -> None:
    path = tmp_path / f"policy{SUFFIX[format]}"
    metadata = export_policy(policy_of({**CASES, **SLOW_CASES}[name]), path, format)
    assert metadata["max_error"] <= PARITY


@pytest.mark.slow
@pytest.mark.parametrize("core", ["none", "gru", "lstm"])
@pytest.mark.parametrize("action", ["MIXED_DISCRETE", "MIXED_BOXES", "BOX"])
@pytest.mark.parametrize("observation", ["FLOATS", "IMAGE"])
def test_every_core_agrees_with_every_encoder_and_action_space(
    core: str, action: str, observation: str, tmp_path: Path
) -> None:
    case = exports.Case(
        getattr(exports, observation),
        getattr(exports, action),
        {"core": core, "core_size": 8},
        mask_in_info=action == "MIXED_DISCRETE",
    )
    assert export_policy(policy_of(case), tmp_path / "p.onnx")["max_error"] <= PARITY


def test_half_of_the_observations_are_as_those_that_were_trained_with() -> None:
    """A check on others alone would compare what the normaliser clips."""
    policy = policy_of(exports.Case(exports.FLOATS, exports.BOX))
    normaliser = policy.model.normaliser
    assert normaliser is not None
    for name, space in leaves(exports.FLOATS, OBSERVATION):
        leaf = normaliser.leaf(name)
        leaf.count.zero_()
        leaf.merge(leaf.moments(9000.0 + torch.randn(1000, *(space.shape or ()))))
    inputs, _ = random_steps(policy, 200, seed=0)
    normalised = normaliser({name: torch.from_numpy(x) for name, x in inputs.items()})
    for column in normalised.values():
        clipped = (column.abs() == 10.0).flatten(1).any(1)
        assert clipped[::2].all() and not clipped[1::2].any()


@pytest.mark.parametrize("squash", [False, True])
def test_the_file_says_what_its_means_are_before(squash: bool) -> None:
    policy = policy_of(exports.Case(exports.FLOATS, exports.BOX, {"squash_actions": squash}))
    (mean,) = (column for column in PolicyProgram(policy).outputs if column.name == "mean")
    assert ("before tanh" in mean.meaning, "clipping" in mean.meaning) == (squash, not squash)


def test_observations_beyond_their_bounds_are_cut_off_as_in_the_training() -> None:
    case = exports.Case(spaces.Box(-1.0, 1.0, (4,), np.float64), exports.BOX)
    plain = policy_of(case)
    policy = LoadedPolicy(plain.model, plain.spec, clip_observations=True)
    far = np.array([[5.0, -6.0, 0.5, 1.0]])
    near = far.clip(-1.0, 1.0)
    assert not np.allclose(plain.act(far[0])[0], plain.act(near[0])[0], atol=1e-3)
    assert np.array_equal(policy.act(far[0])[0], plain.act(near[0])[0])
    cut, whole = (
        PolicyProgram(policy)({"obs": torch.from_numpy(x)})["action"].numpy() for x in (far, near)
    )
    assert np.array_equal(cut, whole)
    inputs, _ = random_steps(policy, 20, seed=0)
    assert (np.abs(inputs["obs"]) > 1.0).any(), "the check of an export sees it"
    assert max_error(policy, lambda x: outputs_of(policy, x)) <= PARITY


@pytest.mark.long
@pytest.mark.parametrize("format", ["torch", "onnx"])
def test_whole_numbers_of_every_size_are_cut_off(format: Format, tmp_path: Path) -> None:
    names = [f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)]
    boxes = [(name, spaces.Box(1, 99, (2,), getattr(np, name))) for name in names]
    plain = policy_of(exports.Case(spaces.Dict(boxes), spaces.Discrete(3)))
    policy = LoadedPolicy(plain.model, plain.spec, clip_observations=True)
    metadata = export_policy(policy, tmp_path / f"policy{SUFFIX[format]}")
    assert metadata["max_error"] <= PARITY
    far = {f"obs.{name}": np.array([[0, 120]], name) for name in names}
    near = {name: column.clip(1, 99) for name, column in far.items()}
    cut, whole = (outputs_of(policy, inputs)["logits"] for inputs in (far, near))
    assert np.array_equal(cut, whole)


def outputs_of(policy: LoadedPolicy, inputs: dict[str, Any]) -> dict[str, Any]:
    with torch.inference_mode():
        given = {name: torch.from_numpy(column) for name, column in inputs.items()}
        return {name: x.numpy() for name, x in PolicyProgram(policy)(given).items()}


# ---- the adapters' arithmetic ----


@pytest.mark.parametrize("rescale", [False, True])
@pytest.mark.parametrize(
    "space",
    [
        exports.MIXED_DISCRETE,
        exports.MIXED_BOXES,
        exports.BOX,
        spaces.Box(-500.0, 900.0, (3,), np.float16),
        spaces.Box(np.array([1e6], "f"), np.array([1e6 + 1], "f")),
    ],
    ids=str,
)
def test_actions_for_the_environment_are_those_of_the_adapter_to_the_bit(
    space: spaces.Space[Any], rescale: bool
) -> None:
    """Also beyond their bounds."""
    specs = action_specs(space)
    if rescale:
        specs = {name: rescaled(leaf) for name, leaf in specs.items()}
    spec = env_spec("Fake-v0", EnvSpaces(exports.FLOATS, space))
    spec = type(spec)(**{**vars(spec), "actions": specs})
    actions = random_actions(spec, 200, np.random.default_rng(0))
    for name, leaf in specs.items():
        if leaf.kind == "box":
            spread = np.random.default_rng(1).normal(0, 2, actions[name].shape)
            actions[name] = (actions[name] * spread).astype(leaf.dtype)
    expected = ActionAdapter(space, specs)(actions)
    dtypes = {name: np.dtype(leaf.dtype) for name, leaf in leaves(space, ACTION)}
    for name, leaf in specs.items():
        found = to_env(leaf, dtypes[name])(torch.from_numpy(actions[name])).numpy()
        assert found.dtype == expected[name].dtype == dtypes[name]
        np.testing.assert_array_equal(found, expected[name])


def test_observations_for_the_model_are_those_of_the_adapter_to_the_bit() -> None:
    space = exports.CATEGORIES
    space.seed(0)
    spec = env_spec("Fake-v0", EnvSpaces(space, exports.MIXED_DISCRETE))
    adapter = ObservationAdapter(spec)
    rows = {n: np.zeros((50, *leaf.shape), leaf.dtype) for n, leaf in spec.observations.items()}
    given = [space.sample() for _ in range(50)]
    for row, observation in enumerate(given):
        adapter.write(row, observation, {}, rows)
    for name, leaf in space.spaces.items():
        column = torch.from_numpy(np.array([observation[name] for observation in given]))
        found = to_slots(leaf, spec.observations[name])(column).numpy()
        assert found.dtype == rows[name].dtype
        np.testing.assert_array_equal(found, rows[name])


# ---- the check ----


@pytest.mark.parametrize(
    ("spoilt", "column", "least"),
    [
        ("nothing", "", 0.0),
        ("next to nothing", "value", 1e-3),
        ("offset", "action.0", np.inf),
        ("another choice", "action.0", 1e-3),
        ("dtype", "action.1", np.inf),
        ("nan", "logits", np.inf),
        ("a box", "action.arm.bounded", 1e-3),
        ("shape", "value", np.inf),
    ],
)
def test_the_check_sees_what_is_wrong(spoilt: str, column: str, least: float) -> None:
    policy = policy_of(CASES[GRU_CASE if spoilt == "a box" else MLP_CASE])
    program = PolicyProgram(policy)

    @torch.inference_mode()
    def exported(inputs: dict[str, Any]) -> dict[str, Any]:
        outputs = program({key: torch.from_numpy(x) for key, x in inputs.items()})
        found = {key: x.numpy() for key, x in outputs.items()}
        if spoilt == "next to nothing":
            found[column] = found[column] + np.float32(2e-3) * np.maximum(1, abs(found[column]))
        elif spoilt == "offset":
            found[column] = found[column] - 5
        elif spoilt == "another choice":
            found[column] = 5 + (found[column] - 4) % 3
        elif spoilt == "dtype":
            found[column] = found[column].astype(np.int64)
        elif spoilt == "a box":  # by a thousandth of the distance of its bounds
            found[column] = found[column] + np.array([0.0, 0.9], np.float32)
        elif spoilt == "nan":
            found[column] = np.full_like(found[column], np.nan)
        elif spoilt == "shape":
            found[column] = found[column][:, None]
        return found

    error = max_error(policy, exported, observations=100)
    assert error >= least
    if spoilt == "nothing":
        assert error <= PARITY


@pytest.mark.long
def test_a_policy_that_computes_something_else_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "max_error", lambda *_: 0.5)
    with pytest.raises(ExportError, match=r"differs from the model by 0\.5 on 1000 random"):
        export_policy(policy_of(CASES[LSTM_CASE]), tmp_path / "policy.pt2")
    assert list(tmp_path.iterdir()) == []


# ---- what is refused ----


class CountsRows(MLP):
    """An encoder whose graph depends on the number of rows."""

    def forward(self, obs: Any) -> torch.Tensor:
        features = super().forward(obs)
        return features if len(features) > 7 else features * 2.0


def test_an_encoder_that_cannot_be_exported_is_named(tmp_path: Path) -> None:
    case = exports.Case(
        spaces.Box(-1, 1, (3,)), spaces.Discrete(2), {"encoder": f"{__name__}:CountsRows"}
    )
    with pytest.raises(ExportError, match="encoder CountsRows"):
        export_policy(policy_of(case), tmp_path / "policy.pt2")


def test_a_missing_package_is_named_with_its_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if "onnx" in name else find(name)
    )
    with pytest.raises(ConfigError, match=r'onnx and onnxscript.* pip install "sampleforge\[exp'):
        export_policy(policy_of(CASES[LSTM_CASE]), tmp_path / "policy.onnx")


@pytest.mark.long
def test_without_onnxruntime_the_check_says_what_it_was_made_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "onnxruntime" else find(name)
    )
    case = exports.Case(spaces.Box(-1, 1, (3,)), spaces.Discrete(2))
    metadata = export_policy(policy_of(case), tmp_path / "policy.onnx")
    assert metadata["checked_with"].endswith("(onnxruntime is not installed)")
    assert metadata["max_error"] <= PARITY


def test_an_unknown_suffix_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"must end in \.onnx or \.pt2"):
        export_policy(policy_of(CASES[LSTM_CASE]), tmp_path / "policy.pt")
