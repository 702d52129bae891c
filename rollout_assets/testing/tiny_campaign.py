"""A campaign so small that thousands of its rollouts run in a minute, with the real oracle."""

from __future__ import annotations

from pathlib import Path

from rollout_assets.synthetic.config import SyntheticConfig
from rollout_assets.synthetic.store import build_synthetic_store

_CAMPAIGN = """
name = "{name}"
seed = 5
source.store_dir = "{source}"
targets.top_k = 2
oracle = {{ width_px = 8, height_px = 8, device = "cpu" }}
selected_depth = {{ width_px = 8, height_px = 8, chunk_steps = 4 }}
shards = {{ rows_per_shard = {rows_per_shard}, output_dir = "{name}" }}

[[candidates.mixture]]
position = "forward_local"
count = 4

[[recipes]]
name = "greedy"
policy = "oracle_greedy"
horizon = 1

[[recipes]]
name = "random"
policy = "random_valid"
horizon = 2
"""


def build_tiny_source(folder: Path, rows: int) -> Path:
    """A source of two small scenes with at least ``rows`` rows, at ``folder/source``."""
    options = SyntheticConfig(
        scenes=2, snippets_per_scene=-(-rows // 2), faces=30_000, min_points=500, max_points=2_000, workers=1
    )
    build_synthetic_store(folder / "source", options)
    return folder / "source"


def write_tiny_campaign(folder: Path, source: Path, name: str = "tiny", rows_per_shard: int = 1) -> Path:
    """A campaign file over a source store."""
    path = folder / f"{name}.toml"
    path.write_text(_CAMPAIGN.format(name=name, source=source, rows_per_shard=rows_per_shard))
    return path
