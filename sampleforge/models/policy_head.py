"""Policy heads of the user's own (``--model.head package.module:Class``)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from sampleforge.config import ConfigError
from sampleforge.models.config import ModelConfig
from sampleforge.models.encoder_registry import TRIED_ROWS, check_savable, import_module_class
from sampleforge.models.encoders import orthogonal_
from sampleforge.ops.distributions import ActionDistribution, ActionLayout
from sampleforge.runtime.causes import in_words


class PolicyHead(nn.Module):
    """The head of a policy, from the features of encoder and core to the distribution of actions.
    Derive a class from it and override what differs: the layers, or the distribution, or both.

    ``layout``: the leaves of an action, with the bounds of Box elements as the policy sees them.
    ``config``: the model's settings.
    """

    def __init__(self, features: int, layout: ActionLayout, config: ModelConfig) -> None:
        super().__init__()
        self.layout, self.config = layout, config
        self.layers = self.new_layers(features)

    @property
    def num_parameters(self) -> int:
        """P, the number of parameters of the distribution: here of logits, means and log standard
        deviations."""
        return self.layout.head_size(state_std=True)

    def new_layers(self, features: int) -> nn.Module:
        """Return the layers [..., features] -> [..., P]; here one linear layer, whose outputs are
        nearly 0 at the start."""
        return orthogonal_(nn.Linear(features, self.num_parameters), gain=0.01)

    def distribution(self, parameters: Tensor, mask: Tensor | None) -> ActionDistribution:
        """Return the distribution with ``parameters`` [..., P]; here `ActionDistribution`.
        ``mask``: bool [..., number of logits], True where a category is allowed (None: all are).

        A distribution of your own is a class derived from `ActionDistribution` with its own
        ``sample``, ``mode``, ``log_prob`` and ``entropy``, and ``kl`` and
        ``symmetric_kl_to_uniform`` where settings ask for them. Autograd differentiates it by the
        parameters."""
        squash = self.config.squash_actions
        return ActionDistribution(self.layout, parameters, mask, squash)

    @property
    def has_own_distribution(self) -> bool:
        """Whether a subclass has another distribution, which draws its own noise."""
        return type(self).distribution is not PolicyHead.distribution

    def forward(self, features: Tensor) -> Tensor:
        """Return the parameters [..., P] of features [..., F]."""
        found: Tensor = self.layers(features)
        return found


def draws_itself(config: ModelConfig) -> bool:
    """Return whether the config names a head with a distribution of its own."""
    if config.head is None:
        return False
    head = import_module_class("model.head", config.head, PolicyHead)
    return head.distribution is not PolicyHead.distribution


def make_head(config: ModelConfig, features: int, layout: ActionLayout) -> PolicyHead | None:
    """Return a new head of the user's own; None if the config names none. Raises ConfigError if the
    class does not exist, does not work for these actions or cannot be saved."""
    if config.head is None:
        return None
    head = import_module_class("model.head", config.head, PolicyHead)(features, layout, config)
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            _try_out(head, torch.zeros(TRIED_ROWS, features))
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(
            f"--model.head {config.head}: it fails for {TRIED_ROWS} rows of {features} features: "
            f"{in_words(error)}; correct the class"
        ) from error
    check_savable(f"--model.head {config.head}", head)
    return head


def _try_out(head: PolicyHead, features: Tensor) -> None:
    """Raise ConfigError if a head does not give what acting and learning take of it."""
    rows, name = len(features), head.config.head
    parameters = head(features)
    _check(name, "forward", parameters.shape, (rows, head.num_parameters))
    found = head.distribution(parameters, None)
    if not isinstance(found, ActionDistribution):
        raise ConfigError(
            f"--model.head {name}: distribution returned a {type(found).__name__}, but must return "
            "an object of a class derived from sampleforge.ops.distributions.ActionDistribution"
        )
    for method in ("sample", "mode"):
        actions = getattr(found, method)()
        expected: Any = {x.name: (rows, *x.shape) for x in head.layout.leaves}
        _check(name, method, {n: tuple(x.shape) for n, x in actions.items()}, expected)
        expected = {x.name: x.dtype for x in head.layout.leaves}
        _check(name, method, {n: x.dtype for n, x in actions.items()}, expected)
        _check(name, "log_prob", found.log_prob(actions).shape, (rows,))
    _check(name, "entropy", found.entropy().shape, (rows,))


def _check(name: str | None, method: str, found: Any, expected: Any) -> None:
    found = tuple(found) if isinstance(found, torch.Size) else found
    if found != expected:
        raise ConfigError(
            f"--model.head {name}: {method} returned {found}, but must return {expected}; correct "
            "the class"
        )
