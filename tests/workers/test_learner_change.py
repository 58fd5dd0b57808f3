"""Changes of a learner between two updates: what is copied, what stays its own, and which of the
two states it has when it is killed in between."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from sampleforge.algorithms.learning import GradientLearner, LearnerPlace, Update
from sampleforge.algorithms.rollout_learner import RolloutLearner
from sampleforge.rollouts.batch import Batch
from sampleforge.shared.member_board import ChangeInbox, MemberBoard, Segment
from sampleforge.shared.newest import StateSnapshot
from sampleforge.workers.learner_change import (
    ChangeFollower,
    ChangeRequest,
    ChangesOfPopulation,
    ChangesOfSchedule,
    LearnerChange,
    write_state_file,
)
from tests.support.learners import config, learner_of, model_of, one_batch

LAG = 7
CHOSEN = config(max_policy_lag=LAG, async_rl=False, num_epochs=2, minibatch_size=32, batch_size=64)


def trained(updates: int, seed: int = 1) -> RolloutLearner:
    """A learner after some updates, with a state of its own."""
    learner = learner_of(CHOSEN)
    learner.reseed(seed)
    for _ in range(updates):
        learner.update(batch_of(learner.version), 0.0)
    return learner


def batch_of(version: int) -> Batch:
    """Experience of a policy version."""
    batch = one_batch(dataclasses.replace(CHOSEN, num_splits=1))
    return dataclasses.replace(batch, version=torch.full_like(batch.version, version))


class Driver:
    """The driver's end of the channel to one member."""

    def __init__(self) -> None:
        self.board = MemberBoard(1, 1, seed=5)
        self.inbox = ChangeInbox(trained(0).state()[0])
        self.follower = ChangeFollower(ChangesOfPopulation(self.inbox, LAG), self.board)

    def send(
        self,
        number: int,
        hyperparameters: Mapping[str, Any],
        donor: RolloutLearner | None = None,
        segment: Segment | None = None,
    ) -> None:
        tensors, plain = ({}, {}) if donor is None else donor.state()
        plain = {"hyperparameters": dict(hyperparameters), "segment": segment, "state": plain}
        self.inbox.send(number, tensors, plain)

    def apply(self, learner: RolloutLearner) -> None:
        """What a learner does after an update."""
        self.follower.apply(learner, self.follower.due(learner))
        self.follower.confirm(learner)


@pytest.fixture
def driver() -> Driver:
    return Driver()


def differences(one: RolloutLearner, other: RolloutLearner) -> set[str]:
    """The tensors of the states that differ."""
    (a, _), (b, _) = one.state(), other.state()
    assert a.keys() == b.keys()
    return {name for name in a if not torch.equal(a[name], b[name])}


def test_a_copy_has_weights_optimiser_and_statistics_of_its_donor(driver: Driver) -> None:
    donor, member = trained(5, seed=1), trained(2, seed=2)
    version = member.version
    assert {n.split("/")[0] for n in differences(donor, member)} >= {"model", "optimiser", "rng"}
    driver.send(1, donor.hyperparameters(), donor, Segment(1, 99))
    driver.apply(member)
    assert differences(donor, member) == {"rng/minibatches"}, "the order of minibatches is its own"
    assert member.env_steps == donor.env_steps
    assert member.version == version + LAG + 1, "whatever the version of the donor"
    assert driver.board.applied == 1 and driver.board.segment == Segment(1, 99)
    assert driver.board.applied_at == driver.board.learned == donor.env_steps


def test_a_copy_holds_what_its_own_config_says_for_as_long_as_it_says(driver: Driver) -> None:
    """Whether or not its donor has trained those parts again."""
    donor, member = trained(1), trained(1)
    for learner in (donor, member):
        learner.hold(["encoder"], 1000)
    donor.release()
    driver.send(1, donor.hyperparameters(), donor, Segment(1, 99))
    driver.apply(member)
    assert member.held_until == 1000
    resumed = trained(0)
    resumed.hold(["encoder"], 1000)
    resumed.load(*member.state())
    assert resumed.held_until == 1000


def test_two_copies_of_one_donor_draw_other_minibatches() -> None:
    donor, orders = trained(1), []
    for seed in (1, 2):
        member, driver = trained(1), Driver()
        driver.send(1, {}, donor, Segment(1, seed))
        driver.apply(member)
        orders.append(member.state()[0]["rng/minibatches"])
    assert not torch.equal(*orders)


def test_the_copied_learning_rate_does_not_overwrite_the_perturbed_one(driver: Driver) -> None:
    donor, member = trained(1), trained(1)
    donor.change({"learning_rate": 0.125, "gamma": 0.5})
    driver.send(1, {**donor.hyperparameters(), "learning_rate": 0.25}, donor, Segment(1, 2))
    driver.apply(member)
    assert member.hyperparameters()["learning_rate"] == 0.25
    assert member.hyperparameters()["gamma"] == 0.5, "what was not perturbed is the donor's"
    metrics = member.update(batch_of(member.version), 0.0).metrics
    assert metrics["learning_rate"] == 0.25


