"""The `sampleforge` command: a verb and its flags.

Nothing heavy is imported before a verb runs, so that --help answers at once.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable

from sampleforge import __version__
from sampleforge.config import ConfigError, nearest
from sampleforge.runtime.streams import write_any_letter

VERBS = {
    "train": "train an agent, or resume a run",
    "describe": "print the wiring of a run without training",
    "tune": "find the fastest flags for this machine",
    "eval": "play episodes with a trained policy",
    "plot": "draw the learning curves of runs",
    "envs": "list the environments",
    "presets": "list the presets, or print one",
    "doctor": "check this machine and installation",
}
EXAMPLES = """\
examples:
  sampleforge train appo --env CartPole-v1 --train-for-seconds 30 --run-dir runs/cartpole
  sampleforge eval runs/cartpole --episodes 100
  sampleforge plot runs/cartpole --out cartpole.png"""


def main(argv: list[str] | None = None) -> int:
    """Run the command line ``argv`` (None: that of this process). Return the exit code: 0 done,
    1 failed, 2 bad command line or config, 130 interrupted."""
    args = sys.argv[1:] if argv is None else argv
    write_any_letter()
    try:
        return _run(args)
    except ConfigError as error:
        print(f"sampleforge: error: {error}", file=sys.stderr)
        return 2
    except SystemExit as end:  # raised by tyro after --help or a bad flag
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # `sampleforge envs | head`
        sys.stderr.close()
        return 1


def _run(args: list[str]) -> int:
    if not args or args[0] in ("-h", "--help"):
        print(_usage())
        return 0 if args else 2
    if args[0] == "--version":
        print(f"SampleForge {__version__}")
        return 0
    return _verb(args[0])(args[1:])


def _verb(name: str) -> Callable[[list[str]], int]:
    """Return the function that runs a verb. Raises ConfigError, which names the nearest verb, for
    an unknown one."""
    if name not in VERBS:
        near = nearest(name, VERBS, 1)
        hint = (
            f"Did you mean `sampleforge {near[0]}`?" if near else f"There are {', '.join(VERBS)}."
        )
        raise ConfigError(f"Unknown command {name}. {hint}")
    run: Callable[[list[str]], int] = importlib.import_module(f"sampleforge.cli.{name}").run
    return run


def _usage() -> str:
    verbs = "\n".join(f"  {verb:<9} {text}" for verb, text in VERBS.items())
    return (
        f"usage: sampleforge COMMAND ...\n\nReinforcement learning on one machine.\n\ncommands:\n"
        f"{verbs}\n\n{EXAMPLES}\n\n`sampleforge COMMAND --help` says more."
    )
