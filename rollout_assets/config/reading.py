"""Campaigns from TOML: found by name or path, every problem named at once, relative paths resolved."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from rollout_assets.config.campaign import CampaignConfig
from rollout_assets.config.checkpoints import pin_checkpoints
from rollout_assets.config.evaluation import EvaluationSettings
from rollout_assets.config.problems import problems_list
from rollout_assets.config.tables import merge_tables
from rollout_assets.config.toml_text import toml_text
from rollout_assets.config.training import resolve_training_paths
from rollout_assets.errors import ConfigError
from rollout_assets.locations.url import below, resolved
from rollout_assets.parsing import expand_path, parse_toml, read_text_file

DEMO_CAMPAIGN = "demo"
"""Name of the campaign that ships with the package and is used when none is given."""

EXTENDS = "extends"
"""Key of a campaign file with the campaign whose tables it is put over; it is no setting of the merged campaign."""


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
    A file with ``extends`` is put over the campaign that it names, whose paths stay what they are there.
    Checkpoints are pinned by their content.
    ``settings`` are tables with keys that replace those of the file.
    """
    return _load(_written(name_or_path), settings or {}, ())


def _load(written: CampaignText, settings: Mapping[str, Any], extending: tuple[Path, ...]) -> CampaignConfig:
    """A campaign from its text. ``extending``: the files that lead to it by ``extends``, the first one first."""
    raw = merge_tables(_parsed(written), settings)
    base = _base(written, raw.pop(EXTENDS), extending) if EXTENDS in raw else None
    if base is not None:
        raw = merge_tables(base.model_dump(mode="json", exclude_none=True), raw)
    try:
        if isinstance(raw.get("training"), dict):
            resolve_training_paths(raw["training"], written.base)
        config = _with_paths(CampaignConfig.model_validate(raw), written.base)
    except ValidationError as error:
        raise ConfigError(problems_list(written.name, error, CampaignConfig)) from None
    except ConfigError as error:
        raise ConfigError(f"{written.name}: {error}") from None
    if base is not None:
        _refuse_same_place(written, config, base)
    return config


def _parsed(written: CampaignText) -> dict[str, Any]:
    try:
        return parse_toml(written.text)
    except ValueError as error:
        raise ConfigError(f"{written.name}: not valid TOML: {error}") from None


def _base(written: CampaignText, named: Any, extending: tuple[Path, ...]) -> CampaignConfig:
    """The campaign that a file extends; one that leads back to a file is refused, with the way there."""
    if not isinstance(named, str) or not named:
        raise ConfigError(f"{written.name}: {EXTENDS} must name a campaign file or a shipped campaign, got {named!r}")
    try:
        base = _written(named if named in shipped_campaigns() else written.base / expand_path(named))
    except ConfigError as error:
        raise ConfigError(f"{written.name}: {EXTENDS} {named!r}: {error}") from None
    extending = (*extending, written.path)
    if base.path in extending:
        way = " -> ".join(path.name for path in (*extending[extending.index(base.path) :], base.path))
        raise ConfigError(f"{written.name}: {EXTENDS} leads back to the same file: {way}; leave it out in one of them")
    return _load(base, {}, extending)


def _refuse_same_place(written: CampaignText, config: CampaignConfig, base: CampaignConfig) -> None:
    """A campaign beside another one needs a name and an output folder of its own."""
    if config.name == base.name:
        raise ConfigError(f"{written.name}: give a name of its own; {base.name} is that of the campaign it extends")
    if resolved(config.shards.output_dir) == resolved(base.shards.output_dir):
        raise ConfigError(
            f"{written.name}: give shards.output_dir of its own; {config.shards.output_dir} is that of {base.name}"
        )


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
    """The text of a campaign, shipped or in a file; of one that extends another, the merged campaign's."""
    written = _written(name_or_path)
    if EXTENDS not in _parsed(written):
        return written
    return replace(written, text=toml_text(_load(written, {}, ())))


def _written(name_or_path: str | Path) -> CampaignText:
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
            "store_dir": below(base, config.source.store_dir),
            "mesh_dirs": tuple(below(base, folder) for folder in config.source.mesh_dirs),
        }
    )
    shards = config.shards.model_copy(update={"output_dir": below(base, config.shards.output_dir)})
    split = config.split.model_copy(update={"file": config.split.file and base / config.split.file})
    resolved = {
        "source": source,
        "split": split,
        "shards": shards,
        "recipes": pin_checkpoints(config.recipes, base),
        "evaluation": config.evaluation and _policies_below(config.evaluation, base),
    }
    return config.model_copy(update=resolved)


def _policies_below(evaluation: EvaluationSettings, base: Path) -> EvaluationSettings:
    return evaluation.model_copy(update={"policies": tuple(policy.below(base) for policy in evaluation.policies)})
