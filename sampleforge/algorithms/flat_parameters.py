"""The parameters of a model as views of one flat tensor, and optimisers of that tensor.

For a small network, calls cost more than arithmetic. On flat tensors one call does what would take
one per parameter: the optimiser's step, the norm of the gradient, the all-reduce.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.optim.rmsprop import rmsprop


class Chunk(NamedTuple):
    """Parameters that lie one after the other in ``data`` [n], as their gradients do in
    ``gradient`` [n]."""

    parameters: tuple[Tensor, ...]
    data: Tensor
    gradient: Tensor

    def views(self, flat: Tensor) -> list[Tensor]:
        """Return the part of each parameter, in its shape, of a tensor [n]; a tensor [] is of all
        of them."""
        if flat.ndim == 0:
            return [flat] * len(self.parameters)
        parts = torch.split(flat, [p.numel() for p in self.parameters])
        return [part.view(p.shape) for part, p in zip(parts, self.parameters, strict=True)]


class FlatParameters:
    """Trainable parameters as views of flat tensors, and their gradients as views of others.

    The parameters stay the model's: their names and shapes do not change, and what changes them in
    place (`load_state_dict`) changes the flat tensor. Their ``grad`` always exists; a parameter
    that a loss does not depend on has a gradient of zeros. ``chunks``: one per dtype and device, so
    in nearly all cases a single one; parameters that are ``apart`` have one each and stay where
    they are in memory.
    """

    def __init__(self, parameters: Iterable[Tensor], apart: Iterable[Tensor] = ()) -> None:
        self.parameters = list(parameters)
        alone = {id(p) for p in apart}
        groups: dict[object, list[Tensor]] = {}
        for p in self.parameters:
            groups.setdefault(id(p) if id(p) in alone else (p.dtype, p.device), []).append(p)
        self.chunks = [_chunk(group) for group in groups.values()]
        places = {
            id(p): (chunk, place)
            for chunk, each in enumerate(self.chunks)
            for place, p in enumerate(each.parameters)
        }
        self._places = [places[id(p)] for p in self.parameters]
        self._moves: list[Tensor | None] = [None] * len(self.chunks)
        """Of each chunk, bool [n], where it moves; None: everywhere. See `hold`."""

    def per_parameter(self, flats: Sequence[Tensor]) -> list[Tensor]:
        """Return the part of each parameter, in the order of ``parameters``, of tensors that are
        laid out as the chunks are: views."""
        views = [chunk.views(flat) for chunk, flat in zip(self.chunks, flats, strict=True)]
        return [views[chunk][place] for chunk, place in self._places]

    def zero_gradient(self) -> None:
        """Set all gradients to zero."""
        for chunk in self.chunks:
            chunk.gradient.zero_()

    def hold(self, held: Iterable[Tensor]) -> None:
        """Have these parameters, as far as they are among its own, keep their values until
        `release`. Their gradients are computed meanwhile, and optimisers follow them: when they
        move again, their steps are as long as those of the others. Moments that began with them
        would be corrected as if they were old: Adam's first steps would be three to six times as
        long."""
        still = {id(p) for p in held}
        for index, chunk in enumerate(self.chunks):
            if still.intersection(map(id, chunk.parameters)):
                moves = torch.ones_like(chunk.data, dtype=torch.bool)
                for p, part in zip(chunk.parameters, chunk.views(moves), strict=True):
                    part.fill_(id(p) not in still)
                self._moves[index] = moves

    def release(self) -> None:
        """Have all parameters move again."""
        for moves in self._moves:
            if moves is not None:
                moves.fill_(True)  # in place: a graph of the device may hold it

    @contextmanager
    def holding(self) -> Iterator[None]:
        """Within this context all parameters may be changed; those that are held have their values
        back after it."""
        kept = [
            None if moves is None else chunk.data.clone()
            for chunk, moves in zip(self.chunks, self._moves, strict=True)
        ]
        yield
        for chunk, moves, before in zip(self.chunks, self._moves, kept, strict=True):
            if moves is not None and before is not None:
                chunk.data.copy_(torch.where(moves, chunk.data, before))

    def clip_gradient(self, limit: float) -> Tensor:
        """Scale the gradient down to the norm ``limit`` (0: not at all); return the norm [] that it
        had, without parameters that are held. Does not wait for the device."""
        gradients = [
            chunk.gradient if moves is None else chunk.gradient * moves
            for chunk, moves in zip(self.chunks, self._moves, strict=True)
        ]
        norm: Tensor = torch.linalg.vector_norm(gradients[0])
        if len(gradients) > 1:
            norms = [norm, *(torch.linalg.vector_norm(g).to(norm) for g in gradients[1:])]
            norm = torch.linalg.vector_norm(torch.stack(norms))
        if limit:
            scale = (limit / (norm + 1e-6)).clamp_(max=1.0)
            for chunk in self.chunks:
                chunk.gradient.mul_(scale.to(chunk.gradient.device))
        return norm


class Frozen:
    """Which parameters of a model are trained, as of now: it cannot be changed once they are
    flat."""

    def __init__(self, model: nn.Module) -> None:
        self._parameters = list(model.parameters())
        self._trained = self._now()
        self._names = [name for name, _ in model.named_parameters()]

    def _now(self) -> list[bool]:
        return [parameter.requires_grad for parameter in self._parameters]

    def check(self) -> None:
        """Raise RuntimeError if a parameter was frozen, or is trained again, since."""
        now = self._now()
        if now == self._trained:
            return
        changed = [n for n, a, b in zip(self._names, self._trained, now, strict=True) if a != b]
        raise RuntimeError(
            f"requires_grad of {', '.join(changed)} was changed after the learner was made, where "
            "it has no effect: freeze parameters in the constructor of an encoder of your own, "
            "such as a class derived from a built-in one (--model.encoder package.module:Class)"
        )


def flatten(model: nn.Module) -> FlatParameters:
    """Return the trainable parameters of a model, flat from now on.

    On a CUDA device the weights of torch's recurrent layers stay apart: cuDNN uses them in the
    place where it has put them, and would copy them from any other in each pass."""
    return FlatParameters((p for p in model.parameters() if p.requires_grad), kept_apart(model))


def kept_apart(model: nn.Module) -> list[Tensor]:
    """Return the parameters of a model that stay where they are in memory; see `flatten`."""
    recurrent = [m for m in model.modules() if isinstance(m, nn.RNNBase)]
    return [p for module in recurrent for p in module.parameters() if p.is_cuda]


@torch.no_grad()
def _chunk(parameters: list[Tensor]) -> Chunk:
    if len(parameters) == 1:
        data = parameters[0].data.contiguous().view(-1)
    else:
        data = torch.cat([p.data.reshape(-1) for p in parameters])
    chunk = Chunk(tuple(parameters), data, torch.zeros_like(data))
    views = chunk.views(data), chunk.views(chunk.gradient)
    for parameter, own, gradient in zip(parameters, *views, strict=True):
        parameter.data = own
        parameter.grad = gradient
    return chunk


class Optimiser:
    """The base of an optimiser of `FlatParameters`. ``state``: of each chunk, by name, a tensor [n]
    or []. ``flat``, ``eps``: what it optimises, and what is added to the denominator of a step."""

    state: dict[str, list[Tensor]]

    def __init__(self, flat: FlatParameters, eps: float) -> None:
        self.flat = flat
        self.eps = eps
        self._data = [chunk.data for chunk in flat.chunks]
        self._gradients = [chunk.gradient for chunk in flat.chunks]

    def _zeros(self) -> list[Tensor]:
        """Return zeros for each number that is optimised."""
        return [torch.zeros_like(data) for data in self._data]

    def step(self, rate: float | Tensor, skip: Tensor | None = None) -> None:
        """Take a step with the learning rate ``rate``; none where ``skip`` (float32 []) is 1, which
        is decided on the device."""
        with self.flat.holding():
            self._step(rate, skip)

    def _step(self, rate: float | Tensor, skip: Tensor | None) -> None:
        """Take the step of all parameters, also of those that are held."""
        raise NotImplementedError


class Adam(Optimiser):
    """Adam (Kingma and Ba 2015, arXiv 1412.6980) with torch's fused kernel.

    `torch.optim.Adam` calls the same kernel. What it does around it takes longer than the kernel
    for a small network: see benchmarks/results/learner_step.md.
    """

    def __init__(self, flat: FlatParameters, betas: tuple[float, float], eps: float) -> None:
        super().__init__(flat, eps)
        self._betas = betas
        self.state = {
            "step": [torch.zeros((), device=data.device) for data in self._data],
            "exp_avg": self._zeros(),
            "exp_avg_sq": self._zeros(),
        }

    def _step(self, rate: float | Tensor, skip: Tensor | None) -> None:
        steps = self.state["step"]
        torch._foreach_add_(steps, 1.0)
        columns = zip(
            self._data,
            self._gradients,
            self.state["exp_avg"],
            self.state["exp_avg_sq"],
            steps,
            strict=True,
        )
        for data, gradient, mean, square, step in columns:  # one, unless devices or dtypes differ
            torch._fused_adam_(
                [data],
                [gradient],
                [mean],
                [square],
                [],
                [step],
                lr=rate,
                beta1=self._betas[0],
                beta2=self._betas[1],
                weight_decay=0.0,
                eps=self.eps,
                amsgrad=False,
                maximize=False,
                grad_scale=None,
                found_inf=skip,
            )
        if skip is not None:
            torch._foreach_sub_(steps, [skip] * len(steps))


class RmsProp(Optimiser):
    """Centred RMSProp (Graves 2013, arXiv 1308.0850, eq. 38 to 41, without momentum), by torch."""

    def __init__(self, flat: FlatParameters, decay: float, eps: float) -> None:
        super().__init__(flat, eps)
        self._decay = decay
        self.state = {
            "step": [torch.zeros(()) for _ in self._data],
            "square_avg": self._zeros(),
            "grad_avg": self._zeros(),
        }

    @torch.no_grad()
    def _step(self, rate: float | Tensor, skip: Tensor | None) -> None:
        assert skip is None, "a step of RMSProp is skipped by its caller"
        rmsprop(
            self._data,
            self._gradients,
            self.state["square_avg"],
            self.state["grad_avg"],
            [],
            self.state["step"],
            foreach=True,
            lr=float(rate),
            alpha=self._decay,
            eps=self.eps,
            weight_decay=0.0,
            momentum=0.0,
            centered=True,
        )


def optimiser_tensors(optimiser: Optimiser, prefix: str = "optimiser") -> dict[str, Tensor]:
    """Return the optimiser's state of each parameter, as ``<prefix>/<its index>/<name>``: views,
    and the number of steps for each parameter, as torch's optimisers keep it."""
    return {
        f"{prefix}/{index}/{name}": part
        for name, flats in optimiser.state.items()
        for index, part in enumerate(optimiser.flat.per_parameter(flats))
    }


@torch.no_grad()
def load_optimiser(
    optimiser: Optimiser, tensors: Mapping[str, Tensor], prefix: str = "optimiser"
) -> None:
    """Restore the optimiser's state from what `optimiser_tensors` returned. Raises ValueError if a
    tensor of it is missing."""
    for name, flats in optimiser.state.items():
        for index, part in enumerate(optimiser.flat.per_parameter(flats)):
            key = f"{prefix}/{index}/{name}"
            if key not in tensors:
                raise ValueError(f"the checkpoint has no {key}: its optimiser is another")
            part.copy_(tensors[key])
