"""What is told of the error that ends a worker."""

from __future__ import annotations

import torch

from sampleforge.config import ConfigError
from sampleforge.workers.worker import _told


def test_a_gpu_out_of_memory_names_the_flags_that_take_it() -> None:
    error = torch.OutOfMemoryError(
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79 GiB. See "
        "documentation for Memory Management"
    )
    said = _told(error)
    assert "Tried to allocate 2.00 GiB" in said and "documentation" not in said
    for flag in (
        "--batch-size",
        "--minibatch-size",
        "--replay-gpu-memory",
        "--num-envs-per-worker",
    ):
        assert flag in said


def test_a_config_error_is_told_as_it_is_and_any_other_with_its_traceback() -> None:
    assert _told(ConfigError("--env X: no")) == "--env X: no"
    try:
        raise RuntimeError("broken")
    except RuntimeError as error:
        said = _told(error)
    assert "Traceback" in said and "RuntimeError: broken" in said
