"""The estimation of a trained policy's return from episodes that another policy has played."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from sampleforge.config import ConfigError
from sampleforge.data.dataset import OfflineDataset, StoredEpisode, open_dataset, whole_episodes
from sampleforge.data.episode_files import check_memory
from sampleforge.loaded_policy import LoadedPolicy, load_policy_and_state
from sampleforge.models.config import ModelConfig
from sampleforge.models.encoder_registry import resolve_encoder
from sampleforge.ops.distributions import action_layout
from sampleforge.run.folder.run_folder import RunFolder
from sampleforge.run.folder.trust import CODE_OF_MODEL, Trust, trusted_config
from sampleforge.runtime.torch_settings import limit_threads
from sampleforge.tools.estimate.action_probabilities import action_probabilities
from sampleforge.tools.estimate.comparable import check_comparable
from sampleforge.tools.estimate.estimates import (
    LEAST_EFFECTIVE,
    LEAST_EPISODES,
    Trajectories,
    cumulative_ratios,
    effective_episodes,
    estimates,
    terms,
    too_large,
)
from sampleforge.tools.estimate.fitted_q import Decisions, cross_fitted_q, encode_actions

NO_TRUST = Trust()
NAMES = {
    "is": "importance sampling",
    "wis": "weighted importance sampling",
    "pdis": "per-decision importance sampling",
    "dr": "doubly robust",
}
"""The estimates, by their names in results."""


@dataclasses.dataclass(frozen=True)
class EstimationRule:
    """How a return is estimated. ``gamma``: discount of the return; ``greedy``: of the policy that
    takes the most likely actions, not of the one that samples; ``doubly_robust``: with the doubly
    robust estimate, for which a Q-function is fitted; ``max_ratio``: cumulative probability ratios
    are clipped to it (None: not clipped); ``level``: probability with which an interval covers the
    truth; ``replicates``: of the bootstrap; ``seed``: of all that is drawn."""

    gamma: float = 1.0
    greedy: bool = False
    doubly_robust: bool = True
    max_ratio: float | None = None
    level: float = 0.95
    replicates: int = 2000
    seed: int = 0


def estimate(
    run_dir: str | Path,
    source: str | Path,
    rule: EstimationRule,
    *,
    which: str = "latest",
    policy: str | None = None,
    trust: Trust = NO_TRUST,
) -> dict[str, Any]:
    """Return the values that `sampleforge estimate` prints for the policy of a run folder and the
    dataset ``source``: for each estimate of `NAMES` its value, interval and standard error; the
    numbers of episodes, the effective one and those left out; the mean return of the episodes
    themselves; and warnings.

    ``which``, ``policy`` and ``trust``: as in `sampleforge.evaluation.evaluate`. Raises ConfigError
    if the dataset does not fit the policy (`check_comparable`), or has no log-probabilities of the
    actions."""
    loaded, state = load_policy_and_state(run_dir, which, trust, policy)
    config = trusted_config(RunFolder.existing(run_dir), trust, CODE_OF_MODEL)
    data = open_dataset(source, loaded.spec, clip_observations=loaded.clip_observations)
    check_comparable(data, loaded.spec, config.model)
    sorted_out = _sorted_out(data)
    episodes = sorted_out.weighable
    with ExitStack() as resources:
        resources.callback(limit_threads(1))  # several are slower for small networks
        trajectories = _trajectories(loaded, config.model, sorted_out, rule)
    try:
        named = terms(trajectories, rule.gamma, rule.max_ratio)
    except ValueError as error:
        raise ConfigError(f"{source}: {error}") from error
    found = estimates(named, level=rule.level, replicates=rule.replicates, seed=rule.seed)
    effective = effective_episodes(named["wis"].y)
    returns = [float(e.rewards.astype(np.float64) @ _discounts(e, rule.gamma)) for e in episodes]
    return {
        **{name: each._asdict() for name, each in found.items()},
        "level": rule.level,
        "gamma": rule.gamma,
        "greedy": rule.greedy,
        "episodes": len(episodes),
        "episodes_effective": effective,
        "episodes_left_out": sorted_out.incomplete,
        "episodes_beside_cut": sorted_out.beside_cut,
        "episodes_not_independent": sorted_out.dependent,
        "episodes_without_probabilities": sorted_out.without_probabilities,
        **{f"dropped_{name}": count for name, count in data.dropped._asdict().items()},
        "steps": sum(map(len, episodes)),
        "ratios_clipped": _clipped(trajectories, rule),
        "behaviour_return": float(np.mean(returns)),
        "env_steps": state.get("env_steps"),
        "warnings": [
            *_warnings(effective, trajectories, rule),
            *_data_warnings(data, sorted_out, rule),
        ],
    }


class SortedOut(NamedTuple):
    """The episodes of a dataset. ``weighable``: those that an estimate weighs; ``others``: recorded
    from beginning to end as well, but not weighed. These are ``dependent`` ones (their number), of
    which some actions were not drawn independently, so that their probabilities say nothing about
    the episode's, and ``beside_cut`` ones, see `_chosen_by_time`. ``incomplete``: the number of
    those that are not recorded from beginning to end, or were shortened. ``untimed``: the number of
    these of which it is not known when they were cut; ``unmarked``: that of weighable ones that do
    not say how their actions were drawn; ``without_probabilities``: that of whole ones without the
    probabilities of their actions, as those of the most likely actions."""

    weighable: list[StoredEpisode]
    others: list[StoredEpisode]
    dependent: int
    beside_cut: int
    incomplete: int
    untimed: int
    unmarked: int
    without_probabilities: int


def _sorted_out(data: OfflineDataset) -> SortedOut:
    """Read and sort out the episodes. Raises ConfigError if there are too few that an estimate can
    use, they do not fit the memory, or their log-probabilities are missing."""
    try:
        check_memory("the dataset", data.nbytes)
    except ValueError as error:
        raise ConfigError(f"{data.source}: {error}; estimate from fewer episodes") from error
    independent: list[StoredEpisode] = []
    dependent: list[StoredEpisode] = []
    cut: list[tuple[int, int]] = []
    incomplete = untimed = without_probabilities = 0
    for episode in whole_episodes(data.episodes()):
        is_independent = episode.independent is None or bool(episode.independent.all())
        if episode.shortened or not (episode.begins and episode.ends):
            incomplete += 1
            if episode.span is None:
                untimed += not episode.shortened
            elif is_independent and not episode.shortened:
                cut.append(episode.span)
            continue
        if episode.log_probs is None:
            without_probabilities += 1
            continue
        # The observation after the last step, from which no action is taken, is not needed.
        kept = dataclasses.replace(
            episode, observations={n: leaf[:-1] for n, leaf in episode.observations.items()}
        )
        (independent if is_independent else dependent).append(kept)
    if without_probabilities and not (independent or dependent):
        raise ConfigError(_why_no_log_probs(data))
    weighable, beside_cut = _chosen_by_time(independent, cut)
    if len(weighable) < LEAST_EPISODES:
        raise ConfigError(
            f"{data.source} has {len(weighable)} episodes that an estimate can use, and it needs "
            f"at least {LEAST_EPISODES}: {incomplete} were not recorded from beginning to end, or "
            f"were shortened by --decorrelate, {len(beside_cut)} began while one of these was "
            f"going on, {without_probabilities} have no probabilities of their actions, and in "
            f"{len(dependent)} the actions were not drawn independently ({_NOT_INDEPENDENT}); "
            "record a longer training, or the policy with `sampleforge record --stochastic`"
        )
    return SortedOut(
        weighable,
        [*dependent, *beside_cut],
        len(dependent),
        len(beside_cut),
        incomplete,
        untimed,
        sum(episode.independent is None for episode in weighable),
        without_probabilities,
    )


def _chosen_by_time(
    episodes: Sequence[StoredEpisode], cut: Sequence[tuple[int, int]]
) -> tuple[list[StoredEpisode], list[StoredEpisode]]:
    """Return the ``episodes`` that are chosen, and the others, which began while one of the
    episodes with the spans ``cut`` was going on.

    Where a recording ends, it is rather long episodes that are cut, so that those of the time
    before which are complete are rather short ones: taken alone they bias an estimate. So none that
    began then is chosen, whatever its length."""
    if not cut:
        return list(episodes), []
    began = np.array([-1 if each.span is None else each.span[0] for each in episodes])
    begins, untils = np.array(sorted(cut)).T
    until, last = np.maximum.accumulate(untils), np.searchsorted(begins, began, "right") - 1
    is_beside = (last >= 0) & (began <= until[last])
    chosen = [each for each, beside in zip(episodes, is_beside, strict=True) if not beside]
    return chosen, [each for each, beside in zip(episodes, is_beside, strict=True) if beside]


_NOT_INDEPENDENT = (
    "correlated noise (--noise-correlation), an epsilon of 0, uniform actions before learning "
    "began, or td3, whose actions are not drawn from a policy"
)


def _why_no_log_probs(data: OfflineDataset) -> str:
    if data.recorded is None:
        reason = (
            "it is from elsewhere and does not say how likely its actions were; such data can be "
            "learned from (`sampleforge train marwil`), but not be used for estimates"
        )
    elif dict(data.recorded.actions) != dict(data.spec.actions):
        reason = (
            "it was recorded with actions in other units than the policy's (--rescale-actions); "
            "record it with the same setting"
        )
    else:
        reason = "they were not recorded; use --record, or `sampleforge record --stochastic`"
    return f"{data.source} has no log-probabilities of its actions: {reason}"


def _trajectories(
    loaded: LoadedPolicy, model: ModelConfig, given: SortedOut, rule: EstimationRule
) -> Trajectories:
    """Return the weighable episodes as the estimates take them. The Q-function is fitted to the
    others, too."""
    episodes = [*given.weighable, *(given.others if rule.doubly_robust else ())]
    specs, lengths = loaded.spec.actions, np.array([len(episode) for episode in episodes])
    weighable = np.arange(len(lengths)) < len(given.weighable)
    obs = _joined([episode.observations for episode in episodes])
    actions = _joined([episode.actions for episode in episodes])
    probabilities = action_probabilities(
        loaded.model, specs, obs, actions, lengths, greedy=rule.greedy, seed=rule.seed
    )
    behaviour = np.concatenate([_recorded(episode) for episode in episodes])
    log_ratio = probabilities.log_prob - behaviour
    reward = np.concatenate([episode.rewards for episode in episodes]).astype(np.float64)
    q = v = None
    if rule.doubly_robust:
        decisions = Decisions(
            obs=obs,
            action=encode_actions(actions, action_layout(specs)),
            choices=probabilities.choices,
            probability=probabilities.probability,
            reward=reward,
            ratio=np.exp(np.minimum(log_ratio, 30.0)),
            lengths=lengths,
            horizon=int(lengths.max()),
        )
        chosen = resolve_encoder(model, loaded.spec.observations)
        q, v = cross_fitted_q(
            decisions,
            chosen,
            loaded.spec.observations,
            rule.gamma,
            seed=rule.seed,
            estimated=weighable,
        )
    steps, lengths = np.repeat(weighable, lengths), lengths[weighable]
    return Trajectories(
        taken=np.arange(lengths.max()) < lengths[:, None],
        log_ratio=_padded(log_ratio[steps], lengths),
        reward=_padded(reward[steps], lengths),
        q=None if q is None else _padded(q[steps], lengths),
        v=None if v is None else _padded(v[steps], lengths),
    )


def _joined(columns: Sequence[dict[str, npt.NDArray[Any]]]) -> dict[str, torch.Tensor]:
    return {n: torch.from_numpy(np.concatenate([c[n] for c in columns])) for n in columns[0]}


def _recorded(episode: StoredEpisode) -> npt.NDArray[np.float64]:
    assert episode.log_probs is not None
    return episode.log_probs.astype(np.float64)


def _discounts(episode: StoredEpisode, gamma: float) -> npt.NDArray[np.float64]:
    discounts: npt.NDArray[np.float64] = gamma ** np.arange(len(episode), dtype=np.float64)
    return discounts


def _padded(
    column: npt.NDArray[np.float64], lengths: npt.NDArray[np.int64]
) -> npt.NDArray[np.float64]:
    """Return the steps [M] of all episodes as [E, H], with zeros after the end of each."""
    padded = np.zeros((len(lengths), int(lengths.max())))
    padded[np.arange(padded.shape[1]) < lengths[:, None]] = column
    return padded


def _clipped(trajectories: Trajectories, rule: EstimationRule) -> int:
    """Return the number of episodes whose cumulative ratio is clipped at some step."""
    if rule.max_ratio is None:
        return 0
    return int((cumulative_ratios(trajectories) > rule.max_ratio).any(1).sum())


def _warnings(effective: float, of: Trajectories, rule: EstimationRule) -> list[str]:
    """Return the reasons for which the estimates may be meaningless."""
    warnings = []
    if rule.max_ratio is None and (large := too_large(of)):
        warnings.append(
            f"in {large} episodes the product of the probability ratios is beyond what numbers "
            "hold, and is cut off: all estimates but the weighted one are wrong. The actions are "
            "far more likely for this policy than they were: use episodes of one that is more like "
            "it, or --max-ratio"
        )
    if effective < LEAST_EFFECTIVE:
        warnings.append(
            f"the weights of the {len(of)} episodes count as {effective:.1f} episodes of the "
            "policy's own, so a few episodes make the estimates, and the intervals do not cover "
            "what is missing: record more episodes, or with a policy that is more like this one"
        )
    if rule.max_ratio is not None:
        warnings.append(
            f"ratios are clipped to {rule.max_ratio:g} (--max-ratio): the estimates vary less, but "
            "are biased towards the return of the policy that acted"
        )
    return warnings


def _data_warnings(data: OfflineDataset, given: SortedOut, rule: EstimationRule) -> list[str]:
    """Return what the dataset lacks."""
    warnings = []
    fitted = "; the Q-function is fitted to them all the same" if rule.doubly_robust else ""
    if given.incomplete:
        warnings.append(
            f"{given.incomplete} episodes were left out, because they were not recorded from "
            "beginning to end, or were shortened by --decorrelate"
        )
    if given.untimed:
        warnings.append(
            f"of {given.untimed} of these it is not known when they were cut: if they are the long "
            "ones, the estimates are of the others"
        )
    if given.beside_cut:
        warnings.append(
            f"{given.beside_cut} episodes were left out, because they began while one was going on "
            "that was not recorded to its end, as at the end of the recording: those of that time "
            f"that are complete are rather short{fitted}"
        )
    if given.without_probabilities:
        warnings.append(
            f"{given.without_probabilities} episodes were left out, because they have no "
            "probabilities of their actions, as where `sampleforge record` has no --stochastic"
        )
    if given.dependent:
        warnings.append(
            f"{given.dependent} episodes were left out, because their actions were not drawn "
            f"independently ({_NOT_INDEPENDENT}), so that their recorded probabilities are not "
            f"those of the episode; {len(given.weighable)} are left{fitted}"
        )
    if given.unmarked and any(spec.kind == "box" for spec in data.spec.actions.values()):
        warnings.append(
            f"{given.unmarked} episodes do not say whether their Box actions were drawn "
            "independently: if they are from a training with --noise-correlation above 0 (the "
            "default), the estimates are wrong; record them again"
        )
    if any(data.dropped):
        warnings.append(f"the recording lacks {data.dropped}")
    if data.dropped.cut_episodes:
        warnings.append(
            "episodes are cut where the recorder stood still, which happens rather to long ones: "
            "the estimates are biased towards short episodes"
        )
    if data.dropped.breaks:
        warnings.append(
            "all episodes that were going on when the recording was broken off are lost, which are "
            "rather long ones: the estimates are biased towards short episodes"
        )
    return warnings
