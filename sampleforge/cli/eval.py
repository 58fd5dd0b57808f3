"""The command `sampleforge eval RUN_DIR`: play episodes with a trained policy."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import tyro

from sampleforge.cli.flags import parse
from sampleforge.cli.key_values import KEY_VALUES
from sampleforge.config import Checked, ConfigError, check_range, typed
from sampleforge.folder.atomic_file import to_json
from sampleforge.folder.trust import Trust

Scalars = dict[str, str | int | float | bool]


@dataclass(frozen=True)
class EvalFlags(Checked):
    run_dir: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN_DIR")]
    """Folder of the run."""
    episodes: int | None = None
    """Episodes to play (default: 100, or 20 where one takes minutes)."""
    max_episode_steps: int | None = None
    """Truncate episodes after N env steps (default: the environment's own limit, or 27,000 where it
    has none)."""
    env_timeout: float = 60.0
    """Seconds that making, resetting or stepping an environment may take before it counts as hung,
    which ends the command."""
    stochastic: bool = False
    """Sample the actions, as in training; off: take the most likely actions."""
    seed: int | None = None
    """Seed of the episodes (default: derived from the seed of the run)."""
    checkpoint: Literal["latest", "best"] = "latest"
    """best: that of the highest mean return in the run's own evaluations (--evaluate-interval); in
    a run without them, over 100 episodes of training."""
    policy: str | None = None
    """Which policy to evaluate, in a run with several (--num-policies), such as policy_0."""
    onnx: str | None = None
    """Play with this ONNX file, which `sampleforge export` has written, instead of a checkpoint; it
    needs onnxruntime."""
    quiet: bool = False
    """Print nothing but errors and the last line."""
    trust: bool = False
    """Use code that the run folder names: an environment package.module:factory, its env_kwargs, an
    encoder. Such a folder can run any code, so give this only for one whose origin you know."""
    env: str | None = None
    """Repeat the run's package.module:factory, instead of --trust."""
    env_kwargs: Annotated[Scalars, KEY_VALUES] = dataclasses.field(default_factory=dict)
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


def run(args: Sequence[str]) -> int:
    """Evaluate, and print the result as one JSON object in the last line. Raises ConfigError."""
    text = "Play episodes with a trained policy and print their returns as one line of JSON."
    flags = parse(EvalFlags, args, "sampleforge eval", text)
    check_range(flags, "episodes max_episode_steps", low=1)
    check_range(flags, "seed", low=0)
    check_range(flags, "env_timeout", low=0, above=True)
    _check_onnx(flags)
    from sampleforge.evaluation import evaluate
    from sampleforge.folder.checkpoint import CheckpointError
    from sampleforge.reporting.evaluating import EvaluationDisplay
    from sampleforge.runtime.watch import HangWatch

    try:
        with (
            EvaluationDisplay(quiet=flags.quiet) as display,
            HangWatch("sampleforge eval", flags.env_timeout) as watch,
        ):
            result = evaluate(
                flags.run_dir,
                episodes=flags.episodes,
                max_episode_steps=flags.max_episode_steps,
                stochastic=flags.stochastic,
                seed=flags.seed,
                which=flags.checkpoint,
                policy=flags.policy,
                onnx=flags.onnx,
                trust=flags.trusted,
                display=display,
                alive=watch.alive,
            )
    except CheckpointError as error:
        print(f"sampleforge: error: {error}", file=sys.stderr)
        return 1
    print(to_json(result))
    return 0


def _check_onnx(flags: EvalFlags) -> None:
    """Raise ConfigError for flags that have no meaning for an ONNX file."""
    if flags.onnx is None:
        return
    reasons = {
        "stochastic": "such a file has the most likely actions only",
        "policy": "such a file has one policy",
        "checkpoint": "such a file has the weights that it was exported with",
    }
    for name, reason in reasons.items():
        value = getattr(flags, name)
        if value not in (None, False, "latest"):
            raise ConfigError(
                f"{typed(name, value)} --onnx {flags.onnx}: {reason}; leave out one of the two"
            )
