"""How the forward passes of a model are made: their precision, and their compilation
(torch.compile) into fewer, larger kernels. The model keeps its parameters, buffers and names.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import torch

from sampleforge.models.actor_critic import ActorCritic
from sampleforge.models.cnn import ImageEncoder, ImageTower
from sampleforge.models.trunk import Trunk
from sampleforge.runtime.torch_settings import tame_tqdm

Function = TypeVar("Function", bound=Callable[..., Any])


def autocast(device: torch.device, precision: str) -> AbstractContextManager[None]:
    """Return the context of forward passes: bf16 autocast, or full precision ("fp32")."""
    if precision == "fp32":
        return nullcontext()  # a disabled autocast costs 5 us, as much as a layer of CartPole's MLP
    context: AbstractContextManager[None] = torch.autocast(device.type, dtype=torch.bfloat16)
    return context


def hold_weights(model: torch.nn.Module, precision: str) -> None:
    """Have a model that only acts hold the weights of its image layers in the ``precision`` of its
    passes, so that autocast need not convert them in each: a pass of Nature CNN for 8 rows takes
    1.27 instead of 1.89 ms of a core in bf16. A user's own encoder may switch autocast off, and is
    left as it is."""
    if precision != "bf16":
        return
    for trunk in model.modules():
        if isinstance(trunk, Trunk) and type(trunk.encoder) is ImageEncoder:
            for tower in trunk.encoder.towers:
                assert isinstance(tower, ImageTower)
                tower.hold_in_bf16()


def compile_passes(model: ActorCritic) -> None:
    """Have ``model.step`` and ``model.forward`` compiled when they are first called, and again for
    other shapes.

    Of a model with a recurrent core only the encoders are compiled: the core's loop over time would
    be unrolled, or depends on where episodes begin.
    """
    if model.state_size:
        for trunk in filter(None, (model.actor, model.critic)):
            trunk.encoder.forward = compiled(trunk.encoder.forward)
    else:
        model.step = compiled(model.step)  # type: ignore[method-assign]
        model.forward = compiled(model.forward)  # type: ignore[method-assign]


def compiled(function: Function, device: torch.device | None = None) -> Function:
    """Return ``function``, to be compiled when it is first called, and again for other shapes.

    ``device``: on which all its tensors are, if it has no gradient by torch: for a CPU it becomes
    one file of C++, which is compiled in half the time of a file for each operation."""
    import torch._inductor.config as inductor

    tame_tqdm()

    # This process starts compilers, one at a time: a pool of processes would cost memory in every
    # worker, and outlive a worker that is killed.
    inductor.compile_threads = 1
    # Precompiled headers would be 150 MB in /tmp, whatever TORCHINDUCTOR_CACHE_DIR is, and stay.
    inductor.cpp_cache_precompile_headers = False
    whole = device is not None and device.type == "cpu"
    return torch.compile(  # type: ignore[return-value]
        function, options={"cpp_wrapper": True} if whole else None
    )
