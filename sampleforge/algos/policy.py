"""Policies that act: a model that follows the newest weights and turns observations into
actions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar

import numpy.typing as npt
import torch

from sampleforge.algos.direct_policy import DirectActing
from sampleforge.algos.precision import autocast
from sampleforge.models.actor_critic import ActorCritic, ModelOutput
from sampleforge.models.compiled import compile_passes
from sampleforge.models.mlp_pass import MAX_ROWS
from sampleforge.models.q_network import EVALUATION_EPSILON, GreedyActions, QNetwork
from sampleforge.shared.weights import SharedWeights
from sampleforge.spec import ACTION, ArraySpec

Array = npt.NDArray[Any]
Model = TypeVar("Model", ActorCritic, QNetwork)


class PolicyOutput(NamedTuple):
    """The behaviour policy's output for ``B`` rows."""

    actions: dict[str, torch.Tensor]  # [B, ...]
    extras: dict[str, torch.Tensor]  # [B, ...] each: the slot's columns of that name
    state: torch.Tensor  # float32 [B, S], after this step


class ArrayOutput(NamedTuple):
    """The behaviour policy's output for ``B`` rows as arrays, as in `PolicyOutput`."""

    actions: dict[str, Array]
    extras: dict[str, Array]
    state: Array


class FrozenPolicy:
    """Acts with the weights that its ``model`` has: in evaluation, and for a loaded policy."""

    def __init__(self, model: ActorCritic | QNetwork) -> None:
        self.model = model.eval()

    def initial_state(self, rows: int) -> torch.Tensor:
        """Return the recurrent state [rows, S] to begin with."""
        return torch.zeros(rows, self.model.state_size)

    @torch.inference_mode()
    def act(
        self,
        obs: Mapping[str, Array],
        state: torch.Tensor,
        is_first: Array,
        *,
        stochastic: bool = False,
        generator: torch.Generator | None = None,
    ) -> tuple[dict[str, Array], torch.Tensor]:
        """Return (actions, next state) for observation leaves [B, ...] as slots hold them, the
        recurrent state [B, S] and ``is_first`` (bool [B]: the state is zeroed there). Actions are
        leaf -> [B, ...] as slots hold them: the most likely ones, or, with ``stochastic``, samples
        (from ``generator``; None: torch's global generator)."""
        leaves = {name: torch.from_numpy(leaf) for name, leaf in obs.items()}
        output = self.model.step(leaves, state, torch.from_numpy(is_first))
        distribution = self.model.distribution(output.parameters, leaves)
        chosen = distribution.sample(generator) if stochastic else distribution.mode()
        return {name: leaf.numpy() for name, leaf in chosen.items()}, output.state


class ExploringPolicy(FrozenPolicy):
    """Acts as a `FrozenPolicy`, and keeps what a dataset needs of the last step that sampled:
    ``log_prob`` float32 [B] of the actions, and the ``parameters`` [B, P] of their distribution, of
    a Q-network the log-probabilities of all actions."""

    log_prob: Array
    parameters: Array

    @torch.inference_mode()
    def act(
        self,
        obs: Mapping[str, Array],
        state: torch.Tensor,
        is_first: Array,
        *,
        stochastic: bool = True,
        generator: torch.Generator | None = None,
    ) -> tuple[dict[str, Array], torch.Tensor]:
        leaves = {name: torch.from_numpy(leaf) for name, leaf in obs.items()}
        parameters, _, state = self.model.step(leaves, state, torch.from_numpy(is_first))
        distribution = self.model.distribution(parameters, leaves)
        if not stochastic:
            return {name: leaf.numpy() for name, leaf in distribution.mode().items()}, state
        chosen = distribution.sample(generator)
        if isinstance(distribution, GreedyActions):
            epsilons = torch.full(parameters.shape[:-1], EVALUATION_EPSILON)
            parameters = distribution.log_probs(epsilons)
            log_prob = parameters.gather(-1, chosen[ACTION].unsqueeze(-1)).squeeze(-1)
        else:
            log_prob = distribution.log_prob(chosen)
        self.log_prob, self.parameters = log_prob.numpy(), parameters.float().numpy()
        return {name: leaf.numpy() for name, leaf in chosen.items()}, state


class Policy(Protocol):
    """The policy that acts in an actor or a policy worker: `SampledPolicy`, `EpsilonGreedyPolicy`.

    ``version`` is the policy version of the weights in use.
    """

    version: int

    def refresh(self) -> None:
        """Copy newer weights, if there are any and a refresh is due."""

    def act(
        self,
        obs: dict[str, torch.Tensor],
        state: torch.Tensor,
        is_first: torch.Tensor,
        rows: torch.Tensor,
    ) -> PolicyOutput:
        """Return actions for observation leaves [B, ...], recurrent state [B, S] and ``is_first``
        (bool [B]). ``rows`` (int64 [B]) are the numbers of the env rows in the run."""

    def act_on_arrays(
        self, obs: dict[str, Array], state: Array, is_first: Array, rows: torch.Tensor
    ) -> ArrayOutput:
        """As `act`, for a policy on the CPU. The arrays are valid until the next call."""

    def values(self, obs: dict[str, torch.Tensor], state: torch.Tensor) -> torch.Tensor:
        """Return the values [B] of observations that continue an episode (final observations)."""


