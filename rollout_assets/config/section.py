"""What every configuration model is: frozen, without unknown keys, and hashable by the fields that decide bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field
from pydantic.fields import FieldInfo

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(ge=0, le=1)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Seconds = Positive
Count = Annotated[int, Field(ge=1)]
Natural = Annotated[int, Field(ge=0, strict=True)]
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
