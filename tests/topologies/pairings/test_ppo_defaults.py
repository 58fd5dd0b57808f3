"""What APPO and DD-PPO choose where the command line leaves it open, per kind of environment."""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sampleforge.algorithms.config import LearnerConfig
from sampleforge.algorithms.ppo.config import PpoLossConfig
from sampleforge.api import load_policy, train
from sampleforge.config import ConfigError, docstrings
from sampleforge.models.actor_critic import ActorCritic
from sampleforge.models.config import ModelConfig
from sampleforge.runtime.machine import Machine, assumed
from sampleforge.spec import ActionSpec, EnvSpec
from sampleforge.topologies.builders import NetworkMaker
from sampleforge.topologies.config import AppoConfig, DdppoConfig
from sampleforge.topologies.pairings import ppo_defaults, pqn_defaults
from sampleforge.topologies.pairings.ppo_defaults import (
    ASYNCHRONOUS,
    ASYNCHRONOUS_IMAGES,
    BATCH,
    FEWEST_ROWS,
    MINIBATCH,
    ON_POLICY,
    ON_POLICY_GRIDS,
    ON_POLICY_IMAGES,
    RECURRENT_MINIBATCH,
    RECURRENT_RANKS_WITH_IMAGES,
    RECURRENT_ROWS,
    ROWS,
    SHORTEST_ROLLOUT,
    reason,
    resolve_defaults,
)
from sampleforge.topologies.registry import pairing
from sampleforge.topologies.sampler_plan import nearest_minibatch
from tests.support.graphs import resolved, spec_of
from tests.support.ppo_plans import (
    ATARI,
    DISCRETE,
    IMAGE,
    KINDS,
    PLANES,
    VECTOR,
    PpoConfig,
    Settings,
    planned,
    spec,
)
from tests.support.variants import slow

# ---- which settings ----


@pytest.mark.parametrize(
    ("config", "of", "settings"),
    [
        (AppoConfig(), VECTOR, ON_POLICY),
        (AppoConfig(), DISCRETE, ON_POLICY),
        (AppoConfig(), PLANES, ON_POLICY_GRIDS),
        (AppoConfig(), ATARI, ON_POLICY_IMAGES),
        (AppoConfig(async_rl=True), ATARI, ASYNCHRONOUS_IMAGES),
        (AppoConfig(variable_experience=True), ATARI, ASYNCHRONOUS_IMAGES),
        (AppoConfig(async_rl=True), VECTOR, ASYNCHRONOUS),
        (AppoConfig(sampler_only=True), VECTOR, ASYNCHRONOUS),
        (DdppoConfig(), VECTOR, ON_POLICY),
        (DdppoConfig(), ATARI, ON_POLICY_IMAGES),
        (DdppoConfig(model=ModelConfig(core="gru")), ATARI, RECURRENT_RANKS_WITH_IMAGES),
    ],
)
def test_the_settings_follow_from_the_observations_and_async_rl(
    config: PpoConfig, of: EnvSpec, settings: Settings
) -> None:
    found = resolve_defaults(config, of)
    assert {name: getattr(found, name) for name in settings} == settings
    assert None not in (found.rollout, found.learning_rate, found.exploration_coeff)


@pytest.mark.parametrize("name", ["num_epochs", "learning_rate", "exploration_coeff"])
def test_the_help_of_a_setting_has_its_defaults(name: str) -> None:
    """All of them, and no other number."""
    kinds = [*vars(ppo_defaults).values(), pqn_defaults.VECTORS, pqn_defaults.PLANES]
    values = {float(kind[name]) for kind in kinds if isinstance(kind, dict) and name in kind}
    cls = PpoLossConfig if name == "exploration_coeff" else LearnerConfig
    _, _, text = docstrings(cls)[name].partition("(default: ")
    assert {float(number) for number in re.findall(r"\d[\d.]*(?:e-\d+)?", text)} == (
        values | ({0.0} if name == "exploration_coeff" else set())  # of Box actions
    )


