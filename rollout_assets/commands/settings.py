"""`--set KEY=VALUE`: one key of a TOML file, given on the command line."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from rollout_assets.config import merge_tables
from rollout_assets.errors import ConfigError
from rollout_assets.parsing import parse_toml

MOST_DIGITS = 18
"""Digits of an index; a longer number is taken for a key, which no row has."""


def key_or_index(text: str) -> str | int:
    """A row as a user names it: a number is its index, anything else its key."""
    is_index = text.isascii() and text.isdigit() and len(text) <= MOST_DIGITS
    return int(text) if is_index else text


CampaignSettings = Annotated[
    list[str] | None,
    typer.Option("--set", help="Replace one key of the campaign; may be given again.", metavar="TABLE.KEY=VALUE"),
]


def read_settings(texts: Sequence[str] | None) -> dict[str, Any]:
    """Some settings as nested keys; the last one of the same key counts."""
    values: dict[str, Any] = {}
    for text in texts or ():
        merge_tables(values, read_setting(text))
    return values


def read_setting(text: str) -> dict[str, Any]:
    """``a.b=value`` as nested keys; a value is read as TOML where it can be, else it is text."""
    key, sign, value = text.partition("=")
    if not sign or not key:
        raise ConfigError(f"--set must be KEY=VALUE, got {text!r}")
    problem = ""
    for shown in (value, json.dumps(value)):
        try:
            return parse_toml(f"{key} = {shown}")
        except ValueError as error:
            problem = str(error)
    raise ConfigError(f"--set must be KEY=VALUE with a key such as metrics.seed: {problem}: got {text!r}")
