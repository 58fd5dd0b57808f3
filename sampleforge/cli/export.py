"""The command `sampleforge export RUN_DIR`: write a trained policy as a file that runs without
SampleForge."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from sampleforge.cli.flags import parse
from sampleforge.config import ConfigError
from sampleforge.run.folder.trust import Trust
from sampleforge.runtime.files import to_json

SUFFIXES = {"torch": ".pt2", "onnx": ".onnx"}


@dataclass(frozen=True)
class ExportFlags:
    run_dir: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN_DIR")]
    """Folder of the run."""
    format: Literal["torch", "onnx"] = "onnx"
    """onnx: an ONNX file; torch: a torch.export program, which torch.export.load reads."""
    out: str | None = None
    """File to write (default: policy.onnx or policy.pt2 in the current folder)."""
    checkpoint: Literal["latest", "best"] = "latest"
    """best: that of the highest mean return in the run's own evaluations (--evaluate-interval); in
    a run without them, over 100 episodes of training."""
    policy: str | None = None
    """Which policy to export, in a run with several (--num-policies), such as policy_0."""
    trust: bool = False
    """Use code that the run folder names: an encoder, a policy head, and, in a folder without
    spec.json, an environment package.module:factory. Such a folder can run any code, so give this
    only for one whose origin you know."""
    encoder: Annotated[str | None, tyro.conf.arg(name="model.encoder")] = None
    """Repeat the run's package.module:EncoderClass, instead of --trust."""
    head: Annotated[str | None, tyro.conf.arg(name="model.head")] = None
    """Repeat the run's package.module:HeadClass, instead of --trust."""


def run(args: Sequence[str]) -> int:
    """Export, and print the result as one JSON object in the last line. Raises ConfigError."""
    text = "Write a trained policy as a file that runs without SampleForge, and check the file."
    flags = parse(ExportFlags, args, "sampleforge export", text)
    suffix = SUFFIXES[flags.format]
    out = Path(flags.out or f"policy{suffix}")
    if out.suffix != suffix:
        raise ConfigError(f"--out {out}: a file of --format {flags.format} must end in {suffix}")
    from sampleforge.cli.outputs import check_file

    check_file("--out", str(out))
    from sampleforge.tools.export.write import export_run

    given = {"model.encoder": flags.encoder, "model.head": flags.head}
    repeated = {name: value for name, value in given.items() if value is not None}
    try:
        metadata = export_run(
            flags.run_dir,
            out,
            flags.format,
            which=flags.checkpoint,
            policy=flags.policy,
            trust=Trust(flags.trust, repeated),
        )
    except OSError as error:
        print(f"sampleforge: error: {error}", file=sys.stderr)
        return 1
    shown = {name: value for name, value in metadata.items() if name != "spec"}
    print(to_json({"file": str(out), **shown}))
    return 0
