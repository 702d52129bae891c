"""`--set KEY=VALUE`: one key of a TOML file, given on the command line."""

from __future__ import annotations

import json
import tomllib
from typing import Any

from rollout_assets.errors import ConfigError


def read_setting(text: str) -> dict[str, Any]:
    """``a.b=value`` as nested keys; a value is read as TOML where it can be, else it is text."""
    key, sign, value = text.partition("=")
    if not sign or not key:
        raise ConfigError(f"--set must be KEY=VALUE, got {text!r}")
    for shown in (value, json.dumps(value)):
        try:
            return tomllib.loads(f"{key} = {shown}")
        except tomllib.TOMLDecodeError:
            continue
    raise ConfigError(f"--set must be KEY=VALUE with a key such as metrics.seed, got {text!r}")
