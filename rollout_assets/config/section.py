"""What every configuration model is: frozen, without unknown keys, and hashable by the fields that decide bytes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Discriminator, Field, Tag
from pydantic.fields import FieldInfo

from rollout_assets.errors import ConfigError
from rollout_assets.locations.url import Location, ObjectUrl, is_url, server_url
from rollout_assets.parsing import expand_path

LARGEST_INT16 = 2**15 - 1
"""What the columns of a store hold that count steps, branches and chains."""

LARGEST_INT32 = 2**31 - 1

Number = Annotated[float, Field(allow_inf_nan=False, strict=True)]
"""A finite number; text, true and false are none. All numbers of a configuration are strict in this way."""

Positive = Annotated[Number, Field(gt=0)]
NonNegative = Annotated[Number, Field(ge=0)]
Fraction = Annotated[Number, Field(ge=0, le=1)]
Finite = Number
Seconds = Positive
Whole = Annotated[int, Field(strict=True)]
Natural = Annotated[Whole, Field(ge=0)]
Count = Annotated[Whole, Field(ge=1, le=LARGEST_INT32)]
SmallCount = Annotated[Whole, Field(ge=1, le=LARGEST_INT16)]
Pixels = Annotated[Whole, Field(ge=1, le=8_192)]
Seed = Annotated[Whole, Field(ge=0, lt=2**63)]


def _usable(path: Path) -> Path:
    try:
        return expand_path(path)
    except ConfigError as error:
        raise ValueError(str(error)) from None


UsablePath = Annotated[Path, AfterValidator(_usable)]
"""A path that a file can have, with ``~`` replaced by the home it names."""


def _usable_location(location: Path | ObjectUrl) -> Location:
    return location if isinstance(location, ObjectUrl) else _usable(location)


UsableLocation = Annotated[
    Annotated[Path, Tag("path")] | Annotated[ObjectUrl, Tag("url")],
    Discriminator(lambda value: "url" if is_url(value) else "path"),
    AfterValidator(_usable_location),
]
"""A usable path, or a URL of object storage."""


def _usable_server(url: str) -> str:
    try:
        return server_url(url)
    except ConfigError as error:
        raise ValueError(str(error)) from None


ServerUrl = Annotated[str, AfterValidator(_usable_server)]
"""The URL of an HTTP server, without credentials."""

Slug = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]*$", max_length=64)]


def unhashed(default: Any, **kwargs: Any) -> Any:
    """A field that cannot change a stored byte and therefore stays out of every hash."""
    return Field(default, json_schema_extra={"hashed": "never"}, **kwargs)


def hashed_when_set(default: Any, **kwargs: Any) -> Any:
    """A field that is part of a hash only while it differs from its default.

    An option that is added later changes no stored byte until somebody sets it, so stored data stays current.
    """
    return Field(default, json_schema_extra={"hashed": "when set"}, **kwargs)


class ConfigSection(BaseModel):
    """Base of all configuration models."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)

    def hashable(self, *names: str) -> dict[str, Any]:
        """Plain JSON values of the fields that decide stored bytes; with names, of those fields only."""
        fields = type(self).model_fields
        return {name: _hashable(getattr(self, name)) for name in names or fields if self._hashed(name, fields[name])}

    def _hashed(self, name: str, field: FieldInfo) -> bool:
        extra = field.json_schema_extra
        rule = extra.get("hashed") if isinstance(extra, Mapping) else None
        return rule is None or (rule == "when set" and getattr(self, name) != field.default)


def _hashable(value: Any) -> Any:
    if isinstance(value, ConfigSection):
        return value.hashable()
    if isinstance(value, tuple):
        return [_hashable(item) for item in value]
    return value
