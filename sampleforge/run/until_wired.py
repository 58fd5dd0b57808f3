"""Attributes of a session that cannot be set once its workers have been made."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from sampleforge.run.session import Session

T = TypeVar("T")


class UntilWired(Generic[T]):
    """An attribute of a session that is read when the workers are made. Setting it afterwards would
    have no effect, and raises RuntimeError. ``usual``: its value where it is not set."""

    def __init__(self, usual: T) -> None:
        self._usual = usual

    def __set_name__(self, owner: type[Session], name: str) -> None:
        self._name = name

    def __get__(self, session: Session, owner: type[Session]) -> T:
        value: Any = vars(session).get(f"_{self._name}", self._usual)
        if isinstance(value, dict):
            value = MappingProxyType(value)  # a change of one of its items would have no effect
        found: T = value
        return found

    def __set__(self, session: Session, value: T) -> None:
        if hasattr(session, "graph"):
            raise RuntimeError(
                f"session.{self._name} has no effect once the session is open: set it in "
                "Callback.on_wire, or before"
            )
        vars(session)[f"_{self._name}"] = value
