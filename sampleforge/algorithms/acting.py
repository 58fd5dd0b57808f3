"""Acting: a network that follows the newest weights, or has fixed ones, and the choice of actions
from its outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import numpy.typing as npt
import torch

from sampleforge.models.actor_critic import ActorCritic
from sampleforge.models.forward import autocast, compile_passes, hold_weights
from sampleforge.models.numpy_forward import MAX_ROWS
from sampleforge.models.q_heads import Noise, set_noise
from sampleforge.models.q_network import QNetwork
from sampleforge.shared.counters import Progress
from sampleforge.shared.newest import SharedWeights
from sampleforge.spec import ArraySpec

if TYPE_CHECKING:
    from sampleforge.algorithms.sampling import DirectActing

Array = npt.NDArray[Any]
T = TypeVar("T")

NewSeed = Callable[[], int | None]
"""Returns a seed if the random generator is to begin anew with it, else None."""


def keep_seed() -> int | None:
    """Return None: the random generator goes on."""
    return None


@dataclass(frozen=True)
class ActingPlace:
    """Where a policy acts. ``generator``: of all of its random numbers, on the device on which it
    acts; ``new_seed`` is asked whether to begin anew with another seed. ``num_rows``: the agents of
    all env rows of the run, split by split: of each the first agents of its ``split_rows`` env
    rows, then the second ones, of so many ``seats``. ``recorded``: what it does is recorded.
    ``ladder``: the exploration of each of these rows, if the algorithm has one. ``progress``: of
    the run, whose env steps so many ``policies`` share. ``graphs``: a GPU may launch its passes as
    graphs. ``is_trained``: the policy began with what another run had trained. ``given`` returns
    the actions of the next step, leaf -> [B, ...], if they were taken before."""

    generator: torch.Generator
    new_seed: NewSeed = keep_seed
    precision: str = "fp32"
    num_rows: int = 0
    split_rows: int = 1
    seats: int = 1
    recorded: bool = False
    ladder: torch.Tensor | None = None
    progress: Progress | None = None
    policies: int = 1
    graphs: bool = True
    is_trained: bool = False
    given: Callable[[], Mapping[str, Array]] | None = None

    @property
    def device(self) -> torch.device:
        """The device on which the policy acts."""
        return self.generator.device

    @property
    def env_rows(self) -> torch.Tensor:
        """The index of the env row of each of the `num_rows` agents, int64 [num_rows]."""
        agents = torch.arange(self.num_rows, device=self.device)
        split = agents // (self.split_rows * self.seats)
        return split * self.split_rows + agents % self.split_rows

    @property
    def is_plain(self) -> bool:
        """Whether the policy only chooses actions, on the CPU and in full precision."""
        chooses_alone = not self.recorded and self.given is None
        return chooses_alone and self.device.type == "cpu" and self.precision == "fp32"


class Acted(NamedTuple, Generic[T]):
    """What acting gives for ``B`` rows, as tensors or as arrays."""

    actions: dict[str, T]  # [B, ...]
    extras: dict[str, T]  # [B, ...] each: the slot's columns of that name
    state: T  # float32 [B, S], after this step


def as_arrays(acted: Acted[torch.Tensor]) -> Acted[Array]:
    """Return tensors on the CPU as arrays that share their memory."""
    return Acted(
        {name: leaf.numpy() for name, leaf in acted.actions.items()},
        {name: column.numpy() for name, column in acted.extras.items()},
        acted.state.numpy(),
    )


class Chooser:
    """The base of what chooses actions. ``distribution``: what the network's ``choices`` returns
    for B rows; ``rows`` int64 [B]: the numbers of the env rows in the run."""

    def begin(self) -> Hashable:
        """Called before each step: note what the choice depends on besides its arguments. Return
        what decides which operations it takes; None if they are always the same."""
        return None

    def __call__(
        self, distribution: Any, is_first: torch.Tensor, rows: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        """Return the actions, leaf -> [B, ...]. ``is_first`` bool [B]: an episode begins."""
        raise NotImplementedError

    def recorded(self, distribution: Any, rows: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the columns of a recording that say how the last actions were drawn: "parameters"
        [B, P] of their distribution, and "independent", bool [B]: whether they were drawn from it
        independently of the steps before."""
        raise NotImplementedError


Columns = Callable[[Any, torch.Tensor, Mapping[str, torch.Tensor]], dict[str, torch.Tensor]]
"""Returns the slot's columns, [B, ...] each, given what the network's ``choices`` returns, its
values [B] and the actions."""


