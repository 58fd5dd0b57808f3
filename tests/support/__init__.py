"""What more than one test module uses: fake environments, graphs, runs, checks."""

from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
"""The checkout that these tests belong to."""

PAGES = [
    *(REPO / name for name in ("README.md", "CONTRIBUTING.md", "examples/README.md")),
    *sorted((REPO / "docs").rglob("*.md")),
]
"""What a reader of the documentation is given."""
