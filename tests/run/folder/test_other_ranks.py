"""DD-PPO that goes on with another number of ranks than it had, as on another machine."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from sampleforge.cli.train import parse_config
from sampleforge.run.folder.run_folder import RunFolder
from sampleforge.topologies.config import DdppoConfig
from sampleforge.topologies.pairings.ppo_defaults import resolve_defaults
from tests.support.graphs import spec_of
from tests.support.pairings import plan_of


@pytest.mark.parametrize(("before", "now"), [(2, 1), (1, 2)])
def test_ranks_of_another_number_go_on_with_the_batch_of_all(
    folder: RunFolder, before: int, now: int
) -> None:
    """The number of ranks is left open, as on another machine, or given."""
    asked = DdppoConfig(env="CartPole-v1")
    spec = spec_of(asked)
    first = resolve_defaults(dataclasses.replace(asked, num_ranks=before), spec)
    batch = plan_of(first, spec, "cpu").batch_size  # type: ignore[arg-type]
    folder.write_config(dataclasses.replace(first, batch_size=batch, seed=1), asked)

    def on_this_machine(config: DdppoConfig) -> Any:
        ranks = config.num_ranks or now
        return resolve_defaults(dataclasses.replace(config, num_ranks=ranks), spec)

    resumed = folder.check_resume(asked, on_this_machine)
    config = on_this_machine(resumed.used)
    plan = plan_of(config, spec, "cpu")
    assert config.minibatch_size * now == first.minibatch_size * before  # type: ignore[operator]
    assert plan.batch_size * now == batch * before == 2048
    ranks = {1: "1 rank", 2: "2 ranks"}[now]
    assert resumed.notes == [
        f"{ranks} in place of {before}: a batch of all of them has 2,048 (before 2,048) env steps, "
        "and a minibatch 256 (before 256)"
    ]
    given = dataclasses.replace(asked, num_ranks=now, minibatch_size=config.minibatch_size)
    assert folder.check_resume(given, on_this_machine).used.minibatch_size == config.minibatch_size
    given = dataclasses.replace(asked, num_ranks=now, minibatch_size=first.minibatch_size)
    resumed = folder.check_resume(given, on_this_machine)
    assert resumed.used.minibatch_size == first.minibatch_size
    said = f"--minibatch-size {first.minibatch_size} (was {config.minibatch_size})"
    assert f"Changed from here on: {said}" in resumed.notes


@pytest.mark.long
def test_the_config_of_a_run_is_repeated_with_the_batch_of_all_ranks(folder: RunFolder) -> None:
    """Its ranks were those of its machine, and so are the sizes of one of them."""
    asked = DdppoConfig(env="CartPole-v1")
    spec = spec_of(asked)
    first = resolve_defaults(dataclasses.replace(asked, num_ranks=2), spec)
    folder.write_config(dataclasses.replace(first, batch_size=1024, seed=1), asked)
    repeated = parse_config("ddppo", ["--config", str(folder.config_file)])
    assert (repeated.num_ranks, repeated.num_epochs, repeated.seed) == (None, 10, 1)
    for ranks in (1, 2, 4):
        config = resolve_defaults(dataclasses.replace(repeated, num_ranks=ranks), spec)
        plan = plan_of(config, spec, "cpu")  # type: ignore[arg-type]
        assert plan.batch_size * ranks == 2048
        assert config.minibatch_size and config.minibatch_size * ranks == 256
