"""The flags of commands that play episodes with the policy of a run folder, which may name code,
and the playing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from sampleforge.cli.words import KEY_JSON
from sampleforge.config import Checked, check_range, check_seed
from sampleforge.run.folder.trust import Trust

if TYPE_CHECKING:
    from sampleforge.run.camera import Camera
    from sampleforge.run.recording import PlayRecorder
    from sampleforge.run.screen.evaluating import EvaluationDisplay


@dataclass(frozen=True, kw_only=True)
class TrustFlags(Checked):
    """The flags by which a user vouches for code that a run folder names, or repeats its name."""

    trust: bool = False
    """Use code that the run folder names: an environment package.module:factory, its env_kwargs, an
    encoder, a policy head. Such a folder can run any code, so give this only for one whose origin
    you know."""
    env: str | None = None
    """Repeat the run's package.module:factory, instead of --trust."""
    env_kwargs: Annotated[dict[str, Any], KEY_JSON] = field(default_factory=dict)
    """Repeat the run's env_kwargs, instead of --trust."""
    encoder: Annotated[str | None, tyro.conf.arg(name="model.encoder")] = None
    """Repeat the run's package.module:EncoderClass, instead of --trust."""
    head: Annotated[str | None, tyro.conf.arg(name="model.head")] = None
    """Repeat the run's package.module:HeadClass, instead of --trust."""

    @property
    def trusted(self) -> Trust:
        """The trust that the flags express in values of the run folder that name code."""
        given = {
            "env": self.env,
            "env_kwargs": self.env_kwargs or None,
            "model.encoder": self.encoder,
            "model.head": self.head,
        }
        return Trust(self.trust, {name: v for name, v in given.items() if v is not None})


@dataclass(frozen=True, kw_only=True)
class WatchedFlags(TrustFlags):
    """The flags of commands that play, whose environments may hang."""

    env_timeout: float = 60.0
    """Seconds that making, resetting or stepping an environment may take before it counts as hung,
    which ends the command."""
    quiet: bool = False
    """Print nothing but errors and the last line."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, "env_timeout", low=0, above=True)

    @contextmanager
    def watched(self, command: str) -> Iterator[tuple[EvaluationDisplay, Callable[[], None]]]:
        """Yield a display of the progress, and what is to be called before each step, so that the
        command ends if an environment hangs. ``command``: its name, for the message of that."""
        from sampleforge.run.screen.evaluating import EvaluationDisplay
        from sampleforge.runtime.watch import HangWatch

        with (
            EvaluationDisplay(quiet=self.quiet) as display,
            HangWatch(f"sampleforge {command}", self.env_timeout) as watch,
        ):
            yield display, watch.alive


@dataclass(frozen=True)
class PlayFlags(WatchedFlags):
    """Which policy plays, how many episodes, and which ones."""

    run_dir: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN_DIR")]
    """Folder of the run."""
    episodes: int | None = None
    """Episodes to play."""
    max_episode_steps: int | None = None
    """Truncate episodes after N env steps (default: the environment's own limit, or 27,000 where it
    has none)."""
    seed: int | None = None
    """Seed of the episodes (default: derived from the seed of the run)."""
    checkpoint: Literal["latest", "best"] = "latest"
    """best: that of the highest mean return in the run's own evaluations (--evaluate-interval); in
    a run without them, over 100 episodes of training."""
    policy: str | None = None
    """Which policy plays, in a run with several (--num-policies), such as policy_0."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, "episodes max_episode_steps", low=1)
        check_seed(self)


def play(
    flags: PlayFlags,
    command: str,
    *,
    stochastic: bool,
    onnx: str | None = None,
    env: str | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
    recorder: PlayRecorder | None = None,
    camera: AbstractContextManager[Camera | None] | None = None,
) -> dict[str, Any]:
    """Play, with a display of the progress, and return what `evaluate` returns; the other arguments
    and the errors are its, too. ``command``: its name, for the message of an environment that
    hangs."""
    from sampleforge.evaluation import Observers, evaluate

    with flags.watched(command) as (display, alive), camera or nullcontext() as filming:
        return evaluate(
            flags.run_dir,
            episodes=flags.episodes,
            max_episode_steps=flags.max_episode_steps,
            stochastic=stochastic,
            seed=flags.seed,
            which=flags.checkpoint,
            policy=flags.policy,
            onnx=onnx,
            env=env,
            env_kwargs=env_kwargs,
            trust=flags.trusted,
            observers=Observers(display, alive, recorder, filming),
        )
