"""Observations of every type and layout in models: what they become does not depend on either, and
the quick passes agree with the model's own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from sampleforge.algorithms.flat_parameters import flatten as flatten_parameters
from sampleforge.models.actor_critic import ActorCritic
from sampleforge.models.config import ModelConfig
from sampleforge.models.encoders import Embedding, Vector
from sampleforge.models.numpy_forward import NumpyForward, has_numpy_forward
from sampleforge.models.passes_by_hand import passes_of
from sampleforge.models.stacked import network_of_each_row
from sampleforge.spec import action_specs, observation_specs


def model_of(observation: spaces.Space[Any], **config: Any) -> ActorCritic:
    torch.manual_seed(0)
    specs = observation_specs(observation)
    config.setdefault("separate_critic", True)
    return ActorCritic(ModelConfig(**config), specs, action_specs(spaces.Discrete(3)))


@pytest.mark.long
@pytest.mark.parametrize("categories", [(5000,), (3, 700, 1_000_000)])
def test_each_code_is_embedded_in_a_vector_of_its_own(categories: tuple[int, ...]) -> None:
    """With few vectors even of a million codes; a number that is no code has none."""
    encoder = Embedding(categories, 4)
    assert len(encoder.weight) < 6000 and encoder.out_features == 4 * len(categories)
    last = torch.tensor(categories) - 1
    codes = torch.stack([last * 0, last, last // 2, last + 1, last * 0 - 1])
    found = encoder(codes)
    assert found.dtype == torch.float32 and found.shape == (5, encoder.out_features)
    assert len(found[:3].unique(dim=0)) == 3 and not found[3:].any()
    column = torch.arange(min(categories[-1], 100_000))
    all_codes = torch.zeros(len(column), len(categories), dtype=torch.int64)
    all_codes[:, -1] = column
    assert len(encoder(all_codes).unique(dim=0)) == len(column)


@pytest.mark.parametrize("embed_above", [1, 100_000], ids=["embedded", "one-hot"])
@pytest.mark.parametrize(
    ("dtype", "low", "high"),
    [(np.int8, -128, 127), (np.int8, -100, 100), (np.int16, -20_000, 20_000), (np.uint8, 3, 255)],
)
def test_all_codes_of_small_integers_differ(
    dtype: Any, low: int, high: int, embed_above: int
) -> None:
    """A code counts from the lower bound: that difference is not always a number of the type."""
    chosen = ModelConfig(encode={"obs": "codes"}, embed_above=embed_above)
    encoder = Vector(observation_specs(spaces.Box(low, high, (1,), dtype)), chosen)
    codes = torch.from_numpy(np.linspace(low, high, 256).astype(dtype)[:, None])
    found = encoder({"obs": codes})
    assert len(found.unique(dim=0)) == len(codes.unique()) and found.any(1).all()


def test_embeddings_are_trained_and_their_passes_are_those_of_autograd() -> None:
    """The passes by hand have no gradient of what comes before the first layer."""
    model = model_of(spaces.Discrete(1000))
    flatten_parameters(model)
    assert passes_of(model) is None
    step = model.step({"obs": torch.tensor([3, 999])}, torch.zeros(2, 0), torch.zeros(2).bool())
    (step.values.sum() + step.parameters.square().sum()).backward()
    by_code = [p.grad for name, p in model.named_parameters() if "codes" in name]
    assert len(by_code) == 2 and all(g is not None and g.any() for g in by_code)


@pytest.mark.parametrize("dtype", [np.int8, np.int64, np.uint8, np.uint16, np.uint32, np.float32])
def test_the_quick_passes_of_a_vector_take_numbers_of_any_type(dtype: Any) -> None:
    """Of numpy, of stacked networks, and by hand: they normalise as the model does."""
    model = model_of(spaces.Box(0, 100, (5,), dtype))
    flatten_parameters(model)
    numbers = np.random.default_rng(1).integers(0, 100, (64, 5)).astype(dtype)
    obs = {"obs": torch.from_numpy(numbers)}
    assert model.normaliser is not None
    model.normaliser.update(obs)
    empty, first = torch.zeros(64, 0), torch.zeros(64, dtype=torch.bool)
    with torch.no_grad():
        expected = model.step(obs, empty, first)
        assert has_numpy_forward(model)
        outputs = NumpyForward(model)({"obs": obs["obs"].numpy()})
        assert np.allclose(outputs.head.T, expected.parameters, atol=1e-5)
        assert np.allclose(outputs.values, expected.values, atol=1e-5)
        network = torch.zeros(64, dtype=torch.int64)
        stacked = network_of_each_row([model]).policy_step(obs, empty, first, network)[0]
        assert torch.allclose(stacked, expected.parameters, atol=1e-5)
        passes = passes_of(model)
        assert passes is not None
        parameters, values = passes.forward(passes.inputs(obs))
        assert torch.allclose(parameters, expected.parameters, atol=1e-5)
        assert torch.allclose(values, expected.values, atol=1e-5)


@pytest.mark.long
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
@pytest.mark.parametrize("normalises", [False, True])
def test_images_of_all_layouts_are_encoded_as_those_of_three_axes(
    dtype: Any, normalises: bool
) -> None:
    """A stack of colour frames as one image with their channels, last and first."""
    random = np.random.default_rng(1)
    frames = torch.from_numpy(random.integers(0, 255, (70, 2, 3, 40, 48)).astype(dtype))
    colours = {
        (6, 40, 48): frames.flatten(1, 2),
        (2, 3, 40, 48): frames,
        (2, 40, 48, 3): frames.permute(0, 1, 3, 4, 2),
    }
    greys = {(40, 48): frames[:, 0, 0], (1, 40, 48): frames[:, 0, :1]}
    empty, first = torch.zeros(70, 0), torch.zeros(70, dtype=torch.bool)
    for group in (colours, greys):
        outputs = []
        for shape, image in group.items():
            obs = {"obs": image.contiguous()}
            model = model_of(spaces.Box(0, 255, shape, dtype), normalise_images=normalises)
            if model.normaliser is not None:
                model.normaliser.update(obs)
            outputs.append(model.step(obs, empty, first).parameters)
        assert outputs[0].std() > 0
        for other in outputs[1:]:
            assert torch.allclose(outputs[0], other, atol=1e-4)


@pytest.mark.long
def test_pixels_of_floats_are_scaled_as_bytes_are_and_planes_are_not() -> None:
    boards = torch.randint(0, 2, (9, 12, 12, 5))
    models = {
        dtype: model_of(spaces.Box(0, 1, (12, 12, 5), dtype))
        for dtype in (np.bool_, np.uint8, np.float32, np.int16)
    }
    pixels = model_of(spaces.Box(0, 255, (40, 40, 3), np.uint8))
    floats = model_of(spaces.Box(0, 255, (40, 40, 3), np.float32))
    floats.load_state_dict(pixels.state_dict())
    image = torch.randint(0, 255, (9, 40, 40, 3), dtype=torch.uint8)
    empty, first = torch.zeros(9, 0), torch.zeros(9, dtype=torch.bool)
    of_bytes = pixels.step({"obs": image}, empty, first).parameters
    of_floats = floats.step({"obs": image.float()}, empty, first).parameters
    assert torch.allclose(of_bytes, of_floats, atol=1e-4)
    state = models[np.bool_].state_dict()
    outputs = []
    for dtype, model in models.items():
        model.load_state_dict(state)
        x = torch.from_numpy(boards.numpy().astype(dtype))
        outputs.append(model.step({"obs": x}, empty, first).parameters)
    assert all(torch.equal(outputs[0], other) for other in outputs[1:])
