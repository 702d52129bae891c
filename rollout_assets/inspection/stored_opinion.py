"""A second opinion as a file beside a campaign's reports, so that a page can show it without measuring again."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import polars as pl

from rollout_assets.files import publish_json
from rollout_assets.inspection.second_opinion import COLUMNS, SecondOpinion
from rollout_assets.parsing import parse_json, read_regular
from rollout_assets.rollouts.zarr_store.reader import RolloutZarrStoreReader

_STORE = "manifest_sha256"


def publish_opinion(path: Path, opinion: SecondOpinion, reader: RolloutZarrStoreReader) -> None:
    """Write an opinion together with the hash of the store that it is about."""
    facts = {field.name: getattr(opinion, field.name) for field in fields(opinion) if field.name != "labels"}
    labels = opinion.labels.with_columns(pl.col(pl.Float64).replace([float("inf")], None).fill_nan(None)).to_dicts()
    path.parent.mkdir(parents=True, exist_ok=True)
    publish_json(path, facts | {"labels": labels, _STORE: reader.attributes.get(_STORE)})


def read_opinion(path: Path, reader: RolloutZarrStoreReader) -> SecondOpinion | None:
    """The opinion that was written about this very store; None when there is none, or it is about another."""
    try:
        stored: dict[str, Any] = parse_json(read_regular(path))
        about = stored.pop(_STORE)
        opinion = SecondOpinion(**stored | {"labels": pl.DataFrame(stored["labels"], schema=COLUMNS)})
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return opinion if about is not None and about == reader.attributes.get(_STORE) else None
