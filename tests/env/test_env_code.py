"""Code of environments changes settings of its process for itself alone, and does not end it."""

from __future__ import annotations

import logging
import os
import signal
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sampleforge.env.config import EnvConfig
from sampleforge.env.env_code import EnvironmentExit, _of_thread, _Sides
from sampleforge.env.random_play import random_actions
from sampleforge.env.registry import make_single, make_vector
from sampleforge.env.threaded import ThreadedVector
from sampleforge.env.vector import EnvVector, own_outputs
from tests.support.processes import RunCli
from tests.support.runs import summary
from tests.support.variants import slow

ENV = "tests.support.impolite_envs"
STEPS = 2000
SWAPPED = "dtype+device+grad+numpy+logging+folder+stdout"
ALL = f"{SWAPPED}+threads+loggers+warnings+signals"


def config(change: str, **kwargs: Any) -> EnvConfig:
    return EnvConfig(env=f"{ENV}:ImpoliteEnv", env_kwargs={"change": change, **kwargs})


def settings() -> dict[str, Any]:
    made = torch.empty(0)
    return {
        "dtype and device": (made.dtype, made.device),
        "grad": torch.is_grad_enabled(),
        "threads": torch.get_num_threads(),
        "numpy": np.geterr(),
        "logging": logging.root.manager.disable,
        "loggers": logging.getLogger("sampleforge.env.single").disabled,
        "log handlers": list(logging.root.handlers),
        "folder": os.getcwd(),
        "streams": (sys.stdout, sys.stderr),
        "errors": [each for each in warnings.filters if each[0] == "error"],
        "signals": signal.getsignal(signal.SIGINT),
    }


@pytest.fixture
def before(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """The settings before the test; those that it leaves are put back."""
    found = settings()
    with warnings.catch_warnings():
        yield found
    torch.set_default_dtype(torch.float32)
    torch.set_default_device(None)
    torch.set_grad_enabled(True)
    np.seterr(**found["numpy"])
    logging.disable(found["logging"])
    sys.stdout, sys.stderr = found["streams"]
    signal.signal(signal.SIGINT, found["signals"])
    logging.root.handlers[:] = found["log handlers"]
    _of_thread.sides = _Sides()


def steps(vector: EnvVector, count: int) -> None:
    out = own_outputs(vector.spec, vector.num_rows)
    rng = np.random.default_rng(0)
    vector.reset(out.obs)
    for _ in range(count):
        vector.send(random_actions(vector.spec, vector.num_rows, rng, None))
        vector.recv(out)


@pytest.mark.parametrize(("where", "change"), [("init", ALL), ("reset", SWAPPED)])
def test_what_environments_change_while_they_are_made_is_theirs_alone(
    before: dict[str, Any], where: str, change: str
) -> None:
    vector = make_vector(config(change, where=where, expect=True), 2, [0, 1])
    assert settings() == before
    steps(vector, 30)  # they find their own settings again, also in later episodes
    assert settings() == before
    vector.close()


def test_what_a_step_changes_of_torch_is_its_own(before: dict[str, Any]) -> None:
    vector = make_vector(config("dtype+device+grad", where="step"), 2, [0, 1])
    steps(vector, 2)
    assert settings() == before
    vector.close()


def test_so_are_those_of_a_single_environment_and_of_an_import(
    before: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_single(config(ALL)).close()
    (tmp_path / "impolite_module.py").write_text(
        "import torch\ntorch.set_default_dtype(torch.float64)\n"
        "from tests.support.envs import CodeEnv\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    make_vector(EnvConfig(env="impolite_module:CodeEnv"), 1, [0]).close()
    assert settings() == before


def test_settings_of_the_process_are_never_those_of_environments_in_threads(
    before: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    vector = ThreadedVector(lambda: make_vector(config(SWAPPED), 1, [0]), lambda: None)
    assert settings() == before
    steps(vector, 3)
    assert settings() == before
    assert "its steps have torch.float32" in caplog.text
    vector.close()


def test_what_changes_while_no_environment_runs_stays(before: dict[str, Any]) -> None:
    """The settings are compared with those before each step, not with those of the start."""
    vector = make_vector(config("dtype"), 1, [0])
    torch.set_grad_enabled(False)
    steps(vector, 2)
    assert not torch.is_grad_enabled()
    vector.close()


@pytest.mark.parametrize("raises", ["SystemExit", "KeyboardInterrupt", "GeneratorExit"])
@pytest.mark.parametrize("where", ["init", "reset"])
def test_an_environment_cannot_end_the_process_that_makes_it(
    raises: str, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    env_kwargs: dict[str, Any] = {"raises": raises, "where": where}
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # as in a worker: no Ctrl-C arrives
    try:
        with pytest.raises(EnvironmentExit, match=rf"raised {raises}\("):
            make_vector(EnvConfig("tests.support.ending_envs:EndingEnv", env_kwargs), 1, [0])
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.mark.parametrize("raises", ["SystemExit(3)", "GeneratorExit()"])
def test_a_step_that_would_end_the_process_is_an_error_of_its_row(raises: str) -> None:
    kwargs: dict[str, Any] = {"raises": raises.partition("(")[0], "where": "step", "after": 5}
    vector = make_vector(EnvConfig("tests.support.ending_envs:EndingEnv", kwargs), 2, [0, 1])
    steps(vector, 8)
    assert vector.rebuilt == 2
    assert f"EnvironmentExit: the environment raised {raises}" in str(vector.fault)
    vector.close()


def test_ctrl_c_in_a_step_is_the_users() -> None:
    kwargs: dict[str, Any] = {"raises": "KeyboardInterrupt", "where": "step"}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    vector = make_vector(EnvConfig("tests.support.ending_envs:EndingEnv", kwargs), 1, [0])
    with pytest.raises(KeyboardInterrupt):
        steps(vector, 1)
    vector.close()


@pytest.mark.multiprocess(timeout=150)
@pytest.mark.parametrize(
    "kind",
    [
        "appo --num-workers 1",
        "appo --serial",
        "ddppo --num-ranks 1 --device cpu",
        slow("apex --num-workers 1 --learning-starts 200"),
        slow("ddppo --num-ranks 1 --device cpu --variable-experience"),
        slow("appo --num-workers 1 --evaluate-interval 1"),
    ],
)
def test_a_run_learns_whatever_its_environments_change(
    run_cli: RunCli, tmp_path: Path, kind: str
) -> None:
    change = SWAPPED if "variable" in kind else ALL  # no signal handlers in threads
    done = run_cli(
        *f"train {kind} --env {ENV}:ImpoliteEnv --env-kwargs change={change}+seeds".split(),
        *f"--num-envs-per-worker 4 --train-for-env-steps {STEPS} --run-dir run --quiet".split(),
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    found = summary(tmp_path / "run")
    assert found["status"] == "finished" and found["updates"] > 0
