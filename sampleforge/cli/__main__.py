"""`python -m sampleforge.cli` is the `sampleforge` command."""

import sys

from sampleforge.cli import main

if __name__ == "__main__":
    sys.exit(main())
