"""`python train.py ALGO [flags]` is `sampleforge train ALGO [flags]`."""

import sys

if __name__ == "__main__":
    from sampleforge.cli import command

    command(["train", *sys.argv[1:]])
