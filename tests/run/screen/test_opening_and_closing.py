"""What a run says before and after it trains, and what it says limits it meanwhile."""

from __future__ import annotations

import dataclasses
import importlib
import shlex
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from sampleforge.api import train
from sampleforge.cli import main
from sampleforge.cli.train import parse_config
from sampleforge.config import ConfigError
from sampleforge.env.probe import EnvFailed, EnvProbeError
from sampleforge.run.beginning import wired
from sampleforge.run.folder.new_folder import with_folder_and_seed
from sampleforge.run.reports.verdict import IN_WORDS, PART_OF, VerdictContext
from sampleforge.run.reports.workers import RunWatch
from sampleforge.run.screen.messages import (
    EMULATED_BF16,
    banner,
    end_line,
    environment_failed,
    memory_line,
    next_commands,
    opening,
    plan_line,
    resume_command,
)
from sampleforge.runners.serial import SerialRunner
from sampleforge.runtime import machine
from sampleforge.topologies.config import ApexConfig, AppoConfig
from sampleforge.topologies.registry import pairing
from tests.support.graphs import build, resolved, spec_of
from tests.support.learners import config
from tests.support.pairings import plan_of

COMMANDS = [
    "appo --env CartPole-v1 --run-dir run --seed 3 --no-rescale-actions --train-for-seconds 5",
    "appo --env X --run-dir 'a run' --async-rl --env-kwargs a=1 b=x --model.hidden-sizes 32 16",
    "apex --env X --run-dir run --reward-clip None --model.core lstm --train-for-env-steps 1000000",
    "apex --env X --run-dir run --model.hidden-sizes 128 128 --model.activation relu",
    "ddppo --env X --run-dir run --num-ranks 2 --adam-betas 0.8 0.9",
]


def test_the_banner_says_what_runs_and_where_and_imports_nothing_heavy(tmp_path: Path) -> None:
    asked = AppoConfig(
        env="CartPole-v1", seed=7, run_dir="runs/x", device="cuda:1", stop=("loss<1",)
    )
    first, second = banner(asked).splitlines()
    assert first.endswith("appo on CartPole-v1, GPU 1, seed 7") and second == "Run folder runs/x"
    assert "appo on E, CPU\nNo stop condition" in banner(AppoConfig(env="E", device="cpu"))


def test_a_run_has_its_folder_and_seed_before_it_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    asked = AppoConfig(env="E")
    with ExitStack() as resources:
        new, other = (with_folder_and_seed(asked, resources) for _ in range(2))
        assert new.run_dir and new.seed is not None
        assert Path(new.run_dir).is_dir() and other.run_dir != new.run_dir
    assert not any(tmp_path.iterdir()), "neither run has begun"
    short = AppoConfig(
        env="CartPole-v1",
        serial=True,
        quiet=True,
        run_dir=str(tmp_path / "run"),
        train_for_env_steps=100,
    )
    train(dataclasses.replace(short, seed=11))
    again = with_folder_and_seed(short, ExitStack())
    assert (again.seed, again.run_dir) == (11, short.run_dir), "a resumed run has its own"
    train(short)  # from Python, without a seed: that of the run is meant


def test_the_opening_says_how_each_leaf_is_encoded_and_why() -> None:
    graph, found, plan, spec = wired(parse_config("appo", ["--env", "CartPole-v1"]))
    assert (
        "Observation obs (float32 4): vector (dense layers, by running mean and deviation), floats "
        "without bounds of rank 1",
        "info",
    ) in opening(graph, found, plan, spec, None)
    asked = parse_config("appo", ["--env", "CartPole-v1", "--model.encode", "ob=vector"])
    with pytest.raises(ConfigError, match=r"--model.encode ob=vector: there is no .* has obs"):
        wired(asked)


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ("--model.hidden-sizes 1000000000 1000000000", "--model.hidden-sizes 1000000000 100"),
        ("--model.hidden-sizes 1000000000000", "--model.hidden-sizes 1000000000000: the weights"),
        ("--model.core gru --model.core-size 10000000", "--model.core-size 10000000: the weights"),
    ],
)
def test_layers_that_do_not_fit_into_memory_are_refused(flags: str, told: str) -> None:
    asked = parse_config("appo", ["--env", "CartPole-v1", *flags.split()])
    with pytest.raises(ConfigError, match=rf"{told}.* take [\d.]+ [TP]iB of memory, and .* free"):
        wired(asked)


def test_much_shared_memory_is_told_with_the_flag_that_lowers_it() -> None:
    for asked, flag in (
        (AppoConfig(), "--num-envs-per-worker"),
        (ApexConfig(), "--replay-capacity"),
    ):
        spec = spec_of(dataclasses.replace(asked, env="CartPole-v1"))
        plan = plan_by_defaults(asked, spec)
        assert memory_line(asked, plan) is None
        line = memory_line(asked, dataclasses.replace(plan, slot_bytes=3 << 30))
        assert line is not None and " GiB of shared memory" in line and flag in line


def plan_by_defaults(asked: Any, spec: Any) -> Any:
    chosen = pairing(asked)
    return chosen.plan(chosen.resolve_defaults(asked, spec), spec, "cpu")


def test_bf16_that_the_processor_has_to_emulate_is_warned_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def warned(instructions: list[str], precision: Any) -> bool:
        monkeypatch.setattr(machine, "bf16_instructions", lambda: instructions)
        asked = AppoConfig(env="CartPole-v1", device="cpu", precision=precision)
        graph, resolved, plan, spec = wired(asked)
        return (EMULATED_BF16, "warning") in opening(graph, resolved, plan, spec, None)

    assert warned([], "bf16")
    assert not warned(["avx512_bf16"], "bf16")
    assert not warned([], "auto")
    with machine.assumed(machine.Machine(2, 1, lambda _: (8, 0))):
        assert machine.has_bf16("cuda:0")


