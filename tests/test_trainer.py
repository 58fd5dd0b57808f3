"""The Trainer: reports one by one, interrupts, weights in and out, each policy with its own model,
several at once."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import sampleforge as sf
from sampleforge.models.config import ModelConfig
from sampleforge.run.callback import Callback
from sampleforge.run.session import Session
from sampleforge.trainer import _CHANGING_TRAINING, TRAINING, Trainer
from tests.support.processes import RunCli
from tests.support.runs import newest, summary

OBS = np.array([0.0, 0.1, 0.05, -0.2], np.float32)
SMALL: dict[str, Any] = {
    **{"env": "CartPole-v1", "num_envs_per_worker": 4, "report_interval": 0.3, "seed": 2},
    **{"quiet": True, "model": {"hidden_sizes": [16]}},
}
APEX: dict[str, Any] = {"learning_starts": 100, "replay_capacity": 4000}


def config(folder: Path, **more: Any) -> sf.AppoConfig:
    return sf.AppoConfig(**{**SMALL, "serial": True, "run_dir": str(folder), **more})


@contextmanager
def interrupt_after(seconds: float) -> Iterator[None]:
    """Ctrl-C from outside of the main thread, while the body runs."""
    timer = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    try:
        yield
    finally:
        timer.join()


def equal(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(one[n], other[n]) for n in one)


# ---- reports, the end ----


def test_train_returns_one_report_after_the_other_until_the_stop_condition(tmp_path: Path) -> None:
    trainer = Trainer(config(tmp_path, train_for_env_steps=3000))
    assert (trainer.iteration, trainer.history, trainer.done) == (0, [], False)
    reports = [trainer.train(), trainer.train()]
    assert reports[0]["env_steps"] < reports[1]["env_steps"] and trainer.iteration == 2
    reports += trainer
    assert trainer.iteration == len(reports) and reports[-1]["env_steps"] >= 3000
    with pytest.raises(RuntimeError, match="a new Trainer with the same run_dir"):
        trainer.train()
    result = trainer.stop()
    assert trainer.done and result.summary["status"] == "finished"
    assert [r["env_steps"] for r in result.history] == [r["env_steps"] for r in reports]
    table = result.dataframe()
    assert list(table["env_steps"]) == [r["env_steps"] for r in reports]
    assert trainer.stop() == result, "it may be called again"
    with pytest.raises(RuntimeError, match="has ended"):
        trainer.train()
    assert trainer.compute_action(OBS) in (0, 1), "the weights are still there"


def test_a_condition_that_is_neither_text_nor_function_is_refused_before_it_trains() -> None:
    wrong: Any = 30_000
    trainer = Trainer(sf.AppoConfig(env="CartPole-v1"))
    with pytest.raises(TypeError, match=r"train_until\(env_steps=30000\)"):
        trainer.train_until(wrong)
    assert trainer.iteration == 0


def test_train_until_stops_at_the_first_condition(tmp_path: Path) -> None:
    with Trainer(config(tmp_path, report_interval=1.0)) as trainer:
        assert 1500 <= trainer.train_until(env_steps=1500)["env_steps"] < 1900, "before a report"
        assert 1500 <= trainer.train_until(env_steps=1500)["env_steps"] < 1950, "at once"
        again = trainer.train_until(lambda report: report["env_steps"] > 3000, seconds=60)
        assert 3000 < again["env_steps"] < 5000
        assert trainer.train_until("return_mean>=9", "length_mean<0")["return_mean"] >= 9
        before = trainer.history[-1]["wall_s"]
        assert 0.2 <= trainer.train_until(seconds=0.2)["wall_s"] - before < 5
        with pytest.raises(ValueError, match="no condition"):
            trainer.train_until()
        with pytest.raises(sf.ConfigError, match="must be a metric"):
            trainer.train_until("return_mean=9")
        with pytest.raises(sf.ConfigError, match=r"no metric of that name.* mean return_m"):
            trainer.train_until("retrun_mean>=1")
        with pytest.raises(sf.ConfigError, match="no evaluations; add --evaluate-interval"):
            trainer.train_until("eval_return_mean>=1")


def test_the_config_of_a_run_is_at_hand(tmp_path: Path) -> None:
    given = config(tmp_path, learning_rate="1e-3")
    with Trainer(given) as trainer:
        resolved = trainer.session.resolved
        assert (given.batch_size, given.learning_rate) == (None, 0.001)
        assert resolved.learning_rate == 0.001 and resolved.batch_size is not None
        assert trainer.run_dir == tmp_path and trainer.session.asked.env == "CartPole-v1"


def test_an_error_ends_the_run_and_a_result_needs_an_end(tmp_path: Path) -> None:
    class Failing(Callback):
        def on_report(self, session: Session, report: Mapping[str, float]) -> None:
            raise ArithmeticError("no more")

    trainer = Trainer(config(tmp_path), [Failing()])
    with pytest.raises(RuntimeError, match="not started"):
        _ = trainer.result
    with pytest.raises(ArithmeticError):
        trainer.train()
    assert summary(tmp_path)["status"] == "failed"
    with pytest.raises(RuntimeError, match="has ended"):
        trainer.save()


def test_a_run_is_shown_unless_it_is_to_be_quiet(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A Trainer, which a script follows by itself, is shown if asked for."""
    short = {"train_for_env_steps": 900, "quiet": False}
    sf.train(config(tmp_path / "shown", **short))
    said = capsys.readouterr().out
    assert "env steps" in said and "Finished after" in said
    sf.train(config(tmp_path / "shown", **short), display=False)
    sf.train(config(tmp_path / "shown", **{**short, "quiet": True}))
    with sf.Trainer(config(tmp_path / "shown", **short)):
        pass
    assert capsys.readouterr() == ("", "")


