"""A configuration as TOML text that reads back to the same configuration."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from rollout_assets.config.section import ConfigSection


def toml_text(config: ConfigSection) -> str:
    """Every value written out, defaults included; what is None is left out, because TOML has no word for it."""
    values = config.model_dump(mode="json", exclude_none=True)
    tables = {name: value for name, value in values.items() if isinstance(value, Mapping)}
    plain = {name: value for name, value in values.items() if name not in tables}
    blocks = [_lines(plain), *([f"[{name}]", *_lines(table)] for name, table in tables.items())]
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


def _lines(table: Mapping[str, Any]) -> list[str]:
    return [line for name, value in table.items() for line in _assignment(name, value)]


def _assignment(name: str, value: Any) -> Iterator[str]:
    """A list of tables has one line per table."""
    if isinstance(value, list) and value and isinstance(value[0], Mapping):
        yield f"{name} = ["
        yield from (f"    {toml_value(item)}," for item in value)
        yield "]"
    else:
        yield f"{name} = {toml_value(value)}"


def toml_value(value: Any) -> str:
    """A plain JSON value on one line; a mapping becomes an inline table."""
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{name} = {toml_value(item)}" for name, item in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(toml_value(item) for item in value) + "]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return json.dumps(value)
