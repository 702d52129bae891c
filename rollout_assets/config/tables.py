"""TOML tables: one put over another, and the relative paths in them made whole."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rollout_assets.locations.url import below, parse_location


def merge_tables(table: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Put the changes into a table, also into the tables inside it, and return it."""
    for name, value in changes.items():
        if isinstance(value, Mapping) and isinstance(table.get(name), dict):
            merge_tables(table[name], value)
        else:
            table[name] = value
    return table


def resolve_paths(table: dict[str, Any], names: tuple[str, ...], base: Path) -> None:
    """Let relative paths, and lists of them, start at ``base``; what is no text is left for validation to refuse."""
    for name in names:
        value = table.get(name)
        if isinstance(value, str):
            table[name] = below(base, parse_location(value))
        elif isinstance(value, list):
            table[name] = [below(base, parse_location(entry)) if isinstance(entry, str) else entry for entry in value]
