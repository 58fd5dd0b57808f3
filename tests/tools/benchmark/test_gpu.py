"""benchmarks/gpu.py, the measurements on a GPU, on a machine without one."""

from __future__ import annotations

import importlib
import json
import os
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sampleforge.cli.train import parse_config
from sampleforge.runtime.machine import Machine, assumed
from sampleforge.spec import ActionSpec
from sampleforge.topologies import devices
from sampleforge.topologies.registry import pairing
from tests.support import REPO
from tests.support.ppo_plans import ATARI, IMAGE, VECTOR
from tests.support.processes import RunCli


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(REPO / "benchmarks"))
    return importlib.import_module("gpu")


@pytest.fixture
def gpu_sections(gpu: Any) -> Any:
    """What `gpu` has imported."""
    return importlib.import_module("gpu_sections")


def test_a_section_that_fails_is_reported_and_the_others_have_their_results(
    gpu: Any, gpu_sections: Any, tmp_path: Path
) -> None:
    def fails(setting: Any, limit: float) -> dict[str, Any]:
        return {
            "summary": gpu_sections.called(
                [sys.executable, "-c", "import nothing_here"], 20, tmp_path
            )
        }

    def hangs(setting: Any, limit: float) -> dict[str, Any]:
        return {
            "summary": gpu_sections.called(
                [sys.executable, "-c", "import time; time.sleep(60)"], 0.2, tmp_path
            )
        }

    def works(setting: Any, limit: float) -> dict[str, Any]:
        return {"summary": "4 passed", "skips": []}

    setting = gpu.Setting("cuda", 1, tmp_path)
    runs = {"tests": works, "appo-worker": fails, "learner": hangs}
    results = {
        name: gpu.run_section(
            gpu.Section(name, name, 20, run, gpu_sections.show_tests), setting, 20
        )
        for name, run in runs.items()
    }
    text = gpu.report(results, setting, "machine")
    assert [of["status"] for of in results.values()] == ["ok", "failed", "failed"]
    assert "4 passed" in text and "No module named 'nothing_here'" in text
    assert "not done after 0 s" in text
    assert text.count("not measured") == 4, "targets"


def test_the_service_is_started_for_a_section_and_ended_after_it(
    gpu: Any, gpu_sections: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    control = tmp_path / "nvidia-cuda-mps-control"
    script = 'if [ "$1" = -d ]; then echo start; else cat; fi >> "$(dirname "$0")/said"'
    control.write_text(f"#!/bin/sh\n{script}\n")
    control.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)

    def fails(setting: Any, limit: float) -> dict[str, Any]:
        assert Path(os.environ["CUDA_MPS_PIPE_DIRECTORY"]).is_dir()
        with (tmp_path / "said").open("a") as said:
            said.write("run\n")
        raise gpu_sections.SectionError("died")

    section = gpu.Section("x", "x", 20, gpu_sections.with_service(fails), gpu_sections.show_tests)
    found = gpu.run_section(section, gpu.Setting("cuda", 1, tmp_path), 20)
    assert (found["status"], found["error"]) == ("failed", "died")
    assert (tmp_path / "said").read_text().splitlines() == ["start", "run", "quit -t 5"]
    assert "CUDA_MPS_PIPE_DIRECTORY" not in os.environ


def test_targets_are_judged_by_the_best_variant(gpu: Any, tmp_path: Path) -> None:
    def ok(**result: Any) -> dict[str, Any]:
        return {"status": "ok", "result": result, "seconds": 1.0}

    results = {
        "appo-worker": ok(frames_per_s=80.0, peak_frames_per_s=100.0),
        "appo-inline": ok(frames_per_s=91.0, peak_frames_per_s=None),
        "apex": ok(sampled_per_s=20_000.0, trained_per_s=9_000.0),
        "apex-gpu-frames": ok(sampled_per_s=12_600.0, trained_per_s=9_700.0),
        "learner": ok(eager={"step_ms": 3.0}, graph={"step_ms": 1.6}),
        "bf16": ok(env="MinAtar/Breakout", seconds=85.0, return_mean=11.2),
    }
    rows = gpu.verdicts(results, gpu.Setting("cuda", 1, tmp_path))
    assert [row[2] for row in rows] == ["reached", "reached", "MISSED", "reached"]
    assert "91.0% (appo-inline" in rows[0][1] and "12,600 in" in rows[1][1]
    on_cpu = gpu.verdicts(results, gpu.Setting("cpu", 1, tmp_path))
    assert {row[2] for row in on_cpu} == {"not judged: no GPU"}


BOX = replace(
    VECTOR, actions={"action": ActionSpec("box", (2,), "float32", low=(-1.0,) * 2, high=(1.0,) * 2)}
)
FRAMES = {"obs": replace(ATARI.observations["obs"], stack="reset")}
SPECS = {
    "ALE/Breakout-v5": replace(ATARI, observations=FRAMES),
    "VizdoomBasic-v1": replace(IMAGE, asynchronous=True),
    "CartPole-v1": VECTOR,
    "Pendulum-v1": BOX,
    "HalfCheetah-v5": BOX,
}


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """That of a machine with a GPU."""
    monkeypatch.setattr(devices, "lacking", lambda device: None)


