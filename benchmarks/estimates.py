"""How often intervals of off-policy estimates cover the truth, on a tabular task.

    PYTHONPATH=. python benchmarks/estimates.py --draws 1000 --episodes 50 100 200 1000

The intervals are those of the percentile bootstrap, of BCa (Efron 1987) and of the studentised
bootstrap (bootstrap-t), which `sampleforge estimate` uses. The task is that of the tests.
"""

from __future__ import annotations

import argparse
from statistics import NormalDist

import numpy as np

from sampleforge.tools.estimate.estimates import Terms, effective_episodes, estimates, terms
from tests.support.tabular import TabularTask

NORMAL = NormalDist()
TAILS = (0.025, 0.975)


def percentile(of: Terms, drawn: np.ndarray) -> tuple[float, float]:
    """The quantiles of the replicates."""
    low, high = np.quantile(drawn, TAILS)
    return float(low), float(high)


def bca(of: Terms, drawn: np.ndarray) -> tuple[float, float]:
    """The quantiles, corrected for bias and for the skewness of the influence of the episodes."""
    value = of.x.sum() / of.y.sum()
    below = np.clip(np.mean(drawn < value), 1 / len(drawn), 1 - 1 / len(drawn))
    influence = (of.x - value * of.y) / of.y.mean()
    scale = np.sum(influence**2) ** 1.5
    skew = np.sum(influence**3) / (6 * scale) if scale else 0.0
    bias = NORMAL.inv_cdf(float(below))
    levels = []
    for tail in TAILS:
        z = bias + NORMAL.inv_cdf(tail)
        levels.append(NORMAL.cdf(bias + z / (1 - skew * z)))
    low, high = np.quantile(drawn, levels)
    return float(low), float(high)


def replicates(of: dict[str, Terms], count: int, seed: int) -> dict[str, np.ndarray]:
    """The estimates of ``count`` bootstrap samples."""
    size = len(of["is"].x)
    rows = np.random.default_rng(seed).integers(0, size, (count, size))
    return {name: each.x[rows].sum(1) / each.y[rows].sum(1) for name, each in of.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--episodes", type=int, nargs="+", default=[50, 100, 200, 1000])
    parser.add_argument("--replicates", type=int, default=1000)
    parser.add_argument("--task", type=int, default=1, help="seed of the task")
    args = parser.parse_args()
    task = TabularTask.random(args.task)
    truth = task.truth()
    for episodes in args.episodes:
        covered = {(kind, n): 0 for kind in ("percentile", "BCa", "t") for n in NAMES}
        effective = 0.0
        for draw in range(args.draws):
            sample = task.sampled(episodes, np.random.default_rng([7, draw]))
            named = terms(sample, task.gamma)
            effective += effective_episodes(named["wis"].y) / args.draws
            drawn = replicates(named, args.replicates, draw)
            found = estimates(named, replicates=args.replicates, seed=draw)
            for name, each in named.items():
                ends = {
                    "percentile": percentile(each, drawn[name]),
                    "BCa": bca(each, drawn[name]),
                    "t": (found[name].low, found[name].high),
                }
                for kind, (low, high) in ends.items():
                    covered[kind, name] += low <= truth <= high
        print(f"{episodes} episodes, {effective:.1f} effective, {args.draws} draws")
        for kind in ("percentile", "BCa", "t"):
            shares = (f"{name} {covered[kind, name] / args.draws:.1%}" for name in NAMES)
            print(f"  {kind:>10}: {'  '.join(shares)}")


NAMES = ("is", "wis", "pdis", "dr")


if __name__ == "__main__":
    main()
