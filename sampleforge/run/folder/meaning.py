"""The settings by which weights of the same names and shapes compute something else.

What another setting adds to a network, takes from it or gives another shape (layer norms, a core,
statistics of observations) is not among them: the weights themselves tell that.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

from sampleforge.config import ConfigError, typed
from sampleforge.models.encoder_registry import encoded_leaves
from sampleforge.ops.distributions import action_layout
from sampleforge.run.folder.stored_config import flat_fields
from sampleforge.spec import EnvSpec, with_action_units

Fields = Mapping[str, Any]
"""Values of a config by their dotted names."""


def other_meanings(
    theirs: Fields, config: Any, spec: EnvSpec, parts: Collection[str] = ()
) -> list[str]:
    """Return a warning for each setting of a policy's resolved ``config`` that makes its network
    compute something else with the same weights than the one that learned them, whose settings are
    ``theirs``. ``spec``: of what the policy sees and does; ``parts``: those of the network that are
    taken (empty: all)."""
    chosen = "model.activation"
    theirs, ours = (
        {**each, chosen: _automatic(config, spec)} if each.get(chosen) == "auto" else each
        for each in (theirs, flat_fields(config))
    )
    heads = {"actor"} if ours.get("head_size") else set()
    warnings = []
    for name, (concerned, same) in _SETTINGS.items():
        there, here = (fields.get(name, _ABSENT.get(name)) for fields in (theirs, ours))
        concerned = concerned | heads if name == chosen else concerned
        if None in (there, here) or there == here or (parts and not concerned & {*parts}):
            continue
        if not same(theirs, config, spec):
            warnings.append(
                f"--init-from: the weights were learned {_with(name, theirs)}, and compute "
                f"something else {_with(name, ours)}; give the same, unless that is meant"
            )
    return warnings


def _with(name: str, fields: Fields) -> str:
    """Return a setting with its value, or that it is not there, in words."""
    value = fields.get(name, {})
    return f"without {typed(name, True)}" if value == {} else f"with {typed(name, value)}"


def _same_class(field: str, theirs: Fields, config: Any, spec: EnvSpec) -> bool:
    """Return whether the model's ``field`` names no two classes of the user's own with other names:
    a class may have moved to another module."""
    there, here = str(theirs[f"model.{field}"]), getattr(config.model, field)
    both = [name.rpartition(":") for name in (there, here)]
    return not all(module for module, _, _ in both) or both[0][2] == both[1][2]


def _automatic(config: Any, spec: EnvSpec) -> str:
    """Return the activation that "auto" gives the layers; "auto" if it gives them several."""
    model = config.model
    leaves = model.encodings(encoded_leaves(spec.observations)).values()
    found = {"tanh" if model.encoder == "mlp" else "relu"}
    if ":" not in model.encoder and not all(leaf.is_convolved for leaf in leaves):
        found.add("tanh")  # of the dense layers of leaves that are not convolved
    if getattr(config, "head_size", None):
        found.add("relu")
    return found.pop() if len(found) == 1 else "auto"


def _same_encodings(theirs: Fields, config: Any, spec: EnvSpec) -> bool:
    """Return whether the encoder gets the same numbers of each leaf. Kinds that an environment
    cannot have are those of another one."""
    try:
        model = dataclasses.replace(config.model, encode=theirs["model.encode"])
        found = [each.encodings(spec.observations) for each in (model, config.model)]
    except ConfigError:
        return False
    there, here = (
        {
            name: (
                leaf.has_statistics,
                1.0 if leaf.has_statistics else leaf.factor,
                leaf.categories,
                leaf.first,
                leaf.embedding,
            )
            for name, leaf in each.items()
        }
        for each in found
    )
    return there == here


def _has_no_box(theirs: Fields, config: Any, spec: EnvSpec) -> bool:
    return not action_layout(spec.actions).num_boxes


def _same_action_units(theirs: Fields, config: Any, spec: EnvSpec) -> bool:
    """Return whether the environment has the same actions in both units: the bounds are -1 and 1,
    or nothing is a Box. Squashed actions fill the bounds in either unit."""
    scaled, plain = (with_action_units(spec, rescale=each).actions for each in (True, False))
    return scaled == plain or config.model.squash_actions


def _other_size(theirs: Fields, config: Any, spec: EnvSpec) -> bool:
    """Return whether the heads have other shapes, so that those of the checkpoint are not taken."""
    there = theirs.get("num_atoms"), theirs.get("value_distribution") == "none"
    return bool(there != (config.num_atoms, config.value_distribution == "none"))


def _never(theirs: Fields, config: Any, spec: EnvSpec) -> bool:
    return False


Same = Callable[[Fields, Any, EnvSpec], bool]
_SETTINGS: Mapping[str, tuple[set[str], Same]] = {
    "model.activation": ({"encoder", "critic"}, _never),
    "model.encode": ({"encoder", "critic"}, _same_encodings),
    "model.encoder": ({"encoder", "critic"}, partial(_same_class, "encoder")),
    "model.head": ({"actor"}, partial(_same_class, "head")),
    "model.squash_actions": ({"actor"}, _has_no_box),
    "rescale_actions": ({"actor"}, _same_action_units),
    "value_rescaling": ({"actor"}, _never),
    "value_distribution": ({"actor"}, _other_size),
    "v_min": ({"actor"}, _other_size),
    "v_max": ({"actor"}, _other_size),
}
"""The parts of the network that each setting concerns, and the function that returns whether
another value computes the same nevertheless."""
_ABSENT = {"value_rescaling": False}
"""What an algorithm does that has not the setting."""
