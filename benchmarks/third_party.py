"""Environments of other packages, by the commands that the documentation gives.

    python benchmarks/third_party.py --work FOLDER [NAME...]
    python benchmarks/third_party.py            # only writes the table again

Each package of `PACKAGES` is installed from the index into an environment of its own in FOLDER, on
top of the one that runs this script. Its environment is checked (`sampleforge check-env`), trained
for 20 seconds and evaluated for three episodes. What came of it goes as a line into
benchmarks/results/third_party.jsonl, and all lines as a table into third_party.md beside it.
"""

from __future__ import annotations

import argparse
import json
import shlex
import site
import subprocess
import sysconfig
import tempfile
import venv
from pathlib import Path
from typing import Any, NamedTuple

import machine

HERE = Path(__file__).resolve().parent
LINES = HERE / "results" / "third_party.jsonl"
TABLE = HERE / "results" / "third_party.md"
SECONDS = 20
LIMIT = 300
"""Seconds after which a command is ended."""


class Package(NamedTuple):
    """``need``: what pip installs; ``env``: the id; ``flags``: further ones of train."""

    need: str
    env: str
    flags: str = ""
    algo: str = "appo"


OF_NETHACK = "--env-kwargs observation_keys=[glyphs,blstats] --model.encode glyphs=codes"
PACKAGES = {
    "bluesky-gym": Package("bluesky-gym", "bluesky_gym:DescentEnv-v0", algo="sac"),
    "buffalo-gym": Package("buffalo-gym", "buffalo_gym:ContextualBandit-v0"),
    "crafter": Package("crafter gym", "crafter:Env"),
    "flappy-bird-gymnasium": Package(
        "flappy-bird-gymnasium", "flappy_bird_gymnasium:FlappyBird-v0"
    ),
    "gym-aloha": Package("gym-aloha", "gym_aloha:gym_aloha/AlohaInsertion-v0", algo="sac"),
    "gym-anytrading": Package("gym-anytrading", "gym_anytrading:stocks-v0"),
    "gym-chess": Package("gym-chess", "gym_chess:Chess-v0"),
    "gym-electric-motor": Package("gym-electric-motor", "gym_electric_motor:Finite-CC-PMSM-v0"),
    "gym-pusht": Package("gym-pusht 'pymunk<7'", "gym_pusht:gym_pusht/PushT-v0", algo="sac"),
    "gym-saturation": Package("gym-saturation", "gym_saturation:Vampire-v0"),
    "gym-sokoban": Package("gym-sokoban", "gym_sokoban:Sokoban-small-v0"),
    "gym-super-mario-bros": Package(
        "gym-super-mario-bros", "gym_super_mario_bros:make", "--env-kwargs id=SuperMarioBros-v0"
    ),
    "gym-xarm": Package("gym-xarm", "gym_xarm:gym_xarm/XarmLift-v0", algo="sac"),
    "gymnasium-2048": Package(
        "gymnasium-2048", "gymnasium_2048:gymnasium_2048/TwentyFortyEight-v0"
    ),
    "gymnasium-search-race": Package(
        "gymnasium-search-race", "gymnasium_search_race:gymnasium_search_race/SearchRace-v3"
    ),
    "gymnax": Package("gymnax", "gymnax:CartPole-v1"),
    "highway-env": Package("highway-env", "highway_env:highway-fast-v0"),
    "jumanji": Package("jumanji", "jumanji:Snake-v1"),
    "lbforaging": Package("lbforaging", "lbforaging:Foraging-8x8-2p-1f-v3"),
    "memory-gym": Package("memory-gym", "memory_gym:MortarMayhem-Grid-v0", "--model.core gru"),
    "metaworld": Package(
        "metaworld", "metaworld:Meta-World/MT1", "--env-kwargs env_name=reach-v3", "sac"
    ),
    "minihack": Package("minihack", "minihack:MiniHack-Room-5x5-v0", OF_NETHACK),
    "miniworld": Package("miniworld", "miniworld:MiniWorld-OneRoom-v0"),
    "mo-gymnasium": Package("mo-gymnasium", "mo_gymnasium:mo-mountaincar-v0"),
    "multigrid": Package("multigrid", "multigrid.envs:MultiGrid-Empty-8x8-v0"),
    "myosuite": Package("myosuite", "myosuite:myoElbowPose1D6MRandom-v0", algo="sac"),
    "nle": Package("nle", "nle:NetHackScore-v0", OF_NETHACK),
    "panda-gym": Package("panda-gym", "panda_gym:PandaReach-v3", "--her", "sac"),
    "pogema": Package("pogema", "pogema:Pogema-v0"),
    "pybullet-envs-gymnasium": Package(
        "pybullet_envs_gymnasium", "pybullet_envs_gymnasium:HopperBulletEnv-v0", algo="sac"
    ),
    "PyFlyt": Package("PyFlyt", "PyFlyt.gym_envs:PyFlyt/QuadX-Hover-v4", algo="sac"),
    "rware": Package("rware", "rware:rware-tiny-2ag-v2"),
    "simglucose": Package("simglucose", "simglucose:simglucose/adolescent2-v0", algo="sac"),
    "stable-retro": Package(
        "stable-retro",
        "stable_retro:make",
        "--env-kwargs game=Airstriker-Genesis-v0 render_mode=rgb_array",
    ),
    "sumo-rl": Package("sumo-rl eclipse-sumo", "sumo_rl:sumo-rl-v0"),
    "tetris-gymnasium": Package(
        "tetris-gymnasium", "tetris_gymnasium.envs:tetris_gymnasium/Tetris"
    ),
}


