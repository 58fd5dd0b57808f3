"""Packaging of SampleForge: the library, the bundled environment families, the `sampleforge`
command.
"""

import re
from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).parent
WRITTEN = (HERE / "sampleforge" / "version.py").read_text(encoding="utf-8")
VERSION = re.findall(r'^__version__ = "(.+)"$', WRITTEN, re.MULTILINE)[0]

EXTRAS = {
    "atari": ["ale-py>=0.12", "opencv-python-headless>=4.10"],
    "vizdoom": ["vizdoom>=1.3"],
    "mujoco": ["gymnasium[mujoco]>=1.1"],
    "robotics": ["gymnasium-robotics>=1.4", "mujoco<3.12"],
    "dm-control": ["dm-control>=1.0.41", "mujoco<3.9"],
    "box2d": ["gymnasium[box2d]>=1.1"],
    "minigrid": ["minigrid>=3.0"],
    "minatar": ["minatar>=1.0.15"],
    "popgym": ["popgym>=1.0.7"],
    "multiagent": ["pettingzoo[butterfly]>=1.27"],
    "compress": ["lz4>=4.3"],
    "plot": ["matplotlib>=3.8"],
    "notebook": ["pandas>=2.0"],
    "offline": ["minari[hdf5]>=0.5.4", "pillow>=10.0"],
    "export": ["onnx>=1.16", "onnxscript>=0.3.1", "onnxruntime>=1.20"],
    "populations": ["submitit>=1.5", "optuna>=4.0", "openskill>=6.0"],
    "video": ["imageio-ffmpeg>=0.5", "pillow>=10.1", "gymnasium[classic-control]>=1.1"],
    "wandb": ["wandb>=0.19.10"],
    "trackio": ["trackio>=0.25"],
}
OLD_MUJOCO = {"robotics", "dm-control"}
"""The extras that do not run on the newest mujoco, which the extra `all` takes."""
EXTRAS["all"] = sorted({need for name in EXTRAS.keys() - OLD_MUJOCO for need in EXTRAS[name]})
EXTRAS["test"] = [
    *EXTRAS["all"],  # of every family and export there are tests
    *(
        "pytest>=8.0",
        "pytest-xdist>=3.6",
        "hypothesis>=6.100",
        "nbclient>=0.10",
        "nbformat>=5.9",
        "ipykernel>=6.29",
    ),
]
EXTRAS["docs"] = ["zensical>=0.0.70", "mkdocstrings[python]>=0.26"]
EXTRAS["dev"] = [
    *EXTRAS["test"],
    *EXTRAS["docs"],
    *("ruff>=0.6", "mypy>=1.11", "types-PyYAML", "types-psutil", "build>=1.2", "pre-commit>=3.7"),
    "py-spy>=0.4",  # the stacks of what hangs in a test
]

setup(
    name="sampleforge",
    version=VERSION,
    description="Reinforcement learning on one machine, as fast as the simulator allows",
    long_description=(HERE / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    author="SampleForge developers",
    license="MIT",
    license_files=["LICENSE"],
    keywords=["reinforcement learning", "PPO", "APPO", "SAC", "Ape-X", "gymnasium", "PyTorch"],
    classifiers=[
        "Development Status :: 4 - Beta",
        "Environment :: Console",
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX :: Linux",
        *(f"Programming Language :: Python :: 3.{minor}" for minor in range(11, 15)),
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Typing :: Typed",
    ],
    python_requires=">=3.11",
    packages=[*find_packages(include=["sampleforge", "sampleforge.*"]), "sampleforge_envs"],
    package_dir={"sampleforge_envs": "envs"},
    package_data={
        "sampleforge": [
            "presets/*/*.yaml",
            "presets/*.jsonl",
            "tools/serve/page.*",
            "py.typed",
        ]
    },
    install_requires=[
        "torch>=2.5",
        "faster-fifo>=1.4.7",
        "numpy>=1.26",
        "gymnasium>=1.1",
        "tensorboardX>=2.6.2",
        "threadpoolctl>=3.5",
        "tyro>=1.0.14",
        "PyYAML>=6.0",
        "rich>=13.7",
        "psutil>=5.9",
        "safetensors>=0.4.4",
        "setproctitle>=1.3",
    ],
    extras_require=EXTRAS,
    entry_points={
        "console_scripts": ["sampleforge = sampleforge.cli:command"],
        "sampleforge.envs": [
            "classic = sampleforge_envs.classic",
            "atari = sampleforge_envs.atari",
            "mujoco = sampleforge_envs.mujoco",
            "robotics = sampleforge_envs.robotics",
            "dm_control = sampleforge_envs.dm_control",
            "box2d = sampleforge_envs.box2d",
            "minatar = sampleforge_envs.minatar",
            "minigrid = sampleforge_envs.minigrid",
            "popgym = sampleforge_envs.popgym",
            "vizdoom = sampleforge_envs.vizdoom",
            "paddle_duel = sampleforge_envs.paddle_duel",
            "pettingzoo = sampleforge_envs.pettingzoo",
            "doom_duel = sampleforge_envs.doom_duel",
        ],
    },
)
