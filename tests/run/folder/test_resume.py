"""Resuming: counters and streams go on, changes of the learning are refused, damage is noticed.

In one process, where nothing but the subject takes time."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from sampleforge.api import Trainer, load_policy, train
from sampleforge.config import ConfigError
from sampleforge.models.config import ModelConfig
from sampleforge.run.callback import Callback
from sampleforge.run.folder.checkpoint import CheckpointError, CheckpointStore
from sampleforge.run.folder.stored_config import changed_learning, changes
from sampleforge.run.session import Session
from sampleforge.topologies.config import ApexConfig, AppoConfig, MarwilConfig
from tests.support.full_disk import full_disk
from tests.support.runs import newest


def config(run: Path, env_steps: int = 3000, **more: Any) -> AppoConfig:
    return AppoConfig(
        env="tests.support.envs:CodeEnv",
        run_dir=str(run),
        train_for_env_steps=env_steps,
        num_envs_per_worker=8,
        async_rl=True,
        serial=True,
        quiet=True,
        **more,
    )


def reports(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.long
def test_the_same_command_resumes_the_run(tmp_path: Path) -> None:
    run = tmp_path / "run"
    first = train(config(run)).summary
    second = train(config(run, 6000)).summary
    assert second["seed"] == first["seed"], "a seed that was left open is kept"
    assert 6000 <= second["env_steps"] < 6600
    for name in ("updates", "episodes", "env_frames", "wall_s"):
        assert second[name] > first[name]
    steps = [report["env_steps"] for report in reports(run)]
    assert steps == sorted(steps) and steps[-1] == second["env_steps"]


def test_a_resumed_run_does_not_play_the_same_episodes_again(tmp_path: Path) -> None:
    """CodeEnv's observations begin with the row's seed modulo 1000."""
    seeds = []
    for env_steps in (1000, 2000):
        with Trainer(config(tmp_path / "run", env_steps, seed=3)) as trainer:
            for _ in trainer:
                pass
            obs = trainer.session.graph.groups[0].exchange.slots.obs["obs"]
            seeds.append({int(value) for value in obs[..., 0].ravel()} - {0})
    assert len(seeds[0]) == 8
    assert not seeds[0] & seeds[1]


def test_a_resumed_learner_has_its_tensors(tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(config(run, seed=3))
    before = newest(run)
    train(config(run, 1, seed=3))  # already reached: it is loaded, and saved again
    after = newest(run)
    assert before.keys() == after.keys()
    assert {name.split("/")[0] for name in before} >= {"model", "optimiser", "rng"}
    for name, tensor in before.items():
        assert tensor.equal(after[name]), name


@pytest.mark.long
def test_what_made_the_networks_or_the_experience_cannot_change(tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(config(run, 1000))
    before = (run / "config.yaml").read_bytes()
    with pytest.raises(ConfigError, match=r"cannot go on .*:\n  model\.hidden_sizes: .* -> \[8\]"):
        train(config(run, 2000, model=ModelConfig(hidden_sizes=(8,))))
    with pytest.raises(ConfigError, match=r"action_repeat: 1 -> 2\n"):
        train(config(run, 2000, action_repeat=2))
    assert (run / "config.yaml").read_bytes() == before
    train(config(run, 2000, report_interval=0.5, checkpoint_interval=1.0))


@pytest.mark.long
def test_what_is_learned_with_may_change_and_stays_changed(tmp_path: Path) -> None:
    run = tmp_path / "run"
    first = train(config(run, 1000, gamma=0.97)).summary
    changed = {"learning_rate": 1e-5, "gamma": 0.9, "batch_size": 512, "lr_schedule": "constant"}
    train(config(run, 2000, **changed))
    log = (run / "log.txt").read_text()
    said = "Changed from here on:"
    assert f"{said} --gamma 0.9 (was 0.97)" in log and f"{said} --learning-rate 1e-05 (was" in log
    with Trainer(config(run, 3000)) as trainer:  # as it was given last
        report = next(iter(trainer))
        used = trainer.session.config
        learned = trainer.session.resume_point
    assert {name: getattr(used, name) for name in changed} == changed
    assert used.seed == first["seed"] and learned.resumes == 2
    assert report["learning_rate"] == pytest.approx(1e-5)
    stored = yaml.safe_load((run / "config.yaml").read_text())
    assert {name: stored[name] for name in changed} == changed


def learned_rate(run: Path) -> float:
    """The learning rate in the newest checkpoint, with which the last update was made."""
    found = CheckpointStore(run / "checkpoints", 1).load(log=print)
    assert found is not None
    rate = float(found[0].state["learner"]["hyperparameters"]["learning_rate"])
    reports = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    used = [report["learning_rate"] for report in reports if "learning_rate" in report]
    assert used[-1] == rate
    return rate


def test_a_change_is_kept_if_the_run_is_killed_before_its_next_checkpoint(tmp_path: Path) -> None:
    """config.yaml has the new rate at once, and the checkpoint the old one."""
    run, changed = tmp_path / "run", {"learning_rate": 1e-5, "lr_schedule": "constant"}
    train(config(run, 1000, learning_rate=1e-3))
    before = shutil.copytree(run / "checkpoints", tmp_path / "before")
    train(config(run, 2000, **changed))
    shutil.rmtree(run / "checkpoints")  # as SIGKILL would have left it
    before.rename(run / "checkpoints")
    train(config(run, 2000, **changed))
    assert learned_rate(run) == 1e-5
    said = "Changed from here on: --learning-rate 1e-05 (the latest checkpoint has 0.001)"
    assert said in (run / "log.txt").read_text()
    train(config(run, 3000, **changed))
    assert learned_rate(run) == 1e-5
    assert (run / "log.txt").read_text().count(said) == 1, "the checkpoint has it now"


class SetsTheRate(Callback):
    def on_start(self, session: Session) -> None:
        session.set_hyperparameter("learning_rate", 2e-5)


def test_what_a_callback_has_set_is_no_change_of_the_config(tmp_path: Path) -> None:
    run, rate = tmp_path / "run", {"learning_rate": 1e-3, "lr_schedule": "constant"}
    train(config(run, 1000, **rate), [SetsTheRate()])
    train(config(run, 2000, **rate))
    assert learned_rate(run) == 2e-5
    log = (run / "log.txt").read_text()
    assert log.count("As it was set during the run: --learning-rate 2e-05") == 1
    train(config(run, 3000, **{**rate, "learning_rate": 5e-4}))
    assert learned_rate(run) == 5e-4, "what is given anew comes first"
    assert (run / "log.txt").read_text().count("As it was set during the run") == 1
    train(config(run, 4000, **{**rate, "learning_rate": 5e-4}))
    assert learned_rate(run) == 5e-4
    assert (run / "log.txt").read_text().count("As it was set during the run") == 1


@pytest.mark.parametrize(
    ("kind", "name"), [(ApexConfig, "gamma"), (ApexConfig, "rollout"), (MarwilConfig, "gamma")]
)
def test_what_stored_experience_depends_on_cannot_change(kind: Any, name: str) -> None:
    stored = kind(env="CartPole-v1", input=("data",))
    new = dataclasses.replace(stored, **{name: {"gamma": 0.5, "rollout": 7}[name]})
    assert changes(stored, {}, new, new) and not changed_learning(stored, {}, new)


@pytest.mark.parametrize("resume", ["must", "never"])
def test_resume_must_refuses_a_new_run_and_never_an_earlier_one(
    tmp_path: Path, resume: Any
) -> None:
    fresh, used = tmp_path / "fresh", tmp_path / "used"
    train(config(used, 1000))
    right, wrong = (used, fresh) if resume == "must" else (fresh, used)
    with pytest.raises(ConfigError, match=f"--resume {resume}: "):
        train(config(wrong, 2000, resume=resume))
    assert train(config(right, 2000, resume=resume)).summary["status"] == "finished"


def files(run: Path) -> list[Path]:
    """The checkpoints, oldest first."""
    return sorted((run / "checkpoints").glob("*.safetensors"))


@pytest.mark.long
def test_a_damaged_checkpoint_is_refused_and_the_one_before_used(
    tmp_path: Path,
) -> None:
    run = tmp_path / "run"
    for env_steps in (1000, 2000):
        train(config(run, env_steps))
    older, newer = files(run)
    data = bytearray(newer.read_bytes())
    data[len(data) // 2] ^= 1
    newer.write_bytes(data)
    with Trainer(config(run, 3000)) as trainer:
        assert trainer.session.graph.progress.env_steps == int(older.name.split("-")[0])
        log = (run / "log.txt").read_text()
        assert f"{newer.name} is refused: its checksum is wrong" in log
        assert f"Resuming from the checkpoint at {int(older.name.split('-')[0]):,} env steps" in log
        for _ in trainer:
            pass
    older.unlink()
    for path in files(run):
        path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(CheckpointError, match="no valid checkpoint"):
        train(config(run, 4000))
    with pytest.raises(CheckpointError, match="no valid checkpoint"):
        load_policy(run, trust=True)


@pytest.mark.long
def test_a_full_disk_leaves_the_checkpoint_before_whole(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with pytest.raises(OSError, match="checkpoint not written"), Trainer(config(run)) as trainer:
        next(iter(trainer))
        trainer.save()
        (kept,) = files(run)
        with full_disk(kept.stat().st_size // 2):
            trainer.save()
    assert files(run) == [kept]
    assert list((run / "checkpoints").glob(".*")) == [], "no half of a file either"
    written = json.loads((run / "summary.json").read_text())
    assert written["status"] == "failed"
    error = written["error"]
    assert error.startswith("checkpoint not written") and error.endswith("from the previous one")
    assert str(run / "checkpoints") in error and "Traceback" not in error
    assert train(config(run)).summary["status"] == "finished"


@pytest.mark.long
def test_an_env_that_raises_now_and_then_is_rebuilt_and_counted(tmp_path: Path) -> None:
    """Also over a resume."""
    raising: dict[str, str | int | float | bool] = {"where": "step", "every": 90}
    counts = []
    for env_steps in (3000, 6000):
        chosen = dataclasses.replace(
            config(tmp_path / "run", env_steps),
            env="tests.support.envs:RaisingEnv",
            env_kwargs=raising,
        )
        counts.append(train(chosen).summary["env_restarts"])
    assert 0 < counts[0] < counts[1]
    assert "rebuilt" not in reports(tmp_path / "run")[-1]
    assert reports(tmp_path / "run")[-1]["env_restarts"] == counts[1]


def kinds(run: Path) -> dict[str, list[dict[str, Any]]]:
    """The manifest's entries, by what they are kept as."""
    entries = json.loads((run / "checkpoints" / "manifest.json").read_text())["entries"]
    return {k: [e for e in entries if k in e["kinds"]] for k in ("latest", "best")}


