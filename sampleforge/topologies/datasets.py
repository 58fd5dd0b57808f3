"""The datasets that a run reads and the one that it writes, checked before its folder is made."""

from __future__ import annotations

from pathlib import Path

from sampleforge.config import ConfigError, typed
from sampleforge.data.config import InputConfig
from sampleforge.data.dataset import OfflineDataset, open_dataset
from sampleforge.spec import EnvSpec, with_action_units
from sampleforge.topologies.config import AnyConfig, StoredRunConfig
from sampleforge.topologies.mapping import TURN
from sampleforge.topologies.policy_roles import roles_of_policies
from sampleforge.topologies.recorder import check_recording


def check_datasets(config: AnyConfig, spec: EnvSpec) -> list[str]:
    """Return warnings about the datasets of --input and --record. Raise ConfigError for one that
    cannot be used in this run. ``spec``: of the environment as it is probed."""
    spec = with_action_units(spec, rescale=config.rescale_actions)
    datasets = open_datasets(config, spec) if isinstance(config, InputConfig) else []
    if not isinstance(config, StoredRunConfig):
        check_recording(config, spec)
    lacking = [
        f"--input: the recording of {dataset.source} lacks {dataset.dropped}"
        for dataset in datasets
        if any(dataset.dropped)
    ]
    return [*lacking, *_parts_alone(config, spec)] + [
        f"--input: an action in {dataset.source} was taken for {dataset.recorded.frame_skip} env "
        f"frames, and one of this run is for {spec.frame_skip}: what is learned is not what "
        "follows here; use data with the same --action-repeat, or frame skip"
        for dataset in datasets
        if dataset.recorded is not None and dataset.recorded.frame_skip != spec.frame_skip
    ]


def _parts_alone(config: AnyConfig, spec: EnvSpec) -> list[str]:
    """Return a warning if --record gets only parts of episodes that outlast an agent's turn to
    learn, of which frozen policies play the rest."""
    if isinstance(config, StoredRunConfig) or config.record is None or spec.num_seats < 2:
        return []
    if not roles_of_policies(config).frozen or getattr(config, "policy_mapping", None):
        return []
    if getattr(config, "sequences", None) is not None:
        return []  # they overlap from rollout to rollout, so that the same agent learns for good
    return [
        f"{typed('record', config.record)}: only what an agent does while it learns is recorded, "
        f"{TURN} rollouts at a time (--rollout): an episode that goes on beyond them is recorded "
        "without its end, and one in which an agent begins to learn not at all; give a longer "
        f"--rollout where a good part of the episodes is longer than {TURN} of them"
    ]


def open_datasets(config: InputConfig, spec: EnvSpec) -> list[OfflineDataset]:
    """Return the datasets of --input, opened. Raises ConfigError for one that is not there, that
    does not fit ``spec``, with the expected and the found spaces, or that has no env step."""
    if isinstance(config, StoredRunConfig) and not config.datasets:
        raise ConfigError(
            "--input is missing: marwil learns from recorded data; name a dataset that --record or "
            "`sampleforge record` has written, or one of Minari's"
        )
    opened: list[OfflineDataset] = []
    for source in config.datasets:
        try:
            dataset = open_dataset(source.name, spec)
        except ConfigError as error:
            raise ConfigError(f"--input: {error}") from error
        if not dataset.num_steps:
            raise ConfigError(
                f"{typed('input', config.input)}: the dataset {source.name} is empty; give one "
                "that has episodes"
            )
        same = next((each for each in opened if each.path.samefile(dataset.path)), None)
        if same is not None:
            raise ConfigError(
                f"{typed('input', config.input)}: {source.name} is the same dataset as "
                f"{same.source}; give it once, with the sum of their weights"
            )
        opened.append(dataset)
    return opened


def findable(name: str) -> str:
    """Return the name of a dataset of --input as workers find it, in any working directory."""
    folder = Path(name)
    return str(folder.absolute()) if folder.exists() else name