def planned(command: list[str]) -> Any:
    """The config of a command of train.py, and its plan on a machine with a GPU and 16 cores."""
    algo, *flags = command[command.index(str(REPO / "train.py")) + 1 :]
    config = parse_config(algo, flags)
    capability: Any = lambda gpu: (9, 0)  # noqa: E731
    with assumed(Machine(cores=16, gpus=1, capability=capability)):
        spec = SPECS[config.env]
        config = pairing(config).resolved(config, spec)
        return config, pairing(config).plan(config, spec, config.device)


@pytest.mark.usefixtures("compiler")
def test_the_flags_of_every_section_make_a_run_on_a_gpu(
    gpu: Any, gpu_sections: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[list[str]] = []

    def called(command: list[str], limit: float, cwd: Path) -> str:
        commands.append(command)
        raise gpu_sections.SectionError("not run")

    monkeypatch.setattr(gpu_sections, "called", called)
    monkeypatch.setattr(gpu_sections, "is_here", lambda env: True)
    monkeypatch.setattr(gpu_sections.shutil, "which", lambda name: "/bin/true")
    setting, ran = gpu.Setting("cuda", 1, tmp_path), {}
    for section in (*gpu.SECTIONS, *gpu.FURTHER):
        found = gpu.run_section(section, setting, section.limit)
        assert found["error"] == "not run", section.name
        ran[section.name] = commands.pop()
    assert not commands
    trained = {name for name, command in ran.items() if str(REPO / "train.py") in command}
    assert trained == ran.keys() - {"tests", "features", "learner", "sac", "inference"}
    for name in sorted(trained):
        config, plan = planned(ran[name])
        on_gpu = "cpu" if name.endswith("-cpu") else "cuda"
        assert plan.device == config.device == on_gpu, name
        assert config.benchmark == (name != "bf16")
    assert "ALE/Breakout-v5" in ran["bf16"], "the machine has it"


def test_the_limits_of_all_sections_are_within_the_time_that_is_documented(gpu: Any) -> None:
    assert sum(section.limit for section in gpu.SECTIONS) <= gpu.BUDGET == 1200
    assert "about twenty minutes" in (REPO / "docs" / "gpu.md").read_text()


@pytest.mark.usefixtures("compiler")
def test_the_flags_of_every_feature_make_a_run_on_a_gpu(gpu: Any, tmp_path: Path) -> None:
    features = importlib.import_module("gpu_features")
    for pair in features.PAIRS:
        command = features.command_of(pair, "cuda", tmp_path)
        if pair.algo == "marwil":  # its plan reads data
            config = parse_config("marwil", [*command[3:], "--input", str(tmp_path)])
        else:
            config, _ = planned(command)
        assert config.device == "cuda", pair.name


def test_what_is_skipped_says_what_it_would_do_and_what_is_needed(
    gpu: Any, gpu_sections: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_sections.shutil, "which", lambda name: None)
    monkeypatch.setattr(gpu_sections, "find_spec", lambda name: None)
    sections = {section.name: section for section in gpu.SECTIONS}
    setting = gpu.Setting("cuda", 1, tmp_path)
    for name, need in {
        "vizdoom": "would run `train.py appo --env VizdoomBasic-v1 .*, which needs the module viz",
        "sac-run": "would run `train.py sac --env HalfCheetah-v5 .*, which needs the module mujoco",
        "appo-service": "would start .*, which needs a GPU and, in the PATH, nvidia-cuda-mps-contr",
    }.items():
        found = gpu.run_section(sections[name], setting, 20)
        assert found["status"] == "skipped" and re.match(need, found["error"]), found


@pytest.mark.multiprocess(timeout=240)
def test_the_command_writes_its_report_without_a_gpu(run_cli: RunCli, tmp_path: Path) -> None:
    out = tmp_path / "found.md"
    command = [str(REPO / "benchmarks" / "gpu.py"), "--dry-run", "--patience", "4"]
    command += ["--out", str(out), "--only", "inference", "apex-gpu-frames", "appo-service"]
    ended = run_cli(*command, timeout=200)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    found = json.loads(out.with_suffix(".json").read_text())
    assert found["device"] == "cpu"
    status = {name: of["status"] for name, of in found["sections"].items()}
    skipped = dict.fromkeys(("apex-gpu-frames", "appo-service"), "skipped")
    assert status == {"inference": "ok", **skipped}
    passes = found["sections"]["inference"]["result"]["MinAtar/Breakout, 16 requests in fp32"]
    assert passes["pass_ms"] > 0 and passes["top"][0]["name"].startswith("aten::")
    text = out.read_text()
    assert "no figure of a GPU" in text and "copies of frames need a GPU" in text
