"""The scales on which scores of different environments are compared."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from sampleforge.config import ConfigError, nearest
from sampleforge.tools.compare.statistics import Floats


class Scale(NamedTuple):
    """The return that counts as 0, and the one that counts as 1. ``source``: where it is from."""

    low: float
    high: float
    source: str = "given"

    def __call__(self, returns: Floats) -> Floats:
        return (returns - self.low) / (self.high - self.low)


ATARI: dict[str, tuple[float, float]] = {
    "Alien": (227.8, 7127.7),
    "Amidar": (5.8, 1719.5),
    "Assault": (222.4, 742.0),
    "Asterix": (210.0, 8503.3),
    "Asteroids": (719.1, 47388.7),
    "Atlantis": (12850.0, 29028.1),
    "BankHeist": (14.2, 753.1),
    "BattleZone": (2360.0, 37187.5),
    "BeamRider": (363.9, 16926.5),
    "Berzerk": (123.7, 2630.4),
    "Bowling": (23.1, 160.7),
    "Boxing": (0.1, 12.1),
    "Breakout": (1.7, 30.5),
    "Centipede": (2090.9, 12017.0),
    "ChopperCommand": (811.0, 7387.8),
    "CrazyClimber": (10780.5, 35829.4),
    "Defender": (2874.5, 18688.9),
    "DemonAttack": (152.1, 1971.0),
    "DoubleDunk": (-18.6, -16.4),
    "Enduro": (0.0, 860.5),
    "FishingDerby": (-91.7, -38.7),
    "Freeway": (0.0, 29.6),
    "Frostbite": (65.2, 4334.7),
    "Gopher": (257.6, 2412.5),
    "Gravitar": (173.0, 3351.4),
    "Hero": (1027.0, 30826.4),
    "IceHockey": (-11.2, 0.9),
    "Jamesbond": (29.0, 302.8),
    "Kangaroo": (52.0, 3035.0),
    "Krull": (1598.0, 2665.5),
    "KungFuMaster": (258.5, 22736.3),
    "MontezumaRevenge": (0.0, 4753.3),
    "MsPacman": (307.3, 6951.6),
    "NameThisGame": (2292.3, 8049.0),
    "Phoenix": (761.4, 7242.6),
    "Pitfall": (-229.4, 6463.7),
    "Pong": (-20.7, 14.6),
    "PrivateEye": (24.9, 69571.3),
    "Qbert": (163.9, 13455.0),
    "Riverraid": (1338.5, 17118.0),
    "RoadRunner": (11.5, 7845.0),
    "Robotank": (2.2, 11.9),
    "Seaquest": (68.4, 42054.7),
    "Skiing": (-17098.1, -4336.9),
    "Solaris": (1236.3, 12326.7),
    "SpaceInvaders": (148.0, 1668.7),
    "StarGunner": (664.0, 10250.0),
    "Surround": (-10.0, 6.5),
    "Tennis": (-23.8, -8.3),
    "TimePilot": (3568.0, 5229.2),
    "Tutankham": (11.4, 167.6),
    "UpNDown": (533.4, 11693.2),
    "Venture": (0.0, 1187.5),
    "VideoPinball": (16256.9, 17667.9),
    "WizardOfWor": (563.5, 4756.5),
    "YarsRevenge": (3092.9, 54576.9),
    "Zaxxon": (32.5, 9173.3),
}
"""Game -> returns of random play and of a human tester, as in Wang et al. 2016 (arXiv 1511.06581)
and the papers after it: unclipped, whole games, up to 30 no-ops at the start, at most 108,000
frames."""
HUMAN = "random and human play, Wang et al. 2016"


def scales(envs: Iterable[str], words: Mapping[str, object]) -> dict[str, Scale]:
    """Return the scale of each of ``envs`` that has one: that of ``words`` (environment -> text
    LOW..HIGH), or for an Atari game that of random and human play. Raises ConfigError for a word
    that is no range, or whose environment is not among ``envs``."""
    known = list(dict.fromkeys(envs))
    given = {}
    for env, word in words.items():
        if env not in known:
            near = nearest(env, known, 1)
            hint = f"did you mean {near[0]}?" if near else f"they are in {', '.join(known)}"
            raise ConfigError(f"--normalise {env}={word}: no run is in {env}; {hint}")
        given[env] = _scale(env, str(word))
    return {env: scale for env in known if (scale := given.get(env) or of_atari(env)) is not None}


def _scale(env: str, word: str) -> Scale:
    low, dots, high = word.partition("..")
    try:
        scale = Scale(float(low), float(high))
    except ValueError:
        scale = Scale(1.0, 1.0)
    if not (dots and -float("inf") < scale.low < scale.high < float("inf")):
        raise ConfigError(
            f"--normalise {env}={word}: must be LOW..HIGH with two numbers, the returns that count "
            "as 0 and as 1, as in CartPole-v1=0..500"
        )
    return scale


def of_atari(env: str) -> Scale | None:
    """Return the scale of random and human play of an Atari game, such as ALE/Pong-v5; None for
    another environment."""
    if not env.startswith("ALE/"):
        return None
    game = env.removeprefix("ALE/").partition("-")[0]
    return Scale(*ATARI[game], HUMAN) if game in ATARI else None
