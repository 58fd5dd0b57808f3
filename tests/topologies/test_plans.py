"""What is learned does not depend on the machine: plans for machines that need not be at hand."""

from __future__ import annotations

import dataclasses
import runpy
from types import SimpleNamespace
from typing import Any

import pytest

from sampleforge.config import ConfigError
from sampleforge.runtime.machine import Machine, assumed, has_bf16, resolve_device
from sampleforge.spec import ActionSpec, ArraySpec, EnvSpec
from sampleforge.topologies import placement
from sampleforge.topologies.builders import acting_device
from sampleforge.topologies.config import (
    ApexConfig,
    AppoConfig,
    CrossqConfig,
    DdppoConfig,
    MarwilConfig,
    PqnConfig,
    SacConfig,
    Td3Config,
)
from sampleforge.topologies.devices import peer_devices
from sampleforge.topologies.pairings.critics_defaults import resolve_defaults as resolve_critics
from sampleforge.topologies.pairings.ppo_defaults import resolve_defaults
from sampleforge.topologies.ranks import rank
from sampleforge.topologies.registry import pairing
from sampleforge.topologies.sampler_plan import ROWS_OF_IMAGES, choose_precision, run_device
from sampleforge.workers.episode_player import EvaluationPart
from tests.support import REPO
from tests.support.pairings import plan_of

plans = SimpleNamespace(**runpy.run_path(str(REPO / "benchmarks" / "plans.py")))


@pytest.mark.parametrize("run", list(plans.runs()), ids=lambda run: run.name)
def test_cores_and_gpus_change_no_gradient_step(run):
    found = [plans.sizes(run, on) for on in plans.MACHINES]
    assert len({each.learned for each in found}) == 1, found
    first = found[0]
    for on, each in zip(plans.MACHINES, found, strict=True):
        assert each.workers <= max(on.cores, on.gpus)
        # A GPU learns from images while the cores sample: more rows, and batches that wait.
        overlaps = bool(on.gpus) and "`appo`, images" in run.name
        if overlaps:
            assert ROWS_OF_IMAGES <= each.rows <= 128
        elif each.policy_cores:
            assert first.rows <= each.rows <= 128
        else:
            assert each.rows == first.rows
        more = max(1, each.rows) / max(1, first.rows)
        waiting = 2 if overlaps else 0
        assert each.nbytes <= 1.5 * (more + waiting) * first.nbytes, "the memory follows the rows"


@pytest.mark.long
@pytest.mark.parametrize("page", plans.TABLES)
def test_the_table_of_the_guide_is_that_of_today(page):
    text = (plans.DOCS / page).read_text(encoding="utf-8")
    assert text == plans.page(page), "python benchmarks/plans.py --write"


def test_actors_grow_with_the_cores_and_the_batch_does_not():
    for kind, most in (("vectors", 128), ("images", 32)):
        run = plans.Run("", AppoConfig(env="X-v0", async_rl=True), plans.KINDS[kind])
        found = [plans.sizes(run, plans.machine(cores)) for cores in (2, 32, 128)]
        assert [each.workers for each in found] == [2, 32, most]
        assert len({(each.batch, each.minibatch) for each in found}) == 1


def test_auto_takes_a_gpu_for_images_only_and_ranks_are_gpus():
    for gpus in (0, 1, 4):
        with assumed(plans.machine(16, gpus)):
            for make in (AppoConfig, DdppoConfig, MarwilConfig):
                assert run_device(make(env="X-v0"), plans.VECTORS) == "cpu"
                expected = "cuda" if gpus else "cpu"
                assert run_device(make(env="X-v0"), plans.IMAGES) == expected
            ranks = resolve_defaults(DdppoConfig(env="X-v0"), plans.IMAGES)
            assert ranks.num_ranks == (gpus or 16)
            if gpus:
                asked = AppoConfig(env="X-v0", device="cuda:0")
                assert run_device(asked, plans.VECTORS) == "cuda:0"


def test_a_policy_worker_on_a_gpu_has_a_core_to_itself_where_there_are_enough(monkeypatch):
    def placed(cores: int, **given: Any) -> tuple[Any, Any, Any]:
        """Return the cores of the first actor, of the policy workers, and of all other workers."""
        monkeypatch.setattr(placement, "available_cores", lambda: list(range(cores)))
        with assumed(plans.machine(cores, 1)):
            config = resolve_defaults(AppoConfig(env="X-v0", **given), plans.IMAGES)
            plan = plan_of(config, plans.IMAGES, "cuda")
            policies = config.num_policies * config.num_policy_workers
            return (
                placement.actor_placement(plan, 0, 5).cores,
                {placement.policy_placement(plan, i, None).cores for i in range(policies)},
                placement.placement_beside(plan).cores,
            )

    others = tuple(range(15))
    assert placed(16) == ((14,), {(15,)}, others), "each on a core of its own"
    assert placed(16, num_workers=16) == (others, {(15,)}, others)
    assert placed(16, num_policies=2) == ((13,), {(14,), (15,)}, others[:14])
    assert placed(16, inference="inline")[::2] == ((15,), None)
    assert placed(16, set_workers_cpu_affinity=False) == (None, {None}, None)
    assert placed(4) == ((3,), {None}, None)


