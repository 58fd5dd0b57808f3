"""A wrapper is, apart from what a subclass overrides, the env vector inside."""

from __future__ import annotations

import inspect

from sampleforge.env.config import EnvConfig
from sampleforge.env.registry import make_vector
from sampleforge.env.wrapper import VectorWrapper


class Recorder:
    """Takes every attribute and call, and says which ones."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __getattr__(self, name: str) -> object:
        self.asked.append(name)
        return lambda *args: name


def test_everything_public_is_passed_on_to_the_inner_vector() -> None:
    vector = make_vector(EnvConfig(env="tests.support.envs:CodeEnv"), 1, [0])
    names = {name for name in dir(vector) if not name.startswith("_")}
    for name in names - {"seats", "always_finite"}:
        inner = Recorder()
        value = getattr(VectorWrapper(inner), name)  # type: ignore[arg-type]
        if inspect.isfunction(getattr(VectorWrapper, name)):
            value(*[None] * len(inspect.signature(value).parameters))
        assert inner.asked == [name]


def test_what_is_written_to_a_wrapper_is_written_to_the_inner_vector() -> None:
    inner = Recorder()
    VectorWrapper(inner).rebuilt = 3  # type: ignore[arg-type]
    assert inner.__dict__["rebuilt"] == 3


def test_a_wrapper_is_its_own_seat() -> None:
    wrapper = VectorWrapper(Recorder())  # type: ignore[arg-type]
    assert wrapper.seats == (wrapper,)
