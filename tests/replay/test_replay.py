"""The replay keeps what it promises: what is drawn, how often, and that nothing wrong ever is."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import numpy as np
import pytest

from sampleforge.replay import sample_batches
from sampleforge.replay.exchange import SampleRequests
from sampleforge.replay.limiter import RateLimiter, ReplayCounters
from sampleforge.replay.sample_batches import SampleSource
from sampleforge.replay.samples import TransitionReader
from sampleforge.rollouts.slots import Owner
from sampleforge.shared.wakeup import Wakeup
from tests.support.replay import ROLLOUT, ROWS, STEPS, Replay


def assert_in_proportion(drawn: np.ndarray, probability: np.ndarray) -> None:
    """Chi-square over the items; items of fewer than 5 expected draws count together."""
    seen = np.bincount(drawn, minlength=len(probability))
    expected = probability * len(drawn)
    assert (seen[probability == 0] == 0).all(), "what cannot be drawn was drawn"
    common = expected >= 5
    few = max(expected[~common].sum(), 1e-9)
    chi2 = ((seen[common] - expected[common]) ** 2 / expected[common]).sum()
    chi2 += (seen[~common].sum() - few) ** 2 / few
    freedom = int(common.sum())
    assert chi2 < freedom + 4 * (2 * freedom) ** 0.5


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
@pytest.mark.parametrize("inserts", [1, 7, 26])
def test_draws_are_in_proportion_to_priorities(alpha: float, inserts: int) -> None:
    replay = Replay(alpha=alpha)
    for _ in range(inserts):
        replay.insert()
    drawn = [replay.shards[0].draw(128) for _ in range(300)]
    probability = replay.expected()
    assert_in_proportion(np.concatenate([d.items for d in drawn]), probability)
    number = np.count_nonzero(probability)
    assert replay.replay_counters.stored[0] == number
    for d in drawn[:20]:
        np.testing.assert_allclose(d.scaled_probability, probability[d.items] * number, rtol=1e-9)


@pytest.mark.parametrize("alpha", [0.0, 0.6])
def test_samples_that_are_drawn_together_are_those_drawn_one_after_the_other(alpha: float) -> None:
    one, together = Replay(alpha=alpha), Replay(alpha=alpha)
    for _ in range(9):
        one.insert()
        together.insert()
    expected = [one.shards[0].draw(16) for _ in range(5)]
    drawn = list(together.shards[0].draw_batches(16, 5))
    for sample, wanted in zip(drawn, expected, strict=True):
        assert all((a == b).all() for a, b in zip(sample, wanted, strict=True))
    assert len({tuple(sample.items) for sample in drawn}) == 5
    for name in ("drawn", "age_sum"):
        counted = [getattr(replay.replay_counters, name)[0] for replay in (one, together)]
        assert counted[0] == counted[1] > 0, name


def test_a_source_with_enough_samples_does_not_wake_the_shard_for_each_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sample_batches, "WAKE_INTERVAL", 1000.0)
    shard, replay_counters = Wakeup(), ReplayCounters(1)
    replay_counters.stored[0] = 100
    replay_counters.priority_sum[0] = 50.0
    requests = SampleRequests(8, 4, [shard], Wakeup())
    source = SampleSource(requests, RateLimiter(replay_counters, None, 0.0, 1), [0])
    source.start(life=0)
    assert source.gather() and shard.wait(0), "no sample is ready"
    for request in requests.asked(0):
        requests.answer(0, request)
    assert source.gather() and not shard.wait(0)
    woken = []
    for _ in range(8):
        sample = source.take()
        assert sample is not None
        source.done(sample, np.ones(4, np.float32))
        source.gather()
        woken.append(shard.wait(0))
    assert woken == [False] * 3 + [True] * 5, "4 of 8 are ready after the fourth"
    assert requests.asked(0) == list(range(8))


def test_uniform_replay_has_no_tree() -> None:
    assert Replay(alpha=0.0).shards[0]._tree is None


def test_uniform_draws_look_at_what_is_stored_once_after_an_insert() -> None:
    """A replay of a million transitions has 16,000 slots, and samples are many for each insert."""

    class Counted(deque[int]):
        looks = 0

        def __iter__(self) -> Iterator[int]:
            self.looks += 1
            return super().__iter__()

    replay = Replay(alpha=0.0)
    (shard,) = replay.shards
    shard._stored = stored = Counted()
    for inserts in range(1, 3 * replay.capacity):  # and the oldest are evicted
        replay.insert()
        drawn = {int(slot) for _ in range(20) for slot in shard.draw(16).items // STEPS}
        assert drawn == set(stored) and stored.looks == 2 * inserts  # one is this test's


@pytest.mark.parametrize("alpha", [0.0, 0.6])
def test_what_counts_as_stored_can_be_drawn(alpha: float) -> None:
    """Whoever sees that items are stored draws a shard by the sums of priorities at once."""
    replay = Replay(alpha=alpha, shards=2)
    counters = replay.replay_counters

    class Stored(np.ndarray):  # type: ignore[type-arg]
        def __setitem__(self, shard: int, count: int) -> None:  # type: ignore[override]
            assert counters.priority_sum[shard] > 0
            assert alpha or counters.priority_sum[shard] == count
            super().__setitem__(shard, count)

    object.__setattr__(counters, "stored", counters.stored.view(Stored))
    for inserts in range(1, replay.capacity):
        replay.insert(inserts % 2)
    assert counters.stored.all()


@pytest.mark.long
@pytest.mark.parametrize("alpha", [0.0, 0.6])
def test_several_shards_draw_like_one(alpha: float) -> None:
    """A shard is drawn by its mass, and the odds of its items are those among all."""
    replay = Replay(alpha=alpha, shards=3)
    for shard, inserts in enumerate((2, 7, 5)):
        for _ in range(inserts):
            replay.insert(shard, (shard + 1) * replay.random.gamma(0.5, size=(ROLLOUT, ROWS)))
    probability, random = replay.expected(), np.random.default_rng(5)
    priority_sum = replay.replay_counters.priority_sum
    shards = random.choice(3, 3000, p=priority_sum / priority_sum.sum())
    drawn = [replay.shards[s].draw(16) for s in shards]
    # 16 of one shard are not independent of each other: the chi-square is of one draw of each.
    assert_in_proportion(np.array([d.items[random.integers(16)] for d in drawn]), probability)
    number = np.count_nonzero(probability)
    for d in drawn[:50]:
        np.testing.assert_allclose(d.scaled_probability, probability[d.items] * number, rtol=1e-9)


def test_importance_weights_make_the_mean_unbiased() -> None:
    replay = Replay(alpha=0.6)
    for _ in range(9):
        replay.insert()
    value = np.random.default_rng(1).standard_normal(replay.slots.count * STEPS)
    truth = value[replay.expected() > 0].mean()
    means = []
    for _ in range(2000):
        drawn = replay.shards[0].draw(64)
        means.append(
            np.mean(value[drawn.items] / drawn.scaled_probability)
        )  # beta = 1, not normalised
    error = np.std(means) / len(means) ** 0.5
    assert abs(np.mean(means) - truth) < 4 * error


def test_the_shard_keeps_to_its_capacity_and_evicts_the_oldest_first() -> None:
    replay = Replay(capacity=4)
    inserted: deque[int] = deque(maxlen=4)
    for _ in range(30):
        inserted.append(replay.insert())
        assert replay.shards[0].stored_slots == tuple(inserted)
        assert (replay.slots.owner == Owner.STORED).sum() == len(inserted)
        assert replay.replay_counters.priority_sum[0] == pytest.approx(replay.shards[0]._tree.total)  # type: ignore[union-attr]


@pytest.mark.parametrize("inserts", [1, 4, 5, 9, 14])
def test_late_priorities_of_evicted_items_have_no_effect(inserts: int) -> None:
    """16 samples outstanding; up to three whole turns of the storage before they come back."""
    replay = Replay(capacity=4)
    for _ in range(4):
        replay.insert()
    shard = replay.shards[0]
    outstanding = [shard.draw(32) for _ in range(16)]
    for _ in range(inserts):
        replay.insert()
    leaves = shard._tree.leaves.copy()  # type: ignore[union-attr]
    stale = 0
    for drawn in outstanding:
        shard.update(drawn.items, drawn.generations, np.full(32, 123.0, np.float32))
        still_valid = replay.slots.generation[drawn.items // STEPS] == drawn.generations
        stale += int(np.count_nonzero(~still_valid))
        leaves[drawn.items[still_valid]] = replay.priority(np.array([123.0], np.float32))[0]
    assert (shard._tree.leaves == leaves).all()  # type: ignore[union-attr]
    assert replay.replay_counters.stale_updates[0] == stale
    assert (stale == 16 * 32) == (inserts >= 4)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -1.0])
def test_bad_errors_are_refused_and_change_nothing(bad: float) -> None:
    replay = Replay()
    replay.insert()
    shard = replay.shards[0]
    drawn = shard.draw(8)
    before = shard._tree.leaves.copy()  # type: ignore[union-attr]
    errors = np.ones(8, np.float32)
    errors[5] = bad
    with pytest.raises(ValueError, match=f"but 1 of 8 are not, such as {bad}"):
        shard.update(drawn.items, drawn.generations, errors)
    assert (shard._tree.leaves == before).all()  # type: ignore[union-attr]


def test_a_large_priority_does_not_outlive_its_item() -> None:
    """There is no all-time maximum: what replaces an item brings its own priority."""
    replay = Replay(capacity=2)
    replay.insert(errors=np.full((ROLLOUT, ROWS), 1e9))
    for _ in range(2):
        replay.insert(errors=np.full((ROLLOUT, ROWS), 0.5))
    stored = replay.replay_counters.stored[0]
    assert replay.replay_counters.priority_sum[0] == pytest.approx(stored * (0.5 + 1e-6) ** 0.6)


def test_items_without_a_first_error_have_the_largest_priority_that_is_stored() -> None:
    replay = Replay(capacity=3, estimated=False)
    shard, counters = replay.shards[0], replay.replay_counters
    replay.insert()
    assert counters.priority_sum[0] == counters.stored[0] > 0, "1 before any is known"
    drawn = shard.draw(8)
    shard.update(drawn.items, drawn.generations, np.linspace(0.1, 5.0, 8, dtype=np.float32))
    before, items = counters.priority_sum[0], counters.stored[0]
    replay.insert()
    largest = (np.float32(5.0).astype(np.float64) + 1e-6) ** 0.6
    assert counters.priority_sum[0] - before == pytest.approx(
        largest * (counters.stored[0] - items)
    )


def test_samples_under_way_are_due_again_after_a_resume() -> None:
    shard, counters = Wakeup(), ReplayCounters(1)
    counters.stored[0], counters.priority_sum[0] = 100, 50.0
    limiter = RateLimiter(counters, 1.0, 40.0, 1)
    requests = SampleRequests(8, 4, [shard], Wakeup())
    source = SampleSource(requests, limiter, [0])
    source.start(life=0)
    assert source.gather() and source.unlearned == 8 * 4 == counters.sampled[0]
    for request in requests.asked(0):
        requests.answer(0, request)
    source.gather()
    for left in (7, 6):
        sample = source.take()
        assert sample is not None and source.unlearned == left * 4
        source.done(sample, np.ones(4, np.float32))
    assert limiter.balance + source.unlearned == -2 * 4, "those that were taken"
    assert limiter.state(source.unlearned) == {"balance": -8.0}


def test_transitions_are_read_as_they_were_written() -> None:
    replay = Replay()
    for _ in range(20):
        replay.insert()
    reader, slots = TransitionReader(replay.slots), replay.slots
    drawn = replay.shards[0].draw(200)
    found, still_valid, _ = reader.read(*drawn)
    assert still_valid.all()
    for i, item in enumerate(drawn.items):
        slot, step = divmod(int(item), STEPS)
        t, row = divmod(step, ROWS)
        window = slots.extras["steps"][slot, t, row]
        assert window > 0
        assert found.obs["obs"][i].tolist() == slots.obs["obs"][slot, t, row].tolist()
        assert found.next_obs["obs"][i].tolist() == slots.obs["obs"][slot, t + window, row].tolist()
        life = found.obs["obs"][i, 0]
        assert found.returns[i] == life == found.next_obs["obs"][i, 0]
        assert found.actions["action"][i] == life % 4 and found.discount[i] == 0.5


def test_items_that_were_evicted_before_reading_are_left_out() -> None:
    replay = Replay(capacity=3)
    for _ in range(3):
        replay.insert()
    drawn = replay.shards[0].draw(64)
    replay.insert()  # evicts the first slot: debug mode has overwritten it
    found, still_valid, _ = TransitionReader(replay.slots).read(*drawn)
    assert 0 < still_valid.sum() < 64
    assert len(found.actions["action"]) == len(found.scaled_probability) == still_valid.sum()
    assert (found.obs["obs"][:, 0] > 1).all() and (found.next_obs["obs"][:, 0] > 1).all()
    for _ in range(3):
        replay.insert()
    assert not TransitionReader(replay.slots).read(*drawn).still_valid.any()


# ---- the limit on samples per insert ----


@pytest.mark.long
@pytest.mark.parametrize("ratio", [0.13, 1.0, 7.5])
@pytest.mark.parametrize("shards", [1, 3])
def test_samples_per_insert_stay_within_tolerance_at_every_instant(
    ratio: float, shards: int
) -> None:
    """Actors, shards and learner act in random order, in bursts, and none blocks for good."""
    random = np.random.default_rng(0)
    leases, batch, slot = 4, 32, STEPS
    tolerance = shards * leases * slot * ratio + 2 * batch
    replay_counters = ReplayCounters(shards)
    limiter = RateLimiter(replay_counters, ratio, tolerance, learning_starts=200)
    samples = 0
    for _ in range(30_000):
        shard, kind = int(random.integers(shards)), random.integers(3)
        burst = int(random.integers(1, 6))
        for _ in range(burst):
            if (
                kind == 0
                and replay_counters.leased[shard] < leases * slot
                and limiter.may_lease(shard, slot)
            ):
                replay_counters.leased[shard] += slot
            elif kind == 1 and replay_counters.leased[shard]:
                usable = int(random.integers(slot // 2, slot + 1))
                replay_counters.leased[shard] -= slot
                replay_counters.inserted[shard] += usable
                replay_counters.stored[shard] += usable
            elif kind == 2 and limiter.begin_learning() and limiter.may_sample(batch):
                limiter.count_samples(batch)
                samples += batch
            assert abs(limiter.balance) <= tolerance
    inserts = replay_counters.inserted_since_start
    assert samples / inserts == pytest.approx(ratio, rel=0.15)
    assert inserts > 2000 or samples > 20_000


def test_without_a_ratio_both_run_freely_from_learning_starts_on() -> None:
    replay_counters = ReplayCounters(1)
    limiter = RateLimiter(replay_counters, None, 0.0, learning_starts=100)
    replay_counters.inserted[0] = replay_counters.stored[0] = 99
    assert not limiter.begin_learning()
    replay_counters.stored[0] = 100
    assert limiter.begin_learning()
    limiter.count_samples(10**9)
    assert limiter.may_sample(10**9) and limiter.may_lease(0, 10**9)


def test_inserts_are_limited_before_a_late_learner_starts() -> None:
    replay_counters = ReplayCounters(2)
    limiter = RateLimiter(replay_counters, 4.0, tolerance=800.0, learning_starts=100)
    for shard in (0, 1):
        while limiter.may_lease(shard, 10):
            replay_counters.inserted[shard] += 10
            replay_counters.stored[shard] += 10
    assert replay_counters.inserted.tolist() == [150, 150], (
        "learning_starts, and what the tolerance allows"
    )
    assert limiter.begin_learning() and abs(limiter.balance) <= 800


@pytest.mark.parametrize("owed", [-1000.0, 1000.0])
def test_a_resumed_run_begins_to_learn_at_any_saved_balance(owed: float) -> None:
    replay_counters = ReplayCounters(2)
    limiter = RateLimiter(replay_counters, 4.0, tolerance=1000.0, learning_starts=5)
    limiter.load({"balance": owed})
    for shard in (0, 1):
        assert limiter.may_lease(shard, 10)
        replay_counters.inserted[shard] = replay_counters.stored[shard] = 10
    assert limiter.begin_learning()
    assert limiter.may_sample(50) == (owed > 0)
    assert limiter.may_lease(0, 10) == (owed < 0)


def test_full_shards_are_enough_to_learn() -> None:
    """Where episodes are short, resets take room: learning_starts may never be reached."""
    replay_counters = ReplayCounters(2)
    limiter = RateLimiter(replay_counters, 1.0, 10.0, learning_starts=100)
    replay_counters.full[0] = True
    assert not limiter.begin_learning()
    replay_counters.full[1] = True
    assert limiter.begin_learning()


def test_a_resumed_limiter_restores_its_balance() -> None:
    replay_counters = ReplayCounters(1)
    limiter = RateLimiter(replay_counters, 2.0, 100.0, learning_starts=10)
    replay_counters.inserted[0] = replay_counters.stored[0] = 10
    limiter.begin_learning()
    replay_counters.inserted[0] += 50
    limiter.count_samples(70)
    assert limiter.balance == 30
    again = RateLimiter(ReplayCounters(1), 2.0, 100.0, learning_starts=10)
    again.load(limiter.state(0))
    again.replay_counters.inserted[0] = again.replay_counters.stored[0] = (
        1000  # the refill does not count
    )
    again.begin_learning()
    assert again.balance == 30
