"""Compilation of a model's passes (torch.compile): fewer, larger kernels; on a CUDA device a pass
with constant shapes is launched as a whole (a CUDA graph).

The model keeps its parameters, buffers and names.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch

from sampleforge.models.actor_critic import ActorCritic
from sampleforge.runtime.threads import without_tqdm_monitor

Pass = Callable[..., Any]


def compile_passes(model: ActorCritic, device: torch.device) -> None:
    """Have ``model.step`` and ``model.forward`` compiled when they are first called, and again for
    other shapes. On a CUDA device the result of a pass is valid until the next pass.

    Of a model with a recurrent core only the encoders are compiled: the core's loop over time would
    be unrolled, or depends on where episodes begin.
    """
    import torch._inductor.config as inductor

    without_tqdm_monitor()

    # This process starts compilers, one at a time: a pool of processes would cost memory in every
    # worker, and outlive a worker that is killed.
    inductor.compile_threads = 1
    # Precompiled headers would be 150 MB in /tmp, whatever TORCHINDUCTOR_CACHE_DIR is, and stay.
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
    """Return ``one_pass`` so that each call releases the memory of the previous result."""
    begin: Pass = torch.compiler.cudagraph_mark_step_begin

    @wraps(one_pass)
    def begun(*args: Any, **kwargs: Any) -> Any:
        begin()
        return one_pass(*args, **kwargs)

    return begun
