"""Every row of every rollout comes from its place, exactly once, with inline inference and with
policy workers."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from typing import Any

import numpy as np
import pytest

from sampleforge.models.config import ModelConfig
from sampleforge.rollouts.batch import Batch
from sampleforge.topologies.appo.plan import plan_appo
from sampleforge.topologies.config import AppoConfig
from tests.support.envs import code_reward
from tests.support.graphs import resolved, rollouts, spec_of

CODE = "tests.support.envs:CodeEnv"


def config(**kwargs: object) -> AppoConfig:
    model = ModelConfig(hidden_sizes=(8,), normalise_observations=False)
    chosen = AppoConfig(
        **{
            "env": CODE,
            "num_workers": 2,
            "num_envs_per_worker": 6,
            "num_splits": 2,
            "rollout": 7,
            "async_rl": True,
            "model": model,
            "debug": True,
            **kwargs,
        }  # type: ignore[arg-type]
    )
    return resolved(chosen, spec_of(chosen))


def histories(batches: list[Batch]) -> dict[int, dict[str, np.ndarray]]:
    """Each env's consecutive steps, over all its rollouts in order."""
    found: dict[int, dict[str, list[np.ndarray]]] = defaultdict(lambda: defaultdict(list))
    for batch in batches:
        obs = batch.obs["obs"].numpy()
        ids = obs[0, :, 0].astype(int)
        assert (obs[:, :, 0] == ids).all(), "a row holds one env only"
        for row, env in enumerate(ids):
            found[env]["obs"].append(obs[:-1, row])
            found[env]["after"].append(obs[1:, row])
            found[env]["first"].append(batch.is_first[:-1, row].numpy())
            found[env]["action"].append(batch.actions["action"][:, row].numpy())
            for name in ("reward", "terminated", "truncated", "valid"):
                found[env][name].append(getattr(batch, name)[:, row].numpy())
    return {
        env: {name: np.concatenate(parts) for name, parts in columns.items()}
        for env, columns in found.items()
    }


@pytest.mark.parametrize("inference", ["inline", "worker"])
@pytest.mark.parametrize("splits", [1, 2, 3])
@pytest.mark.parametrize("policy_workers", [1, 2])
def test_every_batch_row_is_sampled_exactly_once_from_its_env_and_step(
    inference: str, splits: int, policy_workers: int
) -> None:
    served_by = {"num_policy_workers": policy_workers} if inference == "worker" else {}
    sampled = list(rollouts(config(inference=inference, num_splits=splits, **served_by), 60))
    found = histories(sampled)
    assert len(found) == 12
    for env, steps in found.items():
        # Nothing is missing and nothing comes twice: what one step saw last, the next sees first.
        assert (steps["obs"][1:] == steps["after"][:-1]).all()
        episode, step = 0, 0
        assert steps["first"][0]
        for i in range(len(steps["obs"])):
            assert steps["obs"][i, 1:3].tolist() == [episode, step]
            assert steps["first"][i] == (step == 0)
            if not steps["valid"][i]:
                # The row after an end: obs was the final observation, the action was ignored.
                assert steps["terminated"][i - 1] or steps["truncated"][i - 1]
                assert steps["reward"][i] == 0
                assert not steps["terminated"][i] and not steps["truncated"][i]
                episode, step = episode + 1, 0
                continue
            step += 1
            assert steps["after"][i, 3] == steps["action"][i], "the action stored is the one taken"
            assert steps["reward"][i] == code_reward(env, episode, step)
            assert not (steps["terminated"][i] and steps["truncated"][i])


def test_behaviour_columns_belong_to_their_rows() -> None:
    """log_prob and value of every row are what the published weights say of that row's obs."""
    import torch

    from tests.support.graphs import build

    chosen = config(inference="worker", num_splits=3)
    graph, _ = build(chosen)
    from sampleforge.models.registry import make_model, resolve_encoder

    spec = graph.groups[0].exchange.slots.shape.spec
    model = make_model(
        resolve_encoder(chosen.model, spec.observations), spec.observations, spec.actions
    )
    graph.groups[0].weights.read(model.state_dict())
    for batch in rollouts(chosen, 12):
        rollout, _ = batch.steps
        with torch.no_grad():
            output = model(batch.obs, batch.state, batch.is_first)
            obs = {n: leaf[:rollout] for n, leaf in batch.obs.items()}
            expected = model.distribution(output.parameters[:rollout], obs).log_prob(batch.actions)
        torch.testing.assert_close(batch.log_prob, expected, atol=1e-5, rtol=0)
        torch.testing.assert_close(batch.value, output.values[:rollout], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("core", ["gru", "lstm"])
@pytest.mark.parametrize("inference", ["inline", "worker"])
def test_the_recurrent_state_is_carried_from_rollout_to_rollout(core: Any, inference: str) -> None:
    """One pass over the stored rollout, from its stored state, gives what was acted on."""
    import torch

    from sampleforge.models.registry import make_model, resolve_encoder
    from tests.support.graphs import build

    model_config = ModelConfig(
        hidden_sizes=(8,), core=core, core_size=5, normalise_observations=False
    )
    chosen = config(inference=inference, model=model_config)
    graph, _ = build(chosen)
    spec = graph.groups[0].exchange.slots.shape.spec
    model = make_model(
        resolve_encoder(chosen.model, spec.observations), spec.observations, spec.actions
    )
    graph.groups[0].weights.read(model.state_dict())
    for batch in rollouts(chosen, 24):
        rollout, _ = batch.steps
        with torch.no_grad():
            output = model(batch.obs, batch.state, batch.is_first)
        torch.testing.assert_close(batch.value, output.values[:rollout], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("steps_by_itself", "cores", "given", "splits"),
    [
        (True, 4, {"num_workers": 2}, 2),
        (True, 3, {"num_workers": 2}, 1),
        (True, 2, {}, 1),
        (False, 4, {"num_workers": 2}, 1),
        (False, 2, {"inference": "worker"}, 2),
        (True, 2, {"num_splits": 3, "num_envs_per_worker": 6}, 3),
    ],
)
def test_actors_have_two_splits_only_if_their_work_can_overlap(
    monkeypatch: pytest.MonkeyPatch,
    steps_by_itself: bool,
    cores: int,
    given: dict[str, Any],
    splits: int,
) -> None:
    monkeypatch.setattr(
        "sampleforge.topologies.sampler_plan.available_cores", lambda: list(range(cores))
    )
    chosen = AppoConfig(env=CODE, async_rl=True, **given)
    spec = dataclasses.replace(spec_of(chosen), asynchronous=steps_by_itself)
    plan = plan_appo(resolved(chosen, spec), spec, "cpu")
    assert plan.num_splits == splits
    assert f"x {splits} split{'s' if splits > 1 else ''} x {plan.rows} rows" in plan.describe_envs()
