"""Models: every observation and action space, acting equals learning, statistics, registration."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

from sampleforge.algorithms.flat_parameters import flatten as flatten_parameters
from sampleforge.config import ConfigError
from sampleforge.models.actor_critic import ActorCritic
from sampleforge.models.cnn import ImageEncoder
from sampleforge.models.config import ModelConfig
from sampleforge.models.encoder_registry import register_encoder, resolve_encoder
from sampleforge.models.encoders import (
    MLP,
    OneHot,
    Vector,
    activation,
    derivative,
    out_of_place,
    to_be_loaded,
)
from sampleforge.models.normaliser import CLIP, LARGE_INTERVAL, make_normaliser
from sampleforge.models.numpy_forward import NumpyForward, has_numpy_forward
from sampleforge.models.passes_by_hand import passes_of
from sampleforge.models.stacked import is_stackable
from sampleforge.ops.distributions import action_layout
from sampleforge.spec import ACTION_MASK, ArraySpec, action_specs, flatten, observation_specs

VECTOR = spaces.Box(-np.inf, np.inf, (4,), np.float32)
IMAGE = spaces.Box(0, 255, (3, 36, 40), np.uint8)
MINATAR = spaces.Box(0, 1, (10, 10, 10), np.bool_)  # type: ignore[arg-type]
NESTED = spaces.Dict(
    image=spaces.Box(0, 255, (16, 16, 3), np.uint8),
    arm=spaces.Dict(position=spaces.Box(-1.0, 1.0, (2, 2), np.float64), grip=spaces.Discrete(3)),
    more=spaces.Tuple((spaces.MultiDiscrete([2, 4]), spaces.MultiBinary(5))),
    bytes=spaces.Box(0, 255, (6,), np.uint8),
)
MASKED = spaces.Dict({"obs": VECTOR, ACTION_MASK: spaces.MultiBinary(9)})
ACTIONS = spaces.Dict(
    a=spaces.Discrete(4),
    b=spaces.Tuple((spaces.MultiDiscrete([2, 3]), spaces.Box(-1.0, 2.0, (2,), np.float32))),
)
OBSERVATIONS: dict[str, spaces.Space[Any]] = {
    "vector": VECTOR,
    "image": IMAGE,
    "minatar": MINATAR,
    "nested": NESTED,
}


def observed(space: spaces.Space[Any], *batch: int, seed: int = 0) -> dict[str, Tensor]:
    """Leaves [*batch, ...] of random observations."""
    space.seed(seed)
    rows = [flatten(space, space.sample(), "obs") for _ in range(int(np.prod(batch)))]
    stacked = {name: np.stack([np.asarray(row[name]) for row in rows]) for name in rows[0]}
    return {n: torch.from_numpy(x).reshape(*batch, *x.shape[1:]) for n, x in stacked.items()}


def model_of(
    observation: spaces.Space[Any], action: spaces.Space[Any] = ACTIONS, **config: Any
) -> ActorCritic:
    torch.manual_seed(0)
    specs = observation_specs(observation)
    return ActorCritic(ModelConfig(**config), specs, action_specs(action))


@pytest.mark.parametrize(
    "name, encoder",
    [
        *[(name, encoder) for name in OBSERVATIONS for encoder in ("auto", "mlp")],
        *[(name, "impala_resnet") for name in OBSERVATIONS if name != "vector"],
    ],
)
def test_every_observation_gives_outputs_and_gradients(name: str, encoder: str) -> None:
    space = OBSERVATIONS[name]
    model = model_of(space, encoder=encoder, cnn_features=32)
    first = torch.zeros(3, 2, dtype=torch.bool)
    out = model(observed(space, 3, 2), torch.zeros(2, 0), first)
    assert out.parameters.shape == (
        3,
        2,
        action_layout(action_specs(ACTIONS)).head_size(state_std=True),
    )
    assert out.values.shape == (3, 2) and out.state.shape == (2, 0)
    (out.parameters.square().sum() + out.values.sum()).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("core", ["none", "gru", "lstm"])
@pytest.mark.parametrize("separate", [False, True])
@pytest.mark.parametrize("std", ["learned", "state"])
def test_ratio_is_one_on_policy(core: Any, separate: bool, std: Any) -> None:
    """Step by step while acting, one pass while learning: the same log-probs and values, with
    masks, resets in the rollout, and discrete and squashed box actions together (fault 3)."""
    model = model_of(
        MASKED, core=core, core_size=16, separate_critic=separate, action_std=std,
        squash_actions=True, initial_log_std=-0.5,
    )  # fmt: skip
    steps, rows = 9, 5
    obs = observed(MASKED, steps, rows)
    model.normaliser.update({"obs": obs["obs"].flatten(0, 1)})  # type: ignore[union-attr]
    first = torch.rand(steps, rows, generator=torch.Generator().manual_seed(1)) < 0.3
    state = start = torch.randn(rows, model.state_size)
    acted, log_probs, values = [], [], []
    with torch.inference_mode():
        for t in range(steps):
            at = {name: x[t] for name, x in obs.items()}
            out = model.step(at, state, first[t])
            dist = model.distribution(out.parameters, at)
            acted.append(dist.sample())
            log_probs.append(dist.log_prob(acted[-1]))
            values.append(out.values)
            state = out.state
    actions = {k: torch.stack([a[k] for a in acted]).clone() for k in acted[0]}
    learned = model(obs, start, first)
    now = model.distribution(learned.parameters, obs).log_prob(actions)
    ratio = (now - torch.stack(log_probs)).exp()
    assert torch.allclose(ratio, torch.ones(steps, rows), atol=1e-5)
    assert torch.allclose(learned.values, torch.stack(values), atol=1e-5)
    assert torch.allclose(learned.state, state, atol=1e-5)


def test_masked_actions_are_not_taken() -> None:
    model = model_of(MASKED)
    obs = observed(MASKED, 500)
    dist = model.distribution(model.step(obs, torch.zeros(500, 0), torch.zeros(500) > 0)[0], obs)
    a, mask = dist.sample()["a"], obs[ACTION_MASK][:, :4].bool()
    taken = mask.gather(1, a[:, None]).squeeze(1)
    assert (taken | ~mask.any(1)).all()


def test_a_mask_that_does_not_fit_the_actions_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"9 elements.*4 categories"):
        model_of(MASKED, spaces.Discrete(4))


def test_squashing_unbounded_actions_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"--model\.squash-actions needs"):
        model_of(VECTOR, spaces.Box(-np.inf, np.inf, (1,)), squash_actions=True)


@pytest.mark.parametrize("std", ["learned", "state"])
def test_log_std_starts_where_it_should(std: Any) -> None:
    model = model_of(VECTOR, spaces.Box(-1.0, 1.0, (3,)), action_std=std, initial_log_std=-1.5)
    out = model.step(observed(VECTOR, 6), torch.zeros(6, 0), torch.zeros(6) > 0)
    assert torch.allclose(out.parameters[:, 3:], torch.full((6, 3), -1.5), atol=0.2)


def test_value_scale_is_the_unit_of_the_values() -> None:
    model = model_of(VECTOR)
    obs, first = observed(VECTOR, 4), torch.zeros(4) > 0
    before = model.step(obs, torch.zeros(4, 0), first)
    model.value_scale.fill_(3.0)
    after = model.step(obs, torch.zeros(4, 0), first)
    assert torch.allclose(after.values, 3.0 * before.values)
    assert torch.equal(after.parameters, before.parameters)
    model.rescale_values(7.0)
    kept = model.step(obs, torch.zeros(4, 0), first)
    assert model.value_scale == 7.0 and torch.allclose(kept.values, after.values, rtol=1e-5)


@pytest.mark.parametrize("core", ["none", "gru", "lstm"])
def test_bfloat16_keeps_heads_values_and_state_in_float32(core: Any) -> None:
    model = model_of(IMAGE, core=core, core_size=8, cnn_features=16)
    obs, first = observed(IMAGE, 3, 2), torch.zeros(3, 2, dtype=torch.bool)
    exact = model(obs, torch.zeros(2, model.state_size), first)
    with torch.autocast("cpu", torch.bfloat16):
        rough = model(obs, torch.zeros(2, model.state_size), first)
        stepped = model.step({"obs": obs["obs"][0]}, torch.zeros(2, model.state_size), first[0])
    assert all(x.dtype == torch.float32 for x in (*rough, *stepped))
    assert torch.allclose(rough.values, exact.values, atol=0.05)
    assert not torch.equal(rough.values, exact.values)


def image_encoder(name: str, image: ArraySpec, **kwargs: Any) -> ImageEncoder:
    return ImageEncoder({"obs": image}, ModelConfig(encoder=name, **kwargs))


def test_images_of_either_layout_give_the_same_features() -> None:
    image = torch.randint(0, 256, (2, 3, 40, 44), dtype=torch.uint8)
    torch.manual_seed(0)
    chw = image_encoder("nature_cnn", ArraySpec((3, 40, 44), "uint8"), cnn_features=8)
    hwc = image_encoder("nature_cnn", ArraySpec((40, 44, 3), "uint8"), cnn_features=8)
    hwc.load_state_dict(chw.state_dict())
    by_hand = torch.relu_(chw.towers[0].stem(image / 255.0))  # type: ignore[union-attr, operator]
    for layer in list(chw.towers[0].rest)[1:]:  # type: ignore[union-attr, arg-type]
        by_hand = layer(by_hand)
    by_hand = chw.towers[0].dense(by_hand.flatten(1))  # type: ignore[union-attr, operator]
    assert torch.allclose(chw({"obs": image}), by_hand, atol=1e-5)
    assert torch.allclose(hwc({"obs": image.permute(0, 2, 3, 1)}), by_hand, atol=1e-5)


def normalised(x: Tensor, axes: tuple[int, ...]) -> Tensor:
    """(x - mean) / std over ``axes``: LayerNorm at its initial gain and shift."""
    centred = x - x.mean(axes, keepdim=True)
    return centred / (centred.square().mean(axes, keepdim=True) + 1e-5).sqrt()


def test_layer_norm_stands_between_each_layer_and_its_activation() -> None:
    config = ModelConfig(layer_norm=True, hidden_sizes=(6, 5), cnn_features=7)
    mlp = MLP({"obs": ArraySpec((3,), "float32")}, config)
    vector = x = 10.0 * torch.randn(4, 3)
    for weight, bias in mlp.layers:
        x = torch.tanh(normalised(x @ weight.T + bias, (1,)))
    torch.testing.assert_close(mlp({"obs": vector}), x, atol=1e-5, rtol=1e-4)
    image_leaf = {"obs": ArraySpec((3, 40, 44), "float32")}
    cnn = ImageEncoder(image_leaf, replace(config, encoder="nature_cnn"))
    image = x = torch.randn(2, 3, 40, 44)
    tower: Any = cnn.towers[0]
    for conv in (tower.stem, *(m for m in tower.rest if isinstance(m, nn.Conv2d))):
        x = torch.relu(normalised(conv(x), (1, 2, 3)))
    ((weight, bias),) = tower.dense.layers
    x = torch.relu(normalised(x.flatten(1) @ weight.T + bias, (1,)))
    torch.testing.assert_close(cnn({"obs": image}), x, atol=1e-5, rtol=1e-4)
    with pytest.raises(ConfigError, match=r"--model\.layer-norm --model\.encoder impala_resnet"):
        ImageEncoder(image_leaf, replace(config, encoder="impala_resnet"))


def test_passes_by_hand_and_in_numpy_are_left_to_torch_where_layers_are_normalised() -> None:
    for layer_norm in (False, True):
        model = model_of(VECTOR, spaces.Discrete(2), layer_norm=layer_norm)
        flatten_parameters(model)
        direct = passes_of(model) is not None, has_numpy_forward(model), is_stackable(model)
        assert direct == (not layer_norm,) * 3


@pytest.mark.long
@pytest.mark.parametrize("shape", [(8, 8, 3), (1, 20, 35), (10, 10, 10), (84, 84, 4), (9, 60, 1)])
@pytest.mark.parametrize("name", ["nature_cnn", "impala_resnet"])
def test_images_of_every_size_work(shape: tuple[int, ...], name: str) -> None:
    encoder = image_encoder(name, ArraySpec(shape, "uint8"), cnn_features=12)
    assert encoder({"obs": torch.zeros(2, *shape, dtype=torch.uint8)}).shape == (2, 12)


def test_doom_cnn_is_that_of_the_paper_and_refuses_what_is_too_small_for_it() -> None:
    encoder = image_encoder("doom_cnn", ArraySpec((72, 128, 3), "uint8"))
    assert encoder.towers[0].dense.weight_0.shape == (512, 3 * 6 * 128)  # type: ignore[union-attr]
    with pytest.raises(ConfigError, match=r"not 40 on a side; use nature_cnn"):
        image_encoder("doom_cnn", ArraySpec((40, 60, 3), "uint8"))


def test_dqn_cnn_is_that_of_the_paper_and_refuses_what_is_too_small_for_it() -> None:
    encoder = image_encoder("dqn_cnn", ArraySpec((84, 84, 4), "uint8"), cnn_features=256)
    assert encoder.towers[0].dense.weight_0.shape == (256, 32 * 9 * 9)  # type: ignore[union-attr]
    assert image_encoder("dqn_cnn", ArraySpec((20, 20, 4), "uint8")).out_features == 512
    with pytest.raises(ConfigError, match=r"not 19 on a side; use nature_cnn"):
        image_encoder("dqn_cnn", ArraySpec((19, 60, 3), "uint8"))


def test_impala_leaves_the_input_of_a_residual_block_alone() -> None:
    encoder = image_encoder("impala_resnet", ArraySpec((3, 12, 12), "float32"))
    block = encoder.towers[0].rest[1]  # type: ignore[union-attr, index]
    x = torch.randn(2, 16, 6, 6)
    kept = x.clone()
    block(x)  # type: ignore[operator]
    assert torch.equal(x, kept)


@pytest.mark.parametrize("categories", [(3,), (2, 5, 1), (11, 6, 4) * 49])
def test_one_hot_has_a_one_for_each_category_and_none_for_other_numbers(
    categories: tuple[int, ...],
) -> None:
    """Few categories and many are encoded in two ways."""
    encoder = OneHot(categories)
    codes = torch.stack([torch.randint(-2, n + 2, (40,)) for n in categories], 1)
    blocks = [codes[:, [i]] == torch.arange(count) for i, count in enumerate(categories)]
    assert torch.equal(encoder(codes), torch.cat(blocks, 1).float())
    assert encoder.out_features == sum(categories)
    as_bytes = codes.clamp(min=0).to(torch.uint8)
    assert torch.equal(encoder(as_bytes), encoder(as_bytes.long()))


def test_vector_of_categories_bytes_and_numbers() -> None:
    specs = {
        "n": ArraySpec((), "int64", (3,)),
        "m": ArraySpec((2,), "int64", (2, 2)),
        "b": ArraySpec((1,), "uint8"),
        "f": ArraySpec((1, 2), "float64"),
    }
    leaves = {
        "n": torch.tensor([2, 0]),
        "m": torch.tensor([[0, 1], [1, 1]]),
        "b": torch.tensor([[255], [51]], dtype=torch.uint8),
        "f": torch.tensor([[[0.5, -1.0]], [[2.0, 3.0]]], dtype=torch.float64),
    }
    vector = Vector(specs, ModelConfig(normalise_observations=False))
    found = vector(leaves)
    assert found.dtype == torch.float32 and vector.out_features == 10
    assert found.tolist() == pytest.approx(
        torch.tensor([[0, 0, 1, 1, 0, 0, 1, 1, 0.5, -1], [1, 0, 0, 0, 1, 0, 1, 0.2, 2, 3]])
    )


def test_normaliser_counts_what_it_saw_and_changes_in_update_only() -> None:
    normaliser = make_normaliser(observation_specs(NESTED), ModelConfig())
    assert normaliser is not None
    normalised = {"arm.position", "bytes"}
    assert {name.replace("/", ".") for name in normaliser.leaves} == normalised
    total = 0
    for size in (1, 7, 100):
        obs = {n: x + 5 if n == "arm.position" else x for n, x in observed(NESTED, size).items()}
        mask = torch.rand(size) < 0.7
        before = copy.deepcopy(normaliser.state_dict())
        out = normaliser(obs)
        assert all(torch.equal(before[k], v) for k, v in normaliser.state_dict().items())
        assert all(out[n].dtype == torch.float32 for n in normalised)
        assert all(torch.equal(out[n], obs[n]) for n in obs if n not in normalised)
        normaliser.update(obs, mask)
        total += int(mask.sum())
    for name in normaliser.leaves:
        assert normaliser.state_dict()[f"leaves.{name}.count"] == total


def test_normaliser_normalises_and_clips() -> None:
    normaliser = make_normaliser({"obs": ArraySpec((2,), "float32")}, ModelConfig())
    assert normaliser is not None
    x = torch.randn(1000, 2) * torch.tensor([3.0, 0.1]) + torch.tensor([50.0, -2.0])
    normaliser.update({"obs": x})
    y = normaliser({"obs": x})["obs"]
    assert torch.allclose(y.mean(0), torch.zeros(2), atol=1e-3)
    assert torch.allclose(y.std(0, correction=0), torch.ones(2), atol=1e-3)
    assert normaliser({"obs": torch.tensor([[1e9, -1e9]])})["obs"].tolist() == [[10.0, -10.0]]


@pytest.mark.parametrize("constant", [0.1, -1.0, 1000.3, -9000.7, 3e7])
def test_an_element_that_does_not_change_is_0_wherever_it_is(constant: float) -> None:
    """Nothing is left of it by rounding, which is another thing in each backend: torch and numpy
    have the same policy."""
    model = model_of(spaces.Box(-np.inf, np.inf, (3,), np.float32))
    assert model.normaliser is not None
    x = torch.randn(40, 7, 3) * 0.1
    x[..., 0] = constant
    for part in x:
        model.normaliser.update({"obs": part})
    assert not model.normaliser({"obs": x})["obs"][..., 0].any()
    obs, state, is_first = {"obs": x[0]}, torch.zeros(7, 0), torch.zeros(7, dtype=torch.bool)
    with torch.no_grad():
        expected = model.step(obs, state, is_first)
    assert has_numpy_forward(model)
    found = NumpyForward(model)({"obs": x[0].numpy()})
    head = len(found.head)  # without the standard deviation
    np.testing.assert_allclose(found.head.T, expected.parameters[:, :head], atol=1e-6)
    np.testing.assert_allclose(found.values, expected.values, atol=1e-6)


def test_bytes_that_are_no_image_are_normalised() -> None:
    """Codes from 0 to 10, as of a grid world: divided by 255 they would all look alike."""
    model = model_of(spaces.Box(0, 255, (7, 7, 3), np.uint8))
    assert model.normaliser is not None
    codes = torch.randint(0, 11, (5000, 7, 7, 3), dtype=torch.uint8)
    codes[:, 0, 0, 0] = 4
    codes[0, 0, 0, 0] = 5  # hardly ever changes
    first = model.normaliser({"obs": codes})["obs"]
    assert torch.allclose(first, codes / 255.0)  # nothing is known yet
    model.normaliser.update({"obs": codes})
    found = model.actor.encoder.vector(model.normaliser({"obs": codes}))  # type: ignore[union-attr, operator]
    assert found.std(0)[1:].min() > 0.9 and found.abs().max() < 2.0


def test_images_alone_need_no_normaliser() -> None:
    assert model_of(IMAGE).normaliser is None
    assert model_of(VECTOR, normalise_observations=False).normaliser is None


@pytest.mark.long
@pytest.mark.parametrize("shape", [(4, 12, 12), (12, 12, 3)])
@pytest.mark.parametrize("kind", [np.uint8, np.float32])
@pytest.mark.parametrize("has_autocast", [False, True])
def test_pixels_are_normalised_each_by_its_own_statistics(
    shape: tuple[int, ...], kind: Any, has_autocast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over every 61st large image, whatever the axes before the image and the order of its own, and
    in autocast's dtype, which the convolutions take."""
    monkeypatch.setattr("sampleforge.models.normaliser.MANY_NUMBERS", 100)
    scale = 1 if kind is np.uint8 else 0.01
    model = model_of(
        spaces.Box(0, 255, shape, kind), normalise_images=True, normalise_observations=False
    )
    assert model.normaliser is not None
    brightness = torch.randint(0, 200, shape)
    images = brightness + torch.randint(0, 40, (3000, *shape))
    images[:, 0, 0, 0] = 7
    images[61, 0, 0, 0] = 200  # hardly ever there
    images = images.to(torch.uint8) if kind is np.uint8 else images * scale
    model.normaliser.update({"obs": images})
    seen = images[::LARGE_INTERVAL].double()
    least = 1.0 if kind is np.uint8 else 0.0
    expected = (images - seen.mean(0)) / seen.std(0, correction=0).clamp(min=least)
    expected = expected.clamp(-CLIP, CLIP).float()
    assert expected.abs().max() > 5 and expected[::LARGE_INTERVAL].std(0).min() > 0.9
    rollout = images[:2400].unflatten(0, (60, 40))
    before = rollout.clone()
    with torch.autocast("cpu", enabled=has_autocast, dtype=torch.bfloat16):
        found = model.normaliser({"obs": rollout})["obs"]
        out = model({"obs": rollout[:2]}, torch.zeros(40, 0), torch.zeros(2, 40, dtype=torch.bool))
    assert found.dtype == (torch.bfloat16 if has_autocast else torch.float32)
    difference = (found.float() - expected[:2400].view(rollout.shape)).abs()
    assert difference.max() < (0.05 if has_autocast else 1e-3)
    assert out.values.std() > 0 and out.values.isfinite().all()
    assert torch.equal(rollout, before), "the images themselves stay"


