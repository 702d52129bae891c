"""Small campaigns that the kill tests build over and over: one made up, one with the real oracle."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rollout_assets.config import CampaignConfig
from rollout_assets.locations.url import Location
from rollout_assets.testing.fake_shards import FakeCampaign

TINY: dict[str, Any] = {
    "selected_depth": {"width_px": 8, "height_px": 8, "chunk_steps": 2},
    "candidates": {"mixture": [{"position": "forward_local", "count": 4}]},
    "oracle": {"width_px": 8, "height_px": 8, "device": "cpu"},
    "targets": {"top_k": 1},
    "recipes": [{"name": "greedy", "policy": "oracle_greedy", "horizon": 1}],
}
"""As little work as a shard can be."""


ROWS = (("train", 2), ("val", 1))


def fake_campaign(root: Location, rows: Sequence[tuple[str, int]] = ROWS, **changes: Any) -> FakeCampaign:
    """Three rows in three shards of two splits, unless told otherwise."""
    rows_per_shard = changes.pop("rows_per_shard", 1)
    options = {"targets": 1, "chains": 1, "shell": (3, 5)} | changes.pop("options", {})
    config = CampaignConfig(
        **({"name": "made-up", "shards": {"output_dir": root, "rows_per_shard": rows_per_shard}} | TINY | changes)
    )
    return FakeCampaign.of(config, rows, **options)


def real(root: Path, source: Path, **changes: Any) -> CampaignConfig:
    """The rows of a real source, one a shard, scored by the real oracle."""
    shards = {"output_dir": root, "rows_per_shard": changes.pop("rows_per_shard", 1)}
    return CampaignConfig(**({"name": "real", "source": {"store_dir": source}, "shards": shards} | TINY | changes))
