"""Which schema a store has, and whether this package reads it: the first thing that every reader looks at."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from rollout_assets.rollouts.zarr_store.schema import ROLLOUT_ZARR_SCHEMA_ID, ROLLOUT_ZARR_SCHEMA_VERSION

OTHER_VERSIONS: Mapping[str, str] = {
    "0.5": "an older version of the research code",
    "0.9": "an older version of the research code",
    "2.0": "a newer version of the research code",
}
"""Number that a schema version begins with -> what it is; none of them is read here."""

_LONGEST_SHOWN = 80


def schema_problem(attributes: Mapping[str, object]) -> str | None:
    """Why a root with these attributes is not a store of this schema and version, in one line; None if it is one."""
    name, version = attributes.get("schema_id"), attributes.get("schema_version")
    if name != ROLLOUT_ZARR_SCHEMA_ID:
        supported = f"{ROLLOUT_ZARR_SCHEMA_ID!r} {ROLLOUT_ZARR_SCHEMA_VERSION!r}"
        return f"schema is {_shown(name)} {_shown(version)}, supported is {supported}"
    if version != ROLLOUT_ZARR_SCHEMA_VERSION:
        known = OTHER_VERSIONS.get(_number(version), "which is not known")
        return f"schema version is {_shown(version)}, {known}; supported is {ROLLOUT_ZARR_SCHEMA_VERSION!r}"
    return None


def _number(version: object) -> str:
    match = re.match(r"(\d+\.\d+)(?![\d.])", version) if isinstance(version, str) else None
    return match[1] if match else ""


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST_SHOWN else f"{text[: _LONGEST_SHOWN - 3]}..."
