"""Datasets from elsewhere: nothing is followed out of the folder, and no size is believed."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from gymnasium import spaces

from sampleforge.api import load_policy
from sampleforge.cli import main
from sampleforge.config import ConfigError
from sampleforge.data.config import Source
from sampleforge.data.dataset import EpisodeUnreadable, open_dataset
from sampleforge.data.stored_steps import RewardRule, StoredBatches
from sampleforge.data.writer import check_folder
from sampleforge.env.adapter import env_spec
from sampleforge.env.config import EnvConfig
from sampleforge.spec import EnvSpaces, with_action_units
from tests.support.graphs import spec_of
from tests.support.recorded import recorded, write_dataset
from tests.support.recorded_spec import SPEC
from tests.support.serial_runs import run_serially


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A dataset of three episodes of 5 steps, and a secret beside it."""
    (tmp_path / "secret").write_bytes(np.arange(1000.0).tobytes())
    return write_dataset(tmp_path / "set", SPEC, recorded([5, 5, 5]))


Change = Callable[[Any, Path], None]


def replace(name: str, make: Callable[[Any, Path], Any]) -> Change:
    """Change one member of episode 1."""

    def change(file: Any, data: Path) -> None:
        group = file["episode_1"]
        del group[name]
        made = make(group, data)
        if made is not None:
            group[name] = made

    return change


def external_storage(group: Any, data: Path) -> None:
    group.create_dataset(
        "rewards", (5,), "f8", external=[(str(data.parent / "secret"), 0, h5py.h5f.UNLIMITED)]
    )


def virtual(group: Any, data: Path) -> None:
    layout = h5py.VirtualLayout((5,), "f8")
    layout[:] = h5py.VirtualSource(str(data.parent / "other.hdf5"), "x", (5,))
    group.create_virtual_dataset("rewards", layout)


def endless(group: Any, data: Path) -> None:
    group.create_dataset("rewards", (10**11,), "f4", chunks=(10**5,), compression="gzip")


def huge_compressed(group: Any, data: Path) -> None:
    group.create_dataset("observations", (6, 3), "f4")
    group.create_dataset(
        "infos/action_parameters", (5, 10**10), "f4", chunks=(1, 10**5), compression="gzip"
    )


def circle(file: Any, data: Path) -> None:
    del file["episode_1"]
    file["episode_1"] = h5py.SoftLink("/episode_1")


def external_circle(file: Any, data: Path) -> None:
    del file["episode_1"]
    file["episode_1"] = h5py.ExternalLink("main_data.hdf5", "/episode_1")


def external_episode(file: Any, data: Path) -> None:
    with h5py.File(data.parent / "other.hdf5", "w") as other:
        file.copy("episode_0", other, "episode_1")
    del file["episode_1"]
    file["episode_1"] = h5py.ExternalLink("../../other.hdf5", "/episode_1")


def pipe(file: Any, data: Path) -> None:
    os.mkfifo(data / "data" / "part-000000.hdf5")
    del file["episode_1"]
    file["episode_1"] = h5py.ExternalLink("part-000000.hdf5", "/episode_1")


def linked_part(file: Any, data: Path) -> None:
    external_episode(file, data)
    del file["episode_1"]
    (data / "data" / "part-000000.hdf5").symlink_to(data.parent / "other.hdf5")
    file["episode_1"] = h5py.ExternalLink("part-000000.hdf5", "/episode_1")


