"""The devices of ranks, or of the learners of one policy, on this machine: whether their work is
launched as CUDA graphs, and the rendezvous of those that are several."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from torch.distributed import is_nccl_available

from sampleforge.config import ConfigError, typed
from sampleforge.peers.group import PeerKind, Rendezvous, SoloRendezvous
from sampleforge.peers.shm_group import LEAST_ROOM, RankMemory
from sampleforge.peers.torch_group import Backend, RendezvousStore
from sampleforge.runtime.machine import human_bytes, lacking, resolve_device, this_machine
from sampleforge.runtime.numa import NumaNode, node_for_group
from sampleforge.runtime.torchrun import World
from sampleforge.topologies.config import ReplayRunConfig, SlotsRunConfig
from sampleforge.workers.config import LearnersConfig


class GroupRendezvous(NamedTuple):
    """``members``: the rendezvous of each member; ``note`` names the transport of gradients;
    ``resources`` must exist for as long as the members do. ``not_replaced``: why no member is
    replaced, and what the user can do; empty if they are."""

    members: list[Rendezvous]
    note: str
    resources: tuple[object, ...] = ()
    not_replaced: str = ""


def local_rendezvous(
    devices: Sequence[str],
    timeout: float,
    gradient_bytes: int,
    member: PeerKind = "rank",
    extra_bytes: int = 0,
) -> GroupRendezvous:
    """Return the rendezvous of a group whose members learn on ``devices``. If the backend is nccl,
    this opens its store. ``gradient_bytes``: of all gradients of a member; ``extra_bytes``: of the
    other data that it sends at a time."""
    size = len(devices)
    if size == 1:
        return GroupRendezvous([SoloRendezvous(devices[0])], f"one {member}, {ALONE}")
    backend, why = choose_backend(devices, member)
    if backend == "nccl":
        store = RendezvousStore()
        joins: list[Rendezvous] = [
            store.rendezvous(rank, size, backend, timeout, device, member)
            for rank, device in enumerate(devices)
        ]
        note = f"gradients through {why}; a {member} that dies ends the run"
        return GroupRendezvous(joins, note, (store,), NOT_REPLACED[member])
    memory = RankMemory(size, gradient_bytes + extra_bytes + LEAST_ROOM)
    joins = [memory.rendezvous(r, timeout, device, member) for r, device in enumerate(devices)]
    note = f"gradients through {human_bytes(memory.nbytes)} of shared memory"
    return GroupRendezvous(joins, note, (memory,))


ALONE = "which exchanges no gradients"
NOT_REPLACED: dict[PeerKind, str] = {
    "rank": (
        "the run ends with it, because the ranks exchange their gradients through nccl, whose "
        "group is not formed again. The same command resumes from the newest checkpoint. To have "
        "ranks that die replaced, let them exchange gradients through shared memory: all on one "
        "GPU (--device cuda:0) or on the CPU (--device cpu)"
    ),
    "learner": (
        "the run ends with it, because the learners exchange their gradients through nccl, whose "
        "group is not formed again. The same command resumes from the newest checkpoint. To have "
        "learners that die replaced, use one (--num-learners 1), or let them exchange gradients "
        "through shared memory: all on one GPU (--learner-devices cuda:0 cuda:0)"
    ),
}
"""What is told of a member of a group through nccl that has died."""


def choose_backend(devices: Sequence[str], member: PeerKind = "rank") -> tuple[Backend, str]:
    """Return the backend of torch's process groups, and the reason as text: nccl if each member on
    this machine has a GPU of its own, else gloo."""
    if not all(device.startswith("cuda") for device in devices):
        return "gloo", f"gloo: the {member}s learn on the CPU"
    gpus = this_machine().gpus
    if len(set(devices)) < len(devices):
        return "gloo", f"gloo: nccl needs a GPU per {member} ({gpus} here)"
    if not is_nccl_available():
        return "gloo", "gloo: this build of torch has no nccl"
    return "nccl", f"nccl: {gpus} GPUs for {len(devices)} {member}s"


def peer_devices(device: str, members: int) -> list[str]:
    """Return the device of each member: for "cuda" the GPUs in turn, each with its number, which
    torch wants where it makes one current; otherwise ``device``."""
    if device != "cuda":
        return [device] * members
    gpus = this_machine().gpus
    return [f"cuda:{index % gpus}" for index in range(members)]


def learner_devices(config: LearnersConfig, device: str) -> list[str]:
    """Return the device of each learner; ``device`` is the run's. Raises ConfigError for a device
    that the machine does not have, or that is of another kind than the run's."""
    if not config.learner_devices:
        return peer_devices(device, config.num_learners)
    given = typed("learner_devices", config.learner_devices)
    for name in config.learner_devices:
        if name.split(":")[0] != device.split(":")[0]:
            raise ConfigError(
                f"{given}: {name} is of another kind than the run's device {device}, after which "
                "precision and inference are chosen; give --device, too"
            )
        try:
            resolve_device(name)
        except ConfigError as error:
            raise ConfigError(f"{given}: {error}") from error
    return list(config.learner_devices)


