"""The settings that exclude each other, one row each, and those that need a stop condition.

A new one is a row: no code. A row of settings that a config does not have does not concern it.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

from sampleforge.algorithms.annealing import annealings
from sampleforge.config import ConfigError, typed

GIVEN = object()
"""Stands for every value but the default."""


class Exclusion(NamedTuple):
    """``one`` and ``other``: dotted names of fields; each counts as given if its value is not the
    default, or if it is ``value`` (of ``one``). ``topology``: the only one that is meant."""

    one: str
    other: str
    reason: str
    remedy: str = "leave out one of the two"
    value: Any = GIVEN
    topology: str | None = None


class UntilTheEnd(NamedTuple):
    """A field whose ``value`` needs a stop condition, what it does until then, and the remedy."""

    name: str
    value: Any
    reason: str
    remedy: str


FOR_ONE_POLICY = "the data are for one policy"
NOTHING_LEARNED = "nothing is learned"

EXCLUSIONS = (
    Exclusion(
        "serial",
        "compile",
        "serial mode is for debugging, and no debugger sees compiled code",
    ),
    Exclusion(
        "serial",
        "num_learners",
        "serial mode is one process, and learners wait for each other",
        "use 1 learner, or leave out --serial",
    ),
    Exclusion(
        "compile",
        "num_learners",
        "a learner's part of a minibatch has another number of rows each time, for which code "
        "would be compiled anew",
    ),
    Exclusion("sampler_only", "num_learners", NOTHING_LEARNED),
    Exclusion(
        "cuda_graphs",
        "num_learners",
        "a graph cannot hold the sums of gradients over learners",
    ),
    Exclusion("evaluate_interval", "sampler_only", "nothing is learned that could be evaluated"),
    Exclusion(
        "inference",
        "num_policy_workers",
        "with inline inference there are no policy workers",
        value="inline",
    ),
    Exclusion("opponent_pool", "num_policies", "self-play trains one policy"),
    # Populations
    Exclusion("pbt", "sampler_only", NOTHING_LEARNED),
    Exclusion(
        "pbt", "schedule", "a schedule replays hyperparameters, and a population changes them"
    ),
    Exclusion("pbt", "policies_to_train", "a population trains every policy"),
    Exclusion("pbt", "policy_mapping", "each policy of a population has env rows of its own"),
    Exclusion("schedule", "num_policies", "a schedule is that of one policy"),
    # Variable experience
    Exclusion(
        "serial",
        "variable_experience",
        "serial mode is for runs that can be repeated, but with variable experience the order of "
        "the steps varies",
    ),
    Exclusion(
        "num_policies",
        "variable_experience",
        "a step goes on where a late rollout is cut, and would then be one of two policies",
    ),
    Exclusion(
        "num_learners",
        "variable_experience",
        "cut rollouts make the batches of the learners differ in length, but they draw the same "
        "minibatches",
        topology="slots",
    ),
    Exclusion(
        "async_rl",
        "variable_experience",
        "where sampling and learning take turns, every batch waits for a rollout of each env row",
        "leave out --no-async-rl, or use ddppo --variable-experience, whose ranks end their "
        "rollouts together",
        value=False,
        topology="slots",
    ),
    Exclusion(
        "model.core",
        "variable_experience",
        "with apex and a recurrent core, whole sequences are drawn from the replay, and a cut "
        "rollout has none",
        topology="replay",
    ),
    # Q-learning
    Exclusion(
        "value_distribution",
        "model.core",
        "distributions are learned from single transitions only, a recurrent core from sequences",
    ),
    Exclusion(
        "her",
        "action_repeat",
        "the sum of the rewards of several steps does not follow from the goal that the last one "
        "achieved",
    ),
    Exclusion(
        "her",
        "model.core",
        "goals are replaced in single transitions, but for a recurrent core sequences are drawn",
    ),
    Exclusion(
        "model.head",
        "record",
        "a dataset has the parameters of the built-in distributions of actions alone",
    ),
    Exclusion("input", "num_policies", FOR_ONE_POLICY),
    Exclusion("input", "opponent_pool", FOR_ONE_POLICY),
    Exclusion("input", "benchmark", "it measures how fast environments are sampled"),
    Exclusion("input", "sampler_only", "nothing is learned from the data"),
)

UNTIL_THE_END = (
    UntilTheEnd("lr_schedule", "linear", "the learning rate falls to zero at", "use constant"),
    UntilTheEnd("lr_schedule", "cooldown", "the learning rate falls to zero at", "use constant"),
    UntilTheEnd("anneal", GIVEN, "a schedule ends at", "leave it out"),
    UntilTheEnd("priority_beta_final", GIVEN, "beta moves to it until", "leave it out"),
)


def check_exclusions(config: Any) -> None:
    """Raise ConfigError for the first row whose settings are both given in ``config``, a run's
    complete config, for a setting that needs a stop condition if there is none, and for a schedule
    of a hyperparameter that is none."""
    annealings(config)
    for row in EXCLUSIONS:
        one, other = _given(config, row.one, row.value), _given(config, row.other)
        if one and other and row.topology in (None, config.topology):
            raise ConfigError(f"{one} {other}: {row.reason}; {row.remedy}")
    if config.has_end:
        return
    for each in UNTIL_THE_END:
        if given := _given(config, each.name, each.value):
            raise ConfigError(
                f"{given}: {each.reason} the stop condition, and there is none; add "
                f"--train-for-env-steps or --train-for-seconds, or {each.remedy}"
            )


def _given(config: Any, name: str, value: Any = GIVEN) -> str | None:
    """Return the field ``name`` as it is typed, if the config has it and its value counts as
    given."""
    *outer, last = name.split(".")
    part = getattr(config, outer[0]) if outer else config
    field = type(part).__dataclass_fields__.get(last)  # `fields` lists all, for each of the rows
    if field is None:
        return None
    present, made = getattr(part, last), field.default_factory
    usual = field.default if made is dataclasses.MISSING else made()
    given = present != usual if value is GIVEN else present == value
    return typed(name, present) if given else None
