"""Every row of every rollout comes from its place, exactly once, with inline inference and with
policy workers."""

from __future__ import annotations

import dataclasses
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from sampleforge.models.actor_critic import ActorCritic
from sampleforge.models.config import ModelConfig
from sampleforge.models.encoder_registry import resolve_encoder
from sampleforge.runtime.machine import Machine, assumed
from sampleforge.runtime.numa import NumaNode, node_for_group
from sampleforge.runtime.processes import available_cores
from sampleforge.topologies.config import AppoConfig
from sampleforge.topologies.graph import Graph
from sampleforge.topologies.placement import placement_beside
from sampleforge.topologies.registry import pairing
from sampleforge.topologies.starts import ResumePoint
from tests.support.apex_graphs import apex_config, build_apex
from tests.support.graphs import build, one_policy, resolved, rollouts, spec_of
from tests.support.histories import check_history, histories
from tests.support.pairings import plan_of, wire_of

CODE = "tests.support.envs:CodeEnv"


def config(**kwargs: object) -> AppoConfig:
    model = ModelConfig(hidden_sizes=(8,), normalise_observations=False)
    chosen = AppoConfig(
        **{
            "env": CODE,
            "num_workers": 2,
            "num_envs_per_worker": 6,
            "num_splits": 2,
            "rollout": 7,
            "async_rl": True,
            "model": model,
            "debug": True,
            **kwargs,
        }  # type: ignore[arg-type]
    )
    return resolved(chosen, spec_of(chosen))


@pytest.mark.long
@pytest.mark.parametrize("inference", ["inline", "worker"])
@pytest.mark.parametrize("splits", [1, 2, 3])
@pytest.mark.parametrize("policy_workers", [1, 2])
def test_every_batch_row_is_sampled_exactly_once_from_its_env_and_step(
    inference: str, splits: int, policy_workers: int
) -> None:
    served_by = {"num_policy_workers": policy_workers} if inference == "worker" else {}
    sampled = list(rollouts(config(inference=inference, num_splits=splits, **served_by), 60))
    found = histories(sampled)
    assert len(found) == 12
    for env, steps in found.items():
        check_history(env, steps)


def test_behaviour_columns_belong_to_their_rows() -> None:
    """log_prob and value of every row are what the published weights say of that row's obs."""
    import torch

    from tests.support.graphs import build

    chosen = config(inference="worker", num_splits=3)
    graph, _ = build(chosen)
    spec = graph.groups[0].exchange.slots.shape.spec
    model = ActorCritic(
        resolve_encoder(chosen.model, spec.observations), spec.observations, spec.actions
    )
    graph.groups[0].weights.read(model.state_dict())
    for batch in rollouts(chosen, 12):
        rollout, _ = batch.steps
        with torch.no_grad():
            output = model(batch.obs, batch.state, batch.is_first)
            obs = {n: leaf[:rollout] for n, leaf in batch.obs.items()}
            expected = model.distribution(output.parameters[:rollout], obs).log_prob(batch.actions)
        torch.testing.assert_close(batch.log_prob, expected, atol=1e-5, rtol=0)
        torch.testing.assert_close(batch.value, output.values[:rollout], atol=1e-5, rtol=1e-5)


@pytest.mark.long
@pytest.mark.parametrize("core", ["gru", "lstm"])
@pytest.mark.parametrize("inference", ["inline", "worker"])
def test_the_recurrent_state_is_carried_from_rollout_to_rollout(core: Any, inference: str) -> None:
    """One pass over the stored rollout, from its stored state, gives what was acted on."""
    import torch

    from tests.support.graphs import build

    model_config = ModelConfig(
        hidden_sizes=(8,), core=core, core_size=5, normalise_observations=False
    )
    chosen = config(inference=inference, model=model_config)
    graph, _ = build(chosen)
    spec = graph.groups[0].exchange.slots.shape.spec
    model = ActorCritic(
        resolve_encoder(chosen.model, spec.observations), spec.observations, spec.actions
    )
    graph.groups[0].weights.read(model.state_dict())
    for batch in rollouts(chosen, 24):
        rollout, _ = batch.steps
        with torch.no_grad():
            output = model(batch.obs, batch.state, batch.is_first)
        torch.testing.assert_close(batch.value, output.values[:rollout], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("steps_by_itself", "cores", "given", "splits"),
    [
        (True, 4, {"num_workers": 2}, 2),
        (True, 3, {"num_workers": 2}, 1),
        (True, 2, {}, 1),
        (False, 4, {"num_workers": 2}, 1),
        (False, 2, {"inference": "worker"}, 2),
        (True, 2, {"num_splits": 3, "num_envs_per_worker": 6}, 3),
    ],
)
def test_actors_have_two_splits_only_if_their_work_can_overlap(
    steps_by_itself: bool,
    cores: int,
    given: dict[str, Any],
    splits: int,
) -> None:
    chosen = AppoConfig(env=CODE, async_rl=True, **given)
    spec = dataclasses.replace(spec_of(chosen), asynchronous=steps_by_itself)
    with assumed(Machine(cores)):
        plan = plan_of(resolved(chosen, spec), spec, "cpu")
    assert plan.num_splits == splits
    assert f"x {splits} split{'s' if splits > 1 else ''} x {plan.rows} rows" in plan.describe_envs()


