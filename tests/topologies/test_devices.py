"""Where learners launch their work as CUDA graphs, and what --cuda-graphs is refused with."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sampleforge.config import ConfigError
from sampleforge.models.config import ModelConfig
from sampleforge.peers.boards import GroupEpoch
from sampleforge.peers.group import SoloGroup
from sampleforge.run.reports.system import gpus_of
from sampleforge.runtime.machine import Machine, assumed, resolve_device
from sampleforge.topologies import devices
from sampleforge.topologies.builders import NetworkMaker, records_acting
from sampleforge.topologies.config import DdppoConfig
from sampleforge.topologies.devices import local_rendezvous, uses_cuda_graphs
from sampleforge.topologies.learner_maker import _use_graphs
from sampleforge.topologies.pairings.critics_config import CrossqConfig, SacConfig, Td3Config
from sampleforge.topologies.pairings.dqn_config import ApexConfig
from sampleforge.topologies.pairings.ppo_config import AppoConfig
from sampleforge.topologies.pairings.pqn_config import PqnConfig
from sampleforge.topologies.registry import pairing
from sampleforge.topologies.restarts import RestartInGroup
from sampleforge.topologies.starts import ResumePoint
from tests.support.graphs import one_policy, spec_of
from tests.support.pairings import plan_of, wire_of

APPO = AppoConfig(env="CartPole-v1", cuda_graphs=True, train_for_env_steps=100)
APEX = ApexConfig(env="CartPole-v1", cuda_graphs=True)


@pytest.mark.parametrize(
    ("config", "change", "device", "message"),
    [
        (APPO, {}, "cpu", "the learner is on the cpu"),
        (APPO, {"model": ModelConfig(core="gru")}, "cuda", "--model.core gru"),
        (APPO, {"variable_experience": True}, "cuda:1", "--variable-experience"),
        (
            APPO,
            {"anneal": {"exploration_coeff": "linear"}},
            "cuda",
            "--anneal exploration_coeff=linear",
        ),
        (APEX, {"noisy_nets": True}, "cuda", "--noisy-nets"),
    ],
)
def test_what_a_graph_cannot_hold_is_refused(
    config: AppoConfig | ApexConfig, change: dict[str, Any], device: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        uses_cuda_graphs(replace(config, **change), device)
    assert not uses_cuda_graphs(replace(config, **change, cuda_graphs=False), device)
    assert not uses_cuda_graphs(replace(config, **change, cuda_graphs=None), device)
    assert uses_cuda_graphs(config, "cuda")


def test_several_learners_are_refused() -> None:
    with pytest.raises(ConfigError, match="--cuda-graphs --num-learners 2"):
        replace(APPO, num_learners=2)


@pytest.mark.parametrize(
    "cls", [AppoConfig, PqnConfig, ApexConfig, SacConfig, CrossqConfig, Td3Config]
)
def test_graphs_are_used_on_a_gpu_if_nothing_is_said(cls: Any) -> None:
    config = cls(env="CartPole-v1")
    assert uses_cuda_graphs(config, "cuda:1") and not uses_cuda_graphs(config, "cpu")
    assert not uses_cuda_graphs(replace(config, num_learners=2), "cuda")


def test_code_of_the_user_s_own_is_recorded_only_if_asked_for() -> None:
    """It may wait for the device, which a graph cannot."""
    for own in (ModelConfig(encoder="mine:Encoder"), ModelConfig(head="mine:Head")):
        config = AppoConfig(env="CartPole-v1", model=own)
        assert not uses_cuda_graphs(config, "cuda") and not records_acting(config)
        assert records_acting(replace(config, cuda_graphs=True))
    asked = replace(APPO, model=ModelConfig(encoder="mine:Encoder"))
    assert uses_cuda_graphs(asked, "cuda")
    assert records_acting(AppoConfig(env="CartPole-v1"))
    assert not records_acting(replace(APPO, cuda_graphs=False))


class Eager:
    """A learner of the user's own."""


def test_a_learner_that_knows_no_graphs_learns_without_them() -> None:
    device = torch.device("cuda")
    _use_graphs(AppoConfig(env="CartPole-v1"), Eager(), device)
    with pytest.raises(ConfigError, match="--cuda-graphs: Eager has no method use_graphs"):
        _use_graphs(APPO, Eager(), device)


def test_a_gpu_that_torch_cannot_use_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver counts it, and is older than torch's CUDA."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert resolve_device("auto") == "cpu"
    with pytest.raises(ConfigError, match="--device cuda: this machine shows 0 CUDA devices"):
        resolve_device("cuda")