@pytest.mark.long
def test_a_few_early_episodes_make_no_best_checkpoint(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with Trainer(config(run, 100_000, env_kwargs={"length": 200})) as trainer:
        reports = iter(trainer)
        while trainer.session.statistics.episodes < 100 or not files(run):
            next(reports)
            trainer.save()
            if trainer.session.statistics.episodes < 100:
                assert not kinds(run)["best"], "the mean of a few episodes may be luck"
        assert kinds(run)["best"][0]["return_mean"] == trainer.session.statistics.return_mean


def test_other_evaluations_are_said_to_be_compared_with_those_before(tmp_path: Path) -> None:
    run, more = tmp_path / "run", {"evaluate_interval": 400, "evaluate_episodes": 2}
    said = "the best checkpoint stays that of the evaluations before"
    for env_steps in (500, 1000):
        train(config(run, env_steps, **more))
    assert said not in (run / "log.txt").read_text()
    train(config(run, 1500, evaluate_env_kwargs={"length": 5}, **more))
    assert f"--evaluate-env-kwargs length=5: {said}" in (run / "log.txt").read_text()


def test_the_best_checkpoint_is_that_of_the_best_evaluation(tmp_path: Path) -> None:
    run = tmp_path / "run"
    more = {"evaluate_interval": 400, "evaluate_episodes": 2, "report_interval": 0.4}
    evaluations = {}
    with Trainer(config(run, 4000, **more)) as trainer:
        for report in trainer:
            if "eval_return_mean" in report:
                evaluations[int(report["eval_env_steps"])] = report["eval_return_mean"]
                trainer.save()
    (best,) = kinds(run)["best"]
    assert len(evaluations) > 3
    assert best["eval_return_mean"] == max(evaluations.values())
    assert evaluations[best["eval_env_steps"]] == best["eval_return_mean"]


@pytest.mark.long
def test_a_run_that_is_killed_early_has_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the interval of 120 s that there is by default."""
    monkeypatch.setattr("sampleforge.run.checkpoints.FIRST_CHECKPOINT_S", 0.05)
    run = tmp_path / "run"
    with Trainer(config(run, 1_000_000)) as trainer:
        reports = iter(trainer)
        while trainer.session.graph.counters.total("updates") < 20:
            next(reports)
        next(reports)
        assert len(files(run)) == 1
        (kept,) = files(run)
        assert int(kept.name.split("-")[0]) > 0
