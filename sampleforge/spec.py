"""The description of an environment's observations and actions as flat named arrays.

Observations and actions of any nesting (Dict, Tuple, plain) are flat dicts from a dotted leaf name
to an array everywhere in SampleForge: ``{"obs": [...]}`` for a plain observation space,
``{"image": ..., "arm.position": ...}`` for a Dict, ``{"0": ..., "1": ...}`` for a Tuple. Only this
module walks nested structures.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Any, Literal

import gymnasium as gym
import numpy as np
from gymnasium import spaces

OBSERVATION = "obs"
ACTION = "action"
ACTION_MASK = "action_mask"
"""The observation leaf that says which discrete actions are allowed: bool [sum of categories], in
the order of the logits, at any depth of the observations. It masks the logits and is not an input
of the encoder."""

NO_BOUND = 1e30
"""A Box bound of this size or more counts as none: spaces give the largest float32 for
"unbounded"."""
MOST_INTEGERS = 1024
"""Values of an integer of a Box action, at most; each is a category of its own."""
MOST_LOGITS = 1 << 20
"""Values of all elements of a categorical action, at most; each has a logit. With 512 units before
them their weights take 2 GB."""
ENV_PREFIX = "env."
"""Beginning of the names of hyperparameters that are reward-shaping numbers of the environment."""

ActionKind = Literal["discrete", "multidiscrete", "multibinary", "box"]
KINDS: Mapping[ActionKind, str] = {
    "discrete": "Discrete",
    "multidiscrete": "MultiDiscrete, or a Box of integers, which are categories",
    "multibinary": "MultiBinary",
    "box": "Box",
}
"""The kinds in messages."""
Autoreset = Literal["next_step", "same_step"]
StackPadding = Literal["zero", "reset"]


@dataclass(frozen=True)
class ArraySpec:
    """One observation leaf of one row: ``shape`` and numpy ``dtype`` name; ``categories`` is the
    number of values of each element if they are categorical. ``low`` and ``high``: the smallest and
    the largest bound of all elements. `sampleforge.encoding` says how a leaf is encoded.

    ``stack``: the leaf is a stack of the newest frames of the episode along the first axis, the
    newest last; each step adds one frame. The first stack of an episode is padded with zeros
    ("zero") or with copies of the first frame ("reset"). None: the leaf is not a stack.
    """

    shape: tuple[int, ...]
    dtype: str
    categories: tuple[int, ...] | None = None
    stack: StackPadding | None = None
    low: float = -math.inf
    high: float = math.inf

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class ActionSpec:
    """One action leaf of one row.

    ``shape`` is () for discrete. ``categories`` holds the number of values per element (discrete:
    one number; multidiscrete: the flattened nvec; multibinary: 2 each; box: empty). ``start`` is
    added to a discrete action (multidiscrete: element by element) for the environment. ``low`` and
    ``high`` are the flattened bounds of a box as the policy sees it and the slots hold it;
    ``env_low`` and ``env_high`` are the environment's, if they differ (see `rescaled`): a bounded
    element then maps [low, high] affinely to [env_low, env_high].
    """

    kind: ActionKind
    shape: tuple[int, ...]
    dtype: str
    categories: tuple[int, ...] = ()
    start: int | tuple[int, ...] = 0
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    env_low: tuple[float, ...] = ()
    env_high: tuple[float, ...] = ()

    @property
    def is_bounded_box(self) -> bool:
        """Whether it is a box with finite bounds, low < high."""
        pairs = zip(self.low, self.high, strict=True)
        bounded = all(math.isfinite(lo) and math.isfinite(hi) and lo < hi for lo, hi in pairs)
        return self.kind == "box" and bounded


@dataclass(frozen=True)
class EnvSpaces:
    """The gymnasium spaces of one env row, as the environment declares them. ``mask_in_info``: the
    action mask is in the info, under `ACTION_MASK`, and not in the observation."""

    observation: gym.Space[Any]
    action: gym.Space[Any]
    mask_in_info: bool = False


@dataclass(frozen=True)
class EnvSpec:
    """The description of one env row, as slots store its experience.

    ``autoreset``: "next_step": the step after an episode's end has an ignored action, reward 0 and
    the reset observation, and is not valid experience (so ``obs[t+1]`` after an end at t is the
    final observation); "same_step": ``obs[t+1]`` is already the reset observation, and the final
    observation is given apart. ``asynchronous``: the environments step in threads or processes of
    their own, between ``send`` and ``recv``. ``frame_skip``: env frames per env step. ``protocol``:
    one line about the settings that scores depend on. ``spaces``: the spaces of the environment
    itself; None if the experience does not come from an environment. ``reward_shaping``: the
    numbers by which the environment shapes its rewards, by name, as it begins with them.
    ``takes_task``: it has a method ``set_task(task)``, see `sampleforge.env.tasks`. ``has_goals``:
    the reward of a step is known for any goal, see `sampleforge.env.goals`. ``one_per_process``: a
    process can have one environment of this kind at a time, as the probe has found.

    In a multi-agent environment the spec is that of one agent group, which are the agents with the
    same spaces: ``agents`` are their names, in the order of their seats (empty in a single-agent
    environment). The spec of the first agent group stands for the environment: ``other_groups`` are
    the specs of the other ones. The seats of an environment are numbered group by group.
    """

    env_id: str
    observations: Mapping[str, ArraySpec]
    actions: Mapping[str, ActionSpec]
    autoreset: Autoreset = "next_step"
    frame_skip: int = 1
    max_episode_steps: int | None = None
    protocol: str = ""
    asynchronous: bool = False
    spaces: EnvSpaces | None = None
    reward_shaping: Mapping[str, float] = field(default_factory=dict)
    takes_task: bool = False
    has_goals: bool = False
    one_per_process: bool = False
    agents: tuple[str, ...] = ()
    other_groups: tuple[EnvSpec, ...] = ()

    @property
    def shaping_hyperparameters(self) -> dict[str, float]:
        """``reward_shaping`` by the names that the numbers have as hyperparameters."""
        return {f"{ENV_PREFIX}{name}": number for name, number in self.reward_shaping.items()}

    @property
    def agent_groups(self) -> tuple[EnvSpec, ...]:
        """The specs of all agent groups of the environment, this one first."""
        return (self, *self.other_groups)

    @property
    def num_seats(self) -> int:
        """Number of seats of the environment: of its agents, or 1 in a single-agent one."""
        return sum(group.num_agents for group in self.agent_groups)

    @property
    def num_agents(self) -> int:
        """Number of agents of this agent group, each of which has a seat."""
        return max(1, len(self.agents))

    def group_of(self, agent: str) -> int:
        """Return the index of an agent's group among `agent_groups`."""
        if not self.agents:
            return 0
        return next(i for i, group in enumerate(self.agent_groups) if agent in group.agents)


