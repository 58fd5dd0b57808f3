"""The probe answers, whatever the environment does, and leaves nothing behind."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import Any

import pytest

from sampleforge.env.config import EnvConfig
from sampleforge.env.probe import EnvProbeError, probe
from sampleforge.env.registry import make_vector

pytestmark = pytest.mark.multiprocess
FAKES = "tests.support.envs"


def config(name: str, timeout: float = 20.0, **kwargs: Any) -> EnvConfig:
    env = name if "/" in name or "-v" in name or ":" in name else f"{FAKES}:{name}"
    return EnvConfig(env=env, env_kwargs=kwargs, env_timeout=timeout)


@pytest.mark.parametrize(
    "name", ["CartPole-v1", "MixedActionEnv", "MaskedEnv", "CountingVectorEnv"]
)
def test_the_spec_is_the_one_of_the_rows(name: str) -> None:
    vector = make_vector(config(name), 2, [0, 1])
    assert probe(config(name)) == vector.spec
    vector.close()


@pytest.mark.parametrize(
    ("name", "kwargs", "message"),
    [
        ("nosuch.module:make", {}, "there is no module 'nosuch'"),
        ("ALE/Brekout-v5", {}, "Did you mean ALE/Breakout-v5"),
        ("RaisingEnv", {}, r"(?s)Traceback.*\nValueError: deliberate: the factory raises$"),
        ("RaisingEnv", {"where": "reset"}, r"(?s)Traceback.*ValueError: deliberate: reset raises$"),
        (
            "RaisingEnv",
            {"where": "step", "every": 1},
            r"(?s)Traceback.*ValueError: deliberate: step raises\n.*first of 4 errors in a row",
        ),
        ("WrongDtypeEnv", {}, r"row 0: .*float32 of shape \(4,\).*gave float64"),
        ("WrongDtypeEnv", {"wrong": "nan"}, "row 0: observation leaf 'obs' holds nan"),
        ("WrongDtypeEnv", {"wrong": "bounds"}, r"row 0: .*must be in \[-1000, 1000\] at \[0\]"),
        (f"{__name__}:dies", {}, "ended its process in the probe, with signal SIGSEGV"),
    ],
)
def test_a_bad_environment_is_an_error_message(name: str, kwargs: Any, message: str) -> None:
    with pytest.raises(EnvProbeError, match=message):
        probe(config(name, **kwargs))


def dies() -> None:
    import os
    import signal

    os.kill(os.getpid(), signal.SIGSEGV)


@pytest.mark.parametrize("where", ["init", "step"])
def test_a_hang_ends_at_the_time_out_with_the_stacks(where: str) -> None:
    begin = time.monotonic()
    with pytest.raises(EnvProbeError, match=r"(?s)in hang.*HangingEnv hangs.*--env-timeout"):
        probe(config("HangingEnv", timeout=1.0, where=where))
    assert time.monotonic() - begin < 4


def test_a_stopped_process_is_killed() -> None:
    with pytest.raises(EnvProbeError, match="stops hangs"):
        probe(config(f"{__name__}:stops", timeout=1.0))


def stops() -> None:
    import os
    import signal

    os.kill(os.getpid(), signal.SIGSTOP)


def test_environments_and_their_probe_know_no_torch() -> None:
    """It takes seconds to import, and the probe has a time limit."""
    code = (
        "import sys; from sampleforge.env import probe, probe_child, registry; "
        "registry.known_ids(); sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)
