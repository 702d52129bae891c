"""Strings as ids: each dictionary lists its strings in the order in which they first appeared.

First appearance makes merging exact: interning one store's dictionary after another's gives the same list as interning
both streams of strings one after the other.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollout_assets.errors import StoreDamaged
from rollout_assets.parsing import parse_json
from rollout_assets.rollouts.zarr_store.schema import ABSENT, DICTIONARIES


class StringDictionary:
    """Distinct strings, numbered in order of first appearance."""

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._ids)

    def __contains__(self, value: str) -> bool:
        return value in self._ids

    def intern(self, value: str | None) -> int:
        """The id of a string, new if need be; None and "" are not strings worth keeping: -1."""
        return self._ids.setdefault(value, len(self._ids)) if value else ABSENT

    def intern_all(self, values: Iterable[str]) -> NDArray[np.int32]:
        """Ids of many strings."""
        return np.array([self.intern(value) for value in values], np.int32)

    @property
    def values(self) -> list[str]:
        """Strings by id."""
        return list(self._ids)


class Dictionaries:
    """All dictionaries of one store."""

    def __init__(self) -> None:
        self._by_name = {name: StringDictionary() for name in DICTIONARIES}

    def __getitem__(self, name: str) -> StringDictionary:
        return self._by_name[name]

    def values(self) -> dict[str, list[str]]:
        """Strings of every dictionary."""
        return {name: dictionary.values for name, dictionary in self._by_name.items()}

    def intern_store(self, other: Mapping[str, list[str]]) -> dict[str, NDArray[np.int32]]:
        """Take over another store's strings; per dictionary, this store's id of each of its ids."""
        return {name: self[name].intern_all(values) for name, values in other.items()}


def encode_strings(values: list[str]) -> NDArray[np.uint8]:
    """A list of strings as a JSON document in bytes."""
    return np.frombuffer(json.dumps(values, ensure_ascii=True).encode("ascii"), np.uint8)


def decode_strings(path: str, data: NDArray[np.uint8]) -> list[str]:
    """Back from bytes; anything but a JSON list of strings is ``StoreDamaged``."""
    try:
        values: Any = parse_json(data.tobytes())
    except ValueError as error:
        raise StoreDamaged(path, f"is not JSON: {error}") from None
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise StoreDamaged(path, "must be a JSON list of strings")
    return values
