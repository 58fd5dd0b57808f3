"""What all learners have in common works for any number of networks and optimisers: the state, its
snapshot in shared memory, copies of it, and several learners of one policy."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sampleforge.algorithms.averaging import Averaging, DataParallel
from sampleforge.algorithms.flat_parameters import Adam, RmsProp
from sampleforge.algorithms.learning import GradientLearner, LearnerPlace, Update
from sampleforge.peers.group import RankGroup
from sampleforge.shared.member_board import ChangeInbox, MemberBoard
from sampleforge.shared.newest import StateSnapshot
from sampleforge.workers.group_member import RanksDiverged, check_same_state, share_state
from sampleforge.workers.learner_change import ChangeFollower, ChangesOfPopulation
from tests.support.rank_threads import on_ranks


@dataclass(frozen=True)
class Config:
    learning_rate: float = 0.05
    lr_schedule: str = "constant"
    anneal: dict[str, str] = field(default_factory=dict)
    max_grad_norm: float = 1.0


class TwoNetworks(GradientLearner[nn.Linear, Config]):
    """An actor, a critic through which the actor's loss goes, and the critic's target; the actor
    and the critic each have an optimiser."""

    def __init__(
        self, seed: int = 1, averaging: Averaging | None = None, config: Config | None = None
    ) -> None:
        draw = torch.Generator().manual_seed(seed)
        actor, critic = nn.Linear(3, 2), nn.Linear(5, 1)
        for parameter in (*actor.parameters(), *critic.parameters()):
            nn.init.uniform_(parameter, -1.0, 1.0, draw)
        self.critic, self.target = critic, copy.deepcopy(critic).requires_grad_(False)
        super().__init__(
            actor,
            config or Config(),
            ("learning_rate", "max_grad_norm"),
            LearnerPlace(torch.device("cpu"), averaging=averaging or Averaging()),
            {"critic": self.critic, "target": self.target},
        )
        self._actor_steps = self._add_optimiser(
            "optimiser", actor, lambda flat: Adam(flat, (0.9, 0.999), 1e-8)
        )
        self._critic_steps = self._add_optimiser(
            "critic_optimiser", critic, lambda flat: RmsProp(flat, 0.9, 1e-3)
        )

    def update(self, batch: Tensor, progress: float = 0.0, weight: float = 1.0) -> Update:
        """Learn from rows [B, 3], which are ``weight`` of those of all learners."""
        self._check_frozen()
        obs, share = batch, torch.tensor(weight)
        value = self.critic(torch.cat((obs, self.model(obs)), 1))
        metrics = self.averaging.backward(
            self._actor_steps.flat, -value.mean(), {"value": value.detach().mean()}, share
        )
        norm = self._clip_gradient(self._actor_steps)
        joined = torch.cat((obs, self.model(obs).detach()), 1)
        error = self.critic(joined) - obs.sum(1, keepdim=True) - 0.5 * self.target(joined)
        loss = error.square().mean()
        metrics |= self.averaging.backward(
            self._critic_steps.flat, loss, {"loss": loss.detach()}, share
        )
        norms = torch.stack((norm, self._clip_gradient(self._critic_steps)))
        metrics["norm"] = norms.sum()
        found = {name: float(value) for name, value in metrics.items()}
        self._follow_schedules(progress)
        taken = self._step_unless(not norms.isfinite().all())
        return Update(found | taken, len(obs))


def rows(number: int) -> Tensor:
    return torch.randn(8, 3, generator=torch.Generator().manual_seed(number))


def trained(updates: int, seed: int = 1) -> TwoNetworks:
    learner = TwoNetworks(seed)
    for number in range(updates):
        learner.update(rows(number))
    return learner


def differing(one: TwoNetworks, other: TwoNetworks) -> set[str]:
    """The tensors of the states that differ."""
    (a, _), (b, _) = one.state(), other.state()
    assert a.keys() == b.keys()
    return {name for name in a if not torch.equal(a[name], b[name])}


def test_a_state_holds_each_network_and_each_optimiser_under_its_name() -> None:
    tensors, plain = trained(3).state()
    networks = {f"{net}/{p}" for net in ("model", "critic", "target") for p in ("weight", "bias")}
    adam = {f"optimiser/{i}/{n}" for i in (0, 1) for n in ("step", "exp_avg", "exp_avg_sq")}
    rms = {f"critic_optimiser/{i}/{n}" for i in (0, 1) for n in ("step", "square_avg", "grad_avg")}
    assert tensors.keys() == networks | adam | rms
    assert tensors["critic_optimiser/0/step"] == tensors["optimiser/1/step"] == 3
    assert tensors["optimiser/0/exp_avg"].shape == (2, 3)
    assert tensors["critic_optimiser/0/grad_avg"].shape == (1, 5)
    assert plain["version"] == 3 and plain["hyperparameters"]["learning_rate"] == 0.05


def test_a_learner_with_a_loaded_state_goes_on_as_the_other_one_does() -> None:
    one, other = trained(4), trained(2, seed=9)
    other.load(*one.state())
    assert differing(one, other) == set()
    for learner in (one, other):
        learner.update(rows(7))
    assert differing(one, other) == set() and other.version == 5


def test_a_state_without_one_of_the_networks_is_of_another_model() -> None:
    tensors, plain = trained(1).state()
    del tensors["critic/bias"]
    with pytest.raises(ValueError, match=r"(?s)another model.*bias"):
        TwoNetworks().load(tensors, plain)


def test_a_snapshot_has_room_for_all_networks_and_the_moments_of_all_optimisers() -> None:
    learner = trained(4)
    snapshot = StateSnapshot(TwoNetworks().state()[0])
    assert snapshot.room >= sum(tensor.nbytes for tensor in learner.state()[0].values())
    snapshot.publish(*learner.state())
    other = TwoNetworks(seed=9)
    other.load(*snapshot.read())
    assert differing(learner, other) == set() and other.version == 4


def test_a_member_of_a_population_becomes_a_copy_with_all_networks_and_optimisers() -> None:
    donor, learner = trained(5), trained(3, seed=9)
    inbox = ChangeInbox(learner.state()[0])
    follower = ChangeFollower(ChangesOfPopulation(inbox, None), MemberBoard(1, 1, seed=5))
    tensors, plain = donor.state()
    inbox.send(
        1, tensors, {"hyperparameters": {"learning_rate": 0.2}, "segment": None, "state": plain}
    )
    follower.apply(learner, follower.due(learner))
    assert differing(donor, learner) == set()
    assert learner.version == 3 and learner.hyperparameters()["learning_rate"] == 0.2
    assert learner.update(rows(1)).metrics["learning_rate"] == 0.2


def test_several_learners_take_the_steps_of_one_with_all_of_their_rows() -> None:
    """Each optimiser's gradient is averaged by itself, though the actor's loss reaches the
    critic."""

    def work(group: RankGroup) -> tuple[dict[str, Tensor], dict[str, float]]:
        learner = TwoNetworks(1 + group.rank, DataParallel(group))
        with pytest.raises(RanksDiverged):
            check_same_state(learner, group)
        share_state(learner, group)
        said: dict[str, float] = {}
        for number in range(6):
            part = slice(0, 2) if group.rank == 0 else slice(2, 8)
            said = learner.update(rows(number)[part], weight=(0.25, 0.75)[group.rank]).metrics
        check_same_state(learner, group)
        return learner.state()[0], said

    alone = TwoNetworks()
    metrics: dict[str, float] = {}
    for number in range(6):
        metrics = alone.update(rows(number)).metrics
    for tensors, said in on_ranks(2, work):
        assert said == pytest.approx(metrics, rel=1e-4)
        for name, expected in alone.state()[0].items():
            torch.testing.assert_close(tensors[name], expected, atol=1e-5, rtol=1e-5)


def test_no_optimiser_takes_a_step_whose_gradient_is_not_finite() -> None:
    learner = trained(2)
    before = learner.state()[0]
    said = learner.update(torch.full((2, 3), torch.nan)).metrics
    after = learner.state()[0]
    assert said["skipped_steps"] == 1.0 and learner.version == 3
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert learner.update(rows(3)).metrics["skipped_steps"] == 0.0


def test_a_linear_schedule_follows_the_rate_that_was_changed_last() -> None:
    learner = TwoNetworks(config=Config(lr_schedule="linear"))
    assert learner.update(rows(1), 0.5).metrics["learning_rate"] == pytest.approx(0.025)
    learner.change({"learning_rate": 0.4})
    assert learner.update(rows(1), 0.75).metrics["learning_rate"] == pytest.approx(0.1)
    with pytest.raises(ValueError, match="lr_schedule cannot change"):
        learner.change({"lr_schedule": "constant"})


@pytest.mark.parametrize("network", ["model", "critic"])
def test_a_parameter_that_is_frozen_later_is_named_whichever_network_it_is_of(network: str) -> None:
    learner = TwoNetworks()
    getattr(learner, network).bias.requires_grad_(False)
    with pytest.raises(RuntimeError, match="requires_grad of bias"):
        learner.update(rows(1))


def test_a_name_of_the_state_is_given_once() -> None:
    learner: Any = TwoNetworks()
    with pytest.raises(AssertionError):
        learner._add_optimiser("critic", nn.Linear(1, 1), None)


def test_a_state_without_a_tensor_of_an_optimiser_is_refused_by_name() -> None:
    """It must not begin with another optimiser than it had, nor end in a KeyError."""
    tensors, plain = TwoNetworks().state()
    missing = next(name for name in tensors if name.startswith("critic_optimiser/0/"))
    del tensors[missing]
    with pytest.raises(ValueError, match=f"the checkpoint has no {missing}"):
        TwoNetworks(seed=2).load(tensors, plain)
