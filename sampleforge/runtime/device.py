"""Which device a run computes on."""

from __future__ import annotations

from sampleforge.config import ConfigError


def resolve_device(asked: str) -> str:
    """The device by name. Raises ConfigError if it is not there."""
    import torch

    if asked == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(asked)
    except RuntimeError as error:
        raise ConfigError(f"--device {asked}: {error}; use auto, cpu, cuda or cuda:N") from error
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(
            f"--device {asked}: this machine shows {torch.cuda.device_count()} CUDA devices; "
            "use --device cpu, or see `sampleforge doctor`"
        )
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"--device {asked} is not supported; use auto, cpu, cuda or cuda:N")
    return asked
