"""How close ratings come to the known strengths of players: `python benchmarks/ratings.py`.

Six players of fixed strength play ``--games`` games a pair, in an order in which all pairs take
turns. Prints, for several seeds, the largest error of the fitted ratings and of openskill's online
ratings (both centred, in Elo), the mean of the latter over the last quarter of the games, and the
time of an online update.
"""

from __future__ import annotations

import argparse
from itertools import combinations
from time import perf_counter

import numpy as np

from sampleforge.populations.ratings import OnlineRatings, Results, fit_elo

STRENGTHS = {"a": 800.0, "b": 1000.0, "c": 1150.0, "d": 1300.0, "e": 1450.0, "f": 1700.0}


def measure(games: int, seed: int) -> tuple[float, float, float, float]:
    """Return the largest error of the fit, that of the online ratings at the end, the mean of the
    latter over the last quarter of the games, and the seconds of an online update."""
    rng, names = np.random.default_rng(seed), list(STRENGTHS)
    true = np.array(list(STRENGTHS.values()))
    true -= true.mean()
    online, results = OnlineRatings(), Results(names)
    for name in names:
        online.add_player(name)
    late, spent, played = [], 0.0, 0
    for number in range(games):
        for first, second in combinations(names, 2):
            gap = STRENGTHS[second] - STRENGTHS[first]
            score = float(rng.random() < 1.0 / (1.0 + 10.0 ** (gap / 400.0)))
            results.add(first, second, score)
            started = perf_counter()
            online.add(first, second, score)
            spent += perf_counter() - started
            played += 1
        found = np.array([online[name].elo for name in names])
        if number >= games * 3 // 4:
            late.append(float(np.abs(found - found.mean() - true).max()))
    fitted = fit_elo(results, anchor=0.0).ratings
    return float(np.abs(fitted - true).max()), late[-1], float(np.mean(late)), spent / played


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--games", type=int, default=2000, help="games a pair")
    parser.add_argument("--seeds", type=int, default=10)
    args = parser.parse_args()
    print("seed  fit   online  online, last quarter  us/update")
    for seed in range(args.seeds):
        fit, end, late, seconds = measure(args.games, seed)
        print(f"{seed:4}  {fit:4.1f}  {end:6.1f}  {late:20.1f}  {seconds * 1e6:9.1f}", flush=True)


if __name__ == "__main__":
    main()
