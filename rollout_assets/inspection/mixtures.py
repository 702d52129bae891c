"""Names of the components of a candidate mixture, which a store holds by number only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import polars as pl

from rollout_assets.inspection.decode import UNKNOWN, named
from rollout_assets.inspection.provenance import generation
from rollout_assets.rollouts.zarr_store.foreign.mixtures import mixture_components
from rollout_assets.rollouts.zarr_store.reader import RolloutZarrStoreReader

_KEYS = ("name", "family", "position_mode", "position")
"""What names a component, the first that is given."""


def mixture_names(reader: RolloutZarrStoreReader) -> dict[int, str]:
    """Component id -> its name in the config that the manifest records; empty when it records none.

    Looks where ARIA-NBV writes components, then where a campaign has them. Names that several components share end in
    their ids, so that no two components are taken for one.
    """
    components = mixture_components(generation(reader).get("writer_config"))
    names = {index: name for index, component in enumerate(components) if (name := _name(component)) is not None}
    uses = Counter(names.values())
    return {index: name if uses[name] == 1 else f"{name}_{index}" for index, name in names.items()}


def mixture_series(reader: RolloutZarrStoreReader, ids: pl.Series) -> pl.Series:
    """A column of component ids as names: ``component_N`` for one without a name, ``unknown`` for a negative id."""
    names = mixture_names(reader)
    return named(ids, lambda code: UNKNOWN if code < 0 else names.get(code, f"component_{code}"))


def _name(component: Any) -> str | None:
    if not isinstance(component, Mapping):
        return None
    given = (component.get(key) for key in _KEYS)
    return next((str(name) for name in given if name), None)