@pytest.mark.parametrize(
    ("cores", "given", "actors", "rows"),
    [
        (8, {}, 7, 8),
        (16, {}, 15, 8),
        (32, {}, 31, 4),
        (128, {}, 64, 2),
        (16, {"set_workers_cpu_affinity": False}, 15, 8),
        (16, {"num_workers": 4}, 4, 8),
        (16, {"num_envs_per_worker": 2}, 15, 2),
        (16, {"num_policies": 2}, 14, 8),
        (4, {}, 4, 8),
    ],
)
def test_actors_beside_a_gpu_have_a_core_each_and_more_rows(cores, given, actors, rows):
    with assumed(plans.machine(cores, 1)):
        plan = plan_of(
            resolve_defaults(AppoConfig(env="X-v0", **given), plans.IMAGES), plans.IMAGES, "cuda"
        )
    assert (plan.num_workers, plan.num_splits * plan.rows) == (actors, rows)


@pytest.mark.parametrize(
    ("cores", "gpus", "given", "threads"),
    [
        (16, 1, {}, 8),
        (16, 1, {"num_ranks": 4}, 2),
        (16, 1, {"set_workers_cpu_affinity": False}, 8),
        (16, 0, {}, 1),
        (16, 1, {"variable_experience": True}, 1),
    ],
)
def test_the_rows_of_a_rank_step_in_threads_on_all_its_cores(cores, gpus, given, threads):
    """A rank with 16 cores stepped two rows of Breakout at a time, and 14 cores were idle."""
    with assumed(plans.machine(cores, gpus)):
        config = resolve_defaults(DdppoConfig(env="X-v0", **given), plans.ATARI)
        assert plan_of(config, plans.ATARI).env_threads == threads
        config = resolve_defaults(DdppoConfig(env="X-v0", **given), plans.IMAGES)
        assert plan_of(config, plans.IMAGES).env_threads == 1, "they do not step by themselves"


def test_more_replay_shards_than_cores_leave_an_actor() -> None:
    with assumed(plans.machine(8, 1)):
        chosen = ApexConfig(env="X-v0", num_replay_shards=9, replay_capacity=100_000)
        config = pairing(chosen).resolve_defaults(chosen, plans.IMAGES)
        assert plan_of(config, plans.IMAGES, "cuda").num_workers == 1


@pytest.mark.parametrize(("workers", "each"), [(15, 0), (14, 1), (7, 1)])
def test_a_replay_worker_has_a_core_beside_pinned_actors_and_the_policy_workers(workers, each):
    """With 15 actors, the replay worker could only run on the cores of actors."""
    with assumed(plans.machine(16, 1)):
        chosen = ApexConfig(env="X-v0", num_workers=workers, replay_capacity=10_000)
        plan = plan_of(pairing(chosen).resolve_defaults(chosen, plans.IMAGES), plans.IMAGES, "cuda")
    assert (plan.policy_cores, plan.actor_cores) == (1, each)


@pytest.mark.parametrize(
    ("cores", "ranks", "of_each"),
    [
        (2, 1, [(0, 1)]),
        (8, 2, [(0, 1, 2, 3), (4, 5, 6, 7)]),
        (3, 2, [(0,), (1,)]),
        (2, 2, [(0,), (1,)]),
        (2, 3, [None, None, None]),
    ],
)
def test_a_rank_has_a_core_for_each_of_its_threads(monkeypatch, cores, ranks, of_each):
    monkeypatch.setattr(rank, "available_cores", lambda: list(range(cores)))
    with assumed(plans.machine(cores)):
        config = resolve_defaults(DdppoConfig(env="X-v0", num_ranks=ranks), plans.IMAGES)
        assert isinstance(config, DdppoConfig)
        plan = plan_of(config, plans.IMAGES)
    placed = [rank.rank_placement(config, plan, index).cores for index in range(ranks)]
    assert placed == of_each
    assert all(own is None or len(own) >= plan.learner_threads for own in placed)


def test_an_actor_has_cores_for_the_threads_of_its_environments(monkeypatch):
    monkeypatch.setattr(placement, "available_cores", lambda: list(range(8)))
    config = AppoConfig(env="X-v0", num_workers=3, async_rl=False)
    placed = {}
    for kind in ("images (Atari)", "images"):
        spec = plans.KINDS[kind]
        with assumed(plans.machine(8)):
            plan = plan_of(resolve_defaults(config, spec), spec)
        placed[kind] = [placement.actor_placement(plan, index, 5).cores for index in range(3)]
    assert placed == {
        "images (Atari)": [(6, 7), (4, 5), (2, 3)],
        "images": [(7,), (6,), (5,)],
    }


