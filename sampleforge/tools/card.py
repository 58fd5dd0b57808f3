"""The model card of a run: a folder that a model hub shows, and that is a run folder itself.

README.md has the front matter that hubs read (library, tags, results), and beside it are a curve, a
video, and the files that `sampleforge eval` and `load_policy` need.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import yaml

from sampleforge.config import ConfigError, from_plain
from sampleforge.evaluation import NO_TRUST, Observers, evaluate
from sampleforge.run.camera import FILMED, Camera, check_video
from sampleforge.run.folder.checkpoint import CheckpointStore
from sampleforge.run.folder.run_folder import RunFolder
from sampleforge.run.folder.stored_config import flat_fields, nested, read_config, read_yaml
from sampleforge.run.folder.trust import CODE_OF_MODEL, Trust, imports_code, naming_code
from sampleforge.run.screen.evaluating import EvaluationDisplay
from sampleforge.run.screen.messages import train_command
from sampleforge.run.screen.progress import duration
from sampleforge.runtime.files import write_atomically
from sampleforge.tools.plots.curves import draw, mean_and_interval
from sampleforge.topologies.config import AnyConfig
from sampleforge.topologies.config_classes import config_class

NOT_SHARED: dict[str, Any] = {
    "run_dir": None,
    "resume": "auto",
    "quiet": False,
    "debug": False,
    "track": (),
    "track_project": "sampleforge",
    "track_name": None,
    "track_group": None,
}
"""Values in the command of the training for fields that are the matter of its user alone."""
FRONT = "---\nlibrary_name: sampleforge\n"
"""The beginning of the README.md of a card."""
CURVE, VIDEO = "curve.png", "replay.mp4"
COPIED = ("config.yaml", "spec.json", "summary.json", "metrics.jsonl")


class Card(NamedTuple):
    """A card that was written: the ``repo`` that it is for, and the ``score``: ``return_mean`` with
    ``return_low`` and ``return_high``, its 95% interval by the bootstrap over the episodes, and the
    other values of `evaluate` without the single returns."""

    repo: str
    score: Mapping[str, Any]


class CardRequest(NamedTuple):
    """What a card is to show: the ``episodes`` that are played for the score (None: as many as
    `evaluate` chooses), with the ``which`` checkpoint (latest or best) of ``policy`` (its id, in a
    run with several); whether to make a ``video``; and ``repo``, the USER/NAME of the card."""

    episodes: int | None = None
    which: str = "latest"
    policy: str | None = None
    video: bool = True
    repo: str | None = None

    def how(self, trust: Trust) -> dict[str, Any]:
        """Return the policy to evaluate, as arguments of `evaluate`: the copy of the run has one
        checkpoint of it."""
        return {"policy": self.policy, "trust": trust}


def make_card(
    run_dir: str | Path,
    out: Path,
    request: CardRequest,
    display: EvaluationDisplay,
    *,
    trust: Trust = NO_TRUST,
    alive: Callable[[], None] = lambda: None,
) -> Card:
    """Write the card of the run in ``run_dir`` into the folder ``out``.

    What is played is a copy, because the run may still train. A curve or a video that cannot be
    made is left out, with a message that says why. Raises ConfigError for a folder that is the
    run's, holds other files or cannot be written, and what `evaluate` raises.
    """
    folder = RunFolder.existing(run_dir)
    if out.resolve() == folder.path.resolve():
        raise ConfigError(f"--out {out} is the run itself; give a new folder")
    _check_out(out)
    warn = partial(display.message, level="warning")
    with _copy(folder, request, warn) as run:
        with _naming(folder, run):
            score = _score(run, request, display, alive, trust)
            facts = _facts(run, request)  # as the files of the card have them

        def write(*, curve: bool, video: bool) -> None:
            text = readme(facts, score, curve=curve, video=video)
            write_atomically(out / "README.md", text.encode())

        def film() -> None:
            with _naming(folder, run):
                _film(run, out / VIDEO, alive, request, trust)

        with _writing(f"--out {out}: the card is not complete", "give another folder"):
            out.mkdir(parents=True, exist_ok=True)
            write(curve=False, video=False)  # from here on the folder is known to be a card
            _copy_run(run, out, request, lambda text: None)
            for name in (CURVE, VIDEO):
                (out / name).unlink(missing_ok=True)  # that of an earlier card
            has_curve = _try(display, "curve", lambda: draw([folder.path], out / CURVE))
            has_video = request.video and _try(display, "video", film)
            write(curve=has_curve, video=has_video)
    return Card(facts.repo, score)


@contextmanager
def _copy(
    folder: RunFolder, request: CardRequest, log: Callable[[str], None]
) -> Iterator[RunFolder]:
    """Copy the run in ``folder`` into a temporary folder, which is removed at the end."""
    failed = f"the run in {folder.path} cannot be copied into a temporary folder"
    with ExitStack() as resources:
        with _writing(failed, "name another folder in the environment variable TMPDIR"):
            name = resources.enter_context(TemporaryDirectory(prefix="sampleforge-card-"))
            _copy_run(folder, Path(name), request, log)
        yield RunFolder(name)


@contextmanager
def _naming(run: RunFolder, copy: RunFolder) -> Iterator[None]:
    """Have errors about the ``copy``, which is gone when they are read, name the ``run``."""
    try:
        yield
    except ConfigError as error:
        error.args = (str(error).replace(str(copy.path), str(run.path)), *error.args[1:])
        raise


@contextmanager
def _writing(failed: str, remedy: str) -> Iterator[None]:
    """Raise ConfigError in the place of an OSError. ``failed``: what has; ``remedy``: beside making
    room."""
    try:
        yield
    except OSError as error:
        raise ConfigError(
            f"{failed}: {error}; make room or {remedy}, and run the command again"
        ) from error


def _score(
    run: RunFolder,
    request: CardRequest,
    display: EvaluationDisplay,
    alive: Callable[[], None],
    trust: Trust,
) -> dict[str, Any]:
    """Return what `evaluate` says of the policy, with an interval of its mean return in the place
    of all returns."""
    observers = Observers(display, alive)
    score = evaluate(run.path, observers=observers, episodes=request.episodes, **request.how(trust))
    returns = np.array(score.pop("returns"))
    _, low, high = mean_and_interval(returns[:, None])
    return score | {"return_low": float(low[0]), "return_high": float(high[0])}


def _check_out(out: Path) -> None:
    """Raise ConfigError if ``out`` is a file, or holds anything but an earlier card."""
    if out.is_file():
        raise ConfigError(f"--out {out} is a file; give a new folder")
    if not out.exists() or not any(out.iterdir()):
        return
    card = out / "README.md"
    if not (card.is_file() and card.read_bytes().startswith(FRONT.encode())):
        raise ConfigError(f"--out {out} holds other files; give a new folder")


def _copy_run(
    folder: RunFolder, out: Path, request: CardRequest, log: Callable[[str], None]
) -> None:
    """Copy what makes ``out`` a run folder: the config, the spec, the metrics, and a checkpoint of
    each policy, also of those that are not trained. ``log``: as in `CheckpointStore.load`."""
    for name in COPIED:
        (out / name).unlink(missing_ok=True)
        if (folder.path / name).is_file():
            shutil.copyfile(folder.path / name, out / name)
    copy = RunFolder(out)
    for stores in (copy.checkpoints, copy.snapshots):
        shutil.rmtree(stores, ignore_errors=True)  # those of an earlier card
    frozen = [path.name for path in folder.snapshots.glob("*") if path.is_dir()]
    trained: list[str | None] = [*folder.policy_ids()]
    for policy in (trained or [None]) + frozen:
        source = folder.policy_checkpoints(policy)
        best = request.which == "best" and policy in (None, request.policy)
        found = CheckpointStore(source, 1).load("best" if best else "latest", log=log)
        if found is not None:
            target = out / source.relative_to(folder.path)
            target.mkdir(parents=True)
            shutil.copyfile(source / found[1].file, target / found[1].file)


def _try(display: EvaluationDisplay, what: str, make: Callable[[], None]) -> bool:
    """Return whether a part of the card could be made; say why not."""
    try:
        make()
    except ConfigError as error:
        display.message(f"The card has no {what}: {error}", "warning")
        return False
    return True


def _film(
    run: RunFolder, out: Path, alive: Callable[[], None], request: CardRequest, trust: Trust
) -> None:
    check_video(out)
    with Camera(out.absolute(), FILMED) as camera:
        observers = Observers(alive=alive, camera=camera)
        evaluate(run.path, episodes=FILMED, observers=observers, **request.how(trust))


class Facts(NamedTuple):
    """What a card says of a run beside its score."""

    config: AnyConfig
    policy: str | None
    repo: str
    command: str
    versions: Mapping[str, Any]
    summary: Mapping[str, Any]


def _facts(folder: RunFolder, request: CardRequest) -> Facts:
    config, left_open = read_config(folder.config_file, config_class(folder.algo))
    unset = {name: value for name, value in left_open.items() if name != "seed"}
    plain = nested({**flat_fields(config), **unset, **NOT_SHARED})
    asked = from_plain(type(config), plain)
    summary = read_yaml(folder.summary_file) if folder.summary_file.is_file() else {}
    repo = request.repo or f"YOUR-NAME/{default_name(config)}"
    versions = read_yaml(folder.config_file).get("versions") or {}
    return Facts(config, request.policy, repo, train_command(asked), versions, summary)


def default_name(config: AnyConfig) -> str:
    """Return a name for the model: its environment and algorithm, in letters that hubs take."""
    name = f"{config.env.strip('-.')}-{config.algo}"
    letters = (letter if letter.isalnum() or letter in "._-" else "-" for letter in name)
    return "".join(letters).strip("-.")


def readme(facts: Facts, score: Mapping[str, Any], *, curve: bool, video: bool) -> str:
    """Return the text of README.md: the front matter that hubs read, and what a reader wants to
    know."""
    env, algo = facts.config.env, facts.config.algo
    title = f"{algo.upper()} on {env}" + (f", {facts.policy}" if facts.policy else "")
    parts = [
        front_matter(facts, score),
        f"# {title}",
        f"A policy that was trained with SampleForge ({algo}) in the environment `{env}`.",
    ]
    if curve:
        parts.append(f"![Returns and losses during the training]({CURVE})")
    if video:
        parts.append(f"[Video of {FILMED} episodes]({VIDEO})")
    parts += ["## Score", _score_table(score), "## Use", _usage(facts), "## Training"]
    return "\n\n".join([*parts, *_training(facts)]) + "\n"


def front_matter(facts: Facts, score: Mapping[str, Any]) -> str:
    """Return the YAML front matter: library, tags, and the result in the form of ``model-index``,
    whose value is the mean return and its standard deviation over the episodes."""
    env, algo = facts.config.env, facts.config.algo
    value = f"{score['return_mean']:.2f} +/- {score['return_std']:.2f}"
    result = {
        "task": {"type": "reinforcement-learning", "name": "reinforcement-learning"},
        "dataset": {"name": env, "type": env},
        "metrics": [
            {"type": "mean_reward", "value": value, "name": "mean_reward", "verified": False}
        ],
    }
    front = {
        "library_name": "sampleforge",
        "pipeline_tag": "reinforcement-learning",
        "tags": [env, "reinforcement-learning", "deep-reinforcement-learning", algo, "sampleforge"],
        "model-index": [{"name": algo.upper(), "results": [result]}],
    }
    return f"---\n{yaml.safe_dump(front, sort_keys=False, allow_unicode=True)}---"


def _score_table(score: Mapping[str, Any]) -> str:
    rows = {
        "mean return": f"{score['return_mean']:,.2f}",
        "95% interval of the mean (bootstrap over the episodes)": (
            f"{score['return_low']:,.2f} to {score['return_high']:,.2f}"
        ),
        "standard deviation": f"{score['return_std']:,.2f}",
        "lowest, highest": f"{score['return_min']:,.2f}, {score['return_max']:,.2f}",
        "episodes": f"{score['episodes']:,}, of {score['length_mean']:,.1f} steps on average",
        "actions": "sampled" if score["stochastic"] else "the most likely ones",
        "seed of the episodes": score["seed"],
        "env steps of training": f"{score['env_steps']:,}",
    }
    return _table(("", "value"), rows)


def _usage(facts: Facts) -> str:
    policy = f" --policy {facts.policy}" if facts.policy else ""
    argument = f', policy="{facts.policy}"' if facts.policy else ""
    code = [f"`{name}: {value}`" for name, value in naming_code(facts.config).items() if value]
    needs = ""
    if code:
        policy += " --trust"
        needs = f" It needs code that it names, and that `--trust` lets run: {', '.join(code)}."
    if imports_code(facts.config, CODE_OF_MODEL):
        argument += ", trust=True"
    return (
        f"This folder is a run folder of SampleForge.{needs}\n\n"
        f"```bash\nhf download {facts.repo} --local-dir run\nsampleforge eval run{policy}\n```\n\n"
        "```python\nimport sampleforge as sf\n\n"
        f'policy = sf.load_policy("run"{argument})\n'
        "action, state = policy.act(observation)  # state: None at the start of an episode\n```"
    )


def _training(facts: Facts) -> list[str]:
    rows: dict[str, Any] = {}
    if facts.summary:
        rows["env steps"] = f"{facts.summary['env_steps']:,}"
        rows["time"] = duration(float(facts.summary["wall_s"]))
    versions = {name: version for name, version in facts.versions.items() if version}
    return [
        f"```bash\n{facts.command}\n```",
        "`config.yaml` has every setting, `metrics.jsonl` every report.",
        _table(("training", "value"), {**rows, **versions}),
    ]


def _table(head: tuple[str, str], rows: Mapping[str, Any]) -> str:
    lines = [f"| {head[0]} | {head[1]} |", "|---|---|"]
    return "\n".join([*lines, *(f"| {name} | {value} |" for name, value in rows.items())])
