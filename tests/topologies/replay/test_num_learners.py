"""Several learners of one Q-network (apex --num-learners) take the steps of one learner."""

from __future__ import annotations

import dataclasses
import re
import threading
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import pytest
import torch

from sampleforge.algorithms.averaging import Averaging, DataParallel
from sampleforge.algorithms.dqn.learner import DqnLearner
from sampleforge.algorithms.experience import Share
from sampleforge.algorithms.learning import LearnerPlace
from sampleforge.api import train
from sampleforge.config import ConfigError
from sampleforge.models.config import ModelConfig
from sampleforge.ops.running_stats import alone
from sampleforge.peers.group import RankGroup
from sampleforge.replay.exchange import SampleRelay, SampleRequests
from sampleforge.replay.sample_batches import SampleBatches, SampleReader
from sampleforge.replay.samples import Gathered, Sequences, Transitions
from sampleforge.rollouts.batch import Taken
from sampleforge.run.reports.metrics import read_metrics
from sampleforge.shared.wakeup import Wakeup
from sampleforge.spec import ACTION
from sampleforge.topologies.config import ApexConfig
from sampleforge.topologies.pairings.dqn_defaults import resolve_defaults
from sampleforge.workers.group_member import check_same_state
from tests.support.apex_graphs import apex_config, build_apex
from tests.support.graphs import spec_of
from tests.support.pairings import network_maker
from tests.support.rank_threads import on_ranks

ONE_AT_A_TIME = threading.Lock()
"""Torch's global generator, which the learners' threads share, is seeded."""
UPDATES, BATCH, POOL = 20, 12, 60
OF_LEARNER_0 = [item for item in range(BATCH) if item % 2 == 0 or item % 3 == 0]
"""Indices in a sample of all that learner 0 reads, of two learners and of three."""
LENGTH = 6
MEANS_OF_SEQUENCES = ("td_error_mean", "importance_weight_mean")


class Updated(NamedTuple):
    """An update, with what belongs to the whole sample."""

    metrics: dict[str, float]
    trained: int
    errors: npt.NDArray[np.float32] | None
    late: int


class PoolReader:
    """Reads items out of a fixed pool; an item of generation 0 was evicted."""

    def __init__(self, config: ApexConfig) -> None:
        spec, torch_seed = spec_of(config), torch.Generator().manual_seed(3)
        choices = spec.actions[ACTION].categories[0]
        self.time = () if config.sequences is None else (LENGTH,)
        after = () if config.sequences is None else (LENGTH + 1,)

        def draw(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, generator=torch_seed)

        def obs() -> dict[str, torch.Tensor]:
            return {n: draw(*after, POOL, *o.shape) for n, o in spec.observations.items()}

        shape = (*self.time, POOL)
        self.actions = {ACTION: torch.randint(0, choices, shape, generator=torch_seed)}
        self.columns = {
            "returns": draw(*shape) + 1.0,
            "discount": torch.where(draw(*shape) > 1.0, 0.0, 0.97),
            "reward": draw(*shape),
        }
        self.obs, self.next_obs = obs(), obs()
        if self.time:
            steps = (torch.rand(shape, generator=torch_seed) * 3).long()
            last = torch.arange(LENGTH, 0, -1).unsqueeze(1)
            self.columns["steps"] = torch.minimum(steps, last)
            self.first = draw(LENGTH + 1, POOL) > 1.5
            self.state = draw(POOL, config.model.state_size)

    def read(
        self,
        items: npt.NDArray[np.int64],
        generations: npt.NDArray[np.int64],
        scaled_probability: npt.NDArray[np.float64],
    ) -> Any:
        still_valid = generations == 1
        at = torch.from_numpy(items[still_valid])
        probability = torch.from_numpy(scaled_probability[still_valid].copy())
        if not self.time:
            plain: dict[str, Any] = {n: c[at] for n, c in self.columns.items()}
            obs, after = ({n: o[at] for n, o in x.items()} for x in (self.obs, self.next_obs))
            batch = Transitions(
                obs=obs,
                actions={n: a[at] for n, a in self.actions.items()},
                next_obs=after,
                scaled_probability=probability,
                **plain,
            )
            return Gathered(batch, still_valid, len(batch.returns))
        plain = {n: c[:, at] for n, c in self.columns.items()}
        sequences = Sequences(
            obs={n: o[:, at] for n, o in self.obs.items()},
            actions={n: a[:, at] for n, a in self.actions.items()},
            is_first=self.first[:, at],
            state=self.state[at],
            scaled_probability=probability,
            **plain,
        )
        return Gathered(sequences, still_valid, int((plain["steps"][2:] > 0).sum()))