def describe_learners(config: LearnersConfig, device: str) -> str:
    """Return the number of learners and their devices as text; ``device`` is the run's."""
    where = ", ".join(config.learner_devices) or device
    if config.num_learners == 1:
        return f"learner on {where}"
    return f"{config.num_learners} learners on {where}, each with an equal part of every batch"


def check_compiler(device: str) -> None:
    """Raise ConfigError if passes on a ``device`` (cpu, cuda, cuda:N) cannot be compiled on this
    machine."""
    missing = lacking(device)
    if missing:
        raise ConfigError(
            f"--compile compiles code for the {device}, but {missing}; or leave out --compile"
        )


def uses_cuda_graphs(config: SlotsRunConfig | ReplayRunConfig, device: str) -> bool:
    """Return whether a learner on ``device`` launches its work as graphs: as asked, or where it
    can. Raises ConfigError if they are asked for and cannot hold what it does."""
    if config.cuda_graphs is False:
        return False
    reasons = _obstacles(config)
    if config.cuda_graphs is None:
        return device.startswith("cuda") and not reasons and not config.model.has_own_code
    if not device.startswith("cuda"):
        raise ConfigError(
            f"--cuda-graphs: the learner is on the {device}; leave it out, or learn on a GPU "
            "(--device)"
        )
    if reasons:
        raise ConfigError(f"--cuda-graphs {reasons[0]}; leave out one of the two")
    return True


def _obstacles(config: SlotsRunConfig | ReplayRunConfig) -> list[str]:
    """Return what a graph cannot hold, each as a flag and the reason."""
    core, learners = config.model.core, config.num_learners
    annealed = {name: text for name, text in config.anneal.items() if name != "learning_rate"}
    reasons = {
        f"--model.core {core}: its passes depend on where episodes begin": core != "none",
        f"--num-learners {learners}: it cannot hold the sums of gradients": learners > 1,
        f"--model.head {config.model.head}: it holds no code of your own": bool(config.model.head),
        "--variable-experience: batches differ in size": config.variable_experience,
        "--noisy-nets: a graph would repeat its noise": getattr(config, "noisy_nets", False),
        f"{typed('anneal', annealed)}: a graph has fixed hyperparameters": bool(annealed),
    }
    return [reason for reason, holds in reasons.items() if holds]


def group_node(index: int, config: SlotsRunConfig | ReplayRunConfig, plan: Any) -> NumaNode | None:
    """Return the NUMA node for the workers of the ``index``-th policy group other than the actors;
    None for anywhere. Learners on GPUs may be anywhere: which node is near to a GPU is not
    known."""
    on_cpu = plan.device == "cpu" and all(name == "cpu" for name in config.learner_devices)
    if not on_cpu or config.serial or not config.set_workers_cpu_affinity:
        return None
    return node_for_group(index, config.num_learners * plan.learner_threads + plan.servers)


def backend_and_device(device: str, world: World) -> tuple[Backend, str, str]:
    """Return (the backend, a note that names it with the reason, this rank's device)."""
    devices = peer_devices(device, world.local_size)
    backend, why = choose_backend(devices)
    note = f"gradients through {why}" if world.size > 1 else f"one rank, {ALONE}"
    return backend, note, devices[world.local_rank]