NewSeed = Callable[[], int | None]
"""Returns a seed if the random generator is to begin anew with it, else None."""


def keep_seed() -> int | None:
    """Return None: the random generator goes on."""
    return None


class FollowingModel(Generic[Model]):
    """A model whose weights follow a `SharedWeights`, with a random generator.

    It is deterministic for a seed, given the same observations and the same publications of
    weights. ``new_seed`` is asked before each look for newer weights.
    """

    def __init__(
        self,
        model: Model,
        weights: SharedWeights,
        *,
        device: torch.device,
        precision: str,
        seed: int,
        new_seed: NewSeed = keep_seed,
    ) -> None:
        self._new_seed = new_seed
        self._model: Model = model.to(device).eval()
        self._tensors: dict[str, torch.Tensor] = self._model.state_dict()
        self._weights = weights
        self._device = device
        self._precision = precision
        self._generator = torch.Generator(device).manual_seed(seed)
        self._published = -1
        self.version = 0

    def refresh(self) -> None:
        """Copy the newest weights, if there was a publication since the last copy. Begin the random
        generator anew, if there is a new seed."""
        self._begin_anew()
        if self._published != self._weights.published:
            with torch.no_grad():
                self._published, self.version = self._weights.read(self._tensors)
            self._follow()

    def _follow(self) -> None:
        """Take over the weights in other forms that they are used in."""

    def _begin_anew(self) -> bool:
        """Seed the random generator anew, if there is a new seed, and return whether there is."""
        seed = self._new_seed()
        if seed is not None:
            self._generator.manual_seed(seed)
        return seed is not None

    def act(
        self,
        obs: dict[str, torch.Tensor],
        state: torch.Tensor,
        is_first: torch.Tensor,
        rows: torch.Tensor,
    ) -> PolicyOutput:
        """Return actions; see `Policy.act`."""
        raise NotImplementedError

    def act_on_arrays(
        self, obs: dict[str, Array], state: Array, is_first: Array, rows: torch.Tensor
    ) -> ArrayOutput:
        """As `act`, from arrays to arrays, for a policy on the CPU."""
        leaves = {name: torch.from_numpy(leaf) for name, leaf in obs.items()}
        acted = self.act(leaves, torch.from_numpy(state), torch.from_numpy(is_first), rows)
        return ArrayOutput(
            {name: leaf.numpy() for name, leaf in acted.actions.items()},
            {name: column.numpy() for name, column in acted.extras.items()},
            acted.state.numpy(),
        )

    @torch.inference_mode()
    def values(self, obs: dict[str, torch.Tensor], state: torch.Tensor) -> torch.Tensor:
        """Return the values [B] of observations that continue an episode."""
        is_first = torch.zeros(state.shape[0], dtype=torch.bool, device=self._device)
        with autocast(self._device, self._precision):
            return self._model.step(obs, state, is_first).values


class CorrelatedNoise:
    """Standard normal noise, which is correlated with that of the step before in every fourth env
    row: z_t = c z_{t-1} + sqrt(1 - c^2) e_t with e_t ~ N(0, 1), starting anew with each episode.

    Each z_t alone is N(0, 1), so that the log-probability of an action given its observation is
    that of independent noise (as with the coloured noise of Hollenstein et al. 2024, arXiv
    2312.11091). Independent noise cancels itself out over a few steps; correlated noise moves a
    system that has inertia. The other rows keep independent noise, because with correlated noise a
    system that balances falls (measured: Hopper).
    """

    EVERY = 4

    def __init__(
        self, correlation: float, rows: int, size: int, generator: torch.Generator
    ) -> None:
        """Make the source of noise for ``rows`` env rows (of the whole run), each with ``size``
        numbers per step."""
        self._correlation = torch.zeros((rows, 1), device=generator.device)
        self._correlation[self.EVERY - 1 :: self.EVERY] = correlation
        self._fresh = (1.0 - self._correlation.square()).sqrt()
        self._generator = generator
        self._last = torch.full((rows, size), math.nan, device=generator.device)

    def draw(self, rows: torch.Tensor, is_first: torch.Tensor) -> torch.Tensor:
        """Return the noise [B, size] of the env rows ``rows`` (int64 [B]).

        ``is_first`` (bool [B]) marks the beginning of an episode. A row without earlier noise
        begins as well, as after a restart of the policy worker."""
        last = self._last[rows]
        noise = torch.empty_like(last).normal_(generator=self._generator)
        begins = is_first.unsqueeze(1) | last.isnan()
        correlated = self._correlation[rows] * last + self._fresh[rows] * noise
        noise = torch.where(begins, noise, correlated)
        self._last[rows] = noise
        return noise

    def is_independent(self, rows: torch.Tensor) -> torch.Tensor:
        """Return which of the env rows ``rows`` (int64 [B]) have independent noise, bool [B]."""
        return self._correlation[rows, 0] == 0