def some_config(**kwargs: Any) -> ApexConfig:
    model: dict[str, Any] = {"hidden_sizes": (8,), "core_size": 6, "normalise_observations": False}
    model["core"] = kwargs.pop("core", "none")
    if model["core"] != "none":
        kwargs |= {"burn_in": 2, "sequence_length": LENGTH, "sequence_overlap": 3}
    chosen = ApexConfig(
        env="tests.support.envs:CodeEnv",
        model=ModelConfig(**model),
        target_update_interval=7,
        learning_rate=1e-3,
        **kwargs,
    )
    return resolve_defaults(chosen, spec_of(chosen))


def requests_of_draws() -> tuple[SampleRequests, list[npt.NDArray[np.int64]]]:
    """A request with a sample, and the samples' random numbers, one for each update."""
    random = np.random.default_rng(5)
    requests = SampleRequests(1, BATCH, [Wakeup()], Wakeup())
    return requests, [random.integers(0, POOL, BATCH) for _ in range(UPDATES)]


def learn(config: ApexConfig, share: Share, group: RankGroup | None) -> list[Any]:
    """The learner's tensors after all updates, and what it said of each."""
    requests, draws = requests_of_draws()
    reader = PoolReader(config)

    with ONE_AT_A_TIME:
        network = network_maker(config, spec_of(config), 1)()
    learner = DqnLearner(
        network,
        config,
        LearnerPlace(
            torch.device("cpu"),
            noise_seed=4,
            averaging=Averaging() if group is None else DataParallel(group),
        ),
    )
    cpu, unused = torch.device("cpu"), cast(Any, None)
    batches = SampleBatches(
        requests,
        lambda device: reader,  # type: ignore[arg-type, return-value]
        config,
        cpu,
        samples=unused,
        metrics=unused,
        learner=share.learner,
        learners=share.learners,
    )
    samples = SampleReader(batches, alone if group is None else learner.averaging.all_gather)

    def update(progress: float) -> Updated | None:
        sample = samples.read(Taken(0, progress))
        if sample is None:
            return None
        metrics, trained, errors = learner.update(sample, progress)
        return Updated(metrics, trained, samples.errors_of_all(errors), samples.late)

    said: list[Updated | None] = []
    for number, items in enumerate(draws):
        requests.items[0], requests.generations[0] = items, 1
        requests.scaled_probability[0] = 0.2 + items / POOL
        if number % 5 == 1:
            requests.generations[0, OF_LEARNER_0] = 0
        if number == 7:
            requests.generations[0] = 0
        said.append(update(number / UPDATES))
        if group is not None:
            check_same_state(learner, group)
    return [learner.state()[0], said]


