"""Settings that were given and have no effect in a run, and why. The user is told at the start."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

from sampleforge.algorithms.annealing import CHECKED_AT, SHAPES, annealings
from sampleforge.config import typed
from sampleforge.env.bounds import bounds_of
from sampleforge.models.policy_head import draws_itself
from sampleforge.run.folder.stored_config import flat_fields
from sampleforge.runtime.processes import available_cores
from sampleforge.shared.rings import check_store_order
from sampleforge.spec import ACTION_MASK
from sampleforge.topologies.config import (
    AnyConfig,
    ReplayRunConfig,
    SlotsRunConfig,
    StoredRunConfig,
)
from sampleforge.topologies.population_config import PbtRulesConfig

if TYPE_CHECKING:
    from sampleforge.encoding import Encoding
    from sampleforge.run.beginning import RunPlan
    from sampleforge.spec import EnvSpec
    from sampleforge.topologies.registry import AnyPlan

CONVOLUTIONS = ("nature_cnn", "dqn_cnn", "doom_cnn", "impala_resnet")
"""The built-in encoders with convolutions."""
MOST_PER_CORE = 3
"""Workers per core beyond which a run is warned of."""


class Resolved(NamedTuple):
    """A run whose defaults are resolved; ``config.model.encoder`` is the encoder that was chosen.
    ``others``: the configs of the agents with other spaces than the first ones."""

    config: Any
    plan: AnyPlan
    spec: EnvSpec
    others: tuple[Any, ...] = ()

    @classmethod
    def of(cls, run: RunPlan) -> Resolved:
        """Return the run that is planned."""
        first, *others = run.agents
        return cls(first.config, first.plan, first.spec, tuple(each.config for each in others))

    @property
    def configs(self) -> tuple[Any, ...]:
        """The configs of all agents."""
        return (self.config, *self.others)

    @property
    def has_box(self) -> bool:
        """Whether an action is a Box."""
        groups = self.spec.agent_groups
        return any(leaf.kind == "box" for group in groups for leaf in group.actions.values())

    @property
    def has_bounded(self) -> bool:
        """Whether an observation is a Box whose numbers can be outside of its bounds."""
        declared = (group.spaces for group in self.spec.agent_groups)
        bounds = (bounds_of(each.observation) for each in declared if each is not None)
        return any(not leaf.categories for leaves in bounds for leaf in leaves.values())

    @property
    def encodings(self) -> list[Encoding]:
        """How each observation leaf is encoded, of all agent groups."""
        return [
            encoding
            for group in self.spec.agent_groups
            for name, encoding in self.config.model.encodings(group.observations).items()
            if name != ACTION_MASK
        ]

    @property
    def without_actors(self) -> bool:
        """Whether no actor samples, because the experience is from data alone."""
        return not self.plan.num_workers

    @property
    def clones(self) -> bool:
        """Whether it is behaviour cloning."""
        return getattr(self.config, "advantage_exponent", None) == 0

    @property
    def without_envs(self) -> bool:
        """Whether no environment is stepped, not even by an evaluator."""
        return isinstance(self.config, StoredRunConfig) and self.config.evaluate_interval is None


PBT_RULES = tuple(field.name for field in dataclasses.fields(PbtRulesConfig))
ENDLESS = "a benchmark has no end that it could follow"
FOLLOWED = (
    "returns are divided by their own standard deviation; add --no-normalise-returns, or "
    "--reward-clip, which clips the scaled rewards"
)
"""Why the value of ``reward_scale`` has no effect. A change of it has one: the standard deviation
is that of the last batches, so that it follows after them."""
Rule = tuple[str, Callable[[Resolved], bool], str]
"""The names of fields, separated by spaces, whether they have no effect, and the reason. Fields
that an algorithm does not have are ignored."""
RULES: tuple[Rule, ...] = (
    (
        "num_workers num_splits inference num_policy_workers epsilon_base epsilon_exponent "
        "noise_correlation exploration_spread",
        lambda run: run.without_actors,
        "the experience is from data alone (--input), and no actor samples",
    ),
    (
        "lr_target_kl",
        lambda run: run.config.lr_schedule != "kl_adaptive",
        "it is for --lr-schedule kl_adaptive",
    ),
    (
        "vtrace_rho vtrace_c",
        lambda run: run.config.advantage == "gae",
        "it is for --advantage vtrace, and gae was chosen",
    ),
    (
        "advantage_floor",
        lambda run: not (run.config.normalise_returns and run.config.normalise_advantages),
        "it needs --normalise-returns and --normalise-advantages",
    ),
    (
        "reward_scale",
        lambda run: (
            getattr(run.config, "normalise_returns", False)
            and run.config.reward_clip is None
            and getattr(run.config, "rnd_coeff", 0) == 0
        ),
        FOLLOWED,
    ),
    (
        "reward_scale",
        lambda run: run.config.reward_clip == "sign",
        "a reward of any size has the same sign; give --reward-clip a number, or leave it out",
    ),
    (
        "target_entropy",
        lambda run: not run.config.learn_temperature,
        "the temperature stays what it is; leave out --no-learn-temperature",
    ),
    (
        "exploration",
        lambda run: run.config.exploration_coeff == 0,
        "there is no bonus, because --exploration-coeff is 0",
    ),
    (
        "rnd_learning_rate",
        lambda run: run.config.rnd_coeff == 0,
        "there is no bonus for new observations; add --rnd-coeff",
    ),
    (
        "noise_correlation rescale_actions model.action_std model.squash_actions "
        "model.initial_log_std",
        lambda run: not run.has_box,
        "no action is a Box",
    ),
    (
        "clip_observations",
        lambda run: not run.has_bounded,
        "no observation is a Box with bounds that its numbers can be outside of",
    ),
    (
        "model.action_std model.initial_log_std",
        lambda run: run.config.model.head is not None,
        "the policy head of your own decides it (--model.head)",
    ),
    (
        "noise_correlation",
        lambda run: run.plan.envs < 4,
        "it is for every fourth environment, and there are fewer; add --num-envs-per-worker",
    ),
    (
        "noise_correlation model.squash_actions",
        lambda run: draws_itself(run.config.model),
        "the distribution of your own decides it (--model.head)",
    ),
    (
        "model.core_size",
        lambda run: run.config.model.core == "none",
        "there is no recurrent core; add --model.core gru or lstm",
    ),
    (
        "model.cnn_features",
        lambda run: run.config.model.encoder == "mlp",
        "the encoder has no convolutions (--model.encoder mlp)",
    ),
    (
        "model.hidden_sizes",
        lambda run: (
            run.config.model.encoder in CONVOLUTIONS
            and all(encoding.is_convolved for encoding in run.encodings)
        ),
        "all observations go through convolutions; --model.cnn-features is the width behind them",
    ),
    (
        "model.normalise_observations",
        lambda run: all(encoding.kind != "vector" for encoding in run.encodings),
        "no observation is a vector of measurements",
    ),
    (
        "model.embedding_size",
        lambda run: not any(encoding.embedding for encoding in run.encodings),
        "no observation is embedded (--model.embed-above)",
    ),
    (
        "learner_threads",
        lambda run: "cpu" not in (run.plan.device, *getattr(run.config, "learner_devices", ())),
        "the learner is on a GPU",
    ),
    (
        "num_policy_workers",
        lambda run: not getattr(run.plan, "num_policy_workers", 0),
        "actors compute their own actions; it is for --inference worker",
    ),
    (
        "rank_timeout sync_fraction min_rollout_fraction max_rollout_fraction",
        lambda run: run.plan.num_workers == 1,
        "there is only one rank, for which no other one waits",
    ),
    (
        "worker_niceness max_worker_restarts max_rank_restarts set_workers_cpu_affinity "
        "learner_timeout rank_timeout",
        lambda run: run.config.serial,
        "with --serial all workers are this process",
    ),
    (
        "rmsprop_decay",
        lambda run: run.config.optimiser == "adam",
        "it is for --optimiser rmsprop, and adam was chosen",
    ),
    (
        "huber_delta",
        lambda run: run.config.value_distribution == "c51",
        "--value-distribution c51 has no Huber loss",
    ),
    ("noisy_sigma", lambda run: not run.config.noisy_nets, "it is for --noisy-nets"),
    (
        "num_atoms",
        lambda run: run.config.value_distribution == "none",
        "it is for --value-distribution c51 or quantile",
    ),
    (
        "epsilon_exponent",
        lambda run: run.config.base_epsilon in (0.0, 1.0) or run.plan.envs == 1,
        "all environments have the same epsilon",
    ),
    (
        "priority_beta priority_beta_final priority_epsilon",
        lambda run: run.config.priority_alpha == 0,
        "transitions are drawn uniformly (--priority-alpha 0), and have equal weights",
    ),
    (
        "target_noise_clip",
        lambda run: run.config.target_noise == 0,
        "there is no noise that it would clip (--target-noise 0)",
    ),
    (
        "exploration_spread",
        lambda run: run.config.exploration_noise == 0 or run.plan.envs == 1,
        "all environments explore with the same noise",
    ),
    (
        "model.action_std model.initial_log_std",
        lambda run: hasattr(run.config, "exploration_noise"),
        "the noise of td3's actions is --exploration-noise",
    ),
    (
        "samples_per_insert_tolerance",
        lambda run: run.config.samples_per_insert is None,
        "no worker waits for the replay ratio (--samples-per-insert None)",
    ),
    (
        "replay_compression_ratio",
        lambda run: run.config.replay_compression == "none",
        "it is for --replay-compression lz4",
    ),
    (
        "value_coeff max_advantage_weight advantage_norm_decay gamma reward_scale reward_clip",
        lambda run: run.clones,
        "behaviour cloning (--advantage-exponent 0) reads no rewards",
    ),
    (
        "reward_scale",
        lambda run: isinstance(run.config, StoredRunConfig) and run.config.reward_clip is None,
        "values and advantages are divided by their own size; add --reward-clip, which clips the "
        "scaled rewards",
    ),
    (
        "decorrelate",
        lambda run: run.without_actors,
        "there are no actors whose episodes could be spread",
    ),
    (
        "worker_niceness max_env_restart_rate",
        lambda run: run.without_envs,
        "there are no actors and no evaluations",
    ),
    (
        "evaluate_episodes evaluate_stochastic",
        lambda run: run.config.evaluate_interval is None,
        "there are no evaluations during the training; add --evaluate-interval N",
    ),
    (
        "benchmark_seconds benchmark_peak",
        lambda run: not run.config.benchmark,
        "it is for --benchmark",
    ),
    (
        "opponent_draw opponent_power opponent_window",
        lambda run: run.config.opponent_latest == 1,
        "no snapshot is ever drawn (--opponent-latest 1)",
    ),
    (
        "opponent_draw opponent_power",
        lambda run: 1 in (run.config.opponent_pool, run.config.opponent_window),
        "snapshots are drawn from one alone (--opponent-pool 1 or --opponent-window 1)",
    ),
    (
        "opponent_power",
        lambda run: run.config.opponent_draw != "hard",
        "it is for --opponent-draw hard",
    ),
    (
        "opponent_window",
        lambda run: run.config.opponent_window >= run.config.opponent_pool,
        "--opponent-pool holds no more snapshots; give a larger pool, or a smaller window",
    ),
    (
        "checkpoint_interval keep_checkpoints milestone_interval save_replay",
        lambda run: run.config.benchmark or run.config.sampler_only,
        "no checkpoints are written with --benchmark and --sampler-only",
    ),
    (
        "stop track report_interval",
        lambda run: run.config.benchmark,
        "a benchmark lasts --benchmark-seconds and writes no metrics",
    ),
    (
        "lr_schedule",
        lambda run: run.config.benchmark and run.config.lr_schedule in SHAPES,
        ENDLESS,
    ),
    (
        " ".join(PBT_RULES),
        lambda run: not run.config.pbt,
        "there is no population; add --pbt",
    ),
    (
        " ".join(name for name in PBT_RULES if name != "pbt_initial"),
        lambda run: run.config.benchmark,
        "a benchmark measures the members of a population as they begin, without rounds",
    ),
)


def warnings_of(asked: AnyConfig, run: Resolved) -> Iterator[str]:
    """Yield what the user is warned of before the ``run`` that was made of ``asked`` begins."""
    yield from without_effect(asked, run)
    for warning in (crowded(run), short_hindsight(run), check_store_order()):
        if warning is not None:
            yield warning


def without_effect(asked: AnyConfig, run: Resolved) -> Iterator[str]:
    """Yield a sentence for each setting of ``asked`` that differs from its default and has no
    effect in the ``run`` that was made of it."""
    given, usual = flat_fields(asked), flat_fields(type(asked)())
    given = {name: value for name, value in given.items() if value != usual[name]}
    for name, schedule in annealings(run.config).items():
        if schedule.replaces_value and name in given:
            yield f"{typed(name, given.pop(name))} has no effect: it follows {schedule.flag}"
    in_turn = stages(run)
    for names, _, _ in RULES:
        for name in names.split():
            if name in given and (reason := unread(name, in_turn)) is not None:
                yield f"{typed(name, given.pop(name))} has no effect: {reason}"
    yield from _schedules_without_effect(asked, run, in_turn)


def _schedules_without_effect(
    asked: AnyConfig, run: Resolved, in_turn: Sequence[Resolved]
) -> Iterator[str]:
    """Yield a sentence for each schedule of --anneal in ``asked`` that changes nothing in the
    ``run``, which is so ``in_turn``; see `stages`."""
    for name, schedule in annealings(asked).items():
        if schedule.text == "constant":
            continue
        if run.config.benchmark:
            if name in asked.anneal:
                yield f"{schedule.flag} has no effect: {ENDLESS}"
            continue
        if (reason := unread(name, in_turn)) is not None:
            yield f"{schedule.flag} {of_changing(reason)}"
        elif not (schedule.replaces_value or any(getattr(each, name) for each in run.configs)):
            yield (
                f"{schedule.flag} has no effect: {name} is 0 from the beginning; give both ends, "
                f"as in {schedule.text}:FIRST:LAST"
            )


def stages(run: Resolved, changes: Iterable[Mapping[str, Any]] = ({},)) -> list[Resolved]:
    """Return the ``run`` with the values that its hyperparameters have in turn: after each of the
    ``changes``, and at each progress of the training where they follow --anneal; all of that for
    each of the configs that its agents have."""
    schedules, values, found = annealings(run.config), dict[str, Any](), list[Resolved]()
    for change in changes:
        values |= {name: value for name, value in change.items() if hasattr(run.config, name)}
        for of_agents, point in product(run.configs, range(CHECKED_AT + 1 if schedules else 1)):
            progress, config = point / CHECKED_AT, copy.copy(of_agents)
            own = {name: values.get(name, getattr(config, name)) for name in schedules}
            annealed = {name: at(progress, own[name]) for name, at in schedules.items()}
            for name, value in {**values, **annealed}.items():
                object.__setattr__(config, name, value)  # checked where it is given
            found.append(run._replace(config=config))
    return found


def unread(name: str, in_turn: Sequence[Resolved]) -> str | None:
    """Return why nothing reads a setting in a run that is so ``in_turn``, see `stages`; None if
    something does."""
    for names, is_unused, reason in RULES:
        if name in names.split() and all(is_unused(run) for run in in_turn):
            return reason
    return None


def of_changing(reason: str) -> str:
    """Return what is said after the name of a hyperparameter that changes, where ``reason`` says
    why its value has no effect."""
    if reason == FOLLOWED:
        return f"has an effect only while it changes: {reason}"
    return f"has no effect: {reason}"


def short_hindsight(run: Resolved) -> str | None:
    """Return a warning if goals for --her come from a part of an episode alone; else None."""
    if not getattr(run.config, "her", False) or run.spec.max_episode_steps is not None:
        return None
    return (
        f"--her: no time limit of {run.spec.env_id} is known, so that goals are those achieved "
        f"within rollouts of {run.config.rollout} env steps; give --max-episode-steps N, or a "
        "--rollout as long as an episode"
    )


def crowded(run: Resolved) -> str | None:
    """Return a warning if there are more than `MOST_PER_CORE` actors or ranks per core; else
    None."""
    workers, cores = run.plan.num_workers, len(available_cores())
    if run.config.serial or workers <= MOST_PER_CORE * cores:
        return None
    flag = (
        "num_workers" if isinstance(run.config, SlotsRunConfig | ReplayRunConfig) else "num_ranks"
    )
    machine = "1 core" if cores == 1 else f"{cores} cores"
    return (
        f"{typed(flag, workers)}: {workers / cores:.0f} processes per core ({machine}) take turns "
        "and slow each other down, unless the environments mostly wait; leave it out for the "
        "number that fits the machine, and use --num-envs-per-worker for more environments"
    )
