"""The flags of commands that play the environment of a run folder, which may name code."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any

import tyro

from sampleforge.cli.key_values import KEY_JSON
from sampleforge.config import Checked
from sampleforge.run.folder.trust import Trust


@dataclass(frozen=True, kw_only=True)
class TrustFlags(Checked):
    """The flags by which a user vouches for code that a run folder names, or repeats its name."""

    trust: bool = False
    """Use code that the run folder names: an environment package.module:factory, its env_kwargs, an
    encoder. Such a folder can run any code, so give this only for one whose origin you know."""
    env: str | None = None
    """Repeat the run's package.module:factory, instead of --trust."""
    env_kwargs: Annotated[dict[str, Any], KEY_JSON] = field(default_factory=dict)
    """Repeat the run's env_kwargs, instead of --trust."""
    encoder: Annotated[str | None, tyro.conf.arg(name="model.encoder")] = None
    """Repeat the run's package.module:EncoderClass, instead of --trust."""

    @property
    def trusted(self) -> Trust:
        """The trust that the flags express in values of the run folder that name code."""
        given = {
            "env": self.env,
            "env_kwargs": self.env_kwargs or None,
            "model.encoder": self.encoder,
        }
        return Trust(self.trust, {name: v for name, v in given.items() if v is not None})
