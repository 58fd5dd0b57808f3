"""What is said before a run trains (a banner at once, the plan as soon as it is made) and at its
end (its duration, its result and the next commands)."""

from __future__ import annotations

import dataclasses
import os
import shlex
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sampleforge.config import typed
from sampleforge.encoding import lines
from sampleforge.run.folder.files import LineFile
from sampleforge.run.folder.run_folder import best_member
from sampleforge.run.folder.stored_config import flat_fields
from sampleforge.run.folder.trust import imports_code
from sampleforge.run.screen.progress import duration, number
from sampleforge.topologies.policy_roles import policy_ids
from sampleforge.version import __version__

if TYPE_CHECKING:
    from sampleforge.env.probe import EnvProbeError
    from sampleforge.run.callback import Level
    from sampleforge.run.session import Session
    from sampleforge.spec import EnvSpec
    from sampleforge.topologies.config import AnyConfig
    from sampleforge.topologies.graph import Graph
    from sampleforge.topologies.registry import AnyPlan

EMULATED_BF16 = (
    "--precision bf16: this device is not known to have instructions for it; then convolutions "
    "may take ten times as long as with --precision fp32; --precision auto takes what is faster"
)
MUCH_MEMORY = 1 << 30
"""Bytes of shared memory from which on the opening lines tell them."""
GPUS = ("/dev/nvidia0", "/dev/nvidiactl", "/dev/kfd", "/dev/dxg")
"""Device files of GPU drivers. If none of them exists, there is no GPU; asking torch would take
seconds."""


def banner(config: AnyConfig) -> str:
    """Return the first lines of a run: algorithm, environment, device, seed and run folder."""
    seed = "" if config.seed is None else f", seed {config.seed}"
    lines = [f"SampleForge {__version__}: {config.algo} on {config.env}, {_device(config)}{seed}"]
    if config.run_dir is not None:
        lines.append(f"Run folder {config.run_dir}")
    ends = (config.train_for_env_steps, config.train_for_seconds, config.stop or None)
    if not config.benchmark and getattr(config, "schedule", None) is None and not any(ends):
        lines.append("No stop condition (such as --train-for-env-steps 1e6): trains until Ctrl-C")
    if config.train_for_env_steps and config.train_for_seconds:
        lines.append(
            f"Ends after {number(config.train_for_env_steps)} env steps or "
            f"{duration(config.train_for_seconds)}, whichever comes first"
        )
    return "\n".join(lines)


def _device(config: AnyConfig) -> str:
    """Return the name of the device, as far as it is known without importing torch."""
    if config.device == "auto":
        return "device auto" if any(os.path.exists(path) for path in GPUS) else "CPU"
    return device_name(config.device)


def device_name(device: str) -> str:
    """Return ``cpu``, ``cuda`` or ``cuda:N`` as it is shown: CPU, GPU, GPU N."""
    return device.upper().replace("CUDA", "GPU").replace(":", " ")


def plan_line(config: AnyConfig, plan: AnyPlan) -> str:
    """Return the sizes of a run: "2 workers x 64 envs, batch 4,096, CPU, fp32"."""
    from sampleforge.topologies.registry import pairing

    sampler = pairing(config).topology.sampler
    parts = plan.sampler_sizes(sampler) if sampler and plan.envs else ["data alone"]
    batches = plan.num_workers if sampler == "rank" else 1  # each rank has one of its own
    parts.append(f"batch {number(plan.batch_size * batches)}")
    return ", ".join([*parts, *plan.sizes, device_name(plan.device), plan.precision])


def reason_line(config: AnyConfig, plan: AnyPlan, spec: EnvSpec) -> str:
    """Return the line that says which settings were chosen for the environment and the machine, and
    why."""
    from sampleforge.topologies.registry import pairing

    learning = pairing(config).reason(config, plan, spec)
    inference = next((text for text in plan.reasons if text.startswith("Inference")), "")
    return f"{learning}. {inference}" if inference else learning


