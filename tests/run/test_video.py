"""`sampleforge eval --video`: the episodes that are played, frame by frame, in one file."""

from __future__ import annotations

import gc
import json
import subprocess
import warnings
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sampleforge.api import train
from sampleforge.cli import main
from sampleforge.env.config import EnvConfig
from sampleforge.env.registry import make_vector
from sampleforge.env.vector import EnvVector, own_outputs
from sampleforge.run import camera
from sampleforge.run.camera import HOLD_S, LINE, MARGIN, WIDTH, Camera, CannotFilm, VideoFile
from sampleforge.topologies.config import AppoConfig
from tests.support import picture_envs
from tests.support.full_disk import full_disk

FPS = picture_envs.PictureEnv.metadata["render_fps"]
CAPTION = 2 * LINE + MARGIN
"""Height of the caption in pixels."""
LENGTHS = [3, 4]
"""Of the first episodes of an environment."""


def trained(folder: Path, factory: str = "PictureEnv", **kwargs: Any) -> Path:
    """The folder of a short run."""
    train(
        AppoConfig(
            env=f"tests.support.picture_envs:{factory}",
            env_kwargs=kwargs,
            run_dir=str(folder),
            seed=3,
            serial=True,
            quiet=True,
            rollout=8,
            num_envs_per_worker=4,
            train_for_env_steps=64,
        )
    )
    return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("pictures") / "run")


def filmed(run: Path, out: Path, *more: str) -> int:
    return main(["eval", str(run), "--trust", "--quiet", "--video", str(out), *more])


