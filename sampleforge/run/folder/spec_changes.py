"""What differs between the environment of a run and the one that it is to go on in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import gymnasium as gym

    from sampleforge.spec import EnvSpec


def differences(old: EnvSpec, new: EnvSpec) -> list[str]:
    """Return a line ``leaf: old -> new`` for each leaf of the spaces that differs between two
    specs, and for agents, masks and frame stacks: a network that was trained with one does not fit
    the other, or its actions mean something else there.

    So it is with the frame skip, by which env frames are counted. The rest may differ: time limits,
    protocol, reward shaping, how rows are stepped.
    """
    groups = [[", ".join(group.agents) for group in spec.agent_groups] for spec in (old, new)]
    if groups[0] != groups[1]:
        return ["agents: " + " -> ".join("; ".join(names) or "one" for names in groups)]
    lines = []
    for before, after in zip(old.agent_groups, new.agent_groups, strict=True):
        of = f"{', '.join(before.agents)}: " if old.other_groups else ""
        facts = [_facts(spec) for spec in (before, after)]
        lines += [
            f"{of}{name}: {_shown(facts[0].get(name))} -> {_shown(facts[1].get(name))}"
            for name in dict.fromkeys([*facts[0], *facts[1]])
            if _plain(facts[0].get(name)) != _plain(facts[1].get(name))
        ]
    return lines


def _facts(spec: EnvSpec) -> dict[str, Any]:
    """Return what has to stay, by name: the leaf spaces, the stacks and the place of the mask."""
    from sampleforge.spec import ACTION, OBSERVATION, leaves

    assert spec.spaces is not None, "a run has the spaces of its environment"
    stacks = {f"frame stack of {n}": leaf.stack for n, leaf in spec.observations.items()}
    return {
        **{f"observation {n}": leaf for n, leaf in leaves(spec.spaces.observation, OBSERVATION)},
        **{f"action {n}": leaf for n, leaf in leaves(spec.spaces.action, ACTION)},
        **{name: f"padded with {stack}" for name, stack in stacks.items() if stack},
        **({"action mask": "in the info"} if spec.spaces.mask_in_info else {}),
        "frame skip": str(spec.frame_skip),
    }


def _plain(fact: Any) -> Any:
    """Return a fact as values that are equal for equal facts. The text of a large space is not: it
    leaves out bounds."""
    from sampleforge.env.spec_json import space_to_plain

    return fact if fact is None or isinstance(fact, str) else space_to_plain(fact)


def _shown(fact: str | gym.Space[Any] | None) -> str:
    return "none" if fact is None else " ".join(str(fact).split())
