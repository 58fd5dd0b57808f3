"""The settings of PQN's loss and exploration."""

from __future__ import annotations

from dataclasses import dataclass

from sampleforge.config import Checked, check_range


@dataclass(frozen=True)
class PqnLossConfig(Checked):
    return_lambda: float | None = None
    """Trace decay of the lambda-returns that are learned, 0 to 1 (default: 0.65, without planes or
    images 0.95)."""
    dueling: bool = False
    """Separate heads for the state's value and the actions' advantages."""
    head_size: int = 0
    """Width of a hidden layer in each head (0: no such layer)."""
    epsilon_first: float = 1.0
    """Probability of a random action at the beginning of the training, 0 to 1."""
    epsilon_last: float = 0.05
    """That probability from the end of its fall on, 0 to 1."""
    epsilon_env_steps: int | None = None
    """Env steps of the run over which it falls, linearly (default: a tenth of
    --train-for-env-steps, at most 1000000; 100000 without that)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, "return_lambda epsilon_first epsilon_last", low=0, high=1)
        check_range(self, "head_size", low=0)
        check_range(self, "epsilon_env_steps", low=1)