def frames_of(video: Path, lines: int = 2) -> np.ndarray[Any, Any]:
    """All frames of a file, [N, height, width, 3], with so many lines of captions."""
    from imageio_ffmpeg import get_ffmpeg_exe

    command = [get_ffmpeg_exe(), "-i", str(video), "-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    done = subprocess.run(command, capture_output=True, check=True)
    factor = -(-WIDTH // picture_envs.WIDTH)
    width, height = (
        picture_envs.WIDTH * factor,
        picture_envs.HEIGHT * factor + lines * LINE + MARGIN,
    )
    shape = (-1, height + height % 2, width + width % 2, 3)
    return np.frombuffer(done.stdout, np.uint8).reshape(shape)


def steps_shown(frames: np.ndarray[Any, Any]) -> list[int]:
    """The step that each frame shows, by the brightness of the environment's part of it."""
    factor = -(-WIDTH // picture_envs.WIDTH)
    picture = frames[:, : picture_envs.HEIGHT * factor, : picture_envs.WIDTH * factor]
    steps = picture.mean(axis=(1, 2, 3)) / picture_envs.STEP - 1
    assert np.abs(steps - steps.round()).max() < 0.2
    return [int(step) for step in steps.round()]


@pytest.mark.parametrize("name", ["two.mp4", "two.gif"])
def test_every_step_of_every_episode_is_a_frame_and_the_last_one_stays(
    run: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], name: str
) -> None:
    out = tmp_path / name
    assert filmed(run, out, "--episodes", "2") == 0
    result = json.loads(capfd.readouterr().out)
    assert (result["episodes"], result["video"]) == (2, str(out))
    assert result["length_mean"] == result["return_mean"] == sum(LENGTHS) / 2
    frames = frames_of(out)
    hold = round(HOLD_S * FPS)
    assert steps_shown(frames) == [
        step for length in LENGTHS for step in [*range(length + 1), *[length] * hold]
    ]
    captions = frames[:, -CAPTION:].reshape(len(frames), -1).astype(int)
    first, second = captions[: LENGTHS[0] + 1], captions[LENGTHS[0] + 1 + hold :]
    changes = [np.abs(a - b).mean() for a, b in pairwise(first)]
    assert min(changes) > 0.5, "the step and the return are in the frame"
    assert np.abs(first[0] - second[0]).mean() > 0.1, "the number of the episode is in the frame"
    assert [path.name for path in tmp_path.iterdir()] == [name], "no other file is left"


def test_the_caption_counts_env_steps_where_actions_are_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each step of the environment is a frame; an episode of three is two env steps."""
    captions: list[str] = []
    drawn = camera.captioned

    def seen(frame: Any, lines: list[str]) -> Any:
        captions.append(lines[1])
        return drawn(frame, lines)

    monkeypatch.setattr(camera, "captioned", seen)
    config = EnvConfig(
        env="tests.support.picture_envs:PictureEnv", action_repeat=2, decorrelate=False
    )
    with Camera(tmp_path / "one.mp4", 1) as filming:
        shown(filming.row(config, 0, None))
    assert [caption.split("   ")[1] for caption in captions] == [
        f"step {step}" for step in (0, 1, 1, 2)
    ]


@pytest.mark.parametrize("factory", ["PictureEnv", "PictureAgents"])
def test_a_filmed_row_gives_the_observations_of_an_evaluation(factory: str, tmp_path: Path) -> None:
    """Those beyond the bounds of their Box are cut off in both."""
    config = EnvConfig(
        env=f"tests.support.picture_envs:{factory}",
        env_kwargs={"scale": -20.0},
        clip_observations=True,
        decorrelate=False,
    )
    with Camera(tmp_path / "one.mp4", 1) as filming:
        found, expected = (
            shown(rows) for rows in (filming.row(config, 0, None), make_vector(config, 1, [0]))
        )
    assert found == expected and min(found[0]) == -1.0


def shown(rows: EnvVector) -> list[list[float]]:
    """The first number of each agent's observations, in two steps."""
    outs = [own_outputs(seat.spec, 1) for seat in rows.seats]
    found: list[list[float]] = [[] for _ in outs]
    for seat, out in zip(rows.seats, outs, strict=True):
        seat.reset(out.obs)
    for _ in range(2):
        for seat in rows.seats:
            seat.send({"action": np.zeros(1, np.int64)})
        for seat, out, numbers in zip(rows.seats, outs, found, strict=True):
            seat.recv(out)
            numbers.append(float(out.obs["obs"][0, 0]))
    rows.close()
    return found


@pytest.mark.long
def test_several_agents_are_filmed_in_their_environment(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """An episode is a game of all agents, and the caption has the return of each."""
    run, out = trained(tmp_path / "run", "PictureAgents"), tmp_path / "two.mp4"
    assert filmed(run, out, "--episodes", "1") == 0
    result = json.loads(capfd.readouterr().out)
    assert (result["episodes"], result["return_mean"]) == (1, 3.0)
    frames = frames_of(out, lines=3)
    assert steps_shown(frames) == [0, 1, 2, *[3] * (1 + round(HOLD_S * FPS))]
    returns = frames[:4, -LINE - MARGIN // 2 :].reshape(4, -1).astype(int)
    assert min(np.abs(a - b).mean() for a, b in pairwise(returns)) > 0.1


@pytest.mark.long
@pytest.mark.parametrize(
    ("factory", "kwargs", "reason"),
    [
        ("PictureEnv", {"picture": "nothing"}, "render() returned nothing"),
        ("PictureEnv", {"picture": "raises"}, "no screen"),
        ("without_render_mode", {}, "takes no render_mode"),
    ],
)
def test_an_environment_that_cannot_be_rendered_is_named(
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    factory: str,
    kwargs: dict[str, Any],
    reason: str,
) -> None:
    run = trained(tmp_path / "run", factory, **kwargs)
    assert filmed(run, tmp_path / "x.mp4") != 0
    error = capfd.readouterr().err
    assert f"picture_envs:{factory} cannot be rendered" in error and reason in error
    assert not list(tmp_path.glob("*.mp4"))


@pytest.mark.long
def test_an_environment_that_is_trained_in_with_a_render_mode_is_filmed(tmp_path: Path) -> None:
    run = trained(tmp_path / "run", "PictureEnv", render_mode="rgb_array")
    assert filmed(run, tmp_path / "one.mp4", "--episodes", "1") == 0


def test_an_environment_that_takes_no_render_mode_is_named_with_the_remedy(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = trained(tmp_path / "run", "passes_all_on")
    assert filmed(run, tmp_path / "x.mp4") != 0
    error = " ".join(capfd.readouterr().err.split())
    assert "picture_envs:passes_all_on cannot be made for a video" in error
    assert "give the factory a parameter render_mode, for the environment it makes" in error


def test_a_video_that_cannot_be_written_is_refused_before_anything_is_played(
    run: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert filmed(run, tmp_path / "x.avi") == 2
    assert ".mp4 or .gif" in capfd.readouterr().err
    assert filmed(run, tmp_path / "nowhere" / "x.mp4") == 2
    assert "there is no folder" in capfd.readouterr().err
    (tmp_path / "folder.mp4").mkdir()
    assert filmed(run, tmp_path / "folder.mp4") == 2
    assert "folder.mp4: this is a folder; give the name of a file" in capfd.readouterr().err
    assert main(["eval", str(run), "--video", str(tmp_path / "x.mp4")]) == 2
    assert "add --trust" in capfd.readouterr().err


@pytest.mark.multiprocess
@pytest.mark.parametrize("suffix", [".mp4", ".gif"])
def test_a_disk_that_is_full_at_the_end_of_a_video_leaves_the_one_before(
    suffix: str, tmp_path: Path
) -> None:
    """ffmpeg writes most of a file at its end, and its package does not look whether it could."""
    out = tmp_path / f"film{suffix}"
    frames = np.random.default_rng(0).integers(0, 255, (40, 64, 64, 3), np.uint8)

    def film() -> None:
        file = VideoFile(out, 25.0)
        for frame in frames:
            file.write(frame)
        file.close(complete=True)

    film()
    before = out.read_bytes()
    with full_disk(len(before) // 2), pytest.raises(CannotFilm, match=f"--video {out}"):
        film()
    assert out.read_bytes() == before and list(tmp_path.iterdir()) == [out]


@pytest.mark.multiprocess
def test_a_disk_that_is_full_within_a_video_is_named_and_not_the_pipe_to_ffmpeg(
    tmp_path: Path,
) -> None:
    out = tmp_path / "film.gif"
    out.write_bytes(b"before")
    file = VideoFile(out, 10.0)
    frames = np.random.default_rng(0).integers(0, 255, (400, 64, 64, 3), np.uint8)
    with full_disk(4096), pytest.raises(CannotFilm, match="is the disk full") as told:
        for frame in frames:
            file.write(frame)
    assert str(told.value).startswith(f"--video {out}: ffmpeg ended after ")
    file.close(complete=False)
    assert out.read_bytes() == b"before" and list(tmp_path.iterdir()) == [out]
    with warnings.catch_warnings(action="ignore", category=ResourceWarning):
        del told
        gc.collect()  # imageio-ffmpeg leaves its pipe to a process that has ended open


@pytest.mark.multiprocess
def test_a_disk_that_becomes_full_while_the_last_frame_is_held_leaves_no_part_of_a_video(
    tmp_path: Path,
) -> None:
    out = tmp_path / "film.gif"
    frame = np.random.default_rng(0).integers(0, 255, (480, 640, 3), np.uint8)
    with (
        full_disk(4096),
        pytest.raises(CannotFilm, match="is the disk full"),
        Camera(out, 1) as filming,
    ):
        filming._video, filming._frame = VideoFile(out, 25.0), frame
    assert list(tmp_path.iterdir()) == []
    with warnings.catch_warnings(action="ignore", category=ResourceWarning):
        gc.collect()  # as above