def nodes_of(graph: Graph) -> dict[str, set[tuple[int, ...] | None]]:
    """The cores of each role's workers (None: all)."""
    roles = {node.role for node in graph.nodes}
    return {role: {node.placement.cores for node in graph.having(role)} for role in roles}


def test_learner_and_policy_workers_share_one_of_several_numa_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for node, cores in enumerate(["0-3", "4-7"]):
        (tmp_path / f"node{node}").mkdir()
        (tmp_path / f"node{node}" / "cpulist").write_text(cores)
    monkeypatch.setattr("sampleforge.runtime.numa.cores_to_pin", lambda: list(range(8)))
    on_two = partial(node_for_group, folder=tmp_path)
    monkeypatch.setattr("sampleforge.topologies.devices.node_for_group", on_two)
    for module in ("topologies.placement", "runtime.machine"):
        monkeypatch.setattr(f"sampleforge.{module}.available_cores", lambda: [1, 2, 0, 4])
    of_graph = nodes_of(graph := build(config(inference="worker"))[0])
    assert of_graph == {"actor": {(4,), (0,)}, "policy": {(0, 1, 2, 3)}, "learner": {(0, 1, 2, 3)}}
    assert "learner and slots on NUMA node 0 (4 cores)" in graph.describe()
    replay = nodes_of(build_apex(apex_config())[0])
    assert replay["replay"] == replay["learner"] == {(0, 1, 2, 3)}
    for more in ({"learner_threads": 5}, {"set_workers_cpu_affinity": False}, {"serial": True}):
        graph = build(config(**more))[0]
        assert nodes_of(graph)["learner"] == {None}
        assert "NUMA" not in graph.describe()


ALONE = {"learner_threads": 2}


@pytest.mark.parametrize(
    ("machine", "given", "pinned"),
    [
        (Machine(4), ALONE, True),
        (Machine(3), ALONE, False),
        (Machine(5), {**ALONE, "inference": "worker", "num_policy_workers": 2}, False),
        (Machine(6), {**ALONE, "inference": "worker", "num_policy_workers": 2}, True),
        (Machine(5), {**ALONE, "num_learners": 2, "batch_size": 84}, False),
        (Machine(2), {**ALONE, "sampler_only": True}, True),
        (Machine(2), {"async_rl": False}, True),
        (Machine(8, pins=False), {"async_rl": False}, False),
        (Machine(8), {"set_workers_cpu_affinity": False}, False),
    ],
)
def test_actors_are_pinned_if_what_is_busy_at_the_same_time_has_cores_of_its_own(
    monkeypatch: pytest.MonkeyPatch, machine: Machine, given: dict[str, Any], pinned: bool
) -> None:
    cores = list(range(machine.cores))
    monkeypatch.setattr("sampleforge.topologies.placement.available_cores", lambda: cores)
    with assumed(machine):
        placed = nodes_of(build(config(**given))[0])
    assert placed["actor"] == ({(core,) for core in cores[-2:]} if pinned else {None})
    assert placed["learner"] == {None}, "one NUMA node: the kernel finds it a core that is free"


@pytest.mark.parametrize(("cores", "pinned"), [(5, True), (4, False)])
def test_shards_and_learner_of_a_replay_have_cores_beside_pinned_actors(
    cores: int, pinned: bool
) -> None:
    chosen = apex_config(num_workers=2, num_replay_shards=2)
    with assumed(Machine(cores)):
        assert build_apex(chosen)[1].actor_cores == pinned


def test_only_a_policy_worker_is_on_the_core_that_is_left_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of GPUs have one, and there is no GPU here: the core is written into the plan."""
    monkeypatch.setattr("sampleforge.topologies.placement.available_cores", lambda: list(range(6)))
    replay = apex_config(inference="worker", evaluate_interval=100, seed=1)
    sampling = config(inference="worker", evaluate_interval=100, record=str(tmp_path / "data"))
    for chosen, more in ((sampling, {"recorder"}), (replay, {"replay"})):
        spec = spec_of(chosen)
        chosen = pairing(chosen).resolve_defaults(chosen, spec)
        plan = dataclasses.replace(plan_of(chosen, spec), policy_cores=1, actor_cores=0)
        model = resolve_encoder(chosen.model, spec.observations)
        chosen = dataclasses.replace(chosen, model=model)
        placed = nodes_of(wire_of(chosen, plan, spec, *one_policy(ResumePoint(1))))
        assert placed.pop("policy") == {(5,)}
        assert set(placed) == {"actor", "learner", "evaluator"} | more
        assert set().union(*placed.values()) == {(0, 1, 2, 3, 4)}, placed
    assert placement_beside(plan, NumaNode(1, (4, 5))).cores == (4,)
    assert placement_beside(plan, NumaNode(2, (5,))).cores == (0, 1, 2, 3, 4)


def test_a_machine_with_one_numa_node_places_no_learner(monkeypatch: pytest.MonkeyPatch) -> None:
    one = NumaNode(0, tuple(available_cores()))
    monkeypatch.setattr("sampleforge.runtime.numa.numa_nodes", lambda folder=None: [one])
    graph, _ = build(config())
    assert nodes_of(graph)["learner"] == {None}
    assert "NUMA" not in graph.describe()
