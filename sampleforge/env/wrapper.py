"""The base class of env vectors that change what another env vector does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sampleforge.env.vector import Array, EnvVector, Episode, StepOut


def _of_inner(name: str) -> Any:
    """Return a property that is the attribute ``name`` of the inner env vector."""

    def get(wrapper: VectorWrapper) -> Any:
        return getattr(wrapper.inner, name)

    def put(wrapper: VectorWrapper, value: Any) -> None:
        setattr(wrapper.inner, name, value)

    return property(get, put)


class VectorWrapper(EnvVector):
    """An env vector that passes everything on to ``inner``; a subclass overrides what it changes.
    ``inner`` may be replaced by another one of the same environment.

    A wrapper is around a single seat: its ``seats`` are itself.
    """

    spec = _of_inner("spec")
    num_rows = _of_inner("num_rows")
    observation_space = _of_inner("observation_space")
    action_space = _of_inner("action_space")
    agent = _of_inner("agent")
    valid_rows = _of_inner("valid_rows")
    rebuilt = _of_inner("rebuilt")
    fault = _of_inner("fault")
    guard = _of_inner("guard")
    converted = _of_inner("converted")

    def __init__(self, inner: EnvVector) -> None:
        # The state of a step is the inner vector's alone, so that of the base class is not made.
        self.inner = inner

    @property
    def frames(self) -> int:
        return self.inner.frames

    @property
    def ready(self) -> bool:
        return self.inner.ready

    @property
    def present(self) -> Array | None:
        return self.inner.present

    def rescale_actions(self) -> None:
        self.inner.rescale_actions()

    def clip_observations(self) -> None:
        self.inner.clip_observations()

    def take_converted_actions(self) -> None:
        self.inner.take_converted_actions()

    def set_reward_shaping(self, numbers: Mapping[str, float]) -> None:
        self.inner.set_reward_shaping(numbers)

    def shortened_rows(self) -> Array | None:
        return self.inner.shortened_rows()

    def take_results(self, row: int, info: Mapping[str, Any], where: str) -> None:
        self.inner.take_results(row, info, where)

    def row_info(self, row: int) -> Mapping[str, Any]:
        return self.inner.row_info(row)

    def row_env(self, row: int) -> Any:
        return self.inner.row_env(row)

    def limit_episodes(self, steps: int) -> bool:
        return self.inner.limit_episodes(steps)

    def decorrelate(self, numbers: Array, total: int) -> bool:
        return self.inner.decorrelate(numbers, total)

    def reset(self, obs: Mapping[str, Array]) -> None:
        self.inner.reset(obs)

    def send(self, actions: Mapping[str, Array]) -> None:
        self.inner.send(actions)

    def recv(self, out: StepOut) -> list[Episode]:
        return self.inner.recv(out)

    def close(self) -> None:
        self.inner.close()

    def _begin(self, actions: dict[str, Array]) -> None:
        raise NotImplementedError("`send` passes actions on")

    def _complete(self, out: StepOut) -> None:
        raise NotImplementedError("`recv` passes steps on")