# ---- interrupts ----


def test_a_ctrl_c_leaves_a_usable_trainer(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGINT)
    trainer = Trainer(config(tmp_path))
    first = trainer.train()
    with interrupt_after(0.3), pytest.raises(KeyboardInterrupt):
        trainer.train_until(seconds=60)
    assert signal.getsignal(signal.SIGINT) is before
    assert trainer.train()["env_steps"] > first["env_steps"]
    assert trainer.save() == tmp_path
    with interrupt_after(0.2), pytest.raises(KeyboardInterrupt):
        trainer.evaluate(episodes=10_000)
    assert trainer.stop().summary["status"] == "finished"


def test_a_trainer_that_no_name_is_left_for_is_named_and_stopped(tmp_path: Path) -> None:
    """As in a notebook, which holds the frames of an interrupted cell."""
    frames = [Trainer(config(tmp_path / "one"))]
    frames[0].train()
    two = Trainer(config(tmp_path / "two"))
    two.train()
    named = f"The Trainer of {tmp_path / 'one'} trains beside this one; its stop(), or Trainer.st"
    assert named in (tmp_path / "two" / "log.txt").read_text()
    Trainer.stop_all()
    assert two.done and not TRAINING
    assert [summary(tmp_path / name)["status"] for name in ("one", "two")] == ["finished"] * 2


