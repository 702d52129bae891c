"""A second opinion, and its file beside a campaign's reports, so that a page can show it without measuring again."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import polars as pl

from rollout_assets.files import publish_json
from rollout_assets.parsing import parse_json, read_regular
from rollout_assets.rollouts.zarr_store.reader import RolloutZarrStoreReader

_STORE = "manifest_sha256"

WORST_ROWS = 5
"""Rows that ``SecondOpinion.worst`` names."""

COLUMNS = {
    "candidate_row_id": pl.Int64,
    "rollout_id": pl.String,
    "step_index": pl.Int64,
    "shell_index": pl.Int64,
    "label": pl.String,
    "stored": pl.Float64,
    "naive": pl.Float64,
    "gap": pl.Float64,
    "tolerance": pl.Float64,
    "rounding": pl.Float64,
    "agrees": pl.Boolean,
    "moved": pl.Float64,
}
"""Columns of ``SecondOpinion.labels``."""


@dataclass(frozen=True, eq=False)
class SecondOpinion:
    """One row per label of each re-scored candidate: stored, naive, gap, tolerance, rounding, ``agrees`` and ``moved``.

    ``depth_pixels`` is no stored label: it is the share of the view's pixels whose depth the other rays confirm.
    ``rounding`` is null where the gap is within the tolerance without it. ``moved`` is how far ``noise_m`` of noise on
    the points of all views moves the naive label. ``asked`` candidates were drawn; ``candidates`` of them were judged.
    """

    labels: pl.DataFrame
    candidates: int
    labelled: int
    asked: int
    rays: str
    distances: str
    noise_m: float
    seconds: float

    @property
    def findings(self) -> pl.DataFrame:
        """Labels that the naive oracle does not confirm."""
        return self.labels.filter(~pl.col("agrees"))

    @property
    def agrees(self) -> bool:
        """Whether every label is confirmed."""
        return self.findings.is_empty()

    @property
    def summary(self) -> pl.DataFrame:
        """One row per label: how its gaps and its moves under noise are distributed, and the shares confirmed."""
        gap, moved = pl.col("gap"), pl.col("moved")
        return self.labels.group_by("label", maintain_order=True).agg(
            pl.len().alias("judged"),
            gap.median().alias("gap_median"),
            gap.quantile(0.9, "higher").alias("gap_p90"),
            gap.max().alias("gap_max"),
            (gap <= pl.col("tolerance")).mean().alias("within_tolerance"),
            pl.col("agrees").mean().alias("agrees"),
            moved.median().alias("moved_median"),
            moved.max().alias("moved_max"),
        )

    @property
    def worst(self) -> pl.DataFrame:
        """The rows whose gap is largest beside its tolerance, disagreements first."""
        excess = pl.col("gap") / pl.col("tolerance")
        return self.labels.sort("agrees", excess, descending=[False, True]).head(WORST_ROWS)

    @property
    def scope(self) -> str:
        """How many candidates were judged, by whose rays and distances, how fast, and why not more."""
        cut = f"; {self.asked:,} were drawn, but the time limit was reached" if self.candidates < self.asked else ""
        pace = self.seconds / max(self.candidates, 1)
        return (
            f"{self.candidates:,} of {self.labelled:,} labelled candidates scored again with rays by {self.rays} and "
            f"distances by {self.distances}, {pace:.1f} s each{cut}"
        )


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