def test_an_adapted_learning_rate_is_copied_and_perturbed(
    driver: Driver,
) -> None:
    adaptive = dataclasses.replace(CHOSEN, lr_schedule="kl_adaptive")
    donor, member = learner_of(adaptive), learner_of(adaptive)
    tensors, plain = donor.state()
    donor.load(tensors, {**plain, "learning_rate": 0.0625})
    driver.send(1, donor.hyperparameters(), donor, Segment(1, 2))
    driver.apply(member)
    assert member.state()[1]["learning_rate"] == 0.0625
    rate = 1.5 * member.hyperparameters()["learning_rate"]
    for number, again in ((2, donor), (3, None)):  # with the weights of the donor, and without
        member.change({"learning_rate": rate / 1.5})
        member.load(*donor.state())
        driver.send(number, {"learning_rate": rate}, again, Segment(number, 2) if again else None)
        driver.apply(member)
        assert member.hyperparameters()["learning_rate"] == rate
        assert member.state()[1]["learning_rate"] == pytest.approx(1.5 * 0.0625)


def test_a_perturbation_changes_nothing_but_hyperparameters(driver: Driver) -> None:
    member, same = trained(2), trained(2)
    driver.send(1, {**member.hyperparameters(), "clip_ratio": 0.125})
    driver.apply(member)
    assert differences(member, same) == set() and member.version == same.version
    changed = {**same.hyperparameters(), "clip_ratio": 0.125}
    assert member.hyperparameters() == changed
    assert driver.board.segment == Segment(0, 5), "its episodes go on"


@pytest.mark.long
def test_experience_of_the_replaced_weights_is_stale_and_nothing_is_learned_from_it(
    driver: Driver,
) -> None:
    donor, member = trained(3, seed=1), trained(2, seed=2)
    in_flight = batch_of(member.version)
    driver.send(1, donor.hyperparameters(), donor, Segment(1, 2))
    driver.apply(member)
    before = member.state()[0]
    metrics = member.update(in_flight, 0.0).metrics
    valid = int(in_flight.valid.sum())
    assert metrics["stale_steps"] == metrics["valid_steps"] == valid
    after = member.state()[0]
    learned = {n for n in before if n.startswith(("model/", "optimiser/"))}
    moved = {n for n in learned if not torch.equal(before[n], after[n])}
    assert all("normaliser" in name or "value_scale" in name for name in moved), moved
    fresh = member.update(batch_of(member.version), 0.0).metrics
    assert fresh["stale_steps"] == 0


@pytest.mark.long
@pytest.mark.parametrize("killed_at", [0, 1, 2])
def test_a_learner_that_is_killed_in_between_is_either_old_or_new(
    driver: Driver, killed_at: int
) -> None:
    """Its next life begins with the state in shared memory, and makes the change if it has not been
    made: exactly once."""
    donor, member = trained(3, seed=1), trained(2, seed=2)
    snapshot = StateSnapshot(member.state()[0])
    snapshot.publish(*member.state())
    old = member.version
    driver.send(1, {**donor.hyperparameters(), "gamma": 0.75}, donor, Segment(1, 3))
    if killed_at > 0:
        driver.follower.apply(member, driver.follower.due(member))
    if killed_at > 1:
        snapshot.publish(*member.state())
    assert driver.board.applied == 0, "the driver knows nothing of it yet"
    successor = learner_of(CHOSEN)
    successor.load(*snapshot.read())
    driver.follower.confirm(successor)
    assert driver.board.applied == int(killed_at > 1)
    is_new = killed_at > 1
    assert successor.version == (old + LAG + 1 if is_new else old)
    assert differences(successor, donor if is_new else trained(2, seed=2)) <= {"rng/minibatches"}
    driver.apply(successor)
    assert driver.board.applied == 1 and driver.board.segment == Segment(1, 3)
    assert successor.version == old + LAG + 1, "raised once"
    assert differences(successor, donor) == {"rng/minibatches"}
    assert successor.hyperparameters()["gamma"] == 0.75


def test_changes_of_a_schedule_come_at_their_env_steps() -> None:
    member, board = trained(0), MemberBoard(1, 1, seed=5)
    per_update = int(batch_of(0).valid.sum())
    changes = [
        LearnerChange({"gamma": 0.5}, env_steps=per_update),
        LearnerChange({"gamma": 0.25}, Segment(1, 7), env_steps=3 * per_update),
        LearnerChange({"clip_ratio": 0.5}, env_steps=3 * per_update),
    ]
    follower = ChangeFollower(ChangesOfSchedule(changes, LAG), board)
    gammas = []
    for _ in range(4):
        member.update(batch_of(member.version), 0.0)
        follower.apply(member, follower.due(member))
        follower.confirm(member)
        gammas.append(member.hyperparameters()["gamma"])
    assert gammas == [0.5, 0.5, 0.25, 0.25]
    assert member.hyperparameters()["clip_ratio"] == 0.5
    assert board.segment == Segment(1, 7) and board.applied == 3
    assert board.learned == member.env_steps == 4 * per_update


