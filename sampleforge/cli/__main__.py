"""The `sampleforge` command as a module: `python -m sampleforge.cli`."""

import sys

from sampleforge.cli import main

if __name__ == "__main__":
    sys.exit(main())