@pytest.mark.parametrize("ended", [True, False], ids=["another ends", "an error"])
def test_a_trainer_whose_beginning_is_disturbed_leaves_nothing(
    ended: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Other threads begin and end Trainers meanwhile."""
    one, two = Trainer(config(tmp_path / "one")), Trainer(config(tmp_path / "two"))
    one.train()

    def message(session: Session, text: str, level: str = "info") -> None:
        if "trains beside this one" in text:
            assert one.stop().summary["status"] == "finished"
            if not ended:
                raise OSError("no space")

    monkeypatch.setattr(Session, "message", message)
    with nullcontext() if ended else pytest.raises(OSError, match="no space"), two:
        two.train()
    assert summary(tmp_path / "two")["status"] == ("finished" if ended else "failed")
    assert not TRAINING


def test_a_handler_of_a_signal_may_stop_all_wherever_the_program_is() -> None:
    stopped = threading.Event()

    def as_in_a_handler() -> None:
        with _CHANGING_TRAINING:
            Trainer.stop_all()
        stopped.set()

    threading.Thread(target=as_in_a_handler, daemon=True).start()
    assert stopped.wait(10.0)


def test_a_ctrl_c_in_a_with_block_ends_the_run_with_a_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), Trainer(config(tmp_path)) as trainer:
        trainer.train()
        with interrupt_after(0.2):
            trainer.train_until(seconds=60)
    assert summary(tmp_path)["status"] == "interrupted"
    assert list((tmp_path / "checkpoints").glob("*.safetensors"))


def test_a_handler_of_the_program_stays_in_charge(tmp_path: Path) -> None:
    received = []
    before = signal.signal(signal.SIGINT, lambda *_: received.append(1))
    try:
        with Trainer(config(tmp_path)) as trainer, interrupt_after(0.1):
            trainer.train_until(seconds=0.3)
    finally:
        signal.signal(signal.SIGINT, before)
    assert received == [1]


# ---- several at once ----


@pytest.mark.long
def test_two_trainers_in_turn_learn_what_each_learns_alone(tmp_path: Path) -> None:
    """Serial ones, to the bit: neither their events, their threads nor their seeds meet."""
    threads = torch.get_num_threads()

    def weights_of(*trainers: Trainer) -> list[dict[str, Any]]:
        for steps in (600, 1200):
            for trainer in trainers:
                trainer.train_until(f"env_steps>={steps}")
        found = [trainer.get_weights() for trainer in trainers]
        for trainer in trainers:
            trainer.stop()
        return found

    def new(name: str) -> Trainer:
        return Trainer(config(tmp_path / name, seed=int(name[0])))

    alone = [weights_of(new("1 alone"))[0], weights_of(new("2 alone"))[0]]
    beside = weights_of(new("1 beside"), new("2 beside"))
    assert all(map(equal, alone, beside)) and not equal(alone[0], alone[1])
    assert torch.get_num_threads() == threads


class Named(Callback):
    """Adds a metric of its own name to each episode."""

    def __init__(self, name: str) -> None:
        self._name = name

    def on_episode_end(self, episode: Any) -> None:
        episode.custom_metrics[self._name] = 1.0


@pytest.mark.long
def test_serial_trainers_in_two_threads_learn_what_each_learns_alone(tmp_path: Path) -> None:
    """To the bit, and what their environments report does not get mixed."""
    found: dict[str, dict[str, Any]] = {}
    both = threading.Barrier(2)

    def work(name: str, wait: Any) -> None:
        asked = config(tmp_path / name, seed=int(name[0]), report_interval=0.1)
        with Trainer(asked, [Named(f"of_{name[0]}")]) as trainer:
            for steps in range(300, 1501, 300):
                wait()
                trainer.train_until(env_steps=steps)
            found[name] = trainer.get_weights()
            names = {n for report in trainer.history for n in report if n.startswith("custom_of")}
        assert names == {f"custom_of_{name[0]}_{kind}" for kind in ("mean", "min", "max")}

    threads = torch.get_num_threads()
    for name in ("1 alone", "2 alone"):
        work(name, lambda: None)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda name: work(name, both.wait), ("1 beside", "2 beside")))
    assert all(equal(found[f"{i} alone"], found[f"{i} beside"]) for i in (1, 2))
    assert torch.get_num_threads() == threads


def test_a_trainer_in_a_thread_touches_no_signal_handler(tmp_path: Path) -> None:
    done: list[Any] = []

    class Looking(Callback):
        def on_poll(self, session: Session) -> None:
            done.append(signal.getsignal(signal.SIGINT))

    def work() -> None:
        with Trainer(config(tmp_path), [Looking()]) as trainer:
            done.append(trainer.train_until(env_steps=600)["env_steps"])

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done.pop() >= 600 and set(done) == {signal.default_int_handler}
    assert summary(tmp_path)["status"] == "finished"


FORGETFUL = """
import sampleforge as sf
if __name__ == "__main__":
    trainer = sf.Trainer(sf.AppoConfig(
        env="CartPole-v1", run_dir="run", num_workers=1, num_envs_per_worker=4, report_interval=0.2,
    ))
    print(sorted(trainer.train())[0])
"""


@pytest.mark.multiprocess(timeout=120)
def test_a_program_that_forgets_to_stop_ends_with_a_checkpoint(
    run_cli: RunCli, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(FORGETFUL)
    done = run_cli("mine.py", timeout=100)
    assert (done.returncode, done.stderr) == (0, "")
    assert summary(tmp_path / "run")["status"] == "finished"
    assert list((tmp_path / "run" / "checkpoints").glob("*.safetensors"))


# ---- weights ----


def shifted(weights: Mapping[str, Any]) -> dict[str, Any]:
    """Other weights of the same model. The scale of the values is kept: learners adapt it."""
    return {n: w if n == "value_scale" or w.dtype.kind != "f" else w + 0.125
            for n, w in weights.items()}  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("algo", ["appo", "apex", "ddppo"])
def test_weights_reach_the_learner_and_the_actors_with_a_raised_version(
    tmp_path: Path, algo: str
) -> None:
    """The rollouts of the weights before are stale, but for Ape-X, which learns off-policy."""
    make = {"appo": sf.AppoConfig, "apex": sf.ApexConfig, "ddppo": sf.DdppoConfig}[algo]
    more = {"apex": APEX, "ddppo": {"num_ranks": 1}}.get(algo, {"num_workers": 1})
    with Trainer(make(**{**SMALL, **more}, serial=True, run_dir=str(tmp_path))) as trainer:
        trainer.train_until("updates>=1")
        (group,) = trainer.session.graph.groups
        version, limit = group.weights.version, group.max_policy_lag
        asked = shifted(trainer.get_weights())
        trainer.set_weights({name: torch.tensor(w) for name, w in asked.items()})
        assert equal(trainer.get_weights(), asked)
        assert equal(
            {n: t.numpy() for n, t in trainer.get_policy().model.state_dict().items()}, asked
        )
        raised = group.weights.version - version
        assert raised >= 1 if limit is None else raised == limit + 1
        trainer.save()
        stored = newest(tmp_path)
        networks = ("model/", "target/") if algo == "apex" else ("model/",)
        for network in networks:
            assert all(np.array_equal(stored[network + n], w) for n, w in asked.items())
        moments = [t for n, t in stored.items() if n.startswith("optimiser/") and t.ndim]
        assert any(bool(t.any()) for t in moments), "the optimiser has kept its state"
        reports = [trainer.train()]
        while reports[-1]["updates"] <= version + raised or len(reports) < 2:
            reports.append(trainer.train())
        if algo != "apex":
            assert any(report["stale_fraction"] > 0 for report in reports)
        assert not equal(trainer.get_weights(), asked), "it learns on"


@pytest.mark.multiprocess(timeout=120)
@pytest.mark.parametrize("algo", ["appo", "ddppo"])
def test_weights_reach_all_learners_of_a_policy(tmp_path: Path, algo: str) -> None:
    """Which compare their states after each update (--debug). A learning rate of nearly nothing
    shows that they go on from what was set."""
    few = {"num_workers": 1, "batch_size": 128}
    several = {"appo": {"num_learners": 2, **few}, "ddppo": {"num_ranks": 2}}[algo]
    make = {"appo": sf.AppoConfig, "ddppo": sf.DdppoConfig}[algo]
    tiny = {**SMALL, "learning_rate": 1e-12, "debug": True, "normalise_returns": False}
    tiny |= {"rollout": 16, "num_epochs": 1}
    plain = {**tiny, "model": {"hidden_sizes": (16,), "normalise_observations": False}}
    with Trainer(make(**{**plain, **several}, run_dir=str(tmp_path))) as trainer:
        compared = partial(trainer.session.graph.counters.total, "checksums_compared")
        trainer.train_until(lambda report: compared() >= 1)
        asked = shifted(trainer.get_weights())
        trainer.set_weights(asked)
        before = compared()
        trainer.train_until(lambda report: compared() >= before + 2)
        found = trainer.get_weights()
        assert all(np.allclose(found[n], w, atol=1e-6) for n, w in asked.items())
    assert summary(tmp_path)["restarts"] == 0


def test_weights_of_another_model_are_refused_before_anything_changes(tmp_path: Path) -> None:
    with Trainer(config(tmp_path)) as trainer:
        own = trainer.get_weights()
        version = trainer.session.graph.groups[0].weights.version
        name = next(iter(own))
        wrong: dict[str, dict[str, Any]] = {
            f"{name} is missing": {n: w for n, w in own.items() if n != name},
            "more is unknown": {**own, "more": np.zeros(1)},
            rf"{name} is .*\[3\], expected": {**own, name: np.zeros(3, np.float32)},
            f"not finite, in {name}": {**own, name: np.full_like(own[name], np.nan)},
        }
        for message, weights in wrong.items():
            with pytest.raises(ValueError, match=message):
                trainer.set_weights(weights)
        with pytest.raises(ValueError, match="0: 'policy'"):
            trainer.get_weights("other")
        assert trainer.session.graph.groups[0].weights.version == version


@pytest.mark.long
@pytest.mark.parametrize("make", [sf.AppoConfig, sf.ApexConfig])
def test_a_saved_state_is_restored_to_the_bit_into_another_run(tmp_path: Path, make: Any) -> None:
    more = {**SMALL, "serial": True, **(APEX if make is sf.ApexConfig else {})}
    with Trainer(make(**more, run_dir=str(tmp_path / "one"))) as one:
        one.train_until("updates>=20")
        saved = one.save(tmp_path / "saved")
        chosen = one.compute_actions([OBS, -OBS]).tolist()
        with pytest.raises(sf.ConfigError, match="not an empty folder"):
            one.save(saved)
    assert (
        saved == tmp_path / "saved" and sf.load_policy(saved).act([OBS, -OBS])[0].tolist() == chosen
    )
    with Trainer(make(**{**more, "seed": 9}, run_dir=str(tmp_path / "two"))) as two:
        two.train()
        two.restore(saved)
        two.save()
        assert two.compute_actions([OBS, -OBS]).tolist() == chosen
        assert two.train_until("updates>20", env_steps=20_000)["updates"] > 20
        refused: tuple[tuple[dict[str, Any], type[Exception]], ...] = (
            ({"num_workers": 3}, ValueError),
            ({"max_grad_norm": -1}, sf.ConfigError),
            ({"learning_rate": None}, sf.ConfigError),
            ({"max_grad_norm": "much"}, sf.ConfigError),
            *([({"vtrace_rho": 2.0}, sf.ConfigError)] if make is sf.AppoConfig else []),
        )
        for wrong, error in refused:
            with pytest.raises(error, match=next(iter(wrong)).replace("_", ".")):
                two.restore(saved, with_=wrong)
        two.restore(saved, with_={"learning_rate": 1e-5})
        assert two.compute_actions([OBS, -OBS]).tolist() == chosen
        assert two.train_until("learning_rate<2e-5", env_steps=20_000)["learning_rate"] == 1e-5
    assert "learning_rate: 1.0e-05" in (tmp_path / "two" / "config.yaml").read_text()
    assert "Changed from here on: --learning-rate 1e-05" in (tmp_path / "two/log.txt").read_text()
    (file,) = (saved / "checkpoints").glob("*.safetensors")
    assert equal(load_file(file), newest_but_one(tmp_path / "two"))
    other = sf.DdppoConfig(**SMALL, serial=True, num_ranks=1, run_dir=str(tmp_path / "three"))
    with Trainer(other) as three, pytest.raises(sf.ConfigError, match="is a run of"):
        three.restore(saved)


def newest_but_one(run: Path) -> dict[str, Any]:
    """The tensors of the checkpoint before the newest one of a run."""
    manifest = json.loads((run / "checkpoints" / "manifest.json").read_text())
    entries = sorted(manifest["entries"], key=lambda entry: entry["number"])
    return load_file(run / "checkpoints" / entries[-2]["file"])


# ---- acting ----


def test_actions_of_a_recurrent_policy_take_and_return_its_state(tmp_path: Path) -> None:
    model = ModelConfig(hidden_sizes=(16,), core="gru", core_size=8)
    with Trainer(config(tmp_path, model=model)) as trainer:
        action, state = trainer.compute_action(OBS)
        assert action in (0, 1) and state.shape == (1, 8)
        _, later = trainer.compute_action(OBS, state)
        assert not torch.equal(later, state)
        actions, states = trainer.compute_actions([OBS, OBS], torch.cat([torch.zeros(1, 8), state]))
        assert actions.shape == (2,)
        assert torch.allclose(states, torch.cat([state, later]), atol=1e-6)
        with pytest.raises(ValueError, match=r"state is \(1, 8\), expected \(2, 8\)"):
            trainer.compute_actions([OBS, OBS], state)
        with pytest.raises(ValueError, match=r"compute_actions\(\)"):
            trainer.compute_action([OBS, OBS])
        with pytest.raises(ValueError, match=r"compute_action\(\)"):
            trainer.compute_actions(OBS)


def test_stochastic_actions_are_drawn_and_others_the_most_likely(tmp_path: Path) -> None:
    with Trainer(config(tmp_path)) as trainer:
        many = np.tile(OBS, (64, 1))
        assert set(trainer.compute_actions(many).tolist()) == {trainer.compute_action(OBS)}
        assert set(trainer.compute_actions(many, stochastic=True).tolist()) == {0, 1}
        anyhow: Any = trainer
        for method in (anyhow.compute_action, anyhow.compute_actions, anyhow.evaluate):
            with pytest.raises(TypeError, match=r"no argument explore; give stochastic=True"):
                method(many, explore=True)
        with pytest.raises(TypeError, match=r"deterministic; give stochastic=not False"):
            anyhow.compute_action(OBS, deterministic=False)


def test_an_evaluation_plays_the_episodes_of_sampleforge_eval(tmp_path: Path) -> None:
    from sampleforge.evaluation import evaluate

    with Trainer(config(tmp_path, train_for_env_steps=1500)) as trainer:
        list(trainer)
        trainer.save()
        found = trainer.evaluate(episodes=6)
        assert found["episodes"] == 6 and found == trainer.evaluate(episodes=6)
        other = trainer.evaluate(episodes=6, seed=77, stochastic=True)
        assert other["return_mean"] != found["return_mean"]
        for wrong in (0, -1):
            with pytest.raises(ValueError, match=f"^episodes={wrong}: must be .* which is 10$"):
                trainer.evaluate(wrong)
            with pytest.raises(ValueError, match=f"^episodes={wrong}: must be .* which is 100$"):
                evaluate(tmp_path, episodes=wrong)
    played = evaluate(tmp_path, episodes=6)
    assert {name: played[name] for name in found} == found


def evaluate_mine(context: Any) -> dict[str, float]:
    """The evaluation function of the test below."""
    found = context.play(episodes=3, stochastic=True)
    context.alive()
    mine = {"seed": context.seed, "asked": context.episodes, "version": context.policy_version}
    return {**found, **mine, "stochastic": float(context.stochastic)}


def test_an_evaluation_function_evaluates_for_the_trainer_too(tmp_path: Path) -> None:
    function = f"{__name__}:evaluate_mine"
    mine = config(tmp_path, evaluate_interval=500, evaluate_episodes=4, evaluate_function=function)
    with Trainer(mine) as trainer:
        reports = [trainer.train_until("eval_asked>=4")]
        trainer.train_until("updates>=1")
        found = trainer.evaluate()
        again = trainer.evaluate(7, stochastic=True, seed=77)
    assert found.keys() == {n[5:] for n in reports[0] if n.startswith("eval_")} - {
        *("env_steps", "policy_version"),
    }
    assert (found["episodes"], found["asked"], found["stochastic"]) == (3, 4, 0.0)
    assert found["seed"] == reports[0]["eval_seed"] and found["version"] > 0
    assert (again["asked"], again["seed"], again["stochastic"]) == (7, 77, 1.0)


@pytest.mark.long
def test_each_policy_has_the_model_of_its_own_agents(tmp_path: Path) -> None:
    """Two walkers with one number and two actions, a caller with two numbers and a Box action."""
    mixed = config(tmp_path, env="tests.support.multi_agent:MixedGoals", num_policies=2)
    with Trainer(mixed) as trainer:
        trainer.train()
        assert trainer.policies == ("policy_0", "policy_1")
        assert trainer.compute_action([0.5], policy=0) in (0, 1)
        action = trainer.compute_action([0.5, -0.5], policy="policy_1")
        assert action.shape == (1,) and action.dtype == np.float32
        shapes = [{w.shape for w in trainer.get_weights(i).values()} for i in (0, 1)]
        assert (16, 1) in shapes[0] and (16, 2) in shapes[1]
        asked = shifted(trainer.get_weights(1))
        other = trainer.get_weights(0)
        trainer.set_weights(asked, "policy_1")
        assert equal(trainer.get_weights(1), asked) and equal(trainer.get_weights(0), other)
        exported = trainer.export(tmp_path / "caller.pt2", policy=1)
        assert exported["policy"] == "policy_1" and exported["inputs"][0]["shape"] == ["batch", 2]
        played = [trainer.evaluate(4, policy=i) for i in (0, 1)]
        assert [each["episodes"] for each in played] == [4, 4]
        assert 0 <= played[1]["return_mean"] <= 16
        saved = trainer.save(tmp_path / "saved")
        trainer.restore(saved)
        assert sf.load_policy(saved, policy="policy_1").act([0.5, -0.5])[0].shape == (1,)
