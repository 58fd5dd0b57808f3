"""Run folders: portable, one run at a time, resumed with the config they had."""

import dataclasses
import json
import os
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch
import yaml

from sampleforge.api import train
from sampleforge.cli.train import parse_config
from sampleforge.config import ConfigError
from sampleforge.run.folder.checkpoint import Checkpoint, CheckpointStore
from sampleforge.run.folder.new_folder import run_dir_of
from sampleforge.run.folder.run_folder import RunFolder
from sampleforge.run.folder.stored_config import MAY_CHANGE
from sampleforge.run.folder.trust import Trust
from sampleforge.run.folder.versions import REPOSITORY, git_commit
from sampleforge.run.reports.reporter import Reporter
from sampleforge.topologies.config import ALGOS, AppoConfig, PqnConfig

FOLDERS = ("checkpoints", "scratch", "tb")


@pytest.mark.parametrize("umask", [0o022, 0o027, 0o077])
def test_all_files_and_folders_follow_the_umask(tmp_path, umask):
    before = os.umask(umask)
    try:
        folder = RunFolder(tmp_path / "runs" / "a")
        folder.create()
        with Reporter(folder) as reporter:
            reporter.log("begins")
            reporter.report({"loss": 1.0}, env_steps=1, wall_s=1.0)
        folder.write_config(AppoConfig(env="E"), AppoConfig(env="E"))
        folder.write_summary({})
        folder.write_benchmark({})
        CheckpointStore(folder.checkpoints, 1).save(
            Checkpoint({"w": torch.ones(2)}, {}), env_steps=1, version=1, return_mean=None
        )
        found = {path: stat.S_IMODE(path.stat().st_mode) for path in folder.path.rglob("*")}
        folder.close()
    finally:
        os.umask(before)
    assert len(found) >= 10
    assert found == {path: (0o777 if path.name in FOLDERS else 0o666) & ~umask for path in found}
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o777 & ~umask


def test_no_file_names_an_absolute_path(folder, tmp_path):
    asked = AppoConfig(env="CartPole-v1", run_dir=str(folder.path))
    folder.write_config(dataclasses.replace(asked, seed=3), asked)
    folder.write_summary({"status": "finished", "return_mean": float("nan")})
    folder.write_benchmark({"sampled_per_s": 1.0})
    for path in folder.path.rglob("*"):
        if path.is_file():
            assert str(tmp_path) not in path.read_text()
    assert json.loads(folder.summary_file.read_text())["return_mean"] is None


def test_a_folder_that_exists_already_is_used(tmp_path):
    for _ in range(2):
        folder = RunFolder(tmp_path)
        folder.create()
        folder.close()


def test_of_a_run_that_did_not_begin_no_folder_stays(tmp_path):
    (tmp_path / "kept").mkdir()
    for path in ("runs/a", "kept/runs/a"):
        folder = RunFolder(tmp_path / path)
        folder.create()
        folder.close()
        folder.discard()
    assert [path.name for path in tmp_path.rglob("*")] == ["kept"]
    folder = RunFolder(tmp_path / "new" / "a")
    folder.create()
    (tmp_path / "new" / "other").touch()
    folder.close()
    folder.discard()
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["other"]


def test_a_folder_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="another --run-dir"):
        RunFolder(tmp_path / "file" / "run").create()


def test_two_runs_in_one_folder_are_refused(folder):
    with pytest.raises(ConfigError, match=f"in use by process {os.getpid()}"):
        RunFolder(folder.path).create()