@pytest.mark.parametrize("of", [IMAGE, ATARI], ids=["image", "atari"])
def test_a_gpu_learns_from_images_while_sampling_goes_on(of: EnvSpec) -> None:
    """On a CPU three batches wait for the learner then, and Pong was learned half as fast."""
    for gpus, device, expected in ((0, "auto", False), (1, "auto", True), (1, "cpu", False)):
        with assumed(Machine(16, gpus, capability=lambda _: (9, 0))):
            found = resolve_defaults(AppoConfig(device=device), of)
            assert (found.async_rl, found.minibatch_size, found.num_epochs) == (expected, 256, 2)
            assert found.advantage == ("vtrace" if expected else "gae")
            assert resolve_defaults(AppoConfig(device=device), VECTOR).async_rl is False


def test_a_batch_beyond_reason_is_refused_at_once() -> None:
    """And not divided: that would take minutes."""
    with pytest.raises(ConfigError, match=r"batch of 100,000,000,000,000 env .*lower --batch-size"):
        nearest_minibatch(10**14, 256, 32)
    assert nearest_minibatch(10**10, 256, 1) == 256


@pytest.mark.parametrize("of", [IMAGE, ATARI], ids=["image", "atari"])
def test_images_are_learned_from_in_minibatches(of: EnvSpec) -> None:
    """With one gradient step for each batch Breakout had 3.0 after two million env steps."""
    for asynchronous in (False, True):
        found = resolve_defaults(AppoConfig(async_rl=asynchronous), of)
        assert (found.async_rl, found.minibatch_size) == (asynchronous, 256)
        assert found.model.normalise_images is True
        given = AppoConfig(async_rl=asynchronous, minibatch_size=512)
        assert resolve_defaults(given, of).minibatch_size == 512
    whole = resolve_defaults(AppoConfig(async_rl=True), VECTOR)
    assert (whole.minibatch_size, whole.model.normalise_images) == (None, False)
    assert resolve_defaults(AppoConfig(sampler_only=True), of).minibatch_size is None
    assert resolve_defaults(DdppoConfig(), of).model.normalise_images is True


def test_a_refused_lag_names_one_that_is_not_refused(cores: Callable[[int], None]) -> None:
    """The first refusal counted two gradient steps for a batch and named 12, which was refused."""
    cores(2)
    with pytest.raises(ConfigError, match=r"x 16 gradient steps .*use --max-policy-lag 96 "):
        planned(AppoConfig(max_policy_lag=3, async_rl=True), ATARI)
    given = AppoConfig(max_policy_lag=96, async_rl=True)
    assert planned(given, ATARI)[1].lag.limit == 96


@pytest.mark.parametrize("of", [VECTOR, ATARI], ids=["vector", "image"])
@pytest.mark.parametrize("make", [AppoConfig, DdppoConfig])
def test_what_is_given_stays(make: type[PpoConfig], of: EnvSpec) -> None:
    given: Settings = {
        "num_epochs": 7,
        "learning_rate": 0.125,
        "exploration_coeff": 0.25,
        "advantage": "vtrace",
        "rollout": 24,
        "num_envs_per_worker": 6,
        "minibatch_size": 48,
    }
    for separate in (True, False):
        config = make(**given, model=ModelConfig(separate_critic=separate))
        found = resolve_defaults(config, of)
        assert {name: getattr(found, name) for name in given} == given
        assert found.model.separate_critic is separate


@pytest.mark.parametrize(
    ("of", "core", "separate"),
    [(VECTOR, "none", True), (VECTOR, "gru", False), (IMAGE, "none", False)],
)
def test_vectors_without_a_core_have_a_critic_of_their_own(
    of: EnvSpec, core: Any, separate: bool
) -> None:
    for config in (AppoConfig(model=ModelConfig(core=core)), AppoConfig(async_rl=True)):
        if config.model.core == core:
            assert resolve_defaults(config, of).model.separate_critic is separate


@pytest.mark.long
def test_resolving_again_changes_nothing() -> None:
    for of, make in itertools.product(KINDS.values(), (AppoConfig, DdppoConfig)):
        once = resolve_defaults(make(), of)
        assert resolve_defaults(once, of) == once


# ---- batches and rows ----