FAULTS: dict[str, tuple[Change, str]] = {
    "10^11 rewards": (replace("rewards", endless), r"rewards declares the shape \[100000000000\]"),
    "an array of 200 GB": (
        replace("observations", huge_compressed),
        "infos/action_parameters declares .*, but the file has",
    ),
    "external storage": (replace("rewards", external_storage), "rewards is stored in another file"),
    "virtual": (replace("rewards", virtual), "rewards is stored in another file"),
    "soft link": (
        replace("rewards", lambda group, data: h5py.SoftLink("/episode_0/rewards")),
        "rewards is a link to",
    ),
    "external link": (
        replace("rewards", lambda group, data: h5py.ExternalLink("/etc/passwd", "/x")),
        "rewards is a link to /etc/passwd",
    ),
    "a circle": (circle, "episode_1 is a link"),
    "an external circle": (external_circle, "episode_1 is a link"),
    "an episode elsewhere": (external_episode, "leads out of the dataset's folder"),
    "a pipe": (pipe, "part-000000.hdf5 is no regular file"),
    "a part elsewhere": (linked_part, "part-000000.hdf5 leads out of the dataset's folder"),
    "a group": (
        replace("rewards", lambda group, data: group.create_group("rewards") and None),
        "rewards is no array",
    ),
    "missing": (replace("actions", lambda group, data: None), "actions is missing"),
    "texts": (
        replace("rewards", lambda group, data: np.array([b"x"] * 5, "S1")),
        r"rewards has the type \|S1",
    ),
    "not a number": (
        replace("rewards", lambda group, data: np.array([0, 1, np.nan, 0, 0])),
        "rewards is nan in step 2",
    ),
    "an observation": (
        replace("observations", lambda group, data: np.diag([0, np.nan, 0, 0, 0, 0])[:, :3]),
        r"observation leaf 'obs' is nan at \[1\] in step 1",
    ),
    "an observation that float32 cannot hold": (
        replace("observations", lambda group, data: np.diag([0, -1e300, 0, 0, 0, 0])[:, :3]),
        r"observation leaf 'obs' is -1e\+300 at \[1\] in step 1, but must be a number that float32",
    ),
    "rewards in a column": (
        replace("rewards", lambda group, data: np.zeros((5, 1))),
        r"rewards declares the shape \[5, 1\], but must have one number for each step",
    ),
    "a reward that float32 cannot hold": (
        replace("rewards", lambda group, data: np.array([0, 0, 1e300, 0, 0])),
        r"rewards is 1e\+300 in step 2, but must be a number that float32 can hold",
    ),
    "too few observations": (
        replace("observations", lambda group, data: np.zeros((5, 3))),
        r"observations declares the shape \[5, 3\], expected 6",
    ),
    "wide observations": (
        replace("observations", lambda group, data: np.zeros((6, 4))),
        r"observations declares entries of the shape \[4\], expected \[3\]",
    ),
    "an action that there is not": (
        replace("actions", lambda group, data: np.array([0, 1, 4, 0, 0])),
        r"action leaf 'action' is category 4 \(from 0 on\) in step 2, but there are 4",
    ),
    "an action between two": (
        replace("actions", lambda group, data: np.array([0, 1, 1.6, 0, 0])),
        r"action leaf 'action' is 1.6 in step 2, but must be a whole number of int64; correct the",
    ),
    "an action that is not a number": (
        replace("actions", lambda group, data: np.array([0, np.nan, 1, 0, 0])),
        "action leaf 'action' is nan in step 1, but must be a whole number of int64",
    ),
    "half an end": (
        replace("truncations", lambda group, data: np.array([0, 0, 0, 0, 0.5])),
        "truncations is 0.5 in step 4, but must be 0 or 1",
    ),
    "a negative action": (
        replace("actions", lambda group, data: np.array([0, -1, 3, 0, 0])),
        "action leaf 'action' is category -1",
    ),
    "an end before the end": (
        replace("terminations", lambda group, data: np.array([0, 1, 0, 0, 1], bool)),
        "step 1 of 5 ends it, but more steps follow",
    ),
    "too many flags": (
        replace("truncations", lambda group, data: np.zeros(6, bool)),
        r"truncations declares the shape \[6\], expected 5",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_an_episode_that_is_not_what_it_must_be_is_refused_by_name(fault: str, data: Path) -> None:
    change, why = FAULTS[fault]
    with h5py.File(data / "data" / "main_data.hdf5", "a") as file:
        change(file, data)
    dataset = open_dataset(data)
    assert len(list(dataset.episodes([0, 2]))) == 2
    with pytest.raises(ConfigError, match=f"episode 1 cannot be read: .*{why}"):
        list(dataset.episodes())


@pytest.mark.parametrize("value", [1.5, 300, -1, np.nan])
def test_an_observation_that_its_integers_cannot_hold_is_refused(
    value: float, tmp_path: Path
) -> None:
    bytes_of = spaces.Box(0, 255, (3,), np.uint8)
    spec = env_spec("bytes", EnvSpaces(bytes_of, spaces.Discrete(4)))
    obs = np.array([[0, 1, 255], [7, 8, 9.0]])
    (good,) = recorded([1])
    bad = dataclasses.replace(good, observations={"obs": np.where(obs == 8, value, obs)})
    good = dataclasses.replace(good, observations={"obs": obs})
    dataset = open_dataset(write_dataset(tmp_path, spec, [good, bad]))
    (read,) = dataset.episodes([0])
    assert read.observations["obs"].dtype == np.uint8
    assert read.observations["obs"].tolist() == obs.tolist(), "floats, but whole numbers"
    why = rf"episode 1 .*'obs' is {value}.* at \[1\] in step 1, but must be a whole number of uint8"
    with pytest.raises(ConfigError, match=why):
        list(dataset.episodes([1]))


def test_the_end_of_a_terminated_episode_may_be_a_number_that_float32_cannot_hold(
    tmp_path: Path,
) -> None:
    (episode,) = recorded([2])
    obs = episode.observations["obs"].astype(np.float64)
    obs[-1] = [3, np.inf, 1e300]
    ended = dataclasses.replace(episode, observations={"obs": obs})
    (read,) = open_dataset(write_dataset(tmp_path, SPEC, [ended])).episodes()
    assert read.observations["obs"][-1].tolist() == [3, 0, 0]


@pytest.mark.parametrize("ours", [False, True])
@pytest.mark.parametrize("rescale", [False, True])
def test_box_actions_beyond_the_bounds_are_a_warning(
    rescale: bool, ours: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Not those that a policy of ours has drawn, which are beyond the bounds of the slots."""
    declared = EnvSpaces(spaces.Box(-9, 9, (3,)), spaces.Box(np.float32(-2), np.float32(2), (2,)))
    spec = env_spec("bounded", declared)
    folder = write_dataset(tmp_path, spec, recorded([4], spec.actions))
    actions = np.array([[2.000001, -2], [1, 2], [-100, 0], [0, 50]])
    with h5py.File(folder / "data" / "main_data.hdf5", "a") as file:
        file["episode_0/actions"][:] = actions
    if not ours:
        change_metadata(folder, sampleforge=None)
    spec = with_action_units(spec, rescale=rescale)
    progress: Any = None
    batches = StoredBatches(
        (Source(str(folder), 1.0),),
        *(spec, RewardRule(0.9), 2, 1, 0, progress, torch.device("cpu")),
    )
    with caplog.at_level(logging.WARNING):
        assert batches.mixture is not None
    assert ("25% of the numbers of action leaf 'action'" in caplog.text) == (not ours)
    assert ("the bounds of the environment, the farthest -100, and" in caplog.text) == (not ours)


def change_metadata(data: Path, **change: Any) -> None:
    path = data / "data" / "metadata.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"total_episodes": 10**12}, "total_episodes 1,000,000,000,000, but there are 3"),
        ({"total_episodes": -1}, "not a number from 0 on"),
        ({"total_steps": "many"}, "not a number from 0 on"),
        ({"dropped": {"episodes": "x"}}, "not counts"),
        (
            {
                "observation_space": '{"type": "Box", "dtype": "float32", "low": 0, "high": 1, '
                '"shape": [1000000, 1000000]}'
            },
            "at most",
        ),
        ({"action_space": "[" * 100_000}, "no space"),
    ],
)
def test_metadata_are_not_believed(change: dict[str, Any], why: str, data: Path) -> None:
    change_metadata(data, **change)
    with pytest.raises(ConfigError, match=why):
        open_dataset(data)
    with pytest.raises(ConfigError, match=why):
        check_folder(data, SPEC)


def test_episodes_with_more_steps_than_the_metadata_say_are_refused(data: Path) -> None:
    change_metadata(data, total_steps=12)
    with pytest.raises(ConfigError, match=r"episode 2 .* more than total_steps 12"):
        list(open_dataset(data).episodes())
    change_metadata(data, total_steps=4)
    with pytest.raises(ConfigError, match=r"episode 0 .* declares the shape \[5\]"):
        list(open_dataset(data).episodes())


@pytest.mark.parametrize("name", ["main_data.hdf5", "metadata.json"])
@pytest.mark.parametrize("kind", ["pipe", "link"])
def test_files_that_are_none_are_refused(kind: str, name: str, data: Path) -> None:
    """To read, and to record into."""
    path = data / "data" / name
    if kind == "pipe":
        path.unlink()
        os.mkfifo(path)
    else:
        path.rename(data.parent / name)
        path.symlink_to(data.parent / name)
    refused = "no regular file|no dataset" if kind == "pipe" else "leads out"
    with pytest.raises(ConfigError, match=refused):
        open_dataset(data)
    with pytest.raises(ConfigError, match=refused):
        check_folder(data, SPEC)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (circle, "episode_1 is a link"),
        (pipe, "part-000000.hdf5 is no regular file"),
        (lambda file, data: file["episode_1"].attrs.pop("total_steps"), "total_steps"),
    ],
)
def test_a_dataset_whose_last_episodes_cannot_be_counted_is_not_recorded_into(
    change: Change, why: str, data: Path
) -> None:
    """A writer that was killed may have left episodes that the metadata do not count."""
    change_metadata(data, total_episodes=1, total_steps=5)
    check_folder(data, SPEC)
    with h5py.File(data / "data" / "main_data.hdf5", "a") as file:
        change(file, data)
    with pytest.raises(ConfigError, match=f"cannot be recorded into: .*{why}"):
        check_folder(data, SPEC)


@pytest.mark.multiprocess
@pytest.mark.parametrize("serial", [True, False])
@pytest.mark.parametrize("algorithm", ["marwil", "apex"])
def test_a_run_that_reads_a_bad_episode_ends_with_a_sentence(
    algorithm: str, serial: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 1, in every process; no traceback."""
    spec = spec_of(EnvConfig(env="CartPole-v1"))
    obs = {"obs": np.zeros((6, 4), np.float32)}
    given = recorded([5] * 100, spec.actions)
    data = write_dataset(
        tmp_path / "set", spec, [dataclasses.replace(each, observations=obs) for each in given]
    )
    with h5py.File(data / "data" / "main_data.hdf5", "a") as file:
        replace("rewards", endless)(file, data)
    flags = ["--env", "CartPole-v1", "--input", str(data), "--run-dir", str(tmp_path / "run")]
    flags += ["--quiet", "--train-for-seconds", "60", *(["--serial"] if serial else [])]
    if algorithm == "apex":
        flags += ["--shuffle-buffer", "50", "--num-workers", "1", "--num-envs-per-worker", "4"]
    assert main(["train", algorithm, *flags]) == 1
    said = capsys.readouterr().err
    assert "Traceback" not in said
    assert "episode 1 cannot be read: rewards declares the shape [100000000000]" in said


@pytest.mark.long
def test_an_estimate_that_reads_a_bad_episode_ends_with_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    run_serially(run, 1, train_for_env_steps=200)
    spec = load_policy(run).spec
    obs = {"obs": np.zeros((6, 4), np.float32)}
    given = recorded([5] * 3, spec.actions)
    data = write_dataset(
        tmp_path / "set", spec, [dataclasses.replace(each, observations=obs) for each in given]
    )
    with h5py.File(data / "data" / "main_data.hdf5", "a") as file:
        replace("rewards", external_storage)(file, data)
    assert main(["estimate", str(run), str(data)]) == 1
    said = capsys.readouterr().err
    assert said.startswith("sampleforge: error: ") and "rewards is stored in another file" in said


def test_a_dataset_whose_segment_leads_out_is_not_recorded_into(data: Path) -> None:
    part = data / "data" / "part-000003.hdf5"
    shutil.copy(data / "data" / "main_data.hdf5", data.parent / "other.hdf5")
    part.symlink_to(data.parent / "other.hdf5")
    with pytest.raises(ConfigError, match=r"part-000003.hdf5 leads out"):
        check_folder(data, SPEC)


@pytest.mark.filterwarnings("ignore::UserWarning")  # of metadata that Minari recommends
@pytest.mark.parametrize("kind", ["arrow", "parquet"])
def test_an_episode_of_which_minari_reads_a_part_alone_is_refused(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its storage takes the first batch of records alone: 32,767 of them. The episode would seem to
    be cut there."""
    pytest.importorskip("pyarrow")
    import minari
    from gymnasium import spaces
    from minari.data_collector.episode_buffer import EpisodeBuffer

    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    found = []
    for steps in (10, 33_000):
        ended = [False] * (steps - 1) + [True]
        buffer = EpisodeBuffer(
            id=0,
            observations=np.zeros((steps + 1, 1), np.float32),
            actions=np.zeros(steps, np.int64),
            rewards=[1.0] * steps,
            terminations=ended,
            truncations=[False] * steps,
        )
        minari.create_dataset_from_buffers(
            f"steps-{steps}-v0",
            [buffer],
            observation_space=spaces.Box(-1.0, 1.0, (1,), np.float32),
            action_space=spaces.Discrete(2),
            data_format=kind,
        )
        found.append(open_dataset(f"steps-{steps}-v0").episodes())
    assert len(next(found[0])) == 10
    with pytest.raises(EpisodeUnreadable, match=r"it has 33,000 steps, of which .* 32,767"):
        next(found[1])
