"""Collect what a machine with another Python and without a network lacks for `gpu.py`: wheels.

    python benchmarks/gpu_wheels.py --python 3.12 --out wheels     # here
    python -m pip install --no-index --no-deps wheels/*.whl        # there

The machine must have torch, numpy and pytest. The wheels are those of the project, of what it needs
besides, and of the simulators that are measured, in the versions that are installed here.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

REPO = Path(__file__).resolve().parent.parent
PACKAGES = (
    *("gymnasium", "farama-notifications", "cloudpickle", "faster-fifo", "tensorboardX"),
    *("tyro", "docstring-parser", "typeguard", "setproctitle", "safetensors", "psutil"),
    *("threadpoolctl", "PyYAML", "rich", "ale-py", "opencv-python-headless", "minatar"),
    *("mujoco", "mujoco-core", "glfw", "pyopengl", "imageio", "vizdoom", "pygame-ce", "minari"),
)
GLIBC = range(5, 40)
"""Minor versions of glibc 2 that a wheel may ask for: pip takes the exact one only."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--python", default="3.12", help="version of the other machine's Python")
    parser.add_argument("--machine", default="x86_64", help="its processor")
    parser.add_argument("--out", type=Path, default=Path("wheels"))
    parser.add_argument("--without", nargs="+", default=[], help="packages that are there already")
    args = parser.parse_args()
    pip = [sys.executable, "-m", "pip"]
    places = [f"manylinux_2_{minor}_{args.machine}" for minor in reversed(GLIBC)]
    places += [f"manylinux2014_{args.machine}", f"manylinux1_{args.machine}"]
    platforms = [word for place in places for word in ("--platform", place)]
    target = ["--python-version", args.python, "--implementation", "cp", *platforms]
    lacking = []
    for package in PACKAGES:
        if package in args.without:
            continue
        download = [*pip, "download", "-q", "--no-deps", "--only-binary=:all:", *target]
        try:
            chosen = f"{package}=={version(package)}"  # each alone might be too new for another
        except PackageNotFoundError:
            lacking.append(package)
            print(f"{package}: not installed here", file=sys.stderr, flush=True)
            continue
        done = subprocess.run([*download, "-d", str(args.out), chosen], stderr=subprocess.PIPE)
        lacking += [package] if done.returncode else []
        print(f"{package}: {'no wheel' if done.returncode else 'ok'}", file=sys.stderr, flush=True)
    subprocess.run([*pip, "wheel", "-q", "--no-deps", "-w", str(args.out), str(REPO)], check=True)
    sizes = [wheel.stat().st_size for wheel in args.out.glob("*.whl")]
    print(f"{args.out}: {len(sizes)} wheels, {sum(sizes) / 2**20:.0f} MiB")
    if lacking:
        sys.exit(f"no wheel of: {', '.join(lacking)}")


if __name__ == "__main__":
    main()