class SampledPolicy(FollowingModel[ActorCritic]):
    """The policy that samples actions from the distribution of an actor-critic.

    ``noise_correlation``: correlation of the noise of Box actions, see `CorrelatedNoise`;
    ``num_rows``: number of env rows of the run, for each of which it keeps the last noise.
    """

    directly: ClassVar[bool] = True
    """Whether `act_on_arrays` may use `DirectActing`, which has no extra columns but an
    actor-critic's."""

    def __init__(
        self,
        model: ActorCritic,
        weights: SharedWeights,
        *,
        device: torch.device,
        precision: str,
        seed: int,
        noise_correlation: float = 0.0,
        num_rows: int = 0,
        new_seed: NewSeed = keep_seed,
    ) -> None:
        super().__init__(
            model, weights, device=device, precision=precision, seed=seed, new_seed=new_seed
        )
        self._noise: CorrelatedNoise | None = None
        if noise_correlation and model.layout.num_boxes:
            size, generator = model.layout.num_boxes, self._generator
            self._noise = CorrelatedNoise(noise_correlation, num_rows, size, generator)
        self._direct: DirectActing | None = None
        if self.directly and precision == "fp32":
            self._direct = DirectActing.of(self._model, self._generator)

    def _follow(self) -> None:
        if self._direct is not None:
            self._direct.follow()

    @torch.inference_mode()
    def compile(self, observations: Mapping[str, ArraySpec], sizes: Sequence[int]) -> None:
        """Compile the model's passes now, for batches of ``sizes`` rows. With more than one size
        they work for batches of any size. No random numbers are drawn."""
        self._direct = None
        compile_passes(self._model, self._device)
        for rows in sizes:
            obs = {
                name: torch.zeros(
                    (rows, *leaf.shape), dtype=getattr(torch, leaf.dtype), device=self._device
                )
                for name, leaf in observations.items()
            }
            state = torch.zeros((rows, self._model.state_size), device=self._device)
            is_first = torch.ones(rows, dtype=torch.bool, device=self._device)
            with autocast(self._device, self._precision):
                self._model.step(obs, state, is_first)

    @torch.inference_mode()
    def act(
        self,
        obs: dict[str, torch.Tensor],
        state: torch.Tensor,
        is_first: torch.Tensor,
        rows: torch.Tensor,
    ) -> PolicyOutput:
        with autocast(self._device, self._precision):
            output = self._model.step(obs, state, is_first)
        distribution = self._model.distribution(output.parameters, obs)
        noise = None if self._noise is None else self._noise.draw(rows, is_first)
        actions = distribution.sample(self._generator, noise)
        extras = {"log_prob": distribution.log_prob(actions), **self._extras(output, rows)}
        return PolicyOutput(actions, extras, output.state)

    def act_on_arrays(
        self, obs: dict[str, Array], state: Array, is_first: Array, rows: torch.Tensor
    ) -> ArrayOutput:
        if self._direct is None or len(is_first) > MAX_ROWS:
            return super().act_on_arrays(obs, state, is_first, rows)
        noise = None if self._noise is None else partial(self._draw, rows, is_first)
        actions, extras = self._direct.act(obs, noise)
        return ArrayOutput(actions, extras, state)

    @torch.inference_mode()
    def _draw(self, rows: torch.Tensor, is_first: Array) -> torch.Tensor:
        assert self._noise is not None
        return self._noise.draw(rows, torch.from_numpy(is_first))

    def _extras(self, output: ModelOutput, rows: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the slot's extra columns, [B, ...] each, beside the log-probabilities."""
        return {"value": output.values}


class RecordedPolicy(SampledPolicy):
    """A policy whose output also has the parameters [B, P] of the distribution that it samples
    from, and whether it samples independently of the steps before, bool [B]."""

    directly = False

    def _extras(self, output: ModelOutput, rows: torch.Tensor) -> dict[str, torch.Tensor]:
        if self._noise is None:
            independent = torch.ones_like(rows, dtype=torch.bool)
        else:
            independent = self._noise.is_independent(rows)
        recorded = {"parameters": output.parameters.float(), "independent": independent}
        return {**super()._extras(output, rows), **recorded}