def run(command: list[str], cwd: Path) -> tuple[int, str]:
    """Return the exit status of a command, -1 beyond the limit, and what it printed."""
    try:
        done = subprocess.run(
            command,
            cwd=cwd,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=LIMIT,
        )
    except subprocess.TimeoutExpired as error:
        return -1, str(error)
    return done.returncode, done.stdout


def last_words(text: str) -> str:
    """Return the sentence that says why a command has failed: from the line that says error on."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    told = [n for n, line in enumerate(lines) if "error" in line.lower()]
    return " ".join(lines[told[-1] if told else -1 :])[:600] if lines else ""


def installed(package: Package, folder: Path) -> tuple[Path, str]:
    """Return the Python of an environment with ``package``, and pip's error or ''."""
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
        own = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
        lines = [f"import site; site.addsitedir({below!r})" for below in site.getsitepackages()]
        (own / "below.pth").write_text("\n".join(lines))
    constraints = HERE.parent / "constraints-cpu.txt"
    pip = [str(python), "-m", "pip", "install", "-q", "-c", str(constraints)]
    status, text = run([*pip, *shlex.split(package.need)], folder)
    if status == 0:  # some ask for an older gymnasium, and run with a newer
        status, text = run([*pip, "--no-deps", "gymnasium>=1.1"], folder)
    return python, "" if status == 0 else last_words(text)


def tried(name: str, work: Path) -> dict[str, Any]:
    """Return what came of a package: ``pip``, ``check``, ``train``, ``eval`` as errors or '',
    with rates."""
    package, folder = PACKAGES[name], work / name
    python, error = installed(package, folder)
    line: dict[str, Any] = {"name": name, "commit": machine.commit(), "pip": error}
    if error:
        return line
    forge = [str(python), "-m", "sampleforge"]
    flags = shlex.split(package.flags)
    of_env = flags[: flags.index("--model.encode")] if "--model.encode" in flags else flags
    of_env = of_env if "--env-kwargs" in of_env else []
    status, text = run([*forge, "check-env", package.env, *of_env, "--json"], folder)
    try:
        report = json.loads(text.strip().splitlines()[-1])
        line["bare"] = 1 / report["values"]["step_median_s"]
        line["check"] = [f for f in report["findings"] if f["verdict"] == "error"]
        line["check_env"] = report["trainable"]
    except (ValueError, KeyError, IndexError):
        line["check"] = last_words(text)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        out = Path(scratch, "run")
        train = ["train", package.algo, "--env", package.env, *flags]
        line["command"] = shlex.join(["sampleforge", *train])
        limits = ["--train-for-seconds", str(SECONDS), "--run-dir", str(out)]
        status, text = run([*forge, *train, *limits], folder)
        line["train"] = "" if status == 0 else last_words(text)
        (folder / "train.log").write_text(text)
        if status == 0:
            summary = json.loads((out / "summary.json").read_text())
            kept = ("env_steps", "env_steps_per_s", "return_mean", "wall_s")
            line["summary"] = {key: summary.get(key) for key in kept}
            status, text = run([*forge, "eval", str(out), "--trust", "--episodes", "3"], folder)
            line["eval"] = "" if status == 0 else last_words(text)
    return line


HEAD = """\
# Environments of other packages

Written by `python benchmarks/third_party.py`. Each package was installed from the index beside
SampleForge and gymnasium 1.1 or newer; its environment was trained for 20 seconds by the command
that is shown, and evaluated for three episodes. "Bare" are env steps/s of one row in one process
with random actions, as `check-env` measures it; "training" those of the whole run. Two cores of an
AMD EPYC with other programs on them: no benchmark.

"""


def written() -> str:
    """Return the page with the newest line of each package."""
    found = [json.loads(line) for line in LINES.read_text().splitlines()]
    newest = {line["name"]: line for line in found}
    rows = []
    for name, line in sorted(newest.items(), key=lambda item: item[0].lower()):
        came = line["pip"] and f"not installed: {line['pip']}"
        came = came or line["train"] or line.get("eval") or "trained and evaluated"
        rates = (line.get("bare"), line.get("summary", {}).get("env_steps_per_s"))
        rows.append(
            [
                name,
                f"`{line.get('command', '')}`",
                *("" if rate is None else f"{rate:,.0f}" for rate in rates),
                came.removeprefix("sampleforge: error: ").replace("|", "/"),
            ]
        )
    header = ["package", "command", "bare", "training", "what came of it"]
    table = ["| " + " | ".join(row) + " |" for row in [header, ["---"] * len(header), *rows]]
    return HEAD + "\n".join(table) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--work", type=Path)
    args = parser.parse_args()
    for name in args.names or (PACKAGES if args.work else ()):
        line = tried(name, args.work)
        print(json.dumps(line))
        with LINES.open("a") as lines:
            lines.write(json.dumps(line) + "\n")
    TABLE.write_text(written())


if __name__ == "__main__":
    main()