def test_a_batch_and_its_minibatches_have_the_default_size() -> None:
    config, plan = planned(AppoConfig(), VECTOR)
    assert (plan.envs, plan.batch_size, config.minibatch_size) == (ROWS, BATCH, MINIBATCH)
    assert plan.synchronous


def test_a_core_learns_from_short_rollouts_of_many_rows(cores: Callable[[int], None]) -> None:
    cores(2)
    for make in (AppoConfig, DdppoConfig):
        config, plan = planned(make(model=ModelConfig(core="gru")), VECTOR)
        assert (plan.envs, plan.rollout) == (RECURRENT_ROWS, BATCH // RECURRENT_ROWS)
        ranks = 2 if make is DdppoConfig else 1
        assert config.minibatch_size and config.minibatch_size * ranks == RECURRENT_MINIBATCH


@pytest.mark.parametrize("of", [VECTOR, DISCRETE, PLANES], ids=["vector", "discrete", "planes"])
@pytest.mark.parametrize("core", ["none", "gru"])
def test_the_number_of_cores_does_not_change_what_is_learned(
    cores: Callable[[int], None], of: EnvSpec, core: Any
) -> None:
    seen = set()
    for count in (1, 2, 3, 16, 64):
        cores(count)
        config, plan = planned(AppoConfig(model=ModelConfig(core=core)), of)
        assert plan.num_workers <= count
        seen.add((plan.envs, plan.rollout, plan.batch_size, config.minibatch_size))
    assert len(seen) == 1


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"num_envs_per_worker": 64}, {"envs": 64 * (ROWS // FEWEST_ROWS)}),
        ({"batch_size": 512}, {"batch_size": 512}),
        ({"batch_size": 500}, {"batch_size": 500}),
        ({"num_workers": 4}, {"num_workers": 4, "envs": ROWS, "batch_size": BATCH}),
        ({"num_workers": 3}, {"num_workers": 3, "envs": 3 * math.ceil(ROWS / 3)}),
        ({"num_workers": 24}, {"num_workers": 24, "envs": 24}),
        ({"rollout": 32}, {"rollout": 32, "envs": ROWS}),
        ({"num_splits": 3}, {"num_splits": 3, "envs": 3 * math.ceil(ROWS / 3)}),
        ({"serial": True}, {"num_workers": 1, "envs": ROWS}),
        ({"async_rl": True}, {"rollout": ASYNCHRONOUS["rollout"], "synchronous": False}),
        ({"batch_size": 512, "num_envs_per_worker": 64}, {"batch_size": 512}),
        ({"batch_size": 4096, "rollout": 64}, {"batch_size": 4096, "envs": 64}),
        ({"batch_size": 2048, "num_envs_per_worker": 16, "rollout": 64}, {"num_workers": 2}),
    ],
    ids=lambda value: " ".join(map(str, value)),
)
def test_the_rest_is_fitted_to_what_is_given(
    cores: Callable[[int], None], given: Settings, expected: Settings
) -> None:
    cores(16)
    _, plan = planned(AppoConfig(**given), VECTOR)
    assert {name: getattr(plan, name) for name in expected} == expected


@pytest.mark.parametrize("advantage", [None, "vtrace"])
@pytest.mark.parametrize("core", ["none", "gru", "lstm"])
def test_minibatches_are_of_whole_rollouts_where_time_matters(core: Any, advantage: Any) -> None:
    config = AppoConfig(async_rl=False, advantage=advantage, model=ModelConfig(core=core))
    for of in (VECTOR, ATARI):
        found, _ = planned(config, of)
        assert found.minibatch_size and found.rollout
        whole = core != "none" or advantage == "vtrace"
        assert not whole or found.minibatch_size % found.rollout == 0


