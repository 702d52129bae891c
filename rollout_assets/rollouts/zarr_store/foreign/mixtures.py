"""Components of the candidate mixture that a store's manifest records, ours or the research code's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_PLACES = (("candidate_mixture", "components"), ("candidates", "mixture"))
"""Section and key with the list of components: where the research code has it, then where a campaign has it."""


def mixture_components(writer_config: Any) -> list[Any]:
    """The components by ``mixture_id``, as they are recorded; the section may lie anywhere in the config."""
    for section, key in _PLACES:
        for part in _sections(writer_config, section):
            components = part.get(key)
            if isinstance(components, list):
                return components
    return []


def _sections(config: Any, name: str) -> Iterator[Mapping[str, Any]]:
    """Objects of that name, outer ones first."""
    layer = [config]
    while layer:
        objects = [part for part in layer if isinstance(part, Mapping)]
        yield from (part[name] for part in objects if isinstance(part.get(name), Mapping))
        layer = [value for part in objects for value in part.values()]
