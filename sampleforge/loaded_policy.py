"""The policy of a run folder, loaded without its environment.

It turns an observation as the environment gives it into an action as the environment takes it, with
the adapters that the env vectors use.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces

from sampleforge.algorithms.acting import FrozenPolicy
from sampleforge.config import ConfigError
from sampleforge.env.adapter import ActionAdapter, ObservationAdapter
from sampleforge.env.probe import probe
from sampleforge.env.user_code import make_cwd_importable
from sampleforge.models.actor_critic import ActorCritic
from sampleforge.models.encoder_registry import resolve_encoder
from sampleforge.models.q_network import QNetwork
from sampleforge.run.folder.checkpoint import CheckpointStore, load_weights, model_tensors
from sampleforge.run.folder.run_folder import RunFolder
from sampleforge.run.folder.trust import (
    CODE_OF_MODEL,
    CODE_TO_ACT,
    Trust,
    imports_code,
    trusted_config,
)
from sampleforge.runtime.torch_settings import usual_torch
from sampleforge.spec import ACTION, ACTION_MASK, OBSERVATION, EnvSpec, flatten, leaves, unflatten
from sampleforge.topologies.config import AnyConfig
from sampleforge.topologies.policy_roles import OPPONENT, roles_of_policies
from sampleforge.topologies.registry import pairing

Array = np.ndarray[Any, Any]
Log = Callable[[str], None]


class LoadedPolicy:
    """A policy that acts on observations of its environment, one or a batch of them.

    ``model``: the network with its weights, on the CPU. ``spec``: the spec of the environment, with
    its spaces. ``clip_observations``: cut numbers that are beyond the bounds of their Box off, as
    the training did.
    """

    def __init__(
        self, model: ActorCritic | QNetwork, spec: EnvSpec, *, clip_observations: bool = False
    ) -> None:
        assert spec.spaces is not None
        self.model = model
        self.spec = spec
        self.clip_observations = clip_observations
        self._policy = FrozenPolicy(model)
        self._space = spec.spaces.observation
        self._mask_in_info = spec.spaces.mask_in_info
        self._leaves = dict(leaves(self._space, OBSERVATION))
        self._observations = ObservationAdapter(spec)
        self._action_space = spec.spaces.action
        self._actions = ActionAdapter(self._action_space, spec.actions)

    @usual_torch()
    def act(
        self,
        obs: Any,
        state: torch.Tensor | Array | None = None,
        *,
        mask: Any = None,
        stochastic: bool = False,
        generator: torch.Generator | None = None,
    ) -> tuple[Any, torch.Tensor | None]:
        """Return (action, next recurrent state) for one observation as the environment gives it, or
        for a batch of B of them.

        ``obs`` is a value of the environment's observation space (lists count as arrays), or a
        batch as gymnasium's vector environments give it: every array of the value has a leading
        axis [B]. ``state``, a tensor or array float32 [1, S], or [B, S], is the state after the
        previous step; None begins an episode, and in a batch a row of zeros does. ``mask`` is
        ``info["action_mask"]`` if the environment gives its action mask there; a mask in the
        observation is used without this argument. The action is the most likely one, or, with
        ``stochastic``, a sample (from ``generator``; None: torch's global generator).

        The action is a value of the environment's action space: an int for Discrete, an array of
        the space's dtype for MultiDiscrete, MultiBinary and Box (within the bounds), a dict or
        tuple of those. For a batch, every array of it has the leading axis [B], which is what
        gymnasium's vector environments take. The next state is None if the policy has no recurrent
        core.

        Raises ValueError for an observation that is not in the space or not finite, for a mask that
        is missing, not expected, or forbids every action, and for a state of another shape.
        """
        leaves, batch = self._declared(obs)
        rows = self._to_rows(leaves, batch, mask)
        count, size = batch or 1, self.model.state_size
        if state is not None and tuple(state.shape) != (count, size):
            raise ValueError(
                f"the recurrent state is {tuple(state.shape)}, expected {(count, size)}: [rows, "
                "numbers of the core's state]; None begins an episode"
            )
        is_first = np.full(count, state is None)
        before = (
            self._policy.initial_state(count)
            if state is None
            else torch.as_tensor(state, dtype=torch.float32)
        )
        acted, after = self._policy.act(
            rows, before, is_first, stochastic=stochastic, generator=generator
        )
        actions = self._actions(acted)
        if batch is None:
            action = self._actions.per_row(actions, 1)[0]
        else:
            action = unflatten(self._action_space, actions, ACTION)
        return action, after.clone() if size else None  # one that may be changed in place

    def predict(
        self,
        observation: Any,
        state: torch.Tensor | Array | None = None,
        episode_start: Any = None,
        deterministic: bool = False,
        *,
        action_masks: Any = None,
    ) -> tuple[Any, torch.Tensor | None]:
        """Return (action, next state), as `act` does, with the arguments of Stable-Baselines3:
        its ``evaluate_policy`` calls this method.

        ``episode_start`` is a bool, or bool [B] for a batch: in these rows an episode begins, and
        ``state`` counts as None. Unless ``deterministic``, the action is drawn from the policy.
        ``action_masks``: as the ``mask`` of `act`. An action that is no dict or tuple is an array,
        that of a single Discrete one int64 []. Raises ValueError as `act` does.
        """
        if state is not None and episode_start is not None:
            begins = torch.as_tensor(np.atleast_1d(episode_start), dtype=torch.bool)
            state = torch.as_tensor(state).masked_fill(begins[:, None], 0.0)
            # A row of zeros begins an episode.
        action, after = self.act(
            observation, state, mask=action_masks, stochastic=not deterministic
        )
        return action if isinstance(action, dict | tuple) else np.asarray(action), after

    def is_batch(self, obs: Any) -> bool:
        """Return whether `act` takes ``obs`` for a batch. Raises ValueError as `act` does."""
        return self._declared(obs)[1] is not None

    def as_rows(self, obs: Any, mask: Any = None) -> dict[str, Array]:
        """Return observations as slots hold them, leaf -> [B, ...], where B is 1 for a single one.
        Arguments and errors as in `act`."""
        return self._to_rows(*self._declared(obs), mask)

    def _to_rows(self, leaves: dict[str, Array], batch: int | None, mask: Any) -> dict[str, Array]:
        """Return `_declared` leaves as slots hold them. ``batch``: the number of observations; None
        for a single one."""
        count = batch or 1
        if batch is not None and mask is not None and self._mask_in_info:
            parts = mask if isinstance(mask, tuple) else (mask,)
            if wrong := [len(part) for part in parts if len(part) != batch]:
                raise ValueError(
                    f"{wrong[0]} masks were given for a batch of {batch} observations: there must "
                    "be one for each"
                )
        out = {n: np.zeros((count, *x.shape), x.dtype) for n, x in self.spec.observations.items()}
        for row in range(count):
            own = leaves if batch is None else {name: leaf[row] for name, leaf in leaves.items()}
            value = unflatten(self._space, own, OBSERVATION)
            self._observations.write(
                row, value, self._info(mask, None if batch is None else row), out
            )
        if self._observations.has_mask:
            self._observations.check_masks(out[ACTION_MASK], np.zeros(count, np.bool_))
        return out

    def _declared(self, obs: Any) -> tuple[dict[str, Array], int | None]:
        """Return the leaves of ``obs`` in the dtypes of the observation space, and the number of
        observations in a batch; None for a single one."""
        try:
            given = flatten(self._space, obs, OBSERVATION)
        except (KeyError, IndexError, TypeError) as error:
            raise ValueError(
                f"the observation must be a value of {self._space}, but is {obs!r:.200}"
            ) from error
        declared = {n: _as_declared(n, space, given[n]) for n, space in self._leaves.items()}
        batches = {name: batch for name, (_, batch) in declared.items()}
        if len(set(batches.values())) > 1:
            raise ValueError(
                "all parts of a batch of observations must have the same number of rows, but have "
                + ", ".join(f"{name!r} {batch or 'none'}" for name, batch in batches.items())
            )
        arrays = {name: self._within(name, array) for name, (array, _) in declared.items()}
        return arrays, next(iter(batches.values()))

    def _within(self, name: str, leaf: Array) -> Array:
        """Return an observation leaf, perhaps of a batch, cut off as ``clip_observations`` says."""
        space = self._leaves[name]
        if self.clip_observations and isinstance(space, spaces.Box) and name != ACTION_MASK:
            return leaf.clip(space.low, space.high)
        return leaf

    def _info(self, mask: Any, row: int | None) -> dict[str, Any]:
        """Return the info that the environment would give with this mask, or with that of a ``row``
        of a batch."""
        if self._mask_in_info == (mask is not None):
            if row is not None and mask is not None:
                parts = isinstance(mask, tuple)
                mask = tuple(part[row] for part in mask) if parts else mask[row]
            return {ACTION_MASK: mask}
        if mask is None:
            raise ValueError(
                f"{self.spec.env_id} has its action mask in info[{ACTION_MASK!r}]; pass it on: "
                f"act(obs, state, mask=info[{ACTION_MASK!r}])"
            )
        reason = "has no action masks"
        if self._observations.has_mask:
            reason = f"has its action mask in the observation leaf {ACTION_MASK!r}"
        raise ValueError(
            f"a mask was given, but {self.spec.env_id} {reason}; leave out the argument mask"
        )


def _as_declared(name: str, space: gym.Space[Any], value: Any) -> tuple[Array, int | None]:
    """Return one observation leaf as an array of its space's dtype, and its number of rows if it is
    a batch, else None. Raises ValueError if that would change its values (except for the rounding
    of floats), or if it is not in the space."""
    where = f"observation leaf {name!r}"
    try:
        array = np.asarray(value)
    except ValueError:  # a ragged list, or what reset() returns: (observation, info)
        array = np.empty((), object)
    shape, dtype = space.shape or (), np.dtype(space.dtype)
    if array.ndim == 0 and array.dtype.kind not in "iufb":  # a dict, a text, None
        raise ValueError(
            f"{where} must be an array of shape {shape}, or {('B', *shape)}, but a "
            f"{type(value).__name__} was given: {value!r:.80}; give the array itself"
        )
    batch = len(array) if array.ndim == len(shape) + 1 else None
    if array.shape != shape and (not batch or array.shape[1:] != shape):
        raise ValueError(f"{where} is {array.shape}, expected {shape}, or {('B', *shape)}")
    if array.dtype.kind not in "iufb":
        raise ValueError(f"{where} is of dtype {array.dtype}, expected {dtype}")
    with np.errstate(over="ignore", invalid="ignore"):
        cast = array.astype(dtype, copy=False)
        seen = cast.astype(np.float32) if dtype.kind == "f" else cast  # by the network
    if not np.isfinite(seen).all():
        raise ValueError(
            f"{where} holds {array[~np.isfinite(seen)][0]}, but must be finite as float32"
        )
    if dtype.kind != "f" and not np.array_equal(cast, array):
        at = np.argwhere(cast != array)[0].tolist()
        raise ValueError(f"{where} holds {array[tuple(at)]} at {at}, which is no {dtype}")
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
        for each in cast[None] if batch is None else cast:
            if not space.contains(each):
                raise ValueError(f"{where} is {each.tolist()}, but must be in {space}")
    return cast, batch


def load_policy(
    run_dir: str | Path,
    which: str = "latest",
    *,
    trust: bool = False,
    policy: str | None = None,
) -> LoadedPolicy:
    """Return the policy of a run folder's latest or best checkpoint. ``policy`` is its id, where
    the run has trained several.

    The folder stores the spec of its environment (spec.json), so no environment is imported or
    constructed. Where spec.json was removed, the environment is constructed once, in a process of
    its own.

    Raises ConfigError if the folder has no checkpoint of that policy, and without ``trust`` also if
    it names code that would be imported: an encoder, or, without spec.json, an environment of the
    form package.module:factory or its arguments. Such a folder can run any code: set ``trust`` only
    for a folder whose origin you know.
    """
    loaded, _ = load_policy_and_state(run_dir, which, Trust(everything=trust), policy)
    return loaded


def load_policy_and_state(
    run_dir: str | Path, which: str, trust: Trust, policy: str | None
) -> tuple[LoadedPolicy, dict[str, Any]]:
    """Return the policy of a run folder, as `load_policy` does, and the plain state of its
    checkpoint."""
    folder = RunFolder.existing(run_dir)
    used = CODE_TO_ACT if folder.read_spec() is None else CODE_OF_MODEL
    config = trusted_config(folder, trust, used)
    if imports_code(config, used):
        make_cwd_importable()
    model, spec, state = load_model(folder, config, which, policy)
    return LoadedPolicy(model, spec, clip_observations=config.clip_observations), state


def _agent_group(config: AnyConfig, policy: str | None, spec: EnvSpec) -> int:
    """Return the index of the agent group that a policy of a run plays; None: the only one that it
    trains."""
    roles = roles_of_policies(config)
    return roles.agent_group(policy or roles.trained[0], spec)


def load_model(
    folder: RunFolder, config: AnyConfig, which: str = "latest", policy: str | None = None
) -> tuple[ActorCritic | QNetwork, EnvSpec, dict[str, Any]]:
    """Return the model with the weights of the latest or best checkpoint, the spec of the
    environment (in a multi-agent one, that of the agents that the policy plays), and the plain
    state of the checkpoint. ``policy``: the id of the policy, if the run has several. Raises
    ConfigError if there is no checkpoint, if spec.json does not fit it, or for another ``which``
    than latest and best."""
    if which not in ("latest", "best"):
        raise ConfigError(f"which={which!r}: must be latest or best, the checkpoint to load")
    stored = roles_of_policies(config).stored_as(policy)
    store = CheckpointStore(folder.policy_checkpoints(stored), config.keep_checkpoints)
    loaded = store.load("best" if which == "best" else "latest", log=print)
    if loaded is None:
        raise ConfigError(f"{folder.path} has no checkpoint yet; train it first")
    checkpoint, entry = loaded
    spec = folder.read_spec()
    if spec is None:
        print(
            f"{folder.path} has no {folder.spec_file.name}: {config.env} is constructed once to "
            "read its spaces",
            file=sys.stderr,
        )
        spec = probe(config)
    spec = spec.agent_groups[_agent_group(config, policy, spec)]
    config = dataclasses.replace(config, model=resolve_encoder(config.model, spec.observations))
    try:
        model = pairing(config).network_maker(config, spec, 0)()
        load_weights(model, model_tensors(checkpoint.tensors))
    except RuntimeError as error:
        raise ConfigError(
            f"{folder.path}: the weights of {entry.file} do not fit the model that config.yaml "
            f"and {folder.spec_file.name} describe; restore these files as the run wrote them\n"
            f"{error}"
        ) from error
    return model, spec, checkpoint.state


def load_other_groups(
    folder: RunFolder, config: AnyConfig, policy: str | None, spec: EnvSpec
) -> tuple[int, dict[int, ActorCritic | QNetwork]]:
    """Return the index of the agent group that ``policy`` plays, and a model for each other agent
    group of ``spec``, by its index: that of the first policy that plays it. Raises ConfigError if
    such a policy has no checkpoint."""
    group, roles = _agent_group(config, policy, spec), roles_of_policies(config)
    models: dict[int, ActorCritic | QNetwork] = {}
    for name in (*roles.trained, *(each for each in roles.frozen if each != OPPONENT)):
        other = roles.agent_group(name, spec)
        if other != group and other not in models:
            models[other] = load_model(folder, config, policy=name)[0].eval()
    return group, models
