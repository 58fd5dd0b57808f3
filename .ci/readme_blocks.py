"""Write each block of README.md to a file that a shell or Python can run.

    python3 .ci/readme_blocks.py OUT

writes OUT/1.sh, OUT/2.sh, OUT/3.py, ..., in the order of the README, word for word. Blocks without
a language, which are figures, are left out.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

README = Path(__file__).resolve().parent.parent / "README.md"
SUFFIX = {"bash": "sh", "python": "py"}


def blocks(text: str) -> list[tuple[str, str]]:
    """Return (language, content) of each block that can be run. Raises KeyError for a language that
    is not known."""
    found = re.findall(r"^```(\w+)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return [(SUFFIX[language], content) for language, content in found]


def main(out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    for number, (suffix, content) in enumerate(blocks(README.read_text(encoding="utf-8")), 1):
        (out / f"{number}.{suffix}").write_text(content, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
