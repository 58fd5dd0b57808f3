"""The callbacks that a config asks for: self-play."""

from __future__ import annotations

from sampleforge.populations.league import LeagueRules
from sampleforge.session.callback import Callback
from sampleforge.topologies.config import AnyConfig, DdppoConfig


def population_callbacks(config: AnyConfig) -> list[Callback]:
    """Return the callbacks of a run with this config, for its `Session`. Raises ConfigError if a
    package that they need is missing."""
    if isinstance(config, DdppoConfig) or not config.opponent_pool or config.benchmark:
        return []
    from sampleforge.populations.self_play import SelfPlay

    rules = LeagueRules(
        rule=config.opponent_draw,
        latest=config.opponent_latest,
        power=config.opponent_power,
        window=config.opponent_window,
        size=config.opponent_pool,
    )
    return [SelfPlay(rules, config.opponent_interval)]
