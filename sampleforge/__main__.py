"""The `sampleforge` command as a module: `python -m sampleforge`."""

from sampleforge.cli import command

if __name__ == "__main__":
    command()
