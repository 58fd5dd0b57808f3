"""Tune: the search finds what is fastest, and what it writes can be used."""

from __future__ import annotations

import signal

import pytest

from sampleforge.cli.train import parse_config
from sampleforge.tools.tune.speed import Search, Trial, directions, flags_of, headline
from tests.support.variants import slow

DEFAULTS = {
    "num_workers": 2,
    "num_envs_per_worker": 32,
    "num_splits": 2,
    "inference": "inline",
    "precision": "fp32",
    "batch_size": 2048,
    "bf16_may_pay": False,
    "cores": 2,
}


def searched(rate, allow=True, **setting) -> Search:
    """A search over made-up machines: ``rate`` of a setting, None where a trial fails. ``allow``:
    learning may change."""

    def run(tuned, flags):
        resolved = {**DEFAULTS, **setting, **flags}
        found = rate(resolved)
        if found is None:
            return Trial(tuned, flags, error="no")
        result = {"trained_per_s": found, "sampled_per_s": 2 * found, "setting": resolved}
        return Trial(tuned, flags, result)

    search = Search(run, allow)
    for _ in search.trials():
        pass
    return search


def test_the_search_finds_the_best_value_of_each_flag() -> None:
    def rate(at):
        envs = 1000 / (1 + abs(at["num_envs_per_worker"] - 128))
        return envs * (2 if at["inference"] == "worker" else 1) * (3 - at["num_splits"] / 2)

    best = searched(rate).best
    assert best is not None
    assert best.flags == {"num_envs_per_worker": 128, "num_splits": 1, "inference": "worker"}
    assert flags_of(best)["batch_size"] == 2048


def test_the_fastest_rate_is_named_by_what_was_compared() -> None:
    def best(trained: float | None) -> Trial:
        rates = {"trained_per_s": trained, "sampled_per_s": 2000.0}
        return Trial("defaults", {}, {**rates, "setting": DEFAULTS})

    assert headline(best(1500.0)) == "Fastest on 2 cores: 1,500 env steps/s trained"
    assert headline(best(None)) == "Fastest on 2 cores: 2,000 env steps/s sampled"


def test_the_search_goes_down_where_up_is_no_gain() -> None:
    best = searched(lambda at: 1e6 / at["batch_size"]).best
    assert best is not None and best.flags == {"batch_size": 256}


def test_without_leave_only_the_division_of_the_work_is_tuned() -> None:
    """On a machine where larger batches, more env rows and fewer bits are always faster."""
    shapes = {"rollout": 32, "minibatch_size": None, "num_epochs": 2, "async_rl": True}

    def rate(at):
        rows = at["num_workers"] * at["num_envs_per_worker"]
        return rows * at["batch_size"] * (3 if at["num_workers"] == 4 else 2)

    search = searched(rate, allow=False, bf16_may_pay=True, **shapes)
    rows = {t.setting["num_workers"] * t.setting["num_envs_per_worker"] for t in search.done}
    assert rows == {64} and len(search.done) > 4
    for name in ("batch_size", "precision", *shapes):
        assert len({trial.setting[name] for trial in search.done}) == 1
    assert all(trial.flags["batch_size"] == 2048 for trial in search.done[1:]), "given explicitly"
    assert search.best is not None
    found = flags_of(search.best)
    assert (found["num_workers"], found["num_envs_per_worker"], found["rollout"]) == (4, 16, 32)
    assert "minibatch_size" not in found, "it is unset"
    allowed = searched(rate, bf16_may_pay=True, **shapes).best
    assert allowed.setting["batch_size"] > 2048, "with leave the same machine is tuned further"


def test_ranks_are_tuned_by_the_flags_that_they_have() -> None:
    setting = {"ranks": True, "num_ranks": 2}
    kept = searched(lambda at: 100, allow=False, **setting)
    assert {trial.tuned for trial in kept.done} == {"defaults", "num_splits"}
    search = searched(lambda at: at["num_ranks"], **setting)
    assert "num_workers" not in {trial.tuned for trial in search.done}
    assert search.best is not None
    found = flags_of(search.best)
    assert found["num_ranks"] == 3 and not {"num_workers", "inference"} & set(found)


def test_noise_is_no_gain_and_failures_are_passed_over() -> None:
    search = searched(lambda at: 102 if at["num_workers"] == 3 else 100)
    assert search.best is search.done[0]
    search = searched(
        lambda at: 500 if at["num_splits"] == 1 else None if at["num_workers"] != 2 else 9
    )
    assert search.best is not None and search.best.flags == {"num_splits": 1}


def test_if_the_defaults_fail_there_is_nothing_to_tune() -> None:
    search = searched(lambda at: None)
    assert search.best is None and len(search.done) == 1


def test_bf16_is_tried_only_where_it_may_pay_and_fp32_wherever_bf16_was_given() -> None:
    assert directions("precision", DEFAULTS) == []
    assert directions("precision", {**DEFAULTS, "precision": "bf16"}) == [["fp32"]]
    assert directions("precision", {**DEFAULTS, "bf16_may_pay": True}) == [["bf16"]]


def test_splits_divide_the_envs() -> None:
    assert directions("num_splits", {**DEFAULTS, "num_envs_per_worker": 6}) == [[1]]
    assert directions("num_envs_per_worker", {**DEFAULTS, "num_envs_per_worker": 4})[1] == [2]


@pytest.mark.multiprocess(timeout=120)
@pytest.mark.parametrize("allow", [True, slow(False)])
def test_ctrl_c_keeps_the_best_so_far(start_cli, run_cli, tmp_path, allow) -> None:
    """And the last line is the command that trains with it."""
    flags = "CartPole-v1 appo --seconds-per-trial 0.3 --out tuned.yaml"
    flags += " --allow-learning-changes" * allow
    process = start_cli("tune", *flags.split())
    assert "(the defaults)" in process.stdout.readline()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, out + err
    assert "interrupted: this is the best so far" in out
    assert ("may change what is learned" in out) == allow
    assert ("keep what shapes the learning" in out) != allow
    assert not list(tmp_path.glob("sampleforge-tune-*")) and not (tmp_path / "runs").exists()
    config = parse_config("appo", ["--config", str(tmp_path / "tuned.yaml")])
    assert config.env == "CartPole-v1" and config.num_workers is not None
    assert config.inference in ("inline", "worker") and config.batch_size is not None
    if not allow:
        command = out.splitlines()[-1]
        assert command == "sampleforge train appo --config tuned.yaml"
        assert config.rollout and config.async_rl is not None
        more = ["--train-for-env-steps", "500", "--run-dir", "run", "--quiet"]
        done = run_cli(*command.split()[1:], *more)
        assert done.returncode == 0 and done.stdout.startswith("Finished"), done.stderr


@pytest.mark.multiprocess(timeout=120)
def test_mistakes_in_a_tune_command_are_refused(run_cli, tmp_path) -> None:
    done = run_cli("tune", "CartPole-v9", "appo", "--out", "tuned.yaml")
    assert done.returncode == 1 and "CartPole-v9" in done.stdout
    assert not (tmp_path / "tuned.yaml").exists()
    (tmp_path / "tuned.yaml").write_text("mine")
    done = run_cli("tune", "CartPole-v1", "appo", "--out", "tuned.yaml")
    assert done.returncode == 2 and "exists already" in done.stderr
    assert run_cli("tune", "CartPole-v1", "apo").returncode == 2