@pytest.mark.parametrize(("inference", "used"), [("inline", {1}), ("worker", {0, 1})])
def test_figures_are_of_the_gpus_that_a_run_uses(inference: str, used: set[int]) -> None:
    with assumed(Machine(cores=4, gpus=2)):
        config = SacConfig(env="Pendulum-v1", device="cuda", learner_devices=("cuda:1",))
        plan: Any = SimpleNamespace(device="cuda", inference=inference)
        assert gpus_of(config, plan) == used


class Made(Exception):
    """A worker makes its network."""


@pytest.mark.parametrize(
    ("config", "role"),
    [
        (AppoConfig(inference="worker"), "policy"),
        (AppoConfig(), "learner"),
        (AppoConfig(serial=True), "learner"),
        (ApexConfig(replay_capacity=5000), "learner"),
        (SacConfig(env="Pendulum-v1", replay_capacity=5000), "learner"),
        (DdppoConfig(num_ranks=1), "rank"),
    ],
    ids=lambda value: getattr(value, "algo", value),
)
def test_every_worker_begins_on_its_device_before_it_makes_a_network(
    monkeypatch: pytest.MonkeyPatch, config: Any, role: Any
) -> None:
    """On cuda:0 torch would open another context, which takes half a GiB there."""
    config = replace(config, env=config.env or "CartPole-v1", device="cuda:1", num_workers=None)
    capability: Any = lambda gpu: (9, 0)  # noqa: E731
    with assumed(Machine(cores=4, gpus=2, capability=capability)):
        spec = spec_of(config)
        config = pairing(config).resolved(config, spec)
        plan = plan_of(config, spec, "cuda:1")
        graph = wire_of(config, plan, spec, *one_policy(ResumePoint(1)))
    begun: list[object] = []

    def make(maker: NetworkMaker) -> Any:
        raise Made

    monkeypatch.setattr(NetworkMaker, "__call__", make)
    monkeypatch.setattr(torch.cuda, "set_device", begun.append)
    nodes = graph.having(role)
    assert nodes
    for node in nodes:
        begun.clear()
        # A policy worker has a generator on the device first, which a torch for CPUs has not.
        with pytest.raises((Made, RuntimeError)):
            node.worker.start()
        assert set(begun) == {1}


@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
def test_one_rank_exchanges_no_gradients(device: str) -> None:
    """It needs neither nccl nor shared memory."""
    with assumed(Machine(cores=4, gpus=1)):
        found = local_rendezvous([device], 60.0, 1000)
    (only,) = found.members
    assert (only.rank, only.size, only.device) == (0, 1, device)
    assert isinstance(only.join(0), SoloGroup) and isinstance(only.join(3), SoloGroup)
    assert found.note == "one rank, which exchanges no gradients"
    assert not found.resources and not found.not_replaced


@pytest.mark.parametrize(
    ("member", "remedy"), [("rank", "--device cuda:0"), ("learner", "--learner-devices cuda:0")]
)
def test_a_member_that_dies_ends_a_group_through_nccl(
    monkeypatch: pytest.MonkeyPatch, member: Any, remedy: str
) -> None:
    monkeypatch.setattr(devices, "is_nccl_available", lambda: True)
    with assumed(Machine(cores=4, gpus=2)):
        found = local_rendezvous(["cuda:0", "cuda:1"], 60.0, 1000, member)
        on_one = local_rendezvous(["cuda:0", "cuda:0"], 60.0, 1000, member)
    assert found.note.endswith(f"a {member} that dies ends the run")
    rule = RestartInGroup(GroupEpoch(3, 2), not_replaced=found.not_replaced)
    assert rule.begin_next_life() is None and rule.epoch.generation == 0
    told = rule.told("rank 1 was ended by signal SIGKILL")
    assert told.startswith("rank 1 was ended by signal SIGKILL; the run ends with it")
    assert "nccl" in told and "The same command resumes" in told and remedy in told
    assert not on_one.not_replaced and "shared memory" in on_one.note


def test_without_nccl_the_ranks_of_several_gpus_use_shared_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(devices, "is_nccl_available", lambda: False)
    with assumed(Machine(cores=4, gpus=2)):
        found = local_rendezvous(["cuda:0", "cuda:1"], 60.0, 1000)
        backend, why = devices.choose_backend(["cuda:0", "cuda:1"])
    assert "shared memory" in found.note and not found.not_replaced
    assert backend == "gloo" and "no nccl" in why
