"""Environments with several agents, from the config to the evaluation of each policy."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from sampleforge.algorithms.marwil.algorithm import MARWIL
from sampleforge.config import ConfigError
from sampleforge.evaluation import evaluate
from sampleforge.loaded_policy import load_policy
from sampleforge.run.folder.trust import Trust
from sampleforge.run.session import Session
from sampleforge.topologies.config import ApexConfig, AppoConfig, DdppoConfig, MarwilConfig
from sampleforge.topologies.stored.plan import plan_stored
from tests.support.graphs import spec_of

MIXED = "tests.support.multi_agent:MixedGoals"
WALKERS: dict[str, Any] = {
    "env": "tests.support.multi_agent:Walkers",
    "num_policies": 2,
    "num_workers": 1,
    "num_envs_per_worker": 8,
    "seed": 4,
    "serial": True,
    "report_interval": 0.2,
}


@pytest.mark.long
def test_two_groups_of_agents_with_other_spaces_learn_and_are_evaluated(tmp_path: Path) -> None:
    """Chance gives 8 to a walker and about 11 to the caller, whose best returns are 16."""
    config = AppoConfig(
        **{**WALKERS, "env": MIXED},
        train_for_env_steps=40_000,
        run_dir=str(tmp_path),
        evaluate_interval=15_000,
        evaluate_episodes=4,
    )
    reports = []
    with Session(config) as session:
        reports += list(session.reports())
        models = [group.weights for group in session.graph.groups]
        assert len(models) == 2
    last: dict[str, float] = {}
    for report in reports:
        last |= report
    assert last["policy_0/return_mean"] > 14, "two walkers share it"
    assert last["policy_1/eval_return_mean"] > 13
    summary = json.loads((tmp_path / "summary.json").read_text())
    returns = {name: own["return_mean"] for name, own in summary["policies"].items()}
    assert returns == {name: last[f"{name}/return_mean"] for name in ("policy_0", "policy_1")}
    tags = b"".join(path.read_bytes() for path in (tmp_path / "tb").iterdir())
    for tag in (b"policy_0/rollout/return_mean", b"policy_1/eval/return_mean"):
        assert tag in tags
    trust = Trust(everything=True)
    played = {n: evaluate(tmp_path, episodes=8, policy=n, trust=trust) for n in returns}
    assert played["policy_0"]["return_mean"] > 15 and played["policy_1"]["return_mean"] > 13
    assert played["policy_0"]["episodes"] == played["policy_1"]["episodes"] == 8
    walker, caller = (load_policy(tmp_path, policy=name) for name in returns)
    assert walker.act(np.array([0.9], np.float32))[0] == 1
    action, _ = caller.act(np.array([0.9, -0.5], np.float32))
    assert action.shape == (1,) and action[0] > 0.3


@pytest.mark.long
def test_q_networks_of_two_groups_of_agents_learn(tmp_path: Path) -> None:
    config = ApexConfig(
        **WALKERS,
        train_for_env_steps=6000,
        learning_starts=500,
        replay_capacity=5000,
        run_dir=str(tmp_path),
    )
    with Session(config) as session:
        for report in session.reports():
            last = report
    assert last["policy_0/updates"] > 10 and last["policy_1/updates"] > 10
    played = evaluate(tmp_path, episodes=4, policy="policy_1", trust=Trust(everything=True))
    assert played["episodes"] == 4


@pytest.mark.long
def test_a_run_goes_on_from_the_checkpoints_of_all_agent_groups(tmp_path: Path) -> None:
    config = AppoConfig(**WALKERS, train_for_env_steps=4000, run_dir=str(tmp_path))
    with Session(config) as session:
        list(session.reports())
    more = AppoConfig(**WALKERS, train_for_env_steps=6000, run_dir=str(tmp_path), resume="must")
    with Session(more) as session:
        assert session.resume_point.env_steps >= 4000
        reports = list(session.reports())
    assert reports[-1]["env_steps"] >= 6000


@pytest.mark.long
def test_frozen_policies_act_with_the_weights_of_another_run(tmp_path: Path) -> None:
    """Also in a resumed run when the other run is gone, and in a folder of an earlier version,
    which had no weights of theirs, but the place of the other run."""
    (tmp_path / "source").mkdir()
    one = tmp_path / "source" / "one"
    other_seed = {**WALKERS, "seed": 5}
    with Session(AppoConfig(**other_seed, train_for_env_steps=500, run_dir=str(one))) as session:
        list(session.reports())
    expected = load_policy(one, policy="policy_1").model.state_dict()

    def plays(run: Path, env_steps: int, **more: Any) -> dict[str, torch.Tensor]:
        """The weights of the frozen policy in a run of so many env steps."""
        more |= {"policies_to_train": ("policy_0",), "train_for_env_steps": env_steps}
        with Session(AppoConfig(**WALKERS, run_dir=str(run), **more)) as session:
            (group,) = session.graph.frozen
            tensors = group.new_model().state_dict()
            assert group.id == "policy_1" and group.pool.read(0, tensors) == 0
            list(session.reports())
        return tensors

    def is_expected(tensors: dict[str, torch.Tensor]) -> bool:
        return all(torch.equal(tensors[name], expected[name]) for name in expected)

    two, place = tmp_path / "two", {"policy_1": f"{one}:policy_1"}
    assert not is_expected(plays(tmp_path / "own", 500, init_from=f"{one}:policy_0"))
    assert is_expected(plays(two, 500, init_from=place))
    told = f"The weights of policy_1 are those of {one}:policy_1 at the beginning"
    assert told in (two / "log.txt").read_text()
    trained, alone = (load_policy(two, policy=policy).model for policy in ("policy_0", None))
    pairs = zip(trained.parameters(), alone.parameters(), strict=True)
    assert all(torch.equal(*pair) for pair in pairs)
    assert is_expected(load_policy(two, policy="policy_1").model.state_dict())

    earlier = shutil.copytree(two, tmp_path / "earlier")
    shutil.rmtree(earlier / "snapshots")
    stored = yaml.safe_load((earlier / "config.yaml").read_text())
    assert "init_from" not in stored
    (earlier / "config.yaml").write_text(yaml.safe_dump({**stored, "policy_weights": place}))
    assert is_expected(plays(earlier, 1000))

    one.parent.rename(tmp_path / "gone")
    for run in (two, earlier):
        assert is_expected(plays(run, 1500))
    assert is_expected(plays(two, 2000, init_from=place))
    told = f"--init-from {one}:policy_1: this run goes on from its own checkpoint of policy_1"
    assert told in (two / "log.txt").read_text()
    trust = Trust(everything=True)
    for policy in (None, "policy_1"):
        assert evaluate(earlier, episodes=2, policy=policy, trust=trust)["episodes"] == 2


def test_weights_for_a_policy_that_there_is_not_are_refused() -> None:
    for config in (
        AppoConfig(**WALKERS, init_from={"policy_2": "runs/one"}),
        DdppoConfig(env="CartPole-v1", init_from={"policy_2": "runs/one"}),
    ):
        with pytest.raises(ConfigError, match="--init-from policy_2=runs/one: there is no policy"):
            Session(config)
    with pytest.raises(ConfigError, match=r"policy_weights\. Did you mean init_from: {policy_1"):
        AppoConfig(**WALKERS, policy_weights={"policy_1": "runs/one"})  # type: ignore[call-arg]


def test_marwil_names_who_learns_from_data_of_several_agents(tmp_path: Path) -> None:
    config = MarwilConfig(env="PaddleDuel-v0", input=("data",), run_dir=str(tmp_path / "run"))
    with pytest.raises(ConfigError, match=r"2 agents, and marwil .* with a replay .* of apex"):
        plan_stored(MARWIL, config, spec_of(config), "cpu")


def test_ddppo_refuses_several_agents(tmp_path: Path) -> None:
    config = DdppoConfig(env="PaddleDuel-v0", num_ranks=1, run_dir=str(tmp_path))
    with pytest.raises(ConfigError, match="has 2 agents, and ddppo takes single-agent"):
        Session(config).open()
