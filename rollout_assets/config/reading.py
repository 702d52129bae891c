"""Campaigns from TOML: found by name or path, every problem named at once, relative paths resolved."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from rollout_assets.config.campaign import CampaignConfig
from rollout_assets.config.checkpoints import pin_checkpoints
from rollout_assets.config.problems import problems_list
from rollout_assets.errors import ConfigError
from rollout_assets.parsing import expand_path, parse_toml, read_text_file

DEMO_CAMPAIGN = "demo"
"""Name of the campaign that ships with the package and is used when none is given."""


@dataclass(frozen=True)
class CampaignText:
    """A campaign as it is written: its file, its text, what messages call it, and where its relative paths start."""

    path: Path
    text: str
    name: str
    base: Path


def load_campaign(name_or_path: str | Path, settings: Mapping[str, Any] | None = None) -> CampaignConfig:
    """A campaign by the name of a shipped one (``demo``) or by the path of a TOML file.

    Relative paths in a file mean relative to that file; those of a shipped campaign lie under ``data_home()``.
    Checkpoints are pinned by their content.
    ``settings`` are tables with keys that replace those of the file.
    """
    written = read_campaign_text(name_or_path)
    try:
        raw = merge_tables(parse_toml(written.text), settings or {})
    except ValueError as error:
        raise ConfigError(f"{written.name}: not valid TOML: {error}") from None
    try:
        config = CampaignConfig.model_validate(raw)
    except ValidationError as error:
        raise ConfigError(problems_list(written.name, error, CampaignConfig)) from None
    try:
        return _with_paths(config, written.base)
    except ConfigError as error:
        raise ConfigError(f"{written.name}: {error}") from None


def merge_tables(table: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Put the changes into a table, also into the tables inside it, and return it."""
    for name, value in changes.items():
        if isinstance(value, Mapping) and isinstance(table.get(name), dict):
            merge_tables(table[name], value)
        else:
            table[name] = value
    return table


def shipped_campaigns() -> tuple[str, ...]:
    """Names of the campaigns inside the package."""
    folder = _shipped()
    return tuple(sorted(Path(entry.name).stem for entry in folder.iterdir() if entry.name.endswith(".toml")))


def data_home() -> Path:
    """Where runtime data goes: ``$DAGSTER_HOME``, or ``dagster_home`` of the checkout, or of the working directory."""
    if home := os.environ.get("DAGSTER_HOME"):
        return Path(home).resolve()
    checkout = Path(__file__).resolve().parents[2]
    base = checkout if (checkout / "pyproject.toml").is_file() else Path.cwd()
    return base / "dagster_home"


def _shipped() -> Traversable:
    return resources.files("rollout_assets") / "campaigns" / "shipped"


def read_campaign_text(name_or_path: str | Path) -> CampaignText:
    """The text of a campaign, shipped or in a file."""
    if str(name_or_path) in shipped_campaigns():
        shipped = _shipped() / f"{name_or_path}.toml"
        base = data_home() / str(name_or_path)
        return CampaignText(Path(str(shipped)), shipped.read_text("utf-8"), f"campaign {name_or_path}", base)
    path = expand_path(name_or_path)
    try:
        return CampaignText(path.resolve(), read_text_file(path), str(path), path.resolve().parent)
    except FileNotFoundError:
        names = ", ".join(shipped_campaigns())
        raise ConfigError(f"{path}: no such campaign file, and no shipped campaign of that name ({names})") from None


def _with_paths(config: CampaignConfig, base: Path) -> CampaignConfig:
    source = config.source.model_copy(
        update={
            "store_dir": base / config.source.store_dir,
            "mesh_dirs": tuple(base / folder for folder in config.source.mesh_dirs),
        }
    )
    shards = config.shards.model_copy(update={"output_dir": base / config.shards.output_dir})
    split = config.split.model_copy(update={"file": config.split.file and base / config.split.file})
    recipes = pin_checkpoints(config.recipes, base)
    return config.model_copy(update={"source": source, "split": split, "shards": shards, "recipes": recipes})