@pytest.mark.parametrize(
    ("kind", "given", "of_cores"),
    [
        ("image", {"async_rl": False, "num_learners": 2}, {1: 1, 2: 1, 16: 8}),
        ("image", {}, {2: 2, 16: 16}),
        ("image", {"async_rl": True}, {2: 1, 16: 6}),
        ("planes", {}, {1: 1, 2: 2, 16: 4}),
        ("planes", {"num_policies": 8}, {2: 1, 16: 2}),
        ("planes", {"async_rl": True}, {2: 1, 16: 4}),
        ("planes", {"serial": True}, {16: 1}),
        ("planes", {"learner_threads": 3}, {16: 3}),
        ("planes", {"model": ModelConfig(encoder="mlp")}, {16: 1}),
        ("vector", {}, {16: 1}),
        ("vector", {"model": ModelConfig(hidden_sizes=(256, 256))}, {1: 1, 2: 2, 16: 2}),
    ],
)
def test_a_learner_has_threads_where_they_pay(
    cores: Callable[[int], None], kind: str, given: Settings, of_cores: dict[int, int]
) -> None:
    """With convolutions or wide layers, on cores that nothing else uses meanwhile, or on two of
    five."""
    for count, threads in of_cores.items():
        cores(count)
        assert planned(AppoConfig(**given), KINDS[kind])[1].learner_threads == threads
        if not given:
            shared = planned(DdppoConfig(num_ranks=2), KINDS[kind])[1].learner_threads
            alone = planned(DdppoConfig(num_ranks=1), KINDS[kind])[1].learner_threads
            assert (shared, alone) == {
                "image": (max(1, count // 2), count),
                "planes": (max(1, min(count // 2, 4)), threads),
                "vector": (1, 1),
            }[kind]


ONE_FLAG: list[Settings] = [
    {},
    *({"num_envs_per_worker": n} for n in (1, 2, 3, 5, 16, 23, 64)),
    *({"batch_size": n} for n in (64, 512, 1024, 2048, 4096, 10016)),
    *({"num_workers": n} for n in (1, 2, 3, 4, 5, 7, 16, 24)),
    *({"rollout": n} for n in (1, 5, 8, 16, 32, 127, 128, 256, 500)),
    *({"num_splits": n} for n in (1, 2, 3, 4)),
    *({"advantage": name} for name in ("gae", "vtrace")),
    *({"inference": name} for name in ("inline", "worker")),
    *({name: value} for name in ("async_rl", "serial") for value in (True, False)),
    {"num_epochs": 3},
]


@pytest.mark.long
@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.parametrize("count", [1, 64, slow(2), slow(3), slow(16)])
def test_no_plan_refuses_what_was_chosen(
    cores: Callable[[int], None], monkeypatch: pytest.MonkeyPatch, kind: str, count: int
) -> None:
    """Where a single flag is given; and every batch is made of equal minibatches, none tiny."""
    monkeypatch.setattr("sampleforge.topologies.sampler_plan.shared_memory_free", lambda: None)
    cores(count)
    algos: list[Callable[..., PpoConfig]] = [AppoConfig, DdppoConfig]
    algos += [lambda n=n, **kw: DdppoConfig(num_ranks=n, **kw) for n in (1, 2, 3, 16)]
    tried = 0
    for given, core, make in itertools.product(ONE_FLAG, ("none", "gru"), algos):
        try:
            config = make(model=ModelConfig(core=core), **given)  # type: ignore[arg-type]
        except ConfigError:
            continue  # a flag that this algorithm does not have
        found, plan = planned(config, KINDS[kind])
        tried += 1
        size = found.minibatch_size
        assert found.async_rl or size, given
        if size is not None:
            assert plan.batch_size % size == 0, (given, plan)
            ranks = plan.num_workers if isinstance(found, DdppoConfig) else 1
            assert size >= min(plan.batch_size // 2, MINIBATCH // 8 // ranks), (given, plan)
    assert tried > 150


@pytest.mark.long
def test_a_batch_that_nothing_fits_is_refused_with_one_that_does(
    cores: Callable[[int], None],
) -> None:
    cores(4)
    for of, ranks in itertools.product(KINDS.values(), (False, True)):
        make = DdppoConfig if ranks else AppoConfig
        with pytest.raises(ConfigError, match=r"509 is not .*(nearest:|use) \d+") as refusal:
            planned(make(batch_size=509), of)
        near = int(str(refusal.value).split()[-1])
        assert planned(make(batch_size=near), of)[1].batch_size == near


def test_box_actions_get_no_entropy_bonus() -> None:
    spec = spec_of(AppoConfig(env="Pendulum-v1"))
    for config in (AppoConfig(), DdppoConfig()):
        assert resolve_defaults(config, spec).exploration_coeff == 0.0
        assert resolve_defaults(config, VECTOR).exploration_coeff == 0.003
    assert resolve_defaults(AppoConfig(exploration_coeff=0.5), spec).exploration_coeff == 0.5


def test_the_learning_rate_of_box_actions_falls_at_the_end_of_a_run_that_has_one() -> None:
    boxes = spec_of(AppoConfig(env="Pendulum-v1"))
    end: dict[str, Any] = {"train_for_env_steps": 1000}
    for make in (AppoConfig, DdppoConfig):
        for fields, actions, schedule in (
            (end, boxes, "cooldown"),
            ({"train_for_seconds": 9.0}, boxes, "cooldown"),
            (end, VECTOR, "constant"),
            ({}, boxes, "constant"),
            ({**end, "lr_schedule": "linear"}, boxes, "linear"),
            ({**end, "anneal": {"learning_rate": "cosine"}}, boxes, "constant"),
        ):
            assert resolve_defaults(make(**fields), actions).lr_schedule == schedule
    for fields in ({"pbt": True, "num_policies": 2}, {"schedule": "schedule.json"}):
        assert resolve_defaults(AppoConfig(**end, **fields), boxes).lr_schedule == "constant"


@pytest.mark.parametrize("make", [AppoConfig, DdppoConfig])
@pytest.mark.parametrize(("shapes", "elements"), [([()], 1), ([(6,)], 6), ([(2, 4), (1,)], 9)])
def test_the_noise_of_a_whole_action_begins_with_norm_one(
    make: type[PpoConfig], shapes: list[tuple[int, ...]], elements: int
) -> None:
    actions = {
        str(i): ActionSpec("box", shape, "float32", low=(-1.0,) * n, high=(1.0,) * n)
        for i, (shape, n) in enumerate((shape, math.prod(shape)) for shape in shapes)
    }
    of = dataclasses.replace(VECTOR, actions={**VECTOR.actions, **actions})
    model = resolve_defaults(make(env="X-v0"), of).model
    assert model.initial_log_std is not None
    assert elements * math.exp(2 * model.initial_log_std) == pytest.approx(1, rel=2e-3)
    network = ActorCritic(model, of.observations, of.actions)
    assert network.log_std is not None
    assert network.log_std.tolist() == pytest.approx([model.initial_log_std] * elements)
    given = ModelConfig(initial_log_std=0.5)
    assert resolve_defaults(make(env="X-v0", model=given), of).model.initial_log_std == 0.5
    assert resolve_defaults(make(env="X-v0"), VECTOR).model.initial_log_std is None


def test_a_policy_is_held_where_it_was_measured_to_help() -> None:
    def weight(config: AppoConfig | DdppoConfig, of: EnvSpec) -> float | None:
        return resolve_defaults(config, of).kl_coeff

    boxes = spec_of(AppoConfig(env="Pendulum-v1"))
    for config in (AppoConfig(), DdppoConfig()):
        held = [weight(config, each) for each in (VECTOR, DISCRETE, PLANES, boxes)]
        assert held == [0.2, 0.2, 0.2, 0.2]
        assert weight(config, IMAGE) == 0.0
    assert weight(AppoConfig(async_rl=True), VECTOR) == 0.0
    assert weight(AppoConfig(kl_coeff=0.5, async_rl=True), VECTOR) == 0.5


def test_minibatches_of_odd_shapes_are_not_tiny() -> None:
    """Three ranks would have rollouts of 113 steps x 6 rows, which only 6 and 113 divide well."""
    for config in (DdppoConfig(num_ranks=3), AppoConfig(num_envs_per_worker=5, num_workers=1)):
        found, _ = planned(config, VECTOR)
        assert found.minibatch_size and found.minibatch_size >= MINIBATCH // 4


def test_minibatches_are_the_equal_parts_that_are_nearest() -> None:
    for batch, unit, about in itertools.product([1, 12, 96, 97, 2048], [1, 4, 16], [3.0, 40.0]):
        sizes = [size for size in range(unit, batch + 1, unit) if batch % size == 0]
        nearest = min(sizes, key=lambda size: abs(math.log(size / about)), default=None)
        assert nearest_minibatch(batch, about, unit) == nearest
    assert nearest_minibatch(10**12, 256.0, 1) == 256, "found at once"


# ---- what is said ----


@pytest.mark.parametrize(
    ("config", "of", "expected"),
    [
        (AppoConfig(), VECTOR, "Sampling and learning take turns (no convolutions): 10 epochs"),
        (AppoConfig(), ATARI, "Sampling and learning take turns (images): 2 epochs"),
        (
            AppoConfig(async_rl=True),
            ATARI,
            "Sampling continues while the learner trains (images): ",
        ),
        (
            AppoConfig(async_rl=True),
            VECTOR,
            "Sampling continues while the learner trains (no convolutions): ",
        ),
        (AppoConfig(num_epochs=1), VECTOR, "1 epoch, "),
        (AppoConfig(num_epochs=77), VECTOR, "; not the default: num_epochs"),
        (DdppoConfig(), ATARI, "Sampling and learning take turns (images): "),
    ],
)
def test_a_line_says_what_was_chosen_and_why(config: PpoConfig, of: EnvSpec, expected: str) -> None:
    assert expected in reason(resolve_defaults(config, of), None, of)


@pytest.mark.long
def test_the_driver_trains_what_was_resolved_and_logs_the_line(tmp_path: Path) -> None:
    """A separate critic, though that was left open."""
    run = tmp_path / "run"
    config = AppoConfig(
        env="CartPole-v1", serial=True, quiet=True, train_for_env_steps=1, run_dir=str(run)
    )
    train(config)
    found = resolved(config, VECTOR)
    assert reason(found, None, VECTOR) in (run / "log.txt").read_text()
    assert found.model.separate_critic
    assert load_policy(run).model.critic is not None


# ---- several agents ----


@pytest.mark.parametrize("agents", [1, 2, 4, 20, 100])
@pytest.mark.parametrize("asynchronous", [None, False, True])
@pytest.mark.parametrize("of", [VECTOR, PLANES, ATARI], ids=["vector", "planes", "image"])
def test_batches_count_the_agents(
    agents: int, asynchronous: bool | None, of: EnvSpec, cores: Callable[[int], None]
) -> None:
    """20 agents do not make a batch 20 times as large."""
    cores(2)
    names = tuple(f"agent_{i}" for i in range(agents))
    several = dataclasses.replace(of, agents=names if agents > 1 else ())
    _, alone = planned(AppoConfig(async_rl=asynchronous), of)
    found, plan = planned(AppoConfig(async_rl=asynchronous), several)
    assert plan.agent_rows >= agents
    least = SHORTEST_ROLLOUT * agents * plan.num_workers  # one env row for each worker
    assert plan.batch_size <= max(alone.batch_size, least)
    assert found.minibatch_size is None or plan.batch_size % found.minibatch_size == 0


def test_twenty_agents_with_large_images_need_little_memory(cores: Callable[[int], None]) -> None:
    """They took 9.7 GiB, for batches of 20,480."""
    cores(2)
    names = tuple(f"agent_{i}" for i in range(20))
    large = spec((457, 120, 3), "uint8")
    _, plan = planned(AppoConfig(), dataclasses.replace(large, agents=names))
    assert plan.batch_size == 1280 and plan.slot_bytes < 1 << 30


def test_a_network_that_does_not_fit_into_memory_is_refused() -> None:
    config = AppoConfig(env="CartPole-v1", model=ModelConfig(hidden_sizes=(10**6, 10**6)))
    maker = NetworkMaker(pairing(config).algorithm, config, VECTOR, 0)
    with pytest.raises(
        ConfigError, match=r"does not fit into memory .* lower --model\.hidden-sizes"
    ):
        maker()
