"""Learning and acting ask the device for nothing on the way: what is computed stays there until the
one copy at the end. A CPU would hide such a wait, so these tests look for the calls that wait."""

from __future__ import annotations

import traceback
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from sampleforge.algorithms.acting import Acting, ActingPlace
from sampleforge.algorithms.dqn.config import DqnConfig
from sampleforge.algorithms.dqn.learner import DqnLearner
from sampleforge.algorithms.exploring import epsilon_greedy
from sampleforge.algorithms.learning import LearnerPlace
from sampleforge.algorithms.rollout_learner import RolloutLearner
from sampleforge.replay.sample_batches import ReplaySample
from sampleforge.shared.newest import SharedWeights
from tests.support.graphs import updates
from tests.support.learners import config
from tests.support.q_learning import network, transitions

CPU = torch.device("cpu")
aten = torch.ops.aten
ASK = {aten._local_scalar_dense, aten.nonzero, aten.masked_select, aten.equal, aten.unique_dim}
BY_INDEX = {aten.index, aten.index_put, aten.index_put_}


class Waits(TorchDispatchMode):
    """Collects the places that ask for a number, or for a number of rows."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        packet = func.overloadpacket
        by_mask = packet in BY_INDEX and any(
            index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1]
        )
        if packet in ASK or by_mask:
            stack = traceback.extract_stack()
            ours = [frame for frame in stack if "sampleforge" in frame.filename]
            self.found.append(f"{packet} in {(ours or stack)[-1]}")
        return func(*args, **(kwargs or {}))


def watch(monkeypatch: pytest.MonkeyPatch, owner: type, method: str) -> list[str]:
    """What calls of a method ask for, from now on; begins with how often it was called."""
    found: list[str] = []
    plain = getattr(owner, method)

    def watched(*args: Any, **kwargs: Any) -> Any:
        with Waits() as waits:
            result = plain(*args, **kwargs)
        found.extend(waits.found or ["nothing"])
        return result

    monkeypatch.setattr(owner, method, watched)
    return found


@pytest.mark.parametrize("ask", ["a number", "a decision", "rows", "places"])
def test_the_watcher_reports_operations_that_wait_for_the_device(
    monkeypatch: pytest.MonkeyPatch, ask: str
) -> None:
    class Asking:
        def go(self) -> None:
            x = torch.arange(3.0)
            {
                "a number": lambda: float(x.sum()),
                "a decision": lambda: bool((x > 1).any()),
                "rows": lambda: x[x > 1],
                "places": lambda: (x > 1).nonzero(),
            }[ask]()

    found = watch(monkeypatch, Asking, "go")
    Asking().go()
    assert len(found) == 1 and found[0].startswith("aten.")


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"advantage": "gae", "num_epochs": 2, "minibatch_size": 16, "lr_schedule": "kl_adaptive"},
        {"env": "tests.support.envs:MaskedEnv", "exploration": "symmetric_kl"},
        {"env": "tests.support.envs:MixedActionEnv", "max_policy_lag": 3, "num_epochs": 1},
        {"env": "tests.support.envs:MixedActionEnv", "noise_correlation": 0.5},
        {"rnd_coeff": 0.5},
    ],
    ids=["vtrace", "gae", "masked actions", "mixed actions", "correlated noise", "rnd"],
)
def test_updates_and_acting_do_not_wait_for_the_device(
    monkeypatch: pytest.MonkeyPatch, more: dict[str, Any]
) -> None:
    learning = watch(monkeypatch, RolloutLearner, "update")
    acting = watch(monkeypatch, Acting, "compute")
    chosen = config(**more, inference="worker")  # as on a device
    assert chosen.model.normalise_observations is not False and chosen.normalise_returns
    list(updates(chosen, 3))
    assert len(learning) == 3 and len(acting) > 20
    assert set(learning + acting) == {"nothing"}


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("optimiser", ["adam", "rmsprop"])
def test_q_learning_and_acting_do_not_wait_for_the_device(
    monkeypatch: pytest.MonkeyPatch, optimiser: Any, masked: bool
) -> None:
    learning = watch(monkeypatch, DqnLearner, "update")
    acting = watch(monkeypatch, Acting, "compute")
    of = DqnConfig(
        learning_rate=1e-3,
        optimiser=optimiser,
        optimiser_eps=1e-6,
        target_update_interval=1,
    )
    learner = DqnLearner(network(1, masked), of, LearnerPlace(CPU))
    batch = transitions(masked=masked)
    learner.update(ReplaySample(batch, 0.4), 0.5)
    weights = SharedWeights(learner.model.state_dict())
    weights.publish(learner.model.state_dict(), 1)
    place = ActingPlace(torch.Generator().manual_seed(1), ladder=torch.rand(6))
    policy = epsilon_greedy(network(2, masked), weights, place, refresh_interval=1)
    no = torch.zeros(6, dtype=torch.bool)
    policy.act(batch.obs, torch.zeros(6, 0), no, torch.arange(6))
    assert learning + acting == ["nothing"] * 2