def test_where_a_process_can_have_one_row_only_each_worker_has_one():
    alone = dataclasses.replace(plans.VECTORS, one_per_process=True)
    with assumed(plans.machine(4, 0)):
        for make in (AppoConfig, ApexConfig, PqnConfig):
            config = pairing(make(env="X-v0")).resolved(make(env="X-v0"), alone)
            plan = plan_of(config, alone)
            assert (plan.num_workers, plan.num_splits, plan.rows) == (4, 1, 1), make
    assert EvaluationPart.of(alone, 1, 3).rows(20) == range(1, 2)
    assert EvaluationPart.of(alone, 1, 3).episodes(20) == 7
    assert len(EvaluationPart.of(plans.VECTORS).rows(20)) == 16


@pytest.mark.parametrize(
    ("given", "answer"),
    [
        ({"num_envs_per_worker": 2}, "--num-envs-per-worker 2: .*more workers"),
        ({"num_splits": 2}, "--num-splits 2: .*more workers"),
        ({"serial": True, "evaluate_interval": 100}, "--serial --evaluate-interval 100: "),
        ({"serial": True, "num_workers": 2}, "--serial --num-workers 2: "),
    ],
)
def test_more_rows_than_a_process_can_have_are_refused(given, answer):
    alone = dataclasses.replace(plans.VECTORS, one_per_process=True)
    config = AppoConfig(env="X-v0", **given)
    with pytest.raises(ConfigError, match=answer):
        pairing(config).resolved(config, alone)
    pairing(config).resolved(config, plans.VECTORS)


@pytest.mark.parametrize("make", [SacConfig, CrossqConfig, Td3Config])
def test_critics_of_vectors_are_on_a_gpu_and_their_actors_are_not(make):
    spec = EnvSpec(
        "Code",
        {"obs": ArraySpec((17,), "float32")},
        {"action": ActionSpec("box", (2,), "float32", low=(-1.0,) * 2, high=(1.0,) * 2)},
    )
    config = resolve_critics(make(env="Code"), spec)
    with assumed(plans.machine(16, 0)):
        assert run_device(config, spec) == "cpu"
    with assumed(plans.machine(16, 1)):
        assert run_device(config, spec) == "cuda"
        plan = plan_of(config, spec, "cuda")
        assert (plan.device, plan.inference, acting_device(plan)) == ("cuda", "inline", "cpu")
        asked = resolve_critics(make(env="Code", inference="worker"), spec)
        assert acting_device(plan_of(asked, spec, "cuda")) == "cuda"
        compiled = resolve_critics(make(env="Code", compile=True), spec)
        with pytest.raises(ConfigError, match="on cuda here, where CUDA graphs are faster"):
            plan_of(compiled, spec, "cuda")


@pytest.mark.parametrize(
    ("capabilities", "device", "precision"),
    [
        ({0: (7, 5)}, "cuda", "fp32"),
        ({0: (8, 0)}, "cuda", "bf16"),
        ({0: (9, 0), 1: (7, 0)}, "cuda", "fp32"),
        ({0: (9, 0), 1: (7, 0)}, "cuda:0", "bf16"),
    ],
)
def test_bf16_needs_gpus_with_its_convolutions(capabilities, device, precision):
    with assumed(Machine(4, len(capabilities), capabilities.__getitem__)):
        assert choose_precision(AppoConfig(), device, True)[0] == precision
        assert has_bf16(device) is (precision == "bf16")


def test_actors_on_the_cpu_do_not_inherit_the_precision_of_the_gpu(monkeypatch):
    monkeypatch.setattr("sampleforge.topologies.sampler_plan.bf16_instructions", lambda: [])
    with assumed(plans.machine(4, 1)):
        config: Any = resolve_defaults(AppoConfig(inference="inline"), plans.ATARI)
        plan = plan_of(config, plans.ATARI, "cuda")
    assert (plan.precision, plan.acting_precision) == ("bf16", "fp32")


def test_devices_have_numbers_where_torch_wants_them():
    """`torch.cuda.set_device` refuses "cuda"; MARWIL died of it on every machine with a GPU."""
    with assumed(plans.machine(4, 2)):
        assert peer_devices("cuda", 3) == ["cuda:0", "cuda:1", "cuda:0"]
        assert peer_devices("cuda:1", 1) == ["cuda:1"] and peer_devices("cpu", 2) == ["cpu"] * 2
        assert resolve_device("cuda:1") == "cuda:1"