class Acting:
    """The policy that acts in an actor or a policy worker.

    Its network has the newest of the shared weights: they are copied after at least
    ``refresh_interval`` env steps of this policy. Noisy layers draw new noise for each row and
    step. Then ``choose`` chooses the actions, and ``columns`` says what is written beside them.
    ``direct`` computes the same in numpy, if it can.

    It is deterministic for a seed, given the same observations and the same publications of
    weights. ``version`` is the policy version of the weights in use.
    """

    def __init__(
        self,
        network: ActorCritic | QNetwork,
        weights: SharedWeights,
        place: ActingPlace,
        choose: Chooser,
        columns: Columns,
        *,
        refresh_interval: int = 0,
        direct: DirectActing | None = None,
    ) -> None:
        self._network = network.to(place.device).eval()
        hold_weights(self._network, place.precision)
        set_noise(self._network, Noise(place.generator, per_row=True))
        self._tensors: dict[str, torch.Tensor] = self._network.state_dict()
        self._weights = weights
        self._place = place
        self._device, self._precision = place.device, place.precision
        self._choose = choose
        self._columns = columns
        self._refresh_interval = self._acted = refresh_interval
        self._direct = direct
        self._published = -1
        self.version = 0

    @property
    def graphs(self) -> bool:
        """Whether a GPU may launch its passes as graphs."""
        return self._place.graphs

    def refresh(self) -> None:
        """Copy newer weights, if there are any and a refresh is due. Begin the random generator
        anew, if there is a new seed."""
        seed = self._place.new_seed()
        if seed is not None:
            self._place.generator.manual_seed(seed)
        elif self._acted < self._refresh_interval:
            return
        self._acted = 0
        if self._published != self._weights.published:
            with torch.no_grad():
                self._published, self.version = self._weights.read(self._tensors)
            if self._direct is not None:
                self._direct.follow()

    @torch.inference_mode()
    def compile(self, observations: Mapping[str, ArraySpec], sizes: Sequence[int]) -> None:
        """Compile the network's passes now, for batches of ``sizes`` rows. With more than one size
        they work for batches of any size. No random numbers are drawn."""
        assert isinstance(self._network, ActorCritic), "the config refuses --compile for others"
        self._direct = None
        compile_passes(self._network)
        for rows in sizes:
            obs = {
                name: torch.zeros(
                    (rows, *leaf.shape), dtype=getattr(torch, leaf.dtype), device=self._device
                )
                for name, leaf in observations.items()
            }
            state = torch.zeros((rows, self._network.state_size), device=self._device)
            is_first = torch.ones(rows, dtype=torch.bool, device=self._device)
            with autocast(self._device, self._precision):
                self._network.step(obs, state, is_first)

    def act(
        self,
        obs: dict[str, torch.Tensor],
        state: torch.Tensor,
        is_first: torch.Tensor,
        rows: torch.Tensor,
    ) -> Acted[torch.Tensor]:
        """Return actions for observation leaves [B, ...], recurrent state [B, S] and ``is_first``
        (bool [B]). ``rows`` (int64 [B]) are the numbers of the env rows in the run."""
        self.begin(len(is_first))
        return self.compute(obs, state, is_first, rows)

    def begin(self, count: int) -> Hashable:
        """Count a step of ``count`` rows, which `compute` computes next. Return what decides which
        operations that takes; see `Chooser`."""
        self._acted += count
        return self._choose.begin()

    @torch.inference_mode()
    def compute(
        self,
        obs: dict[str, torch.Tensor],
        state: torch.Tensor,
        is_first: torch.Tensor,
        rows: torch.Tensor,
    ) -> Acted[torch.Tensor]:
        """Return what `act` returns, after `begin`: operations on the device alone, which can be
        recorded and repeated."""
        with autocast(self._device, self._precision):
            distribution, values, state = self._network.choices(obs, state, is_first)
        if self._place.given is None:
            actions = self._choose(distribution, is_first, rows)
        else:
            actions = {n: torch.from_numpy(leaf) for n, leaf in self._place.given().items()}
        columns = self._columns(distribution, values, actions)
        if self._place.recorded:
            columns |= self._choose.recorded(distribution, rows)
        return Acted(actions, columns, state)

    @property
    def generator(self) -> torch.Generator:
        """The generator of all of its random numbers."""
        return self._place.generator

    def act_on_arrays(
        self, obs: dict[str, Array], state: Array, is_first: Array, rows: torch.Tensor
    ) -> Acted[Array]:
        """As `act`, for a policy on the CPU. The arrays are valid until the next call."""
        if self._direct is not None and len(is_first) <= MAX_ROWS:
            self._acted += len(is_first)
            actions, columns = self._direct.act(obs, is_first, rows)
            return Acted(actions, columns, state)
        leaves = {name: torch.from_numpy(leaf) for name, leaf in obs.items()}
        state_of, first = torch.from_numpy(state), torch.from_numpy(is_first)
        return as_arrays(self.act(leaves, state_of, first, rows))

    @torch.inference_mode()
    def values(self, obs: dict[str, torch.Tensor], state: torch.Tensor) -> torch.Tensor:
        """Return the values [B] of observations that continue an episode (final observations)."""
        is_first = torch.zeros(state.shape[0], dtype=torch.bool, device=self._device)
        with autocast(self._device, self._precision):
            return self._network.step(obs, state, is_first).values


class FrozenPolicy:
    """Acts with the weights that its ``model`` has: in evaluation, and for a loaded policy.

    ``columns`` are what a dataset needs of the last step, if it is ``recorded`` and has sampled:
    "log_prob" float32 [B] of the actions, the "parameters" [B, P] of their distribution (of a
    Q-network the log-probabilities of all actions), and "independent", bool [B], all True."""

    def __init__(self, model: ActorCritic | QNetwork, *, recorded: bool = False) -> None:
        self.model = model.eval()
        self.columns: dict[str, Array] = {}
        self._recorded = recorded

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
        if self._recorded:
            self.columns = {}
            if stochastic:
                log_prob = distribution.log_prob(chosen)
                self.columns["log_prob"] = log_prob.numpy()
                self.columns["parameters"] = distribution.parameters.numpy()
                self.columns["independent"] = torch.ones_like(log_prob, dtype=torch.bool).numpy()
        return {name: leaf.numpy() for name, leaf in chosen.items()}, output.state
