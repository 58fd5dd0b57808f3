"""What more than one test module uses: fake environments, graphs, runs, checks."""

from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
"""The checkout that these tests belong to."""
