"""Where the time of a learner's step and of a forward pass goes, as JSON in the last line.

    python benchmarks/gpu_profile.py learner --device cuda
    python benchmarks/gpu_profile.py inference --device cuda

Run by `benchmarks/gpu.py`. ``learner``: the updates of a batch of Breakout in 16 gradient
steps; eager, with compiled passes, and as one CUDA graph. ``inference``: the answers of a policy
worker, whose inputs are in host memory. Batches have random contents, and stay on the device.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import cycle
from typing import Any, Literal

import numpy as np
import torch
from cases import filled_slots, prepared, resolved, seconds_of
from torch.profiler import ProfilerActivity, profile

from sampleforge.algorithms.acting import Acting, ActingPlace
from sampleforge.algorithms.captured import CudaGraphs
from sampleforge.algorithms.learning import LearnerPlace
from sampleforge.algorithms.rollout_learner import RolloutLearner
from sampleforge.algorithms.sac.algorithm import SAC
from sampleforge.algorithms.sampling import sampling
from sampleforge.models.forward import compile_passes
from sampleforge.replay.sample_batches import ReplaySample
from sampleforge.replay.samples import Transitions
from sampleforge.rollouts.batch import Batch, BatchBuilder
from sampleforge.rollouts.slots import TrajectorySlots
from sampleforge.shared.newest import SharedWeights
from sampleforge.spec import ActionSpec, ArraySpec, EnvSpec
from sampleforge.topologies.builders import seeded
from sampleforge.topologies.learner_maker import make_learner
from sampleforge.topologies.pairings.critics_config import SacConfig
from sampleforge.topologies.pairings.critics_defaults import resolve_defaults
from sampleforge.topologies.pairings.ppo_config import AppoConfig
from sampleforge.topologies.starts import ResumePoint
from sampleforge.workers.staged_acting import StagedActing, gather, scatter
from tests.support.pairings import network_maker, plan_of

TOP = 12
"""Operations that are listed."""
CALLS = 3
"""Calls that are profiled."""
LAUNCHES = ("cudaLaunchKernel", "cuLaunchKernel", "cudaGraphLaunch", "cudaMemcpyAsync")
"""Beginnings of the names of what starts work on a GPU."""
REQUESTS = (1, 8, 16)
"""Numbers of requests that are answered at once."""
ROWS_OF_A_REQUEST = 4
STEPS = {"num_epochs": 4, "minibatch_size": 512}
"""Of the profiled update: 16 gradient steps for a batch of 2048."""


def case_of(device: torch.device) -> tuple[AppoConfig, EnvSpec]:
    """Return Breakout, or on a CPU the much smaller MinAtar/Breakout."""
    config, spec = prepared("breakout" if device.type == "cuda" else "minatar")
    return replace(config, **STEPS), spec  # type: ignore[arg-type]


def batch_of(config: AppoConfig, spec: EnvSpec, device: torch.device) -> tuple[Batch, Any]:
    plan = plan_of(config, spec, device.type)
    slots = filled_slots(config, spec, plan.rows, plan.slots_per_batch)
    builder = BatchBuilder(slots, plan.slots_per_batch, device)
    for slot in range(plan.slots_per_batch):
        builder.add(slot)
    return builder.take(), plan


def new_learner(config: AppoConfig, spec: EnvSpec, plan: Any, how: str) -> RolloutLearner:
    maker = network_maker(config, spec, 0)
    learner: RolloutLearner = make_learner(maker, plan, ResumePoint(0))
    if "compiled" in how:
        compile_passes(learner.model)
    if "graph" in how:
        learner.use_graphs(CudaGraphs(torch.device(plan.device)))
    return learner


def new_acting(
    config: AppoConfig,
    spec: EnvSpec,
    device: torch.device,
    precision: str,
) -> Acting:
    model = network_maker(config, spec, 0)()
    weights = SharedWeights(model.state_dict())
    weights.publish(model.state_dict(), 1)
    acting = sampling(
        model, weights, ActingPlace(torch.Generator(device).manual_seed(0), precision=precision)
    )
    acting.refresh()
    return acting


def profiled(work: Callable[[], object], device: torch.device) -> dict[str, Any]:
    """Return the top operations by their own time, the launches per call, and the share of the time
    in which the GPU had nothing to do."""
    activities = [ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    work()
    with profile(activities=activities) as found:
        started = time.perf_counter()
        for _ in range(CALLS):
            work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        wall = time.perf_counter() - started
    on = "device" if device.type == "cuda" else "cpu"
    averages: list[Any] = list(found.key_averages())
    own = [(a.key, a.count, getattr(a, f"self_{on}_time_total")) for a in averages]
    total = sum(us for _, _, us in own) or 1.0
    own.sort(key=lambda each: -each[2])
    top = [
        {"name": key[:70], "calls": n / CALLS, "us": us / CALLS, "share": us / total}
        for key, n, us in own[:TOP]
    ]
    launches = sum(a.count for a in averages if a.key.startswith(LAUNCHES))
    operators = sum(a.count for a in averages if a.key.startswith("aten::"))
    return {
        "ms": wall / CALLS * 1e3,
        "top": top,
        "launches": launches / CALLS if device.type == "cuda" else None,
        "operators": operators / CALLS,
        "idle_share": _idle_share(list(found.events() or ()), wall) if on == "device" else None,
    }


def _idle_share(events: list[Any], wall: float) -> float:
    """Return the share of ``wall`` seconds outside of all work on the device."""
    kind = torch.profiler.DeviceType.CUDA
    spans = sorted((e.time_range.start, e.time_range.end) for e in events if e.device_type == kind)
    busy, until = 0.0, float("-inf")
    for start, end in spans:
        busy += max(0.0, end - max(start, until))
        until = max(until, end)
    return max(0.0, 1.0 - busy / (wall * 1e6))


def guarded(measure: Callable[..., dict[str, Any]], *of: Any) -> dict[str, Any]:
    """Return what was measured, or the error: the other variants are measured all the same."""
    try:
        return measure(*of)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"[:2000]}


def learner_steps(device: torch.device, seconds: float) -> dict[str, Any]:
    """Measure and profile the updates of one batch, eager, compiled, and as one graph."""
    config, spec = case_of(device)
    batch, plan = batch_of(config, spec, device)
    steps = STEPS["num_epochs"] * plan.batch_size // STEPS["minibatch_size"]
    result: dict[str, Any] = {
        **{"batch": plan.batch_size, "gradient_steps": steps, "precision": plan.precision},
        "env": config.env,
    }

    def measured(how: str) -> dict[str, Any]:
        learner = new_learner(config, spec, plan, how)
        for _ in range(3):  # compiles, records
            learner.update(batch, 0.0)
        each = seconds_of(lambda: learner.update(batch, 0.0), seconds, device)
        figures = {"update_ms": each * 1e3, "step_ms": each * 1e3 / steps}
        return figures | profiled(lambda: learner.update(batch, 0.0), device)

    result["eager"] = guarded(measured, "eager")
    if device.type == "cuda":
        for how in ("compiled", "graph", "compiled graph"):
            result[how] = guarded(measured, how)
    return result


def sac_updates(device: torch.device, seconds: float) -> dict[str, Any]:
    """Measure and profile SAC's updates at HalfCheetah's sizes, operation by operation and as a
    graph."""
    spec = EnvSpec(
        "HalfCheetah",
        {"obs": ArraySpec((17,), "float32")},
        {"action": ActionSpec("box", (6,), "float32", low=(-1.0,) * 6, high=(1.0,) * 6)},
    )
    config = resolve_defaults(SacConfig(env="HalfCheetah-v5"), spec)
    assert config.batch_size is not None
    samples = [sac_sample(spec, config.batch_size, seed) for seed in range(8)]
    result: dict[str, Any] = {"batch": config.batch_size}

    def measured(how: str) -> dict[str, Any]:
        with seeded(1):
            network = SAC.new_network(config, spec)
            place = LearnerPlace(device, seed=1, noise_seed=2, spec=spec)
            learner: Any = SAC.new_learner(config, network, place)
        if how == "graph":
            learner.use_graphs(CudaGraphs(device))
        each = cycle(samples)
        for _ in range(6):
            learner.update(next(each), 0.0)
        of = seconds_of(lambda: learner.update(next(each), 0.0), seconds, device)
        figures = {"update_ms": of * 1e3, "updates_per_s": 1.0 / of}
        return figures | profiled(lambda: learner.update(next(each), 0.0), device)

    result["eager"] = guarded(measured, "eager")
    if device.type == "cuda":
        result["graph"] = guarded(measured, "graph")
    return result


def sac_sample(spec: EnvSpec, rows: int, seed: int) -> ReplaySample:
    random = np.random.default_rng(seed)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.from_numpy(random.normal(size=(rows, *shape)).astype(np.float32))

    items = Transitions(
        obs={"obs": drawn(*spec.observations["obs"].shape)},
        actions={"action": drawn(*spec.actions["action"].shape).tanh()},
        returns=drawn(),
        discount=torch.full((rows,), 0.99),
        next_obs={"obs": drawn(*spec.observations["obs"].shape)},
        scaled_probability=torch.ones(rows, dtype=torch.float64),
    )
    return ReplaySample(items, 0.4, trained=rows)


def inference(device: torch.device, seconds: float) -> dict[str, Any]:
    """Measure and profile what a policy worker does for an answer, by the defaults of a run: gather
    the inputs of n requests, act (on a GPU from a graph), and scatter the answers."""
    result: dict[str, Any] = {"rows_of_a_request": ROWS_OF_A_REQUEST}
    on_gpu = device.type == "cuda"
    for env in ("ALE/Breakout-v5", "VizdoomBasic-v1") if on_gpu else ("MinAtar/Breakout",):
        config, spec = resolved(AppoConfig(env=env))
        precision = plan_of(config, spec, device.type).precision
        slots = filled_slots(config, spec, ROWS_OF_A_REQUEST, REQUESTS[-1])
        acting = new_acting(config, spec, device, precision)
        staged = StagedActing(acting, slots.shape, device, REQUESTS[-1], spins=True)
        for requests in REQUESTS:
            result[f"{env}, {requests} requests in {precision}"] = guarded(
                answered, staged, slots, requests, device, seconds
            )
    return result


def answered(
    staged: StagedActing,
    slots: TrajectorySlots,
    requests: int,
    device: torch.device,
    seconds: float,
) -> dict[str, Any]:
    """Return the times of an answer to n requests, and the profile of its step."""
    inputs = staged.inputs(requests)
    at = np.arange(requests), np.zeros(requests, np.intp)
    gather(slots, at, inputs)
    for _ in range(2):  # operation by operation, then recorded
        acted = staged.act(inputs)
    parts: dict[str, Callable[[], object]] = {
        "gather": lambda: gather(slots, at, inputs),
        "pass": lambda: staged.act(inputs),
        "scatter": lambda: scatter(slots, at, acted),
    }
    each = {f"{n}_ms": seconds_of(part, seconds, device) * 1e3 for n, part in parts.items()}
    rows_per_s = requests * ROWS_OF_A_REQUEST / sum(each.values()) * 1e3
    return {**each, "rows_per_s": rows_per_s} | profiled(parts["pass"], device)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    kinds: dict[Literal["learner", "inference", "sac"], Callable[[torch.device, float], Any]] = {
        "learner": learner_steps,
        "inference": inference,
        "sac": sac_updates,
    }
    parser.add_argument("what", choices=list(kinds))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seconds", type=float, default=2.0, help="per figure, after a warm-up")
    args = parser.parse_args()
    torch.set_num_threads(1)
    print(json.dumps(kinds[args.what](torch.device(args.device), args.seconds)))


if __name__ == "__main__":
    main()