def leaf_name(path: Sequence[Any], name: str) -> str:
    """Return the name of the leaf at ``path``, the keys that lead to it; a plain space, whose path
    is empty, is called ``name``. An action mask is called `ACTION_MASK` however deep it lies in the
    observations."""
    if name == OBSERVATION and path and path[-1] == ACTION_MASK:
        return ACTION_MASK
    return ".".join(map(str, path)) or name


def leaves(space: gym.Space[Any], name: str) -> Iterator[tuple[str, gym.Space[Any]]]:
    """Yield (dotted name, leaf space) of a space; a plain space is one leaf called ``name``."""
    for path, leaf in _paths(space):
        yield leaf_name(path, name), leaf


def _paths(
    space: gym.Space[Any], path: tuple[Any, ...] = ()
) -> Iterator[tuple[tuple[Any, ...], gym.Space[Any]]]:
    """Yield (path, leaf space) of a space."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        for key, child in _children(space):
            yield from _paths(child, (*path, key))
    else:
        yield path, space


def _children(space: gym.Space[Any]) -> Iterable[tuple[Any, gym.Space[Any]]]:
    assert isinstance(space, spaces.Dict | spaces.Tuple)
    return space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)


def flatten(space: gym.Space[Any], value: Any, name: str) -> dict[str, Any]:
    """Return the flat leaves of a value of ``space``; leaves may have a leading row axis."""
    return flattener(space, name)(value)


def flattener(space: gym.Space[Any], name: str) -> Callable[[Any], dict[str, Any]]:
    """Return `flatten` for the values of one space, which is walked only now."""
    if not isinstance(space, spaces.Dict | spaces.Tuple):
        return lambda value: {name: value}
    paths = [(leaf_name(path, name), path) for path, _ in _paths(space)]

    def flat(value: Any) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for own, path in paths:
            leaf = value
            for key in path:
                leaf = leaf[key]
            found[own] = leaf
        return found

    return flat


def unflatten(space: gym.Space[Any], flat: Mapping[str, Any], name: str) -> Any:
    """Return the value of ``space`` with these leaves: the inverse of `flatten`."""
    return unflattener(space, name)(flat)


def unflattener(space: gym.Space[Any], name: str) -> Callable[[Mapping[str, Any]], Any]:
    """Return `unflatten` for the values of one space, which is walked only now."""

    def builder(each: gym.Space[Any], path: tuple[Any, ...]) -> Callable[[Mapping[str, Any]], Any]:
        if not isinstance(each, spaces.Dict | spaces.Tuple):
            return itemgetter(leaf_name(path, name))
        children = [(key, builder(child, (*path, key))) for key, child in _children(each)]
        if isinstance(each, spaces.Dict):
            return lambda flat: {key: build(flat) for key, build in children}
        return lambda flat: tuple([build(flat) for _, build in children])

    return builder(space, ())


def _checked_leaves(space: gym.Space[Any], name: str) -> dict[str, gym.Space[Any]]:
    """Return the leaves of a space, by name. Raises ValueError if there is none, if two have one
    name, if one has no elements, or for an action mask in several parts."""
    kind = "observation" if name == OBSERVATION else "action"
    found: dict[str, tuple[tuple[Any, ...], gym.Space[Any]]] = {}
    for path, leaf in _paths(space):
        own = leaf_name(path, name)
        if own in found:
            raise ValueError(
                f"two leaves of the {kind} space have the name {own!r}: those at "
                f"{_at(found[own][0])} and {_at(path)}; rename one of them, or leave it out"
            )
        if name == OBSERVATION and ACTION_MASK in path[:-1]:
            raise ValueError(
                f"observation leaf {own!r} is a part of an action mask; give the mask as one array "
                "with an entry per logit, in the order of the actions"
            )
        if math.prod(leaf.shape or ()) == 0:
            raise ValueError(
                f"{kind} leaf {own!r} has shape {leaf.shape}, which has no elements; leave it out "
                "of the space"
            )
        found[own] = path, leaf
    if not found:
        raise ValueError(f"the {kind} space {space} has no leaves; give it at least one")
    return {own: leaf for own, (_, leaf) in found.items()}


def _at(path: Sequence[Any]) -> str:
    return "".join(f"[{key!r}]" for key in path)


def observation_specs(space: gym.Space[Any]) -> dict[str, ArraySpec]:
    """Return the specs of an observation space's leaves, by name. Raises ValueError for a space
    without a fixed-size array, or with two leaves of one name."""
    found = _checked_leaves(space, OBSERVATION)
    return {name: _observation_spec(name, leaf) for name, leaf in found.items()}


def _observation_spec(name: str, space: gym.Space[Any]) -> ArraySpec:
    if isinstance(space, spaces.Box):
        spec = ArraySpec(space.shape, np.dtype(space.dtype).name)
        if not space.low.size:
            return spec
        return replace(spec, low=float(space.low.min()), high=float(space.high.max()))
    if isinstance(space, spaces.Discrete):
        return ArraySpec((), "int64", (int(space.n),))
    if isinstance(space, spaces.MultiDiscrete):
        categories = tuple(int(n) for n in space.nvec.ravel())
        return ArraySpec(space.shape, np.dtype(space.dtype).name, categories)
    if isinstance(space, spaces.MultiBinary):
        return ArraySpec(space.shape, "int8", low=0.0, high=1.0)
    raise ValueError(
        f"observation leaf {name!r} is a {type(space).__name__}, which has no fixed-size array; "
        "supported are Box, Discrete, MultiDiscrete, MultiBinary, and Dict or Tuple of those; "
        "wrap the environment to turn it into one of them"
    )


def action_specs(space: gym.Space[Any]) -> dict[str, ActionSpec]:
    """Return the specs of an action space's leaves, by name. Raises ValueError for a space that no
    policy head supports, or with two leaves of one name."""
    found = _checked_leaves(space, ACTION)
    return {name: _action_spec(name, leaf) for name, leaf in found.items()}


def _num_logits(space: gym.Space[Any]) -> int:
    """Return the number of values of all elements of a categorical action leaf; 0 for a Box."""
    if isinstance(space, spaces.Discrete):
        return int(space.n)
    if isinstance(space, spaces.MultiDiscrete):
        return sum(int(n) for n in space.nvec.ravel())
    return 2 * math.prod(space.shape) if isinstance(space, spaces.MultiBinary) else 0


def _action_spec(name: str, space: gym.Space[Any]) -> ActionSpec:
    if (logits := _num_logits(space)) > MOST_LOGITS:
        raise ValueError(
            f"action leaf {name!r} is a {type(space).__name__} with {logits:,} values; at most "
            f"{MOST_LOGITS:,} are taken, because each has a logit: have a wrapper split it into a "
            "MultiDiscrete of fewer values, or turn it into a Box of floats and round"
        )
    if isinstance(space, spaces.Discrete):
        return ActionSpec("discrete", (), "int64", (int(space.n),), start=int(space.start))
    if isinstance(space, spaces.MultiDiscrete):
        categories = tuple(int(n) for n in space.nvec.ravel())
        start = tuple(int(n) for n in space.start.ravel())
        return ActionSpec("multidiscrete", space.shape, "int64", categories, start)
    if isinstance(space, spaces.MultiBinary):
        return ActionSpec("multibinary", space.shape, "int8", (2,) * math.prod(space.shape))
    if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating):
        low = tuple(float(x) for x in space.low.ravel())
        high = tuple(float(x) for x in space.high.ravel())
        return ActionSpec("box", space.shape, np.dtype(space.dtype).name, low=low, high=high)
    if isinstance(space, spaces.Box) and np.dtype(space.dtype).kind in "iub":
        first, last = ([int(x) for x in each.ravel()] for each in (space.low, space.high))
        values = tuple(high - low + 1 for low, high in zip(first, last, strict=True))
        if max(values) <= MOST_INTEGERS:
            return ActionSpec("multidiscrete", space.shape, "int64", values, tuple(first))
        raise ValueError(
            f"action leaf {name!r} is a Box of {space.dtype} with {max(values):,} values of an "
            f"element; at most {MOST_INTEGERS} are taken, each as a category: bound it, or have a "
            "wrapper turn it into a Box of floats and round"
        )
    raise ValueError(
        f"action leaf {name!r} is a {type(space).__name__}, which no policy head covers; supported "
        "are Discrete, MultiDiscrete, MultiBinary, Box, and Dict or Tuple of those"
    )


def rescaled(spec: ActionSpec) -> ActionSpec:
    """Return ``spec`` with every bounded element of a box in [-1, 1] for the policy, and the
    environment's bounds in ``env_low`` and ``env_high``. Other specs are returned unchanged.

    An element without a bound on each side keeps the environment's units. A bound of `NO_BOUND` or
    more, or the dtype's largest number, counts as none: a policy could not use such a range.
    """
    if spec.kind != "box" or spec.env_low:
        return spec
    largest = min(NO_BOUND, float(np.finfo(spec.dtype).max))
    given = np.array([spec.low, spec.high])
    given = np.where(np.abs(given) < largest, given, np.copysign(np.inf, given))
    bounded = np.isfinite(given).all(0)
    low, high = (tuple(row) for row in np.where(bounded, [[-1.0], [1.0]], given).tolist())
    if (low, high) == (spec.low, spec.high):
        return spec
    return replace(spec, low=low, high=high, env_low=spec.low, env_high=spec.high)


def with_action_units(spec: EnvSpec, *, rescale: bool) -> EnvSpec:
    """Return ``spec`` with its actions `rescaled` for the policy if ``rescale``, else in the
    environment's units."""
    assert spec.spaces is not None
    actions = action_specs(spec.spaces.action)
    if rescale:
        actions = {name: rescaled(leaf) for name, leaf in actions.items()}
    others = tuple(with_action_units(group, rescale=rescale) for group in spec.other_groups)
    return replace(spec, actions=actions, other_groups=others)
