"""Whether the episodes of a dataset say anything about the return of a policy."""

from __future__ import annotations

from sampleforge.config import ConfigError, typed
from sampleforge.data.dataset import OfflineDataset
from sampleforge.models.config import ModelConfig
from sampleforge.spec import EnvSpec
from sampleforge.workers.episode_player import EPISODE_LIMIT


def check_comparable(data: OfflineDataset, spec: EnvSpec, model: ModelConfig) -> None:
    """Raise ConfigError if ``data`` have other episodes, or actions that were drawn in another way,
    than those of a policy with this ``model``, which acts in the environment of ``spec``, or if
    either has several agents."""
    _check_agents(data, spec)
    _check_episodes(data, spec)
    _check_actions(data, spec, model)


def _check_agents(data: OfflineDataset, spec: EnvSpec) -> None:
    """Raise ConfigError if ``data`` or the environment of ``spec`` have several agents. An episode
    is then that of one agent, with the probabilities of its own actions, and its return depends on
    what the others did, too: as the policy that is estimated, they would act otherwise."""
    recorded = data.recorded
    of_data, of_run = (0 if each is None else each.num_seats for each in (recorded, spec))
    if max(of_data, of_run) > 1:
        where = spec.env_id if of_run > 1 else f"the environment of {data.source}"
        raise ConfigError(
            f"{where} has {max(of_data, of_run)} agents: what an agent gets depends on the actions "
            "of the others, too, whose probabilities an episode does not have, so that no estimate "
            "would be right; play with the policy instead: sampleforge eval RUN --stochastic"
        )


def _check_episodes(data: OfflineDataset, spec: EnvSpec) -> None:
    """Raise ConfigError if the episodes of ``data`` are longer or shorter than those of ``spec``,
    or their actions were taken for another number of env frames: so are their returns. An
    environment without a limit has `EPISODE_LIMIT` wherever a trained policy plays."""
    recorded = data.recorded
    if recorded is None:
        return
    limits = [each.max_episode_steps or EPISODE_LIMIT for each in (recorded, spec)]
    if limits[0] != limits[1]:
        raise ConfigError(
            f"the episodes of {data.source} end after {limits[0]:,} env steps at the latest, and "
            f"those of the run after {limits[1]:,}: their returns are of different lengths; record "
            "data with the limit of the run (--max-episode-steps)"
        )
    if recorded.frame_skip != spec.frame_skip:
        raise ConfigError(
            f"an action in {data.source} was taken for {recorded.frame_skip} env frames, and one "
            f"of the run is for {spec.frame_skip}: what follows it differs; record data with the "
            "--action-repeat, or the frame skip, of the run"
        )


def _check_actions(data: OfflineDataset, spec: EnvSpec, model: ModelConfig) -> None:
    """Raise ConfigError if the Box actions of ``data`` are squashed, and those of the policy are
    not, or the other way round.

    A policy that squashes its Box actions never takes one beyond the bounds, and almost never one
    at a bound, which is where many of the others end. Its density there is that of an action
    within, and so are ratios with it, which are wrong by factors of thousands. A policy head of the
    user's own is not checked: what it draws is not known."""
    has_boxes = any(leaf.kind == "box" for leaf in spec.actions.values())
    if not has_boxes or data.squashed is None or model.head is not None:
        return
    if data.squashed != model.squash_actions:
        acted, judged = (
            typed("model.squash_actions", each) for each in (data.squashed, model.squash_actions)
        )
        raise ConfigError(
            f"{data.source} was recorded with {acted}, and the run has {judged}: the two policies "
            "take their Box actions from different sets, so that the ratios of their probabilities "
            f"mean nothing; record data with a policy that has {judged}, too"
        )
