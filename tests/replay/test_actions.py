"""Actions of any space come out of the replay as the policy gave them, beside their own step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from sampleforge.replay.shard import Sample
from tests.support.acted_replay import ActedReplay
from tests.support.saved_replays import restored, saved

KINDS = ("whole", "frames", "compressed", "sequences", "sequences of frames")
SPACES: dict[str, Any] = {
    "discrete": spaces.Discrete(4),
    "box of rank 1": spaces.Box(-1, 1, (2,), np.float32),
    "box of rank 2": spaces.Box(-1, 1, (2, 3), np.float64),
    "multidiscrete": spaces.MultiDiscrete([3, 5, 2]),
    "dict": spaces.Dict(
        {
            "arm": spaces.Dict({"move": spaces.Box(-1, 1, (3,), np.float32)}),
            "keys": spaces.MultiBinary(4),
            "mode": spaces.Discrete(3),
        }
    ),
}


def everything(replay: ActedReplay) -> Sample:
    """All items that can be drawn, each once."""
    usable = replay.shard._usable[list(replay.shard.stored_slots)] > 0
    slot, item = np.nonzero(usable)
    stored = np.array(replay.shard.stored_slots)[slot]
    items = stored * replay.slots.shape.items + item
    return Sample(items, replay.slots.generation[stored], np.ones(len(items)))


def filled(space: str, kind: str) -> ActedReplay:
    """A replay that was filled more than once all round."""
    if kind == "compressed":
        pytest.importorskip("lz4")
    replay = ActedReplay(SPACES[space], kind)
    replay.fill(9)
    return replay


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("space", SPACES)
def test_actions_are_read_as_they_were_taken(space: str, kind: str) -> None:
    replay = filled(space, kind)
    assert replay.check(everything(replay)) > 80
    assert replay.check(replay.shard.draw(64)) >= 64


@pytest.mark.long
@pytest.mark.parametrize("kind", ["compressed", "sequences"])
@pytest.mark.parametrize("space", ["box of rank 2", "dict"])
def test_actions_are_saved_and_restored_with_the_replay(
    space: str, kind: str, tmp_path: Path
) -> None:
    before, after = filled(space, kind), ActedReplay(SPACES[space], kind)
    reference, problem = saved(before, tmp_path)
    assert problem is None
    restored(after, reference, tmp_path)
    assert after.check(everything(after)) == before.check(everything(before))
    assert after.check(after.shard.draw(64)) >= 64


@pytest.mark.parametrize("kind", ["whole", "sequences"])
def test_actions_of_items_that_were_evicted_are_left_out(kind: str) -> None:
    replay = filled("dict", kind)
    drawn = everything(replay)
    gone = np.arange(len(drawn.items)) % 3 == 0
    drawn.generations[gone] -= 1
    whole, part = (replay.reader.read(*each)[0] for each in (everything(replay), drawn))
    kept = torch.from_numpy(~gone)
    for name, leaf in part.actions.items():
        every = whole.actions[name]
        assert torch.equal(leaf, every[kept] if kind == "whole" else every[:, kept])
        one = every[:1] if kind == "whole" else every[:, :1]
        none = part.blank().actions[name]
        assert none.shape == one.shape and none.dtype == one.dtype and not none.any()