def test_the_plan_is_described_in_one_line() -> None:
    asked = AppoConfig(env="CartPole-v1", num_workers=2, num_envs_per_worker=64, async_rl=True)
    spec = spec_of(asked)
    chosen = resolved(asked, spec)
    plan = plan_of(chosen, spec, "cpu")
    assert plan_line(chosen, plan) == "2 workers x 64 envs, batch 4,096, CPU, fp32"


@pytest.mark.long
@pytest.mark.parametrize("typed", COMMANDS)
def test_the_resume_command_is_the_whole_command(typed: str) -> None:
    algo, *flags = shlex.split(typed)
    asked = parse_config(algo, flags)
    command = resume_command(asked, Path(asked.run_dir).absolute())
    again = shlex.split(command)
    assert again[:3] == ["sampleforge", "train", algo]
    assert parse_config(algo, again[3:]) == asked


def test_the_end_line_and_the_next_commands() -> None:
    measured: dict[str, Any] = {"wall_s": 65.0, "env_steps": 12_345, "return_mean": 1.5}
    folder = Path("runs/a b").absolute()
    measured |= {"return_episodes": 100.0, "return_is_early": False, "return_best": 2.5}
    assert end_line("finished", measured, folder) == (
        "Finished after 1:05: 12,345 env steps, mean return 1.50 of the last 100 episodes, best "
        "2.50, in runs/a b"
    )
    best = {"best": "policy_3", "policies": {f"policy_{i}": {} for i in range(4)}}
    line = end_line("finished", {**measured, **best}, folder)
    assert "mean return 1.50 of the last 100 episodes of policy_3, best 2.50" in line
    early = {"return_episodes": 7.0, "return_is_early": True, "return_best": None}
    line = end_line("finished", {**measured, **early}, folder)
    assert "mean return 1.50 of the first 7 episodes only (not every env row has ended one" in line
    line = end_line("finished", {**measured, "return_mean_early": 9.0}, folder)
    assert "1.50 of the last 100 episodes before it was resumed (9.00 of the first ones" in line
    none = {**measured, "return_mean": None, "return_best": None}
    assert "no episode has ended" in end_line("interrupted", none, folder)
    asked = ApexConfig(env="E")
    measured["status"] = "interrupted"
    resume, evaluate, plot = next_commands(asked, folder, measured, has_checkpoint=True)
    assert resume == "To resume: sampleforge train apex --env E --run-dir 'runs/a b'"
    assert evaluate.endswith("sampleforge eval 'runs/a b'") and "sampleforge plot" in plot
    begun = next_commands(asked, folder, measured, has_checkpoint=False)
    assert begun == [resume, plot], "there is nothing to evaluate"
    alone = dataclasses.replace(asked, sampler_only=True)
    assert next_commands(alone, folder, measured, has_checkpoint=False) == []
    given = dataclasses.replace(asked, env="object:Cell")
    resume, evaluate, _ = next_commands(given, folder, measured, has_checkpoint=True)
    assert resume == "To resume: in Python, the same config with run_dir='runs/a b'"
    assert "put Cell into a module: sampleforge eval 'runs/a b' --evaluate-env MODULE" in evaluate
    several = dataclasses.replace(asked, num_policies=4)
    for values, policy in ((measured, "policy_0"), ({**measured, **best}, "policy_3")):
        evaluate = next_commands(several, folder, values, has_checkpoint=True)[1]
        assert evaluate.endswith(f"sampleforge eval 'runs/a b' --policy {policy}")


def test_a_traceback_of_the_probe_goes_to_the_log(tmp_path: Path) -> None:
    problem = "Traceback (most recent call last):\n  File x\nValueError: no such level"
    told = environment_failed(EnvFailed(problem, "stepped"), tmp_path / "run")
    log = tmp_path / "run" / "log.txt"
    assert told == (
        "The environment could not be stepped: ValueError: no such level "
        f"(the traceback is in {log})"
    )
    assert "File x" in log.read_text()
    unknown = EnvProbeError("Unknown environment X.")
    assert environment_failed(unknown, tmp_path / "other") == ("Unknown environment X.")
    assert not (tmp_path / "other").exists()


@pytest.mark.multiprocess
def test_an_environment_that_fails_is_said_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    importlib.import_module("tests.support.envs")  # what is imported stays so
    args = ["--env", "tests.support.envs:CodeEnv", "--env-kwargs", "nonsense=1", "--quiet"]
    assert main(["train", "appo", *args, "--run-dir", str(tmp_path / "run")]) == 1
    error = capsys.readouterr().err
    assert "The environment could not be created: TypeError" in error
    assert "Traceback" not in error and "Traceback" in (tmp_path / "run" / "log.txt").read_text()
    assert "tests.support.envs" in sys.modules


def test_the_bottleneck_is_judged_from_what_workers_count() -> None:
    chosen = config(num_epochs=2)
    graph, plan = build(chosen)
    spec = spec_of(chosen)
    watch = RunWatch(graph, VerdictContext.of(resolved(chosen, spec), plan, spec, graph))
    watch._looked -= 10.0
    assert watch.look({}).verdict is None, "nothing has been learned"
    runner = SerialRunner(graph)
    runner.start()
    try:
        for _ in range(200):
            runner.poll(0.0)
    finally:
        runner.close()
    watch._looked -= 10.0
    found = watch.look({}).verdict
    assert (
        found is not None and found.in_words in IN_WORDS.values() and found.part in PART_OF.values()
    )
