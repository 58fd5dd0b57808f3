"""The command `sampleforge card RUN_DIR`: write the model card of a run."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from sampleforge.cli.flags import parse
from sampleforge.cli.play_flags import WatchedFlags
from sampleforge.config import ConfigError, check_range
from sampleforge.runtime.files import to_json


@dataclass(frozen=True)
class CardFlags(WatchedFlags):
    run_dir: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN_DIR")]
    """Folder of the run."""
    out: str | None = None
    """Folder to write (default: card in the run folder)."""
    repo: str | None = None
    """USER/NAME of the repository that the card is for (default: YOUR-NAME/<env>-<algo>). It is
    only written into the card and the printed command: nothing is uploaded."""
    episodes: int | None = None
    """Episodes to play for the score (default: 100, or 20 where one takes minutes)."""
    video: bool = True
    """Film three episodes; it needs the extra video."""
    checkpoint: Literal["latest", "best"] = "latest"
    """best: that of the highest mean return in the run's own evaluations (--evaluate-interval); in
    a run without them, over 100 episodes of training."""
    policy: str | None = None
    """Which policy to show, in a run with several (--num-policies), such as policy_0."""


def run(args: Sequence[str]) -> int:
    """Write the card, and print the score and the command that uploads the card as one JSON object
    in the last line. Raises ConfigError."""
    text = (
        "Write the model card of a run: a folder with README.md, a curve, a video and the policy, "
        "which a model hub shows. Uploading it is left to you; the command is printed."
    )
    flags = parse(CardFlags, args, "sampleforge card", text)
    check_range(flags, "episodes", low=1)
    if flags.repo is not None and not re.fullmatch(r"[\w.-]+/[\w.-]+", flags.repo):
        raise ConfigError(f"--repo {flags.repo}: must be USER/NAME")
    from sampleforge.cli.outputs import check_folder
    from sampleforge.tools.card import CardRequest, make_card

    out = check_folder("--out", Path(flags.out or Path(flags.run_dir) / "card"))
    request = CardRequest(flags.episodes, flags.checkpoint, flags.policy, flags.video, flags.repo)
    with flags.watched("card") as (display, alive):
        card = make_card(flags.run_dir, out, request, display, trust=flags.trusted, alive=alive)
    upload = f"hf upload {card.repo} {shlex.quote(str(out))}"
    if not flags.quiet:
        print(f"Written to {out}. To publish it: {upload}")
    print(to_json({"card": str(out), **card.score, "upload": upload}))
    return 0
