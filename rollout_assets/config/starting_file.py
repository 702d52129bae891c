"""A file to start from, for a campaign or a training: every setting with its default, what it means and what it may be.

All of it comes from the models, so that it cannot be out of date.
"""

from __future__ import annotations

import inspect
import math
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic.fields import FieldInfo

from rollout_assets.config.section import ConfigSection
from rollout_assets.config.toml_text import toml_value

_HEAD = """\
# Every setting with its default: change what you need, and remove the rest if you like.
# Relative paths start at this file. 'rollout-assets config validate FILE' checks it.
"""

_LIMITS = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}
"""Keys of a JSON schema for the limits of a number, as they are written."""

_WORTH_TELLING = 100_000
"""Limits beyond this are those of the machine."""

_WIDTH = 100
"""Characters of a comment's line."""


def commented_toml(config: ConfigSection, head: str = _HEAD) -> str:
    """A configuration as TOML with a comment on every setting; it reads back to the same configuration.

    ``head`` stands above it: comments that say what the file is for.
    """
    return "\n".join([head, *_table(config, "", explained=True)]) + "\n"


def _table(section: ConfigSection, name: str, *, explained: bool) -> Iterator[str]:
    """Settings of a section, then the tables inside it: TOML has no way back from a table to the one around it."""
    inner = {key: value for key in type(section).model_fields if _is_table(value := getattr(section, key))}
    properties = type(section).model_json_schema()["properties"]
    for key, field in type(section).model_fields.items():
        if key not in inner:
            yield from _setting(section, key, _comment(field, properties[key]) if explained else "")
    for key, value in inner.items():
        many = isinstance(value, tuple)
        for at, table in enumerate(value if many else (value,)):
            yield ""
            yield from _about(table) if explained and at == 0 else ()
            path = f"{name}.{key}".lstrip(".")
            yield f"[[{path}]]" if many else f"[{path}]"
            yield from _table(table, path, explained=explained and at == 0)


def _is_table(value: Any) -> bool:
    tables = value if isinstance(value, tuple) and value else (value,)
    return all(isinstance(table, ConfigSection) for table in tables)


def _setting(section: ConfigSection, key: str, comment: str) -> Iterator[str]:
    value = section.model_dump(mode="json")[key]
    yield from (f"# {line}" for line in textwrap.wrap(comment, _WIDTH))
    yield f"# {key} = (not set)" if value is None else f"{key} = {toml_value(value)}"


def _about(section: ConfigSection) -> Iterator[str]:
    paragraph = inspect.getdoc(type(section)) or ""
    yield f"# {' '.join(paragraph.split(chr(10) * 2)[0].split()).replace('``', '')}"


def _comment(field: FieldInfo, schema: Mapping[str, Any]) -> str:
    """What a setting means, and what it may be."""
    choices = ", ".join(schema.get("enum", ()))
    given = {sign: schema[key] for key, sign in _LIMITS.items() if abs(schema.get(key, math.inf)) <= _WORTH_TELLING}
    limits = ", ".join(f"{sign} {limit:g}" for sign, limit in given.items())
    means = (field.description or "").rstrip(".")
    parts = [part for part in (means, f"one of {choices}" if choices else limits) if part]
    return "; ".join(parts)
