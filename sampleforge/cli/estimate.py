"""The command `sampleforge estimate RUN_DIR DATASET`: estimate a policy's return from data."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import tyro

from sampleforge.cli.flags import parse
from sampleforge.cli.play_flags import TrustFlags
from sampleforge.config import check_range, check_seed
from sampleforge.runtime.files import to_json


@dataclass(frozen=True)
class EstimateFlags(TrustFlags):
    run_dir: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN_DIR")]
    """Folder of the run whose policy's return is estimated."""
    dataset: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DATASET")]
    """Dataset with the log-probabilities of its actions, as --record or `sampleforge record
    --stochastic` write it: a folder, or the name of a local dataset of Minari."""
    gamma: float = 1.0
    """Discount of the return per env step, 0 to 1 (1: the return that `sampleforge eval`
    prints)."""
    stochastic: bool = True
    """Estimate the policy that samples its actions, as in training; off: the one that takes the
    most likely actions, as `sampleforge eval` does by default."""
    doubly_robust: bool = True
    """Make the doubly robust estimate, too, for which a Q-function is fitted to the data."""
    max_ratio: float | None = None
    """Clip cumulative probability ratios to this value, at least 1: less variance, but a bias
    (default: they are not clipped)."""
    level: float = 0.95
    """Probability with which an interval covers the truth."""
    replicates: int = 2000
    """Replicates of the bootstrap."""
    seed: int = 0
    """Seed of the bootstrap and of the Q-function."""
    checkpoint: Literal["latest", "best"] = "latest"
    """best: that of the highest mean return in the run's own evaluations (--evaluate-interval); in
    a run without them, over 100 episodes of training."""
    policy: str | None = None
    """Which policy, in a run with several (--num-policies), such as policy_0."""
    out: str | None = None
    """Draw the estimates with their intervals into this file: .png, .pdf or .svg."""
    json: bool = False
    """Print only the last line, the results as one JSON object."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, "gamma", low=0, high=1)
        check_range(self, "level", low=0.5, high=0.999)
        check_range(self, "max_ratio", low=1)
        check_range(self, "replicates", low=100)
        check_seed(self)


def run(args: Sequence[str]) -> int:
    """Estimate, and print the result as one JSON object in the last line. Raises ConfigError."""
    text = (
        "Estimate the return of a trained policy from episodes that another policy has played, "
        "without playing any: importance sampling, weighted and per-decision importance sampling, "
        "and the doubly robust estimate, with bootstrap intervals."
    )
    flags = parse(EstimateFlags, args, "sampleforge estimate", text)
    from sampleforge.cli.outputs import check_out
    from sampleforge.tools.estimate.estimation import NAMES, EstimationRule, estimate

    out = None if flags.out is None else check_out(flags.out)
    rule = EstimationRule(
        gamma=flags.gamma,
        greedy=not flags.stochastic,
        doubly_robust=flags.doubly_robust,
        max_ratio=flags.max_ratio,
        level=flags.level,
        replicates=flags.replicates,
        seed=flags.seed,
    )
    result = estimate(
        flags.run_dir,
        flags.dataset,
        rule,
        which=flags.checkpoint,
        policy=flags.policy,
        trust=flags.trusted,
    )
    for warning in result["warnings"]:
        print(f"Warning: {warning}", file=sys.stderr)
    if not flags.json:
        print(_table(result, NAMES))
        if out is not None:
            print(out)
    print(to_json(result), flush=True)  # whatever becomes of the figure
    if out is not None:
        from sampleforge.tools.estimate.estimates import draw_estimates

        draw_estimates(result, NAMES, out)
    return 0


def _table(result: Mapping[str, Any], names: Mapping[str, str]) -> str:
    """Return the estimates as an aligned table."""
    width = max(map(len, names.values()))
    interval = f"{100 * result['level']:g}% interval"
    effective = f"{result['episodes_effective']:,.1f} of {result['episodes']:,}"
    lines = [f"{'estimate':<{width}}  {'return':>12}  {interval:>26}  {'effective episodes':>20}"]
    for name, title in names.items():
        if name not in result:
            continue
        each = result[name]
        ends = f"{each['low']:,.4g} to {each['high']:,.4g}"
        lines.append(f"{title:<{width}}  {each['value']:>12,.4g}  {ends:>26}  {effective:>20}")
    mean = result["behaviour_return"]
    return "\n".join([*lines, f"{'(mean return of the episodes)':<{width}}  {mean:>12,.4g}"])
