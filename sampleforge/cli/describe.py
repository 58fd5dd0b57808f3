"""The command `sampleforge describe ALGO [flags]`: print the wiring of a run without training."""

from __future__ import annotations

from collections.abc import Sequence

from sampleforge.cli.train import parse_config
from sampleforge.config import ConfigError

USAGE = """\
usage: sampleforge describe ALGO [flags of train]

Print the workers, channels and sizes that a run with these flags would have, without training:
  sampleforge describe appo --env CartPole-v1"""


def run(args: Sequence[str]) -> int:
    """Print the plan, its reasons and the wiring. Raises ConfigError for a config that cannot
    run."""
    if not args or args[0] in ("-h", "--help"):
        print(USAGE)
        return 0 if args else 2
    asked = parse_config(args[0], args[1:], "describe")
    from sampleforge.env.probe import EnvProbeError
    from sampleforge.run.beginning import wired
    from sampleforge.run.screen.messages import plan_line, reason_line

    try:
        graph, config, plan, spec = wired(asked)
    except EnvProbeError as error:
        raise ConfigError(f"The environment {error.what}:\n{error}") from error
    print(plan_line(config, plan))
    print(reason_line(config, plan, spec))
    print(graph.describe())
    return 0
