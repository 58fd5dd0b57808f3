"""The command `sampleforge eval RUN_DIR`: play episodes with a trained policy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from sampleforge.cli.flags import parse
from sampleforge.cli.play_flags import PlayFlags, play
from sampleforge.cli.words import KEY_JSON
from sampleforge.config import ConfigError, typed
from sampleforge.runtime.files import to_json

if TYPE_CHECKING:
    from sampleforge.run.camera import Camera


@dataclass(frozen=True)
class EvalFlags(PlayFlags):
    episodes: int | None = None
    """Episodes to play (default: 100, or 20 where one takes minutes; 3 with --video)."""
    stochastic: bool = False
    """Sample the actions, as in training; off: take the most likely actions."""
    evaluate_env: str | None = None
    """Play in this environment instead of that of the training: one with the same observations and
    actions."""
    evaluate_env_kwargs: Annotated[dict[str, Any], KEY_JSON] = field(default_factory=dict)
    """Arguments of the environment that is played in, beside those of the training if it is the
    training's."""
    onnx: str | None = None
    """Play with this ONNX file, which `sampleforge export` has written, instead of a checkpoint; it
    needs onnxruntime."""
    video: str | None = None
    """Film the episodes into this file, .mp4 or .gif: they are played one after the other in one
    environment, which is rendered without a display. It needs the extra video."""


def run(args: Sequence[str]) -> int:
    """Evaluate, and print the result as one JSON object in the last line. Raises ConfigError."""
    text = "Play episodes with a trained policy and print their returns as one line of JSON."
    flags = parse(EvalFlags, args, "sampleforge eval", text)
    _check_onnx(flags)
    if flags.video is not None:
        from sampleforge.cli.outputs import check_file
        from sampleforge.run.camera import FILMED, check_video

        check_video(check_file("--video", flags.video))
        flags = replace(flags, episodes=flags.episodes or FILMED)

    result = play(
        flags,
        "eval",
        stochastic=flags.stochastic,
        onnx=flags.onnx,
        env=flags.evaluate_env,
        env_kwargs=flags.evaluate_env_kwargs,
        camera=_camera(flags),
    )
    del result["returns"]
    if flags.video is not None:
        result["video"] = flags.video
    print(to_json(result))
    return 0


def _camera(flags: EvalFlags) -> Camera | None:
    """Return what films the episodes, if --video is given."""
    if flags.video is None:
        return None
    from sampleforge.run.camera import Camera

    assert flags.episodes is not None
    return Camera(Path(flags.video).absolute(), flags.episodes)


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
