"""The `sampleforge` command: a verb and its flags.

Nothing heavy is imported before a verb runs, so that --help answers at once.
"""

from __future__ import annotations

import errno
import importlib
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import NoReturn

from sampleforge.config import ConfigError, UserError
from sampleforge.names import nearest
from sampleforge.runtime.imports import is_importing
from sampleforge.runtime.streams import open_closed_streams, write_any_letter
from sampleforge.version import __version__

VERBS = {
    "train": "train an agent, or resume a run",
    "describe": "print the wiring of a run without training",
    "tune": "find the fastest flags, or the settings that learn most",
    "eval": "play episodes with a trained policy",
    "record": "play episodes with a trained policy into a dataset",
    "card": "write the model card of a run, with a curve and a video",
    "export": "write a trained policy as an ONNX file or a torch.export program",
    "estimate": "estimate a policy's return from recorded episodes",
    "plot": "draw runs, sweeps, populations or self-play",
    "compare": "compare settings over seeds and environments, with intervals",
    "serve": "show runs live in a browser on this machine",
    "tournament": "let policies play each other",
    "sweep": "search settings by many training runs",
    "pbt": "train a population of runs that copy and mutate",
    "envs": "list the environments",
    "check-env": "check an environment before training in it",
    "presets": "list the presets, or print one",
    "doctor": "check this machine and installation",
    "completion": "have the shell complete commands and flags",
}
EXAMPLES = """\
examples:
  sampleforge train appo --env CartPole-v1 --train-for-seconds 30 --run-dir runs/cartpole
  sampleforge eval runs/cartpole --episodes 100
  sampleforge plot runs/cartpole --out cartpole.png"""

THREADS_S = 10.0
"""Seconds that threads have to end when the command is done, before it says for which it waits."""


def command(argv: list[str] | None = None) -> NoReturn:
    """Run `main` as this process, and end it with the exit code. A Ctrl-C while the interpreter
    ends cuts that short: everything is done, and a traceback would say nothing."""
    code = main(argv)

    def end_now(*_: object) -> None:
        from sampleforge.runtime.processes import remove_socket_folder

        remove_socket_folder()
        os._exit(code)

    signal.signal(signal.SIGINT, end_now)
    if is_importing():  # interrupted in its first seconds
        sys.stdout.flush()
        sys.stderr.flush()
        end_now()
    late = threading.Timer(THREADS_S, _tell_of_threads)
    late.daemon = True
    late.start()
    sys.exit(code)


def _tell_of_threads() -> None:
    """Say for which threads the interpreter still waits: a callback's may send its last files, but
    that of an environment which has started a server, and does not end it in ``close``, never
    ends."""
    main_thread = threading.main_thread()
    left = [t.name for t in threading.enumerate() if not t.daemon and t is not main_thread]
    if left:
        text = f"Done, but for threads that have not ended: {', '.join(left)}. Ctrl-C leaves them"
        print(f"{text}; end them in close(), or make them daemons", file=sys.stderr, flush=True)


def main(argv: list[str] | None = None) -> int:
    """Run the command line ``argv`` (None: that of this process). Return the exit code: 0 done,
    1 failed, 2 bad command line or config, 130 interrupted."""
    args = sys.argv[1:] if argv is None else argv
    open_closed_streams()
    write_any_letter()
    try:
        _check_working_directory()
        return _run(args)
    except UserError as error:
        print(f"sampleforge: error: {error}", file=sys.stderr)
        return error.exit_code
    except SystemExit as end:  # raised by tyro after --help or a bad flag
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except KeyboardInterrupt:
        # If it came out of code that was compiled from a string (a dataclass's __init__, during an
        # import), `python -m` would end by the signal, not with this code: CPython remembers the
        # exception until the next such code begins.
        exec("")
        return 130
    except BrokenPipeError:  # `sampleforge envs | head`
        sys.stderr.close()
        return 1
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        print(
            f"sampleforge: error: {error.filename}: {error.strerror}; give a shorter path",
            file=sys.stderr,
        )
        return 2


def _check_working_directory() -> None:
    """Raise ConfigError if the working directory was removed: nothing can be found or written."""
    try:
        os.getcwd()
    except FileNotFoundError as error:
        raise ConfigError(
            "The working directory has been removed; change to one that exists, and try again"
        ) from error


def _run(args: list[str]) -> int:
    if not args or args[0] in ("-h", "--help"):
        print(_usage())
        return 0 if args else 2
    if args[0] == "--version":
        print(f"SampleForge {__version__}")
        return 0
    run = _verb(args[0])
    asks_help = any(arg == "-h" or arg.startswith("--help") for arg in args)
    if args[0] != "doctor" and not asks_help:
        _check_packages()
    return run(args[1:])


def _check_packages() -> None:
    """Raise ConfigError if a package is too old: the first use of what it lacks would be an
    ImportError somewhere."""
    from sampleforge.run.folder.versions import too_old

    for package, (version, least) in too_old().items():
        raise ConfigError(
            f"{package} {version} is installed, and SampleForge needs {least} or newer: pip "
            f"install '{package}>={least}' (a package that asks for the older one often runs with "
            f"the newer)"
        )


def _verb(name: str) -> Callable[[list[str]], int]:
    """Return the function that runs a verb. Raises ConfigError, which names the nearest verb, for
    an unknown one."""
    if name not in VERBS:
        near = nearest(name, VERBS, 1)
        hint = (
            f"Did you mean `sampleforge {near[0]}`?" if near else f"There are {', '.join(VERBS)}."
        )
        raise ConfigError(f"Unknown command {name}. {hint}")
    module = importlib.import_module(f"sampleforge.cli.{name.replace('-', '_')}")
    run: Callable[[list[str]], int] = module.run
    return run


def _usage() -> str:
    verbs = "\n".join(f"  {verb:<10} {text}" for verb, text in VERBS.items())
    return (
        f"usage: sampleforge COMMAND ...\n\nReinforcement learning on one machine.\n\ncommands:\n"
        f"{verbs}\n\n{EXAMPLES}\n\n`sampleforge COMMAND --help` says more."
    )
