"""The command `sampleforge check-env ID`: check an environment before training in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sampleforge.cli import flags
from sampleforge.config import Checked, ConfigError, check_range, from_plain
from sampleforge.env.config import EnvConfig

if TYPE_CHECKING:
    from rich.console import Console

    from sampleforge.tools.check_env.advice import Advice
    from sampleforge.tools.check_env.verdicts import Finding

STYLES = {"ok": "green", "note": "cyan", "warning": "yellow", "error": "bold red"}
TEXT = """\
Check an environment before training: sampleforge check-env ID [flags].

It plays with random actions in a process of its own, and prints a verdict per line: ok, note,
warning or error, with the remedy. It ends with commands to begin with, and how long each takes. The
exit status is 0 if it can be trained in, and 1 if there is an error."""


@dataclass(frozen=True)
class CheckConfig(Checked):
    seconds: float = 10.0
    """Seconds of play, without the starts of the environment."""
    json: bool = False
    """Print nothing but one JSON object with all findings and the numbers behind them."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, "seconds", low=0, above=True)


@dataclass(frozen=True)
class CheckEnvConfig(CheckConfig, EnvConfig):
    """The environment's flags are those of `train`."""


def run(args: Sequence[str]) -> int:
    """Print the findings, and a JSON object as the last line. Return 1 if there is an error, else
    0. Raises ConfigError for bad flags."""
    config = parse_config(args)
    from rich.console import Console

    from sampleforge.run.screen.evaluating import progress_bar
    from sampleforge.runtime.files import to_json
    from sampleforge.tools.check_env.advice import Advice
    from sampleforge.tools.check_env.check import CheckProgress, check_env

    findings: list[Finding] = []
    advice: Advice | None = None
    console = Console(highlight=False, quiet=config.json)
    with progress_bar(console) as bar:
        task = bar.add_task("", total=1.0)
        for found in check_env(config, config.seconds):
            if isinstance(found, CheckProgress):
                bar.update(task, completed=found.fraction, description=found.doing)
            elif isinstance(found, Advice):
                advice = found
            else:
                show(found, console)
                findings.append(found)

    if advice is not None:
        show_advice(advice, console)
    print(to_json(summary(config.env, findings, advice, every=config.json)))
    return int(any(found.verdict == "error" for found in findings))


def parse_config(args: Sequence[str]) -> CheckEnvConfig:
    """Return the config of a command line, on which the environment may stand first, without
    --env."""
    if args and not args[0].startswith("-"):
        args = ["--env", *args]
    cls = CheckEnvConfig
    defaults = flags.unchecked(cls)()
    kind = flags.config_flags(cls, defaults, [])
    parsed = flags.parse_shown(kind, flags.with_values(cls, args), "sampleforge check-env", TEXT)
    config = from_plain(cls, flags.config_values(cls, defaults, parsed), "command line")
    if not config.env:
        raise ConfigError(
            "There is no environment to check; give one, for example: sampleforge check-env "
            "CartPole-v1 (`sampleforge envs` lists them)"
        )
    return config


def summary(
    env: str, findings: Sequence[Finding], advice: Advice | None, *, every: bool
) -> dict[str, Any]:
    """Return the result as plain values; with ``every`` finding, and the numbers behind them."""
    counts = {
        f"{verdict}s": sum(found.verdict == verdict for found in findings)
        for verdict in ("error", "warning", "note")
    }
    values = {name: value for found in findings for name, value in found.values.items()}
    result = {"env": env, "trainable": not counts["errors"], **counts}
    commands = [] if advice is None else advice.suggestions
    result["commands"] = [each.command for each in commands]
    if not every:
        return {**result, "env_steps_per_s": values.get("env_steps_per_s")}
    told = [
        {name: getattr(found, name) for name in ("verdict", "name", "text", "remedy", "detail")}
        for found in findings
    ]
    reasons = [
        {"command": each.command, "seconds": each.seconds, "text": each.text} for each in commands
    ]
    notes = [] if advice is None else [*advice.notes]
    return {**result, "values": values, "findings": told, "advice": reasons, "notes": notes}


def show(found: Finding, console: Console) -> None:
    """Print the line of a finding, after the traceback behind it."""
    from rich.text import Text

    if found.detail:
        console.print(Text(found.detail), soft_wrap=True)
    remedy = f"; {found.remedy}" if found.remedy else ""
    verdict = f"{found.verdict:<8}", STYLES[found.verdict]
    console.print(Text.assemble(verdict, f"{found.name:<14} {found.text}{remedy}"), soft_wrap=True)


def show_advice(advice: Advice, console: Console) -> None:
    """Print what to begin with: each command in a line of its own, to be pasted."""
    from rich.text import Text

    lines = [
        ("", ""),
        ("Begin with" if len(advice.suggestions) == 1 else "Begin with one of", "bold"),
    ]
    for each in advice.suggestions:
        lines += [("", ""), (f"  {each.command}", "bold green"), (f"    {each.text}", "")]
    lines += [("", ""), *((note, "dim") for note in advice.notes), ("", "")]
    for text, style in lines:
        console.print(Text(text, style), soft_wrap=True)
