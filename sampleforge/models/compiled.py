"""A model whose passes are compiled (torch.compile): fewer, larger kernels; on a CUDA device a pass
is launched as a whole (a CUDA graph), where its shapes stay the same.

The model stays what it is: its parameters, buffers and names are those of before.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch

from sampleforge.models.actor_critic import ActorCritic

Pass = Callable[..., Any]


def compile_passes(model: ActorCritic, device: torch.device) -> None:
    """Have ``model.step`` and ``model.forward`` compiled when they are first called, anew for other
    shapes. On a CUDA device what a pass returns is valid until the next pass.

    Of a model with a recurrent core the encoders are: a core's loop over time would be unrolled, or
    asks where episodes begin.
    """
    import torch._inductor.config as inductor

    # Compilers are started by this process, one at a time: a pool of processes for it would cost
    # memory in every worker, and outlive one that is killed.
    inductor.compile_threads = 1
    # They would be 150 MB in /tmp, whatever TORCHINDUCTOR_CACHE_DIR says, and stay there.
    inductor.cpp_cache_precompile_headers = False
    mode = "reduce-overhead" if device.type == "cuda" else None
    if model.state_size:
        for trunk in filter(None, (model.actor, model.critic)):
            trunk.encoder.forward = torch.compile(trunk.encoder.forward, mode=mode)
    else:
        model.step = torch.compile(model.step, mode=mode)  # type: ignore[method-assign]
        model.forward = torch.compile(model.forward, mode=mode)  # type: ignore[method-assign]
    if device.type == "cuda":
        model.step = _beginning(model.step)  # type: ignore[method-assign]
        model.forward = _beginning(model.forward)  # type: ignore[method-assign]


def _beginning(one_pass: Pass) -> Pass:
    """Each call gives up the memory of what the last one returned."""
    begin: Pass = torch.compiler.cudagraph_mark_step_begin

    @wraps(one_pass)
    def begun(*args: Any, **kwargs: Any) -> Any:
        begin()
        return one_pass(*args, **kwargs)

    return begun
