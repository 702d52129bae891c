"""Names of policies: those of the engine, and those that installed packages register. Nothing is imported here."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import Literal, get_args

SelectionPolicy = Literal[
    "farthest_from_history",
    "farthest_from_reference",
    "random",
    "random_valid",
    "oracle_greedy",
    "temperature_softmax",
]

BUILT_IN_POLICIES: tuple[SelectionPolicy, ...] = get_args(SelectionPolicy)
"""Policies of the engine itself; a package that registers one of these names is not asked."""

LEARNED_POLICY = "learned"
"""The policy that is a checkpoint of this package's own training."""

POLICY_GROUP = "rollout_assets.policies"
"""Entry points of installed packages under this name are policies: functions from a checkpoint to a ``ViewPolicy``."""


def registered_policies() -> dict[str, tuple[EntryPoint, ...]]:
    """Entry points of installed packages by policy name; more than one where packages claim the same name."""
    found: dict[str, tuple[EntryPoint, ...]] = {}
    for entry in sorted(entry_points(group=POLICY_GROUP), key=lambda entry: (entry.name, entry.value)):
        same = found.get(entry.name, ())
        found[entry.name] = same if entry in same else (*same, entry)
    return found


def policy_names() -> tuple[str, ...]:
    """Every policy that a recipe can name here, those of the engine first."""
    brought = (name for name in registered_policies() if name not in BUILT_IN_POLICIES)
    return (*BUILT_IN_POLICIES, *brought)
