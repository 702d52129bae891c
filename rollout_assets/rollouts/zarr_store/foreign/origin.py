"""Who wrote a store: this package leaves marks that a store of the research code does not have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from rollout_assets.rollouts.zarr_store.attributes import DEAD_ENDS_IN_VIEW
from rollout_assets.rollouts.zarr_store.manifest import PACKAGE

Profile = Literal["own", "foreign"]
"""What a store is held to: this package's own layout byte for byte, or any layout that holds the schema."""

CONVERTED_FROM = "converted_from"
"""Manifest key of a store that was rewritten from another writer's: where its rows come from."""

EXTRA_ARRAYS = "extra_arrays"
"""Key below ``converted_from``: arrays beyond the schema that were carried over."""

_DIGESTS = "content_sha256"


def profile_of(attributes: Mapping[str, Any], manifest: Mapping[str, Any]) -> Profile:
    """The profile of a store with these root attributes and this manifest: one mark of this package makes it ours."""
    packages = _section(_section(_section(manifest, "generation"), "runtime"), "packages")
    is_own = _DIGESTS in manifest or PACKAGE in packages or DEAD_ENDS_IN_VIEW in attributes
    return "own" if is_own else "foreign"


def extra_arrays(manifest: Mapping[str, Any]) -> tuple[str, ...]:
    """Paths of arrays beyond the schema that a converted store has."""
    paths = _section(manifest, CONVERTED_FROM).get(EXTRA_ARRAYS)
    return tuple(path for path in paths if isinstance(path, str)) if isinstance(paths, list) else ()


def _section(values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    section = values.get(name)
    return section if isinstance(section, dict) else {}
