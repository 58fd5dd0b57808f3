"""Several evaluators, another environment for evaluations, a function of the user's own; and what
stands still while a policy is evaluated."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from sampleforge import evaluation
from sampleforge.algorithms.acting import FrozenPolicy
from sampleforge.api import Trainer, train
from sampleforge.config import ConfigError
from sampleforge.env.config import EnvConfig
from sampleforge.env.place import row_seeds
from sampleforge.models.config import ModelConfig
from sampleforge.run.folder.trust import Trust
from sampleforge.shared.counters import Counters, Progress, TrainingClock
from sampleforge.shared.newest import SharedWeights
from sampleforge.shared.records import (
    DividedEvaluations,
    Evaluation,
    EvaluationBoard,
    Evaluations,
    combined,
)
from sampleforge.shared.wakeup import Wakeup
from sampleforge.topologies.config import ApexConfig, AppoConfig
from sampleforge.topologies.graph import COUNTERS
from sampleforge.topologies.registry import pairing
from sampleforge.workers.episode_player import EvaluationPart
from sampleforge.workers.evaluator import (
    EvaluationContext,
    EvaluationSettings,
    EvaluatorChannels,
    EvaluatorWorker,
)
from sampleforge.workers.worker import Post
from tests.support.envs import CodeEnv, code_reward, episode_length
from tests.support.graphs import build, spec_of
from tests.support.one_weight import OneWeight
from tests.support.serial_runs import run_serially

CODE = EnvConfig(env="tests.support.envs:CodeEnv")


class Several:
    """Evaluators of one policy on CodeEnv; the test does the work of all other workers."""

    def __init__(self, evaluators: int, episodes: int, env: EnvConfig = CODE) -> None:
        self.env = env
        self.model = OneWeight()
        self.weights = SharedWeights(self.model.state_dict())
        self.counters = Counters(COUNTERS, 1 + evaluators)
        self.progress = Progress(self.counters, TrainingClock())
        self.board = EvaluationBoard(evaluators, [self.model.state_dict()])
        self.parts = [Evaluations(extra_bytes=500) for _ in range(evaluators)]
        self.results = DividedEvaluations(self.parts)
        self.episodes = episodes
        self.workers = [self.new(index) for index in range(evaluators)]

    def new(self, index: int) -> EvaluatorWorker:
        """A life of an evaluator."""
        part = EvaluationPart(index, len(self.parts))
        worker = EvaluatorWorker(
            self.env,
            OneWeight,  # type: ignore[arg-type]
            EvaluatorChannels(self.weights, self.parts[index], board=self.board),
            EvaluationSettings(1000, self.episodes, stochastic=False, seed=3, part=part),
            Post(1 + index, Wakeup(), self.progress),
        )
        worker.start()
        return worker

    def train(self, env_steps: int, version: int) -> None:
        self.weights.publish({"weight": torch.tensor([float(version)])}, version)
        self.counters.row(0)["env_steps"] += env_steps

    def play(self, steps: int = 10_000) -> list[Evaluation]:
        """Step all evaluators in turn until there is a result."""
        for _ in range(steps):
            for worker in self.workers:
                worker.step()
            if found := self.results.take():
                return found
        return []

    def close(self) -> None:
        for worker in self.workers:
            worker.close()


def expected(episodes: int) -> Evaluation:
    """What one evaluator finds, from CodeEnv's rewards."""
    rows = min(16, episodes)
    returns, lengths = [], []
    for row, seed in enumerate(row_seeds(3, 0, 0, rows)):
        for k in range(episodes // rows + (row < episodes % rows)):
            lengths.append(episode_length(seed % 1000, k, 9))
            rewards = [code_reward(seed % 1000, k, step + 1) for step in range(lengths[-1])]
            returns.append(sum(rewards))
    values = torch.tensor(returns, dtype=torch.float64)
    return Evaluation(
        5,
        1200,
        episodes,
        float(values.mean()),
        float(values.std(correction=0)),
        float(values.min()),
        float(values.max()),
        sum(lengths) / episodes,
    )


@pytest.mark.parametrize(("evaluators", "episodes"), [(2, 2), (3, 7), (3, 20), (4, 37), (16, 40)])
def test_several_evaluators_play_what_one_would(evaluators: int, episodes: int) -> None:
    several = Several(evaluators, episodes)
    several.train(1200, version=5)
    (found,) = several.play()
    several.close()
    assert found[:-1] == pytest.approx(expected(episodes)[:-1], rel=1e-12)


class Seldom(CodeEnv):
    """Says only of the episodes of the first rows whether they were a success: of the longest in
    these rows they are."""

    def __init__(self, worker_index: int, vector_index: int) -> None:
        super().__init__()
        self.says = vector_index < 5

    def step(self, action: Any) -> Any:
        *values, _ = super().step(action)
        return *values, {"is_success": self.steps > 5} if self.says else {}


@pytest.mark.parametrize("env", [f"{__name__}:Seldom", "tests.support.multi_agent:hunt"])
def test_what_not_all_episodes_have_is_the_mean_of_those_that_have_it(env: str) -> None:
    """Whichever evaluators play these, of which one may have none."""
    found = []
    for evaluators in (1, 2, 4):
        several = Several(evaluators, 37, EnvConfig(env=env))
        several.train(1200, version=5)
        found += [several.play()[0].scalars()]
        several.close()
    assert found[1] == pytest.approx(found[0]) and found[2] == pytest.approx(found[0])
    own = (
        {"success_rate"}
        if "Seldom" in env
        else {f"return_mean_agents_{n}" for n in ("hunter", "prey")}
    )
    assert own == {name for name in found[0] if name not in Evaluation._fields}
    assert 0 < found[0].get("success_rate", 0.5) < 1


@pytest.mark.parametrize("episodes", [3, 16, 17, 50])
def test_the_parts_are_all_rows_and_all_episodes_once(episodes: int) -> None:
    rows = min(16, episodes)
    for evaluators in range(1, rows + 1):
        parts = [EvaluationPart(index, evaluators) for index in range(evaluators)]
        assert [row for part in parts for row in part.rows(episodes)] == list(range(rows))
        shares = [part.episodes(episodes) for part in parts]
        assert sum(shares) == episodes and min(shares) >= 1
        assert len({part.seed(7) for part in parts}) == evaluators and parts[0].seed(7) == 7


def test_all_evaluators_play_with_the_weights_that_the_first_one_has_copied() -> None:
    """Newer ones are published at every step; the next evaluation has those of its beginning."""
    several = Several(3, 9)
    several.train(1200, version=5)
    several.workers[0].step()
    several.train(900, version=6)
    (found,) = several.play()
    assert (found.policy_version, found.env_steps) == (5, 1200)
    models: list[Any] = [worker._model for worker in several.workers]
    assert {model.weight.item() for model in models} == {5.0}
    (found,) = several.play()
    several.close()
    assert (found.policy_version, found.env_steps) == (6, 2100)


@pytest.mark.parametrize("killed", [0, 2])
@pytest.mark.parametrize("at", [1, 2, 6])
def test_the_successor_of_a_killed_evaluator_plays_its_part_again(killed: int, at: int) -> None:
    several = Several(3, 20)
    several.train(1200, version=5)
    for _ in range(at):
        for worker in several.workers:
            worker.step()
    several.workers[killed].close()
    several.train(300, version=6)
    several.workers[killed] = several.new(killed)
    (found,) = several.play()
    assert found[:-1] == pytest.approx(expected(20)[:-1], rel=1e-12)
    assert several.play(steps=60) == [], "nothing twice, and nothing before the next multiple"
    several.train(600, version=7)
    assert [again.policy_version for again in several.play()] == [7]
    several.close()


@pytest.mark.parametrize("steps", [0, 1, 5])
def test_several_evaluators_drop_an_evaluation_for_that_of_the_last_weights(steps: int) -> None:
    several = Several(3, 20)
    several.train(1200, version=4)
    for _ in range(steps):
        for worker in several.workers:
            worker.step()
    several.train(0, version=5)
    several.progress.end()
    several.progress.clock.settle()
    (found,) = several.play()
    assert found[:-1] == pytest.approx(expected(20)[:-1], rel=1e-12)
    assert several.play(steps=60) == []
    several.close()


def test_a_part_that_comes_twice_counts_once() -> None:
    """An evaluator that is killed after its result and before its mark plays again."""
    parts = [Evaluations(), Evaluations()]
    results = DividedEvaluations(parts)
    one = Evaluation(5, 1200, 2, 10.0, 1.0, 9.0, 11.0, 3.0)
    parts[0].put(one)
    parts[0].put(one)
    assert results.take() == []
    parts[1].put(one._replace(episodes=6, return_mean=14.0))
    assert [found.return_mean for found in results.take()] == [13.0]
    parts[0].put(one)
    for part in parts:
        part.put(one._replace(env_steps=2200))
    assert [found.env_steps for found in results.take()] == [2200]


def test_metrics_of_a_function_are_combined_by_episodes_and_by_name() -> None:
    nan = float("nan")
    parts = [
        Evaluation._make([5, 1200, n, *[nan] * 5, {"score": s, "score_max": s, "score_min": s}])
        for n, s in ((1, 8.0), (3, 4.0))
    ]
    assert combined(parts).scalars() == {
        **{"policy_version": 5, "env_steps": 1200, "episodes": 4},
        **{"score": 5.0, "score_max": 8.0, "score_min": 4.0},
    }
    score = {"score": 5.0, "score_max": 8.0, "score_min": 4.0}
    lacking = Evaluation._make([5, 1200, 10, *[nan] * 5, {}])
    found = combined([lacking, *parts]).scalars()
    assert {name: found[name] for name in score} == score, "of the parts that have them"


# ---- whole runs ----

COMMON: dict[str, Any] = {
    "num_workers": 1,
    "model": ModelConfig(hidden_sizes=(8,), normalise_observations=False),
    "evaluate_interval": 300,
    "evaluate_episodes": 5,
    "train_for_env_steps": 1000,
    "num_epochs": 1,
}


def evaluations(folder: Path, **more: Any) -> list[dict[str, Any]]:
    """The metrics of the evaluations of a serial run."""
    _, reports = run_serially(folder, 4, **{**COMMON, **more})
    return [
        {k: v for k, v in report.items() if k.startswith("eval_")}
        for report in reports
        if "eval_env_steps" in report
    ]


@pytest.mark.long
def test_a_serial_run_with_several_evaluators_reports_what_it_does_with_one(
    tmp_path: Path,
) -> None:
    env: dict[str, Any] = {"env": "Acrobot-v1", "max_episode_steps": 40}
    one = evaluations(tmp_path / "one", **env)
    three = evaluations(tmp_path / "three", **env, num_evaluators=3)
    assert one and len(three) == len(one)
    for ours, theirs in zip(one, three, strict=True):
        del ours["eval_env_steps"], theirs["eval_env_steps"], ours["eval_policy_version"]
        del theirs["eval_policy_version"]
        assert theirs == pytest.approx(ours, rel=1e-9)


@pytest.mark.long
def test_evaluations_in_another_environment(tmp_path: Path) -> None:
    code: dict[str, Any] = {"env": CODE.env, "env_kwargs": {"length": 4, "ending": "truncate"}}
    found = evaluations(tmp_path / "a", **code, evaluate_env_kwargs={"length": 7})
    assert found and {each["eval_length_mean"] for each in found} == {7.0}
    other = "tests.support.envs:FlakyEnv"
    more = {"evaluate_env": other, "evaluate_env_kwargs": {"length": 3, "most": 0}}
    found = evaluations(tmp_path / "b", **code, **more)
    assert found and {each["eval_length_mean"] for each in found} == {3.0}
    with pytest.raises(ConfigError, match=r"--evaluate-env Acrobot-v1 .* has other observations"):
        evaluations(tmp_path / "c", **code, evaluate_env="Acrobot-v1")
    with pytest.raises(ConfigError, match=r"^--evaluate-env nowhere:x: there is no module 'nowh"):
        evaluations(tmp_path / "d", **code, evaluate_env="nowhere:x")
    with pytest.raises(ConfigError, match=r"^--evaluate-env Acrobt-v1: Unknown env.*n Acrobot-v1"):
        evaluations(tmp_path / "d", **code, evaluate_env="Acrobt-v1")


def evaluate(context: EvaluationContext) -> dict[str, float]:
    """The evaluation function of the test below."""
    usual = context.play()
    longer = context.play(2, env_kwargs={"length": 9}, stochastic=True)
    return {**usual, "long_length_mean": longer["length_mean"], "version": context.policy_version}


def not_numbers(context: EvaluationContext) -> Any:
    return ["a"]


@pytest.mark.long
def test_an_evaluation_function_of_ones_own(tmp_path: Path) -> None:
    code: dict[str, Any] = {"env": CODE.env, "env_kwargs": {"length": 4, "ending": "truncate"}}
    usual = evaluations(tmp_path / "a", **code)
    mine = f"{__name__}:evaluate"
    found = evaluations(tmp_path / "b", **code, evaluate_function=mine, num_evaluators=2)
    assert len(found) >= 2
    for ours, theirs in zip(found, usual, strict=False):
        assert ours["eval_return_mean"] == pytest.approx(theirs["eval_return_mean"])
        assert ours["eval_long_length_mean"] == 9.0 and ours["eval_episodes"] == 5
        assert ours["eval_version"] == ours["eval_policy_version"]
    with pytest.raises(TypeError, match="must return a dict of numbers by name"):
        evaluations(tmp_path / "c", **code, evaluate_function=f"{__name__}:not_numbers")
    with pytest.raises(ConfigError, match=r"--evaluate-function .*:none: .* no function 'none'"):
        evaluations(tmp_path / "d", **code, evaluate_function=f"{__name__}:none")


def test_the_observation_statistics_are_one_for_all_and_frozen_in_evaluations() -> None:
    """Actors and the evaluator have the learner's; an evaluation changes nothing."""
    config = AppoConfig(
        env="CartPole-v1",
        num_workers=2,
        num_envs_per_worker=4,
        rollout=16,
        async_rl=True,
        batch_size=128,
        evaluate_interval=1000,
        evaluate_episodes=4,
        model=ModelConfig(hidden_sizes=(8,), normalise_observations=True),
    )
    graph, _ = build(config)
    for node in graph.nodes:
        node.worker.start()
    (evaluator,) = graph.having("evaluator")
    worker, weights = evaluator.worker, graph.groups[0].weights
    statistics = "normaliser.leaves.obs.total_mean"
    while worker._player is None:  # type: ignore[attr-defined]
        for node in graph.nodes:
            node.worker.step()
    frozen = {n: t.clone() for n, t in worker._model.state_dict().items()}  # type: ignore[attr-defined]
    assert frozen[statistics].abs().sum() > 0, "something has been counted"
    while worker._player is not None:  # type: ignore[attr-defined]
        for node in graph.nodes:
            node.worker.step()
    left = worker._model.state_dict()  # type: ignore[attr-defined]
    assert all(tensor.equal(left[name]) for name, tensor in frozen.items())
    published = {name: torch.empty_like(tensor) for name, tensor in frozen.items()}
    weights.read(published)
    assert not published[statistics].equal(frozen[statistics]), "the learner has counted on"
    for actor in graph.having("actor"):
        (port,) = actor.worker._ports  # type: ignore[attr-defined]
        acting = port.inference._acting
        acting.refresh()
        own = acting._network.state_dict()
        assert own[statistics].equal(published[statistics])
    for node in graph.nodes:
        node.worker.close()


def test_a_policy_that_is_evaluated_does_not_explore() -> None:
    """No epsilon, no noise: the same actions at each call, those of the highest values."""
    config = ApexConfig(env="CartPole-v1", noisy_nets=True, epsilon_base=1.0)
    spec = spec_of(config)
    chosen = pairing(config)
    model = chosen.network_maker(chosen.resolve_defaults(config, spec), spec, 0)()
    policy = FrozenPolicy(model)
    obs = {"obs": torch.randn(64, 4, generator=torch.Generator().manual_seed(0)).numpy()}
    first, state = torch.ones(64, dtype=torch.bool).numpy(), policy.initial_state(64)
    actions = [policy.act(obs, state, first)[0]["action"].tolist() for _ in range(3)]
    assert actions[0] == actions[1] == actions[2] and len(set(actions[0])) == 2
    with torch.no_grad():
        tensors = {"obs": torch.from_numpy(obs["obs"])}
        values = model.step(tensors, state, torch.from_numpy(first)).parameters
    assert actions[0] == values.argmax(-1).tolist()


@pytest.mark.multiprocess(timeout=120)
def test_a_killed_evaluator_of_two_does_not_lose_the_evaluation(tmp_path: Path) -> None:
    own: dict[str, Any] = {
        **{**COMMON, "train_for_env_steps": None, "env": CODE.env, "num_envs_per_worker": 2},
        **{"env_kwargs": {"length": 30, "sleep": 0.001}, "num_evaluators": 2},
    }
    config = AppoConfig(**own, run_dir=str(tmp_path), report_interval=0.2)
    with Trainer(config) as trainer:
        reports = iter(trainer)
        pids = trainer.session.runner.pids()
        assert {"evaluator 0", "evaluator 1"} <= set(pids)
        next(r for r in reports if "eval_return_mean" in r)
        os.kill(trainer.session.runner.pids()["evaluator 1"], signal.SIGKILL)
        seen = [next(r for r in reports if r["restarts_evaluator"] == 1)]
        while seen[-1].get("eval_env_steps", 0) <= seen[0]["env_steps"]:  # until one of both again
            seen.append(next(reports))
    assert {r["eval_episodes"] for r in seen if "eval_episodes" in r} == {5}
    assert seen[-1]["restarts_evaluator"] == 1


@pytest.mark.parametrize(
    ("given", "answer"),
    [
        ({"num_evaluators": 6}, r"--num-evaluators 6: 5 episodes .* lower it to 5"),
        ({"num_evaluators": 0}, "--num-evaluators 0: must be at least 1"),
        ({"evaluate_function": "mine"}, "must be package.module:function"),
        ({"num_evaluators": 2, "evaluate_interval": None}, "there are no evaluations"),
        ({"evaluate_env": "x", "evaluate_interval": None}, "there are no evaluations"),
        (
            {"evaluate_env_kwargs": {"a": 1}, "evaluate_interval": None},
            "--evaluate-env-kwargs a=1: there are no evaluations; add --evaluate-interval N",
        ),
    ],
)
def test_settings_of_evaluations_that_have_no_meaning_are_refused(
    given: dict[str, Any], answer: str
) -> None:
    usual: dict[str, Any] = {"env": "x", "evaluate_interval": 300, "evaluate_episodes": 5}
    with pytest.raises(ConfigError, match=answer):
        AppoConfig(**{**usual, **given})


@pytest.mark.multiprocess(timeout=120)
def test_workers_and_evaluators_have_one_row_each_where_a_process_can_have_one(
    tmp_path: Path,
) -> None:
    result = train(
        AppoConfig(
            **{**COMMON, "num_workers": 2, "train_for_env_steps": 600},
            env="tests.support.envs:LonelyEnv",
            num_evaluators=2,
            run_dir=str(tmp_path / "run"),
        )
    )
    assert result.summary["env_steps"] >= 600
    trust = Trust(everything=True)
    assert evaluation.evaluate(tmp_path / "run", episodes=3, trust=trust)["episodes"] == 3


@pytest.mark.long
def test_an_evaluation_environment_that_fails_is_an_error_before_the_start(tmp_path: Path) -> None:
    more: dict[str, Any] = {"evaluate_env_kwargs": {"nosuch": 1}, "env": CODE.env, "serial": True}
    with pytest.raises(ConfigError, match="nosuch"):
        train(AppoConfig(**{**COMMON, **more}, run_dir=str(tmp_path)))