def memory_line(config: AnyConfig, plan: AnyPlan) -> str | None:
    """Return the line about the shared memory of a run, None if it is less than `MUCH_MEMORY`."""
    from sampleforge.runtime.machine import human_bytes
    from sampleforge.topologies.replay.plan import ReplayPlan

    needed = plan.shared_bytes * getattr(config, "num_policies", 1)
    if needed < MUCH_MEMORY:
        return None
    flags = "--replay-capacity" if hasattr(config, "replay_capacity") else "--num-envs-per-worker"
    if isinstance(plan, ReplayPlan) and plan.fitted:
        return (
            f"The replay holds {plan.capacity:,} transitions, as many as fit: "
            f"{human_bytes(needed)} of shared memory (--replay-capacity lowers it)"
        )
    return f"Experience takes {human_bytes(needed)} of shared memory ({flags} lowers it)"


def opening_messages(session: Session, config: AnyConfig) -> Iterator[tuple[str, Level]]:
    """Yield what the user is told when a session is wired. ``config``: with the encoder chosen."""
    from sampleforge.run.unused import Resolved, warnings_of
    from sampleforge.topologies.registry import own_settings

    resumed = session.resume_point.env_steps if session.opened.earlier else None
    yield from opening(session.graph, config, session.plan, session.spec, resumed)
    for text in (own_settings(config, group) for group in session.run_plan.agents[1:]):
        if text:
            yield text, "info"
    for text in warnings_of(session.asked, Resolved.of(session.run_plan)):
        yield text, "warning"


def opening(
    graph: Graph,
    config: AnyConfig,
    plan: AnyPlan,
    spec: EnvSpec,
    resumed: int | None,
) -> list[tuple[str, Level]]:
    """Return the messages before training starts, each with its level: the plan, its reason, how
    each observation leaf is encoded, a time limit that has no effect, the shared memory if it is
    much, a warning of bf16 that is emulated, and the wiring, which is shown on the screen only with
    --debug (log.txt always has it).
    ``resumed``: env steps of the checkpoint that the run resumes from, or None."""
    from sampleforge.env.given import PREFIX
    from sampleforge.env.interface import shorter_limit
    from sampleforge.runtime.machine import has_bf16

    messages: list[tuple[str, Level]] = [
        (plan_line(config, plan), "info"),
        (reason_line(config, plan, spec), "info"),
    ]
    encoded = lines(spec, config.model.encodings, config.model.encoder)
    messages += [(f"Observation {line}", "info") for line in encoded]
    if config.env.startswith(PREFIX):
        messages.append(
            (f"{config.env} is a Python object: resume this run from Python, with it", "info")
        )
    shorter = shorter_limit(config, spec)
    messages += [(shorter, "warning")] if shorter else []
    memory = memory_line(config, plan)
    messages += [(memory, "info")] if memory else []
    if plan.precision == "bf16" and not has_bf16(plan.device):
        messages.append((EMULATED_BF16, "warning"))
    if spec.frame_skip != 1:
        messages.append((f"Frames = env steps x frame skip ({spec.frame_skip} here)", "info"))
    messages.append((graph.describe(), "info" if config.debug else "debug"))
    if resumed is not None:
        messages.append((f"Resuming from the checkpoint at {resumed:,} env steps", "info"))
    for group in graph.groups:
        if group.refused:
            text = (
                f"{graph.prefix(group)}replay: {group.refused}; it is filled anew, and the next "
                "checkpoint removes the saved one; with its settings the run would go on with it"
            )
            messages.append((text, "warning"))
    return messages


def environment_failed(failed: EnvProbeError, run_dir: str | Path) -> str:
    """Return the error message for an environment that failed its probe. If it holds a traceback,
    write that to log.txt of the run folder, and name only the stage and the causes. A folder that
    has a run already stays as it is, and the message has the traceback."""
    folder, problem = Path(run_dir), str(failed)
    has_traceback = "Traceback (" in problem or "Timeout (" in problem
    if not has_traceback or (folder / "config.yaml").exists():
        return problem
    try:
        folder.mkdir(parents=True, exist_ok=True)
        log = LineFile(folder / "log.txt")
        for line in problem.splitlines():
            log.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {'probe':<16} {'error':<7} {line}")
        log.close()
    except OSError as error:
        return f"{problem}\n(The traceback could not be written to {folder}: {error.strerror})"
    where = folder / "log.txt"
    return f"The environment {failed.what}: {failed.cause} (the traceback is in {where})"


