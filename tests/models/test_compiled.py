"""--compile: what is compiled computes what it did before, and what it needs is asked for first.

But for the slow test, torch traces the model here and does not have it compiled: that takes seconds
instead of minutes, and everything of ours is in it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters

from sampleforge.algorithms.acting import ActingPlace
from sampleforge.algorithms.sampling import sampling
from sampleforge.config import ConfigError
from sampleforge.models.config import ModelConfig
from sampleforge.runtime.machine import lacking
from sampleforge.shared.newest import SharedWeights
from sampleforge.spec import ArraySpec
from sampleforge.topologies.config import AppoConfig, SacConfig
from sampleforge.topologies.pairings.critics_defaults import resolve_defaults
from sampleforge.topologies.starts import ResumePoint
from tests.support.graphs import build, one_policy, spec_of, updates
from tests.support.learners import SMALL, config, model_of
from tests.support.pairings import plan_of, wire_of
from tests.support.processes import RunCli
from tests.support.runs import summary, train
from tests.support.sac import (
    SPEC,
    crossq_config,
    crossq_learner,
    sac_config,
    sac_learner,
    sample,
    td3_config,
    td3_learner,
)

LAYER_NORM, SILU = ModelConfig(layer_norm=True), ModelConfig(activation="silu")


@pytest.fixture
def traced_only(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    yield
    torch._dynamo.reset()


@pytest.mark.long
@pytest.mark.usefixtures("traced_only")
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"model": dataclasses.replace(SMALL, core="gru", separate_critic=True)},
        {"advantage": "gae", "inference": "worker", "num_workers": 2, "minibatch_size": 16},
    ],
    ids=["inline", "core", "policy worker"],
)
def test_a_compiled_run_learns_what_a_plain_one_does(more: dict[str, Any]) -> None:
    """Same draws, so the same experience; on-policy the first ratio is 1."""
    metrics = []
    for compile in (False, True):
        chosen = config(async_rl=False, compile=compile, **more)
        metrics.append([found for _, found in updates(chosen, 3)])
    plain, compiled = metrics
    for before, after in zip(plain, compiled, strict=True):
        assert after == pytest.approx(before, rel=1e-4, abs=1e-5)
        assert after["ratio_deviation_first"] < 1e-5


@pytest.mark.long
@pytest.mark.usefixtures("traced_only")
@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize(
    ("new_config", "new_learner"),
    [
        (sac_config, sac_learner),
        (crossq_config, crossq_learner),
        (td3_config, td3_learner),
    ],
)
def test_compiled_updates_are_those_by_hand(
    new_config: Callable[..., Any], new_learner: Callable[..., Any], activation: Any
) -> None:
    """Also where the policy moves in every second one, with importance weights, and after a
    hyperparameter has changed. Nothing is compiled after the start, for a smaller sample either."""
    model = ModelConfig(hidden_sizes=(8, 8), activation=activation)
    chosen = new_config(model=model, actor_interval=2, priority_alpha=0.6, batch_size=16)
    plain, compiled = new_learner(chosen), new_learner(chosen)
    compiled.compile()
    graphs = counters["stats"]["unique_graphs"]
    for number in range(6):
        if number == 4:
            for learner in (plain, compiled):
                learner.change({"learning_rate": 0.01})
        drawn = sample(16 - number // 5, number, reward=torch.zeros(16 - number // 5))
        metrics = [each.update(drawn, 0.5).metrics for each in (plain, compiled)]
        assert metrics[1] == pytest.approx(metrics[0], rel=1e-4, abs=1e-6)
    torch.testing.assert_close(compiled.state()[0], plain.state()[0], rtol=1e-4, atol=1e-6)
    assert counters["stats"]["unique_graphs"] == graphs > 0


@pytest.mark.long
@pytest.mark.usefixtures("traced_only")
def test_compiled_code_is_for_the_threads_with_which_the_learner_learns() -> None:
    """It would be compiled anew for another number, in the first update."""
    config = sac_config(compile=True, learner_threads=2)
    plan = plan_of(config, SPEC, "cpu")
    graph = wire_of(config, plan, SPEC, *one_policy(ResumePoint(1)))
    (node,) = graph.having("learner")
    worker: Any = node.worker
    before = torch.get_num_threads()
    try:
        worker.start()
        graphs = counters["stats"]["unique_graphs"]
        learner = worker._worker._learner
        learner.update(sample(256), 0.0)
        assert torch.get_num_threads() == 2 and counters["stats"]["unique_graphs"] == graphs > 0
    finally:
        worker.close()
        torch.set_num_threads(before)


@pytest.mark.parametrize("more", [{"precision": "bf16"}, {"model": LAYER_NORM}, {"model": SILU}])
def test_passes_that_are_not_by_hand_are_not_compiled(more: dict[str, Any]) -> None:
    with pytest.raises(
        ConfigError, match="--compile: sac, crossq and td3 compile the passes of MLPs"
    ):
        sac_config(compile=True, **more)


def test_networks_that_are_not_trained_as_a_whole_are_not_compiled() -> None:
    with pytest.raises(ConfigError, match=r"--freeze encoder --compile: .* as a whole"):
        sac_config(compile=True, freeze=("encoder",))
    assert sac_config(compile=True, freeze=("encoder",), unfreeze_after=100).compile


@pytest.mark.parametrize("leaf", [ArraySpec((5000,), "float32"), ArraySpec((8, 8, 3), "uint8")])
def test_the_networks_of_all_agents_are_looked_at(leaf: ArraySpec) -> None:
    other = dataclasses.replace(SPEC, observations={"obs": leaf})
    spec = dataclasses.replace(SPEC, other_groups=(other,))
    model = ModelConfig(hidden_sizes=(8, 8), encoder="mlp")
    with pytest.raises(ConfigError, match="compile the passes of MLPs"):
        resolve_defaults(SacConfig(env="Code", compile=True, model=model), spec)


@pytest.mark.usefixtures("traced_only")
def test_a_row_in_the_middle_of_an_episode_begins_its_noise_anew_after_compiling() -> None:
    """As after a restart of a policy worker: what was computed while compiling left no noise."""
    chosen = config(env="Pendulum-v1", noise_correlation=0.5)
    spec = spec_of(chosen)
    actions = []
    for compiled in (False, True):
        model = model_of(chosen)
        place = ActingPlace(torch.Generator().manual_seed(1), num_rows=8)
        policy = sampling(model, SharedWeights(model.state_dict()), place, noise_correlation=0.5)
        if compiled:
            policy.compile(spec.observations, (8,))
        obs = {"obs": torch.rand(8, 3, generator=torch.Generator().manual_seed(1))}
        rows, no = torch.arange(8), torch.zeros(8, dtype=torch.bool)
        actions.append(policy.act(obs, torch.zeros(8, 0), no, rows).actions["action"])
    torch.testing.assert_close(actions[1], actions[0])


def test_a_missing_compiler_is_said_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("CXX", "CC"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    small = AppoConfig(env="CartPole-v1", num_workers=1, num_envs_per_worker=4)
    build(small)
    with pytest.raises(ConfigError, match=r"--compile .* cpu, .*no compiler"):
        plan_of(sac_config(compile=True), SPEC, "cpu")
    with pytest.raises(ConfigError, match=r"--compile .* cpu, .*no compiler.*CXX.*install"):
        build(dataclasses.replace(small, compile=True))
    (tmp_path / "mine").touch(mode=0o755)
    monkeypatch.setenv("CXX", "mine")
    monkeypatch.setattr(
        "sampleforge.runtime.machine.sysconfig.get_path", lambda name: str(tmp_path)
    )
    with pytest.raises(ConfigError, match=r"Python\.h"):
        build(dataclasses.replace(small, compile=True))
    (tmp_path / "Python.h").touch()
    build(dataclasses.replace(small, compile=True))


def test_compiling_for_a_gpu_needs_triton_and_a_c_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "triton" in (lacking("cuda:1") or "")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    monkeypatch.setenv("CC", "no-such-compiler")
    assert "'no-such-compiler' (environment variable CC" in (lacking("cuda") or "")


def test_no_debugger_gets_into_compiled_code() -> None:
    with pytest.raises(ConfigError, match="serial mode is for debugging"):
        AppoConfig(env="CartPole-v1", serial=True, compile=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algo", "env", "more"),
    [
        ("appo", "CartPole-v1", ("--train-for-env-steps", "20000", "--batch-size", "512")),
        ("td3", "Pendulum-v1", ("--train-for-env-steps", "1200", "--learning-starts", "500")),
    ],
)
def test_a_compiled_run_leaves_nothing(
    run_cli: RunCli, tmp_path: Path, algo: str, env: str, more: tuple[str, ...]
) -> None:
    """The compiler's files are in the run's scratch folder and go with it; `run_cli` looks for
    processes."""
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    environment = {"TMPDIR": str(temporary), "HOME": str(temporary)}
    command = train(env, "--compile", *more, algo=algo)
    done = run_cli(*command, timeout=900, env=environment)
    assert done.returncode == 0, done.stderr
    assert summary(tmp_path / "run")["updates"] > 10
    assert list(temporary.iterdir()) == []
    assert not (tmp_path / "run" / "scratch").exists()
