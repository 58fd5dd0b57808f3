"""What is told of the error that ends a worker."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from sampleforge.algorithms.rollout_learner import RolloutLearner
from sampleforge.api import train
from sampleforge.config import ConfigError
from sampleforge.run.ending import describe
from sampleforge.runners.base import WorkerDied
from sampleforge.topologies.config import AppoConfig
from sampleforge.workers.staged_acting import StagedActing
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
    assert describe(error) == said, "with --serial as well, where the worker is in the driver"


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("CUDA error: out of memory\nSearch for `cudaErrorMemoryAllocation'", "out of memory"),
        ("CUDA driver error: out of memory", "driver error"),
        ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", "CUBLAS"),
        ("cuDNN error: CUDNN_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED"),
        ("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED", "CUDNN"),
    ],
)
def test_a_gpu_that_others_fill_is_told_alike(text: str, first: str) -> None:
    for kind in (RuntimeError, torch.AcceleratorError):
        said = _told(kind(text))
        assert said.startswith("the GPU has not enough memory: ") and first in said
        assert "--batch-size" in said and "end other programs" in said and "Search" not in said
    assert _told(ValueError(text)).startswith("its traceback")
    assert _told(RuntimeError("CUDA error: misaligned address")).startswith("its traceback")


def test_of_a_worker_that_died_the_driver_tells_what_it_was_told() -> None:
    told = "learner failed: its traceback:\n\nRuntimeError: CUDA error: out of memory"
    assert describe(WorkerDied(told)) == told


@pytest.mark.parametrize(("owner", "work"), [(RolloutLearner, "update"), (StagedActing, "act")])
def test_a_run_whose_learner_or_policy_worker_has_not_enough_memory_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: type, work: str
) -> None:
    def fail(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    monkeypatch.setattr(owner, work, fail)
    config = AppoConfig(
        env="CartPole-v1",
        num_workers=1,
        inference="worker",
        serial=True,
        num_envs_per_worker=4,
        batch_size=512,
        minibatch_size=256,
        train_for_env_steps=10_000,
        run_dir=str(tmp_path / "run"),
        device="cpu",
        seed=1,
    )
    with pytest.raises(torch.OutOfMemoryError) as raised:
        train(config)
    said = describe(raised.value)
    assert "Lower --batch-size or --minibatch-size" in said
    sizes = "This run has 1 worker x 4 envs, 1 policy worker, batch 512, CPU, fp32"
    assert said.endswith(f"{sizes}, --minibatch-size 256")
    error = json.loads((tmp_path / "run" / "summary.json").read_text())["error"]
    assert error == said


def test_a_config_error_is_told_as_it_is_and_any_other_with_its_traceback() -> None:
    assert _told(ConfigError("--env X: no")) == "--env X: no"
    try:
        raise RuntimeError("broken")
    except RuntimeError as error:
        said = _told(error)
    assert "Traceback" in said and "RuntimeError: broken" in said
