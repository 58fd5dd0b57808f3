"""What a learner has beside its model is taken from another run as whole networks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from sampleforge.config import ConfigError
from sampleforge.run.folder.checkpoint import Checkpoint, CheckpointStore
from sampleforge.run.folder.initial import InitialWeights, initial_weights
from sampleforge.run.folder.run_folder import RunFolder
from sampleforge.topologies.config import AppoConfig
from tests.support.sac import (
    crossq_config,
    crossq_learner,
    sac_config,
    sac_learner,
    sample,
    td3_config,
    td3_learner,
)


def sac() -> Any:
    return sac_learner(sac_config())


def crossq() -> Any:
    return crossq_learner(crossq_config())


def td3() -> Any:
    return td3_learner(td3_config())


@pytest.mark.parametrize(
    ("source", "into", "taken"),
    [
        (sac, sac, {"critics", "target", "temperature"}),
        (crossq, crossq, {"critics", "temperature"}),
        (sac, td3, {"critics", "target"}),
        (sac, crossq, {"temperature"}),
        (crossq, sac, {"temperature"}),
    ],
)
def test_critics_are_taken_with_their_norms_and_targets_or_not_at_all(
    source: Callable[[], Any], into: Callable[[], Any], taken: set[str], tmp_path: Path
) -> None:
    one, other = source(), into()
    for seed in range(3):
        one.update(sample(seed=seed), 0.0)
    tensors, plain = one.state()
    before = other.state()[0]
    store = CheckpointStore(tmp_path, 1)
    checkpoint = Checkpoint(tensors, {"env_steps": 0, "learner": plain})
    store.save(checkpoint, env_steps=0, version=3, return_mean=None)
    run = RunFolder(tmp_path)
    initial = InitialWeights(run, store, "latest", (), "refuse")
    assert initial.leaves_critics(before) is ("critics" not in taken)
    of_critics = InitialWeights(run, store, "latest", ("critic",), "refuse")
    with pytest.raises(ConfigError, match=r"--init-parts critic: .* nothing would be taken"):
        of_critics.check_more_than_critics()
    of_policy = InitialWeights(run, store, "latest", ("encoder",), "refuse")
    assert not of_policy.leaves_critics(before), "as asked"
    assert initial.has_actor and not of_critics.has_actor
    initial.learner(other)
    after = other.state()[0]
    changed = {n.partition("/")[0] for n in after if not torch.equal(after[n], before[n])}
    assert changed == taken
    for name in after:
        if name.partition("/")[0] in taken:
            assert torch.equal(after[name], tensors[name]), name


def run_with(path: Path, *policies: str) -> str:
    """A run's folder with a checkpoint of each policy, or of its only one."""
    for policy in policies or ("",):
        store = CheckpointStore(path / "checkpoints" / policy, 1)
        store.folder.mkdir(parents=True)
        store.save(Checkpoint({}, {}), env_steps=0, version=0, return_mean=None)
    (path / "config.yaml").touch()
    return str(path)


@pytest.mark.parametrize("name", ["a", "a@b", "t12:30", "x@y:z/first"])
def test_a_folder_may_have_the_marks_of_a_place_in_its_name(name: str, tmp_path: Path) -> None:
    one, two = run_with(tmp_path / name), run_with(tmp_path / "several" / name, "one", "two")
    for place in (one, f"{one}/", f"{one}@latest", f"{two}:one", f"{two}:two@latest"):
        initial_weights(AppoConfig(), place, print)
    for place in (f"{one}@bst", f"{two}:one@bst"):
        with pytest.raises(ConfigError, match="'bst' must be latest or best"):
            initial_weights(AppoConfig(), place, print)


def test_a_place_that_can_be_no_folder_is_refused_in_words(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^--init-from .* is not a run folder: File name too"):
        initial_weights(AppoConfig(), f"{tmp_path}/{'n' * 300}@best", print)


def test_which_of_several_policies_is_asked_in_the_words_of_the_flag(tmp_path: Path) -> None:
    place = run_with(tmp_path / "{run}", "one", "two")
    with pytest.raises(ConfigError, match=r"policies one, two; .*: --init-from RUN:one$"):
        initial_weights(AppoConfig(), place, print)