def request(
    folder: Path, number: int, weight: float
) -> tuple[ChangeRequest, dict[str, torch.Tensor]]:
    """A request of the driver to load these weights, which it has written, and the weights."""
    weights = {
        f"model/{name}": torch.full_like(tensor, weight)
        for name, tensor in model_of(CHOSEN).state_dict().items()
    }
    load = ChangeRequest(number, folder / f"load-{number}", LAG + 1)
    assert load.file is not None
    write_state_file(load.file, weights, {})
    return load, weights


def test_weights_that_the_driver_sends_leave_the_rest_and_are_loaded_once(tmp_path: Path) -> None:
    member, same, follower = trained(2), trained(2), ChangeFollower()
    load, weights = request(tmp_path, 3, 0.5)
    assert not follower.has_applied(member, load)
    follower.ask(load)
    assert load.file is not None
    load.file.unlink()
    assert follower.apply(member, follower.due(member)) and follower.has_applied(member, load)
    assert not follower.apply(member, follower.due(member))
    assert all(torch.equal(member.state()[0][name], w) for name, w in weights.items())
    assert {name.split("/")[0] for name in differences(member, same)} == {"model"}
    assert member.version == same.version + LAG + 1
    assert member.hyperparameters() == same.hyperparameters()
    older, _ = request(tmp_path, 2, 0.25)
    assert follower.has_applied(member, older), "a request before it would not undo it"


def test_hyperparameters_that_the_driver_sets_are_applied_in_their_order_by_all_learners() -> None:
    member, one, other = trained(2), ChangeFollower(), ChangeFollower()
    rates = [ChangeRequest(n, hyperparameters={"learning_rate": n * 1e-4}) for n in (1, 2)]
    clip = ChangeRequest(3, hyperparameters={"clip_ratio": 0.05})
    for asked in (*rates, clip, clip):
        one.ask(asked)
    for asked in rates:
        other.ask(asked)
    dues = [torch.tensor(each) for each in zip(one.due(member), other.due(member), strict=True)]
    assert one.agreed(dues) == [0], "not every learner has been asked for the last one"
    other.ask(clip)
    assert one.due(member) == other.due(member) == [3]
    assert one.apply(member, one.due(member)) and one.has_applied(member, clip)
    found = member.hyperparameters()
    assert (found["learning_rate"], found["clip_ratio"]) == (2e-4, 0.05)
    assert not one.apply(member, one.due(member))


class WithTarget(GradientLearner[Any, Any]):
    """Has another network, "target", with tensors of the same names as the published one's."""

    def __init__(self, copies: tuple[str, ...]) -> None:
        self.copies = copies
        others, place = {"target": model_of(CHOSEN)}, LearnerPlace(torch.device("cpu"))
        super().__init__(model_of(CHOSEN), CHOSEN, (), place, others)

    def update(self, batch: Any, progress: float) -> Update:
        raise NotImplementedError


@pytest.mark.parametrize("copies", [(), ("target",)])
def test_other_weights_are_those_of_the_networks_alone_that_are_copies(
    tmp_path: Path, copies: tuple[str, ...]
) -> None:
    learner, (load, weights) = WithTarget(copies), request(tmp_path, 1, 0.5)
    before = learner.state()[0]
    load.read().put_into(learner)
    after = learner.state()[0]
    for name, given in weights.items():
        assert torch.equal(after[name], given)
        target = name.replace("model/", "target/")
        assert torch.equal(after[target], given if copies else before[target])


def test_learners_load_a_state_only_once_all_have_been_asked_for_the_same(tmp_path: Path) -> None:
    first, second = ChangeFollower(), ChangeFollower()
    member = trained(0)

    def agreed() -> list[int]:
        dues = torch.tensor([first.due(member), second.due(member)]).T
        return first.agreed(list(dues))

    (older, _), (newer, _) = request(tmp_path, 1, 0.25), request(tmp_path, 2, 0.5)
    assert agreed() == [0]
    first.ask(older)
    assert agreed() == [0]
    second.ask(newer)
    assert agreed() == [0], "the older request was given up"
    first.ask(newer)
    assert agreed() == [2]


def test_streams_restart_for_a_segment_before_episodes_count() -> None:
    board = MemberBoard(1, 3, seed=5)
    assert board.has_restarted
    board.begin_segment(Segment(1, 6))
    for stream in range(3):
        assert not board.has_restarted
        board.set_restarted(stream, 1)
    assert board.has_restarted
    board.add_sampled(0, 10)
    board.add_sampled(2, 5)
    assert board.sampled == 15


def test_shaping_numbers_are_counted_when_they_change() -> None:
    board = MemberBoard(1, 1, seed=5, shaping={"bonus": 1.0, "cost": 2.0})
    assert board.shaping == {"bonus": 1.0, "cost": 2.0} and board.shaping_number == 1
    board.set_shaping({"bonus": 1.0, "cost": 2.0})
    assert board.shaping_number == 1
    board.set_shaping({"cost": 3.0, "bonus": 1.0})
    assert board.shaping == {"bonus": 1.0, "cost": 3.0} and board.shaping_number == 2
    assert MemberBoard(1, 1, seed=5).shaping_number == 0