def test_pixels_that_hardly_ever_change_stay_at_zero_under_autocast(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A background that is not at 0, and that moves with the statistics, drowns a small ball."""
    monkeypatch.setattr("sampleforge.models.normaliser.MANY_NUMBERS", 100)
    spec = ArraySpec((4, 12, 12), "uint8")
    normaliser = make_normaliser({"obs": spec}, ModelConfig(normalise_images=True))
    assert normaliser is not None
    background = torch.randint(0, 255, (4, 12, 12), dtype=torch.uint8)
    images = background.repeat(4000, 1, 1, 1)
    images[: 12 * LARGE_INTERVAL] += 1
    normaliser.update({"obs": images})
    with torch.autocast("cpu", dtype=torch.bfloat16):
        normal = normaliser({"obs": images[-1:]})["obs"].float()
    mean = images[::LARGE_INTERVAL].double().mean(0)
    assert (normal[0] - (background.double() - mean).float()).abs().max() < 1e-2


def test_normalised_images_are_laid_out_once_for_the_convolutions() -> None:
    for shape, order in (((4, 12, 12), (0, 1, 2, 3)), ((12, 12, 4), (0, 3, 1, 2))):
        config = ModelConfig(normalise_images=True)
        normaliser = make_normaliser({"obs": ArraySpec(shape, "uint8")}, config)
        assert normaliser is not None
        images = torch.zeros((5, 6, *shape), dtype=torch.uint8)
        flat = normaliser({"obs": images})["obs"].flatten(0, 1).permute(order)
        assert flat.shape[1] == 4 and flat.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("space", [VECTOR, spaces.MultiBinary((10, 10, 4))])
def test_normalising_images_needs_an_image_of_numbers(space: spaces.Space[Any]) -> None:
    with pytest.raises(ConfigError, match="no observation leaf is encoded as pixels"):
        model_of(space, normalise_images=True)


class OwnEncoder(nn.Module):
    """What a user writes."""

    def __init__(self, observations: Mapping[str, ArraySpec], config: ModelConfig) -> None:
        super().__init__()
        assert ACTION_MASK not in observations
        self.out_features = 3
        self.layer = nn.Linear(4, 3)

    def forward(self, obs: Mapping[str, Tensor]) -> Tensor:
        out: Tensor = self.layer(obs["obs"])
        return out


class TooWide(OwnEncoder):
    """Says that it has fewer features than it has."""

    def __init__(self, observations: Mapping[str, ArraySpec], config: ModelConfig) -> None:
        super().__init__(observations, config)
        self.out_features = 2


class Square(nn.Module):
    def __init__(self, leaves: Mapping[str, ArraySpec], config: ModelConfig) -> None:
        super().__init__()
        if len(leaves["obs"].shape) != 2:
            raise AssertionError


class Elsewhere(OwnEncoder):
    """Is made for another environment."""

    def __init__(self, observations: Mapping[str, ArraySpec], config: ModelConfig) -> None:
        super().__init__(observations, config)
        self.out_features = observations["pos"].shape[0]


class Flat(OwnEncoder):
    """Forgets that there are rows."""

    def forward(self, obs: Mapping[str, Tensor]) -> Tensor:
        return super().forward({"obs": obs["obs"].flatten()})


class Masked(OwnEncoder):
    """With a constant that no checkpoint may hold."""

    def __init__(self, observations: Mapping[str, ArraySpec], config: ModelConfig) -> None:
        super().__init__(observations, config)
        self.register_buffer("mask", torch.full((3, 3), -torch.inf).triu(1))


def test_an_encoder_of_normalised_bytes_is_tried_with_floats_and_goes_on_training() -> None:
    torch.manual_seed(3)
    model = ActorCritic(
        ModelConfig(encoder=f"{__name__}:OwnEncoder", normalise_observations=True),
        {"obs": ArraySpec((4,), "uint8")},
        action_specs(ACTIONS),
    )
    assert model.training and model.actor.encoder.training


def test_a_registered_encoder_resolves_to_what_another_process_can_import() -> None:
    register_encoder("own", OwnEncoder)
    specs = observation_specs(MASKED)
    resolved = resolve_encoder(ModelConfig(encoder="own"), specs)
    assert resolved.encoder == f"{__name__}:OwnEncoder"
    model = ActorCritic(resolved, specs, action_specs(ACTIONS))
    assert isinstance(model.actor.encoder, OwnEncoder)
    out = model.step(observed(MASKED, 2), torch.zeros(2, 0), torch.zeros(2) > 0)
    assert out.values.shape == (2,)


def test_auto_is_resolved_by_the_observations() -> None:
    for space, name in ((VECTOR, "mlp"), (MINATAR, "nature_cnn"), (NESTED, "nature_cnn")):
        assert resolve_encoder(ModelConfig(), observation_specs(space)).encoder == name
    assert isinstance(model_of(VECTOR).actor.encoder, MLP)


@pytest.mark.parametrize(
    "encoder, message",
    [
        ("natur_cnn", "Did you mean nature_cnn"),
        ("nowhere.to.be:Found", "importing it fails: No module named 'nowhere'"),
        ("sampleforge.spec:Missing", "importing it fails"),
        ("sampleforge.spec:ArraySpec", "it is no class derived from torch.nn.Module"),
        ("torch.nn:Identity", "out_features"),
        (
            f"{__name__}:TooWide",
            r"shape \[rows, out_features\], here \[2, 2\], .* returned \[2, 3\]",
        ),
        (
            f"{__name__}:Elsewhere",
            r"constructor fails for observations .*'obs': .*KeyError: 'pos'; correct",
        ),
        (f"{__name__}:Square", r"AssertionError at raise AssertionError \(test_models.py, line"),
        (f"{__name__}:Flat", "forward fails for observations .*shapes cannot be multiplied"),
        (f"{__name__}:Masked", r"the buffer mask holds .* not finite, .*persistent=False"),
        ("nature_cnn", "no observation leaf is encoded as pixels"),
    ],
)
def test_encoders_that_do_not_exist_or_fit_are_refused(encoder: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        model_of(VECTOR, encoder=encoder)


def test_encoders_that_no_other_process_can_import_are_refused() -> None:
    class Local(nn.Module):
        pass

    with pytest.raises(ConfigError, match="cannot be imported"):
        register_encoder("local", Local)
    with pytest.raises(ConfigError, match="taken"):
        register_encoder("mlp", OwnEncoder)


def test_a_network_to_be_loaded_is_the_usual_one_once_it_is_loaded() -> None:
    """And as many random numbers were drawn: parts of a user's own are the same in each process."""
    usual = model_of(IMAGE, core="gru")
    drawn = torch.random.get_rng_state()
    with to_be_loaded():
        bare = model_of(IMAGE, core="gru")
    assert torch.equal(torch.random.get_rng_state(), drawn)
    obs, state, first = observed(IMAGE, 4), torch.zeros(4, bare.state_size), torch.zeros(4) > 0
    assert not torch.equal(
        bare.step(obs, state, first).values, usual.step(obs, state, first).values
    )
    bare.load_state_dict(usual.state_dict())
    assert torch.equal(bare.step(obs, state, first).values, usual.step(obs, state, first).values)
    again = model_of(IMAGE, core="gru")
    assert torch.equal(again.step(obs, state, first).values, usual.step(obs, state, first).values)


def test_a_copy_is_a_model_of_its_own() -> None:
    """The hot path caches names, never tensors: copies and loaded weights must show."""
    model = model_of(VECTOR)
    other = copy.deepcopy(model)
    obs, first = observed(VECTOR, 4), torch.zeros(4) > 0
    before = model.step(obs, torch.zeros(4, 0), first)
    with torch.no_grad():
        for p in other.parameters():
            p.add_(0.3)
    other.normaliser.update({"obs": torch.randn(50, 4)})  # type: ignore[union-attr]
    moved = other.step(obs, torch.zeros(4, 0), first)
    assert torch.equal(model.step(obs, torch.zeros(4, 0), first).values, before.values)
    assert not torch.equal(moved.values, before.values)
    model.load_state_dict(other.state_dict())
    assert torch.equal(model.step(obs, torch.zeros(4, 0), first).values, moved.values)


@pytest.mark.parametrize("name", ["tanh", "relu", "elu", "silu"])
def test_the_activation_of_a_copied_network_is_known(name: str) -> None:
    """Target networks are copies, and have passes by hand where their network has them."""
    own = activation(name, "relu")
    copied = copy.deepcopy(own)
    assert (derivative(copied) is None) == (derivative(own) is None) == (name == "silu")
    assert out_of_place(copied) is out_of_place(own)
