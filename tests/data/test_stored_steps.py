"""Batches of recorded steps: each step once per pass, with its return to go, in an order that a
resumed run continues."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sampleforge.config import ConfigError
from sampleforge.data.stored_steps import RewardRule, StoredSteps
from tests.support.recorded import GAMMA, MULTI, mixture, recorded

LENGTHS = [5, 1, 7, 4]


@pytest.mark.parametrize("length", [1, 3])
def test_a_pass_gives_every_step_once_with_what_belongs_to_it(length: int) -> None:
    episodes = recorded(LENGTHS, MULTI, truncated=(2,), unfinished=(3,))
    data = mixture(episodes, rows=4, length=length)
    rows = data.parts[0].num_rows
    assert rows == sum(-(-n // length) for n in LENGTHS)
    for number in range(0, 2 * rows // 4):
        batch = data.batch(number)
        steps, columns = batch.mask.shape
        assert (steps, columns) == (length, 4) and batch.is_first[0].all()
        assert not batch.is_first[1:].any()
        for t, b in batch.mask.nonzero().tolist():
            of, step = (int(x) for x in batch.obs["obs"][t, b, :2])
            episode = episodes[of]
            expected = episode.observations["obs"][step]
            assert batch.obs["obs"][t, b].numpy() == pytest.approx(expected)
            assert (
                batch.actions["action"][t, b].tolist() == episode.actions["action"][step].tolist()
            )
            ahead = sum(GAMMA**k * r for k, r in enumerate(episode.rewards[step:].tolist()))
            assert float(batch.return_to_go[t, b]) == pytest.approx(ahead, rel=1e-5)
            goes_on = GAMMA ** (len(episode) - step) if of in (2, 3) else 0.0
            assert float(batch.final_discount[t, b]) == pytest.approx(goes_on)
        for place, column in enumerate(batch.final_rows.tolist()):
            of = int(batch.obs["obs"][0, column, 0])
            last = episodes[of].observations["obs"][-1]
            assert batch.final_obs["obs"][place].numpy() == pytest.approx(last)


def test_a_truncated_row_has_its_last_value_though_the_first_discount_is_too_small() -> None:
    """0.5 ** 200 is 0 in float32, and the last step's discount is 0.5."""
    episodes = recorded([200], truncated=(0,))
    *_, columns = StoredSteps(episodes, RewardRule(0.5), length=200).rows(np.array([0]))
    assert columns["final_discount"][0, 0] == 0.0 and columns["final_discount"][-1, 0] == 0.5
    assert columns["final_rows"].tolist() == [0]


def test_passes_are_permutations_and_a_resumed_run_continues_them() -> None:
    data = mixture(recorded(LENGTHS), rows=5)
    seen = [tuple(map(int, o)) for n in range(17) for o in data.batch(n).obs["obs"][0, :, :2]]
    passes = [seen[i : i + 17] for i in range(0, 85, 17)]
    assert all(len(set(each)) == 17 for each in passes)
    assert passes[0] != passes[1]
    assert data.batch(16).passes == pytest.approx(5.0)
    resumed = mixture(recorded(LENGTHS), rows=5)
    for number in (11, 12):
        assert resumed.batch(number).obs["obs"].equal(data.batch(number).obs["obs"])
    other = mixture(recorded(LENGTHS), rows=5, seed=2)
    assert not other.batch(0).obs["obs"].equal(data.batch(0).obs["obs"])


def test_one_absurd_number_changes_nothing_else() -> None:
    episodes, spoiled = recorded([20] * 30), recorded([20] * 30)
    spoiled[4].rewards[19], spoiled[5].observations["obs"][3, 2] = 1e8, 1e38
    rule = RewardRule(0.5)
    plain, found = StoredSteps(episodes, rule), StoredSteps(spoiled, rule)
    same = np.delete(np.arange(600), np.arange(80, 100))
    np.testing.assert_array_equal(found.return_to_go[same], plain.return_to_go[same])
    assert 1 < found.return_to_go[99] < 20
    differ = found.observations["obs"] != plain.observations["obs"]
    assert np.argwhere(differ).tolist() == [[5 * 21 + 3, 2]]
    assert abs(found.observations["obs"]).max() < 1000
    assert spoiled[4].rewards[19] == np.float32(1e8), "the data set stays as it was"
    obs, rewards = found.far
    assert obs.startswith("1 number of observation leaf 'obs', the first one 1e+38")
    assert rewards.startswith("1 number of the rewards, the first one 1e+08")
    assert not plain.far


def test_positions_beside_velocities_at_rest_stay_as_they_are() -> None:
    episodes = recorded([20] * 300)
    for episode in episodes:
        episode.observations["obs"][:, 1:] *= np.float32(1e-8)
    found = StoredSteps(episodes, RewardRule(0.5))
    given = np.concatenate([episode.observations["obs"] for episode in episodes])
    np.testing.assert_array_equal(found.observations["obs"], given)


def test_a_large_element_beside_small_ones_stays_as_it_is() -> None:
    episodes = recorded([20] * 300)
    for episode in episodes:
        episode.observations["obs"][:] *= np.float32(1e-5)
        episode.observations["obs"][:, 1] += 324
    episodes[7].observations["obs"][3, 0] = 1e9
    given = np.concatenate([episode.observations["obs"] for episode in episodes])
    found = StoredSteps(episodes, RewardRule(0.5)).observations["obs"]
    assert np.argwhere(found != given).tolist() == [[7 * 21 + 3, 0]]


@pytest.mark.parametrize("goal", [500.0, -500.0])
def test_the_rewards_of_goals_and_failures_stay_as_they_are(goal: float) -> None:
    episodes = recorded([100] * 20)
    for episode in episodes:
        episode.rewards[:] = [-0.01] * 99 + [goal]
    found = StoredSteps(episodes, RewardRule(1.0))
    assert found.return_to_go[0] == pytest.approx(goal - 0.99) and not found.far


def test_datasets_give_the_shares_of_their_weights() -> None:
    many = recorded([100], truncated=(0,))
    for episode in many:
        episode.observations["obs"][:, 0] = 9
    data = mixture(recorded([50]), many, rows=8, weights=(1.0, 3.0))
    from_second = 0
    for number in range(10):
        batch = data.batch(number)
        mine = batch.obs["obs"][0, :, 0] == 9
        from_second += int(mine.sum())
        assert batch.final_rows.tolist() == torch.nonzero(mine).flatten().tolist()
    assert from_second == 60


def test_rewards_are_scaled_and_clipped_before_they_are_summed() -> None:
    (episode,) = recorded([6])
    found = StoredSteps([episode], RewardRule(0.5, 2.0, 1.0)).return_to_go
    shaped = np.clip(2.0 * episode.rewards, -1, 1)
    assert found[3] == pytest.approx(shaped[3] + 0.5 * shaped[4] + 0.25 * shaped[5])


def test_a_dataset_without_steps_is_refused() -> None:
    with pytest.raises(ConfigError, match="no env steps"):
        StoredSteps([], RewardRule(0.9))