@pytest.mark.parametrize("learners", [2, 3])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"lr_schedule": "linear", "train_for_env_steps": 1, "priority_beta_final": 1.0},
        {"value_distribution": "c51", "v_min": -5.0, "v_max": 5.0},
        {"value_distribution": "quantile", "noisy_nets": True},
        {"core": "gru"},
    ],
    ids=lambda settings: "-".join(map(str, settings.values())) or "dqn",
)
def test_k_learners_take_the_steps_of_one_with_the_whole_sample(
    learners: int, settings: dict[str, Any]
) -> None:
    """Both networks, optimiser, scale of rewards, metrics and new priorities, over 20 updates."""
    config = some_config(**settings)
    state, said = learn(config, Share(), None)
    found = on_ranks(learners, lambda g: learn(config, Share(g.rank, learners), g))
    assert sum(one is None for one in said) == 1, "of one sample nothing was left"
    for tensors, said_by in found:
        for name, expected in state.items():
            torch.testing.assert_close(
                tensors[name], expected, atol=1e-5, rtol=1e-5, msg=f"{name}: {{}}".format
            )
            assert torch.equal(tensors[name], found[0][0][name]), f"{name} differs"
        for whole, part in zip(said, said_by, strict=True):
            assert (whole is None) == (part is None)
            if whole is None:
                continue
            np.testing.assert_allclose(part.errors, whole.errors, rtol=1e-3, atol=1e-5)
            for name, value in whole.metrics.items():
                if name in MEANS_OF_SEQUENCES and config.sequences is not None:
                    continue  # learners count by steps, of which sequences have different numbers
                assert part.metrics[name] == pytest.approx(value, rel=1e-3, abs=1e-4), name
    for number, whole in enumerate(said):
        if whole is not None:
            parts = [said_by[number] for _, said_by in found]
            assert sum(part.trained for part in parts) == whole.trained
            assert all(part.late == whole.late for part in parts)


def test_every_learner_reads_items_of_the_whole_replay() -> None:
    """With priorities, each item of a sample is drawn from the next part of the replay."""
    unused = cast(Any, None)
    requests, _ = requests_of_draws()
    parts = [
        SampleBatches(
            requests,
            unused,
            some_config(),
            torch.device("cpu"),
            samples=unused,
            metrics=unused,
            learner=learner,
            learners=3,
        ).part
        for learner in range(3)
    ]
    read = [np.arange(BATCH)[part].tolist() for part in parts]
    assert read == [[0, 3, 6, 9], [1, 4, 7, 10], [2, 5, 8, 11]]


def test_the_relay_keeps_the_order_and_the_progress_for_every_learner() -> None:
    relay = SampleRelay([Wakeup(), Wakeup()], 4)
    for request, progress in ((2, 0.1), (0, 0.2), (3, 0.3)):
        relay.send(request, progress)
    for learner in (2, 1):
        taken = [relay.take(learner) for _ in range(4)]
        assert taken == [(2, 0.1), (0, 0.2), (3, 0.3), None]


@pytest.mark.multiprocess
@pytest.mark.parametrize("core", ["none", "gru"])
def test_learners_train_from_one_replay_and_resume(tmp_path: Path, core: str) -> None:
    """--debug compares the checksums of both networks and the optimiser after each update."""
    run = str(tmp_path / "run")
    small = {"hidden_sizes": (8,), "core": core, "core_size": 8}
    sequences: dict[str, Any] = {}
    if core != "none":
        sequences = {"sequence_length": 8, "sequence_overlap": 4, "burn_in": 2, "rollout": 12}
    chosen = apex_config(
        num_learners=2,
        model=ModelConfig(**small, normalise_observations=True),  # type: ignore[arg-type]
        replay_capacity=4000,
        run_dir=run,
        quiet=True,
        device="cpu",
        train_for_env_steps=3000,
        **sequences,
    )
    first = train(chosen).summary
    assert first["status"] == "finished" and first["updates"] > 20
    # A report has what was learned since the one before: on a slow machine the last has nothing.
    assert any("td_error_mean" in report for report in read_metrics(Path(run, "metrics.jsonl")))
    more = dataclasses.replace(chosen, num_learners=1, train_for_env_steps=6000)
    assert train(more).summary["updates"] > first["updates"]


def test_a_batch_that_learners_cannot_share_is_refused_with_the_nearest_size() -> None:
    answer = "--batch-size 16 cannot be dealt in equal parts to --num-learners 3; nearest: 15 or 18"
    with pytest.raises(ConfigError, match=re.escape(answer)):
        build_apex(apex_config(num_learners=3))
