"""How a session is asked to end."""

from __future__ import annotations


class Ending:
    """What a session was asked for, and whether it has failed. It is set without a lock: a signal
    handler must not wait for one. Functions that ask it hold it, not the session, which can be
    freed before them."""

    stopping = False
    """Asked to finish now, in order."""
    interrupted = False
    """Asked to finish within seconds."""
    failed = False
    """Ended by an error: some workers may be gone."""

    def interrupt(self) -> None:
        self.interrupted = self.stopping = True

    def is_early(self) -> bool:
        """Whether what is written at the end must not take long."""
        return self.interrupted or self.failed
