"""What the page of an asset shows before anything is computed: the campaign's text, its edits, columns and code.

Read whenever definitions are loaded, so that it opens one small file a campaign at most, and computes nothing.
"""

from __future__ import annotations

import json
import warnings
from functools import lru_cache
from pathlib import Path
from typing import Any

import dagster as dg
from pydantic import ValidationError

from rollout_assets.campaigns.layout import STORE_NAME, CampaignLayout
from rollout_assets.config import CampaignConfig, read_campaign_text
from rollout_assets.config.differences import changed_fields
from rollout_assets.defs.keys import ROLLOUT_SHARD_PLAN, ROLLOUT_SHARDS, ROLLOUTS_ZARR, VALIDATED_SHARDS, CampaignKeys
from rollout_assets.rollouts.zarr_store.schema import CANDIDATES

COLUMN_SCHEMA, CODE_REFERENCES = "dagster/column_schema", "dagster/code_references"
"""Dagster's names for the columns of an asset and for the code behind it."""

EDITED_FIELDS = "edited_fields"
"""Fields of the campaign that were edited since its shards were built."""

FIRST_SHARD = "shard-000000"
"""Whose manifest is read; all shards of a plan are built for one config."""

STORES = (ROLLOUT_SHARDS, VALIDATED_SHARDS, ROLLOUTS_ZARR)
"""Assets that are rollout stores."""

STALE_BY_EDITS = (ROLLOUT_SHARD_PLAN, *STORES)
"""Assets that an edited campaign makes stale."""


def asset_page(keys: CampaignKeys, asset: str, compute: str) -> dict[str, Any]:
    """The metadata of an asset's definition. ``compute`` is the path of its function below ``defs``."""
    edited = _edited_fields(keys) if asset in STALE_BY_EDITS else ""
    return {
        "campaign": keys.config.name,
        **({EDITED_FIELDS: dg.MetadataValue.md(edited)} if edited else {}),
        "campaign_toml": dg.MetadataValue.md(f"```toml\n{read_campaign_text(keys.campaign).text.strip()}\n```"),
        **({COLUMN_SCHEMA: candidate_columns()} if asset in STORES else {}),
        CODE_REFERENCES: _code_references(keys, compute),
    }


def _code_references(keys: CampaignKeys, compute: str) -> dg.CodeReferencesMetadataValue:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dg.BetaWarning)  # the public way to say where the code of an asset is
        return dg.CodeReferencesMetadataValue(code_references=[_code(compute), _campaign_file(keys)])


@lru_cache(maxsize=1)
def candidate_columns() -> dg.TableSchema:
    """The columns of the main table of a rollout store: one row for each view that was offered."""
    columns = []
    for column in CANDIDATES.columns:
        shape = "".join(f"[{size}]" for size in column.row_shape)
        about = f"An id; its text is in the dictionary '{column.dictionary}'." if column.dictionary else None
        columns.append(dg.TableColumn(column.name, f"{column.dtype}{shape}", description=about))
    return dg.TableSchema(columns=columns)


def _code(compute: str) -> dg.LocalFileCodeReference:
    """Where the function behind an asset is defined, found without importing it."""
    module, _, name = compute.rpartition(".")
    path = Path(__file__).parent.joinpath(*module.split(".")).with_suffix(".py")
    lines = path.read_text("utf-8").splitlines()
    number = next((number for number, text in enumerate(lines, start=1) if text.startswith(f"def {name}(")), 1)
    return dg.LocalFileCodeReference(file_path=str(path), line_number=number, label=name)


def _campaign_file(keys: CampaignKeys) -> dg.LocalFileCodeReference:
    path = read_campaign_text(keys.campaign).path
    return dg.LocalFileCodeReference(file_path=str(path), line_number=1, label="the campaign")


def _edited_fields(keys: CampaignKeys) -> str:
    """The edits since the shards were built, as a list; empty if there are none, or if no shard is on this disk."""
    recorded = _recorded_campaign(CampaignLayout.of(keys.config))
    fields = () if recorded is None else changed_fields(recorded, keys.config)
    return "\n".join(f"- {field}" for field in fields)


def _recorded_campaign(layout: CampaignLayout) -> CampaignConfig | None:
    """The campaign that the first shard names as its maker; None if that shard is not on this disk."""
    manifest = layout.shard(FIRST_SHARD) / STORE_NAME / "manifest.json"
    try:
        return CampaignConfig.recorded(json.loads(manifest.read_bytes())["generation"]["writer_config"])
    except (OSError, ValueError, KeyError, TypeError, ValidationError):
        return None  # a damaged shard is the business of its checks