@pytest.mark.multiprocess
def test_the_lock_dies_with_its_process(tmp_path):
    code = (
        "import os, signal\nfrom sampleforge.run.folder.run_folder import RunFolder\n"
        f"RunFolder({str(tmp_path)!r}).create()\nos.kill(os.getpid(), signal.SIGKILL)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == -9
    folder = RunFolder(tmp_path)
    folder.create()
    folder.close()


def test_config_survives_storage(folder):
    config = AppoConfig(env="a:b", env_kwargs={"x": 1}, adam_betas=(0.5, 0.6), seed=1)
    folder.write_config(config, config)
    assert folder.read_config(AppoConfig, Trust(everything=True)) == config
    assert folder.algo == "appo"


def test_the_same_command_resumes_with_what_was_resolved(folder):
    asked = AppoConfig(env="CartPole-v1")
    first = dataclasses.replace(asked, seed=11, batch_size=2048, num_workers=4)
    folder.write_config(first, asked)
    resumed = folder.check_resume(asked).used
    assert (resumed.seed, resumed.batch_size, resumed.num_workers) == (11, 2048, None)
    folder.write_config(dataclasses.replace(resumed, num_workers=2), asked)
    assert folder.check_resume(asked).used == resumed
    assert folder.check_resume(dataclasses.replace(asked, seed=11)).used.seed == 11


@pytest.mark.parametrize("make", [AppoConfig, PqnConfig])
def test_a_rate_that_fell_by_default_is_constant_in_a_part_without_an_end(folder, make):
    """One that was given is refused there, as in a new run."""
    endless, with_end = make(seed=1), make(seed=1, train_for_env_steps=1000)
    falling = dataclasses.replace(with_end, lr_schedule="linear")
    folder.write_config(falling, with_end)
    longer = dataclasses.replace(with_end, train_for_env_steps=2000)
    kept, changed = folder.check_resume(longer), folder.check_resume(endless)
    assert kept.used.lr_schedule == "linear" and not kept.notes
    assert changed.used.lr_schedule == "constant"
    assert [note[:38] for note in changed.notes] == ["The learning rate is constant from her"]
    folder.write_config(falling, falling)
    with pytest.raises(ConfigError, match=r"--lr-schedule linear: .* add --train-for-env-steps"):
        folder.check_resume(endless)


def test_changes_of_the_network_and_the_seed_are_refused_with_a_diff(folder):
    asked = AppoConfig(env="CartPole-v1", learning_rate=0.1)
    folder.write_config(dataclasses.replace(asked, seed=11), asked)
    model = dataclasses.replace(asked.model, core="gru")
    with pytest.raises(ConfigError) as caught:
        folder.check_resume(dataclasses.replace(asked, model=model, seed=12))
    message = str(caught.value)
    for line in ("model.core: 'none' -> 'gru'", "seed: 11 -> 12"):
        assert line in message
    assert "--run-dir" in message and "adam" not in message


def test_a_resumed_run_may_change_its_length_workers_and_device(folder):
    asked = AppoConfig(env="CartPole-v1")
    folder.write_config(asked, asked)
    changed = dataclasses.replace(
        asked, train_for_env_steps=9, num_workers=7, quiet=True, device="cpu", keep_checkpoints=1
    )
    assert folder.check_resume(changed).used == changed
    fields = {field.name for config in ALGOS.values() for field in dataclasses.fields(config)}
    assert fields >= MAY_CHANGE, "a name that no algorithm's config has"


def test_a_damaged_config_is_refused_by_its_name(folder):
    folder.config_file.write_text("algo: [appo\n")
    with pytest.raises(ConfigError, match=r"config\.yaml cannot be read"):
        folder.check_resume(AppoConfig())
    folder.config_file.write_text("algo: appo\nlearnin_rate: 1\n")
    with pytest.raises(ConfigError, match=r"config\.yaml: unknown key 'learnin_rate'"):
        folder.check_resume(AppoConfig())


def test_resume_must_needs_a_checkpoint_and_never_refuses_one(folder):
    must = AppoConfig(env="E", resume="must", run_dir="x")
    never = AppoConfig(env="E", resume="never")
    assert not folder.resumes(AppoConfig()) and not folder.resumes(never)
    with pytest.raises(ConfigError, match="--resume must: there is no checkpoint"):
        folder.resumes(must)
    folder.prepare()
    (folder.checkpoints / "manifest.json").write_text("")
    assert folder.resumes(AppoConfig()) and folder.resumes(must)
    with pytest.raises(ConfigError, match="--resume never: there are checkpoints"):
        folder.resumes(never)


def test_an_unknown_run_is_answered_with_the_nearest_name(folder):
    folder.write_config(AppoConfig(), AppoConfig())
    assert RunFolder.existing(folder.path).path == folder.path
    (folder.path.parent / "cartpole").mkdir()
    (folder.path.parent / "cartpole" / "config.yaml").write_text("")
    with pytest.raises(ConfigError, match=r"Did you mean .*cartpole\?"):
        RunFolder.existing(folder.path.parent / "cartpol")


@pytest.mark.parametrize(
    ("summary", "named"),
    [
        ('{"best": "b", "policies": {"a": {}, "b": {}}}', "b"),
        ('{"best": null, "policies": {"a": {}, "b": {}}}', "a"),
        ('{"best": "gone", "policies": {"gone": {}}}', "a"),
        ("[1]", "a"),
        ("{", "a"),
        (None, "a"),
    ],
)
def test_which_of_several_policies_is_asked_with_the_best_one(folder, summary, named):
    for policy in ("a", "b"):
        CheckpointStore(folder.checkpoints / policy, 1).folder.mkdir(parents=True)
        (folder.checkpoints / policy / "manifest.json").touch()
    if summary is not None:
        folder.summary_file.write_text(summary)
    with pytest.raises(
        ConfigError, match=f"say which of them: --policy {named}, or policy='{named}'"
    ):
        folder.policy_checkpoints(None)


def test_default_folder_names_are_safe(tmp_path):
    for env in ("ALE/Pong-v5", "my.module:make env", "../../etc"):
        with ExitStack() as resources:
            path = run_dir_of(AppoConfig(env=env), resources, tmp_path)
            assert path.parent == tmp_path and "-appo-" in path.name


def test_runs_that_begin_at_the_same_time_have_folders_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the same second, and if none has written anything when the others begin."""
    monkeypatch.setattr("time.strftime", lambda _: "20260101-120000")
    root, config = tmp_path / "a" / "runs", AppoConfig(env="E")
    with ExitStack() as resources, ThreadPoolExecutor(8) as pool:
        paths = [*pool.map(lambda _: run_dir_of(config, resources, root), range(8))]
        numbers = ["", *(f"-{count}" for count in range(2, 9))]
        assert {path.name for path in paths} == {f"E-appo-20260101-120000{n}" for n in numbers}
        (paths[0] / "config.yaml").touch()
    assert [*root.iterdir()] == paths[:1], "those that have not begun leave nothing"


def test_a_default_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "runs").touch()
    with pytest.raises(ConfigError, match=r"be made: File exists .*give another with --run-dir"):
        run_dir_of(AppoConfig(env="E"), ExitStack(), tmp_path / "runs")


def test_no_commit_outside_a_checkout(tmp_path):
    assert git_commit(tmp_path) is None


def test_the_checkout_is_the_folder_above_the_package():
    assert (REPOSITORY / "sampleforge" / "version.py").is_file()


@pytest.mark.long
def test_config_yaml_has_what_was_chosen_and_leaves_it_open_for_another_machine(tmp_path):
    asked = AppoConfig(
        env="CartPole-v1",
        seed=1,
        quiet=True,
        serial=True,
        async_rl=True,
        run_dir=str(tmp_path / "run"),
        train_for_env_steps=5000,
    )
    train(asked)
    file = tmp_path / "run" / "config.yaml"
    stored = yaml.safe_load(file.read_text())
    chosen = {
        **{"num_workers": 1, "num_envs_per_worker": 128, "num_splits": 1, "inference": "inline"},
        **{"device": "cpu", "precision": "fp32", "learner_threads": 1, "num_policy_workers": 1},
    }
    assert {name: stored[name] for name in chosen} == chosen
    assert stored["batch_size"] > 0 and stored["max_policy_lag"] > 0 and stored["rollout"] == 32
    again = parse_config("appo", ["--config", str(file)])
    for name in chosen:
        assert getattr(again, name) == getattr(asked, name), "chosen anew, wherever that is"
    assert (again.batch_size, again.rollout) == (stored["batch_size"], 32)
    result = train(dataclasses.replace(again, run_dir=str(tmp_path / "copy")))
    copied = yaml.safe_load((tmp_path / "copy" / "config.yaml").read_text())
    assert {n: v for n, v in copied.items() if n != "left_open"} == {
        n: v for n, v in stored.items() if n != "left_open"
    }
    assert result.summary["return_mean"] > 0
    longer = dataclasses.replace(asked, num_workers=2, num_splits=2, train_for_env_steps=6000)
    assert train(longer).summary["env_steps"] >= 6000, "another machine chose other numbers"