def end_line(status: str, measured: Mapping[str, Any], folder: Path) -> str:
    """Return the result of a run in one line. ``measured``: the values of summary.json; ``status``:
    finished or interrupted."""
    mean, best = measured["return_mean"], measured["return_best"]
    reached = "no episode has ended"
    if mean is not None:
        reached = f"mean return {number(mean, ',.2f')} {_rests_on(measured)}"
    evaluated = measured.get("eval_return_mean")
    if mean is None and evaluated is not None:
        reached = f"last evaluated return {number(evaluated, ',.2f')}"
    if best is not None:
        reached += f", best {number(best, ',.2f')}"
    return (
        f"{status.capitalize()} after {duration(measured['wall_s'])}: "
        f"{measured['env_steps']:,} env steps, {reached}, in {shown(folder)}"
    )


def _rests_on(measured: Mapping[str, Any]) -> str:
    """Return in words the episodes that the mean return rests on, and whose they are in a
    population."""
    count, best = int(measured["return_episodes"]), best_member(measured)
    episodes = f"{count:,} episodes" if count > 1 else "episode"
    if (early := measured.get("return_mean_early")) is not None:
        return (
            f"of the last {episodes} before it was resumed ({number(early, ',.2f')} of the first "
            "ones since: not every env row has ended one, and short episodes end first)"
        )
    if not measured["return_is_early"]:
        return f"of the last {episodes}" + (f" of {best}" if best else "")
    return (
        f"of the first {episodes} only (not every env row has ended one, and short episodes end "
        "first; evaluate the policy)"
    )


def next_commands(
    config: AnyConfig, folder: Path, measured: Mapping[str, Any], *, has_checkpoint: bool
) -> list[str]:
    """Return the lines with the commands that resume, evaluate (if it ``has_checkpoint``) and plot
    a run. ``config``: as the user gave it; ``measured``: the values of summary.json. The list is
    empty if the run has no learner or is a benchmark."""
    from sampleforge.env.given import PREFIX

    if config.sampler_only or config.benchmark:
        return []
    path, ids = shlex.quote(shown(folder)), policy_ids(config)
    policy = "" if len(ids) == 1 else f" --policy {best_member(measured) or ids[0]}"
    trust = " --trust" if imports_code(config) else ""  # the run's own environment or encoder
    to_resume = "To resume"
    if measured["status"] == "finished":
        to_resume += " (with a later stop condition)"
    evaluate = f"To evaluate: sampleforge eval {path}{policy}{trust}"
    resume = resume_command(config, folder)
    if config.env.startswith(PREFIX):  # no command has the object
        resume = f"in Python, the same config with run_dir={shown(folder)!r}"
        evaluate = (
            f"To evaluate: Trainer.evaluate() in Python; or put {config.env.removeprefix(PREFIX)} "
            f"into a module: sampleforge eval {path}{policy} --evaluate-env MODULE:NAME --trust"
        )
    return [
        f"{to_resume}: {resume}",
        *([evaluate] if has_checkpoint else []),
        f"To plot: sampleforge plot {path}",
    ]


def resume_command(config: AnyConfig, folder: Path) -> str:
    """Return the command line that resumes the run in ``folder`` with ``config``, as the user
    gave it."""
    return train_command(dataclasses.replace(config, run_dir=shown(folder), resume="auto"))


def train_command(config: AnyConfig) -> str:
    """Return the command line that trains with ``config`` (as the user gave it): every flag that is
    not at its default."""
    defaults = flat_fields(type(config)())
    flags = [
        typed(name, value) for name, value in flat_fields(config).items() if value != defaults[name]
    ]
    return " ".join(["sampleforge train", config.algo, *flags])


def shown(folder: Path) -> str:
    """Return a folder as it is typed here: relative to the working directory if it is below it. The
    working directory may have been removed during the run."""
    try:
        relative = os.path.relpath(folder)
    except FileNotFoundError:
        return str(folder)
    return str(folder) if relative.startswith("..") else relative
