"""A campaign of tiny rollouts with the real oracle, for benchmarks of what lies around them."""

from __future__ import annotations

from pathlib import Path

from rollout_assets.synthetic.config import SyntheticConfig
from rollout_assets.synthetic.store import build_synthetic_store

_CAMPAIGN = """
name = "{name}"
seed = 5
source.store_dir = "source"
targets.top_k = 1
oracle = {{ width_px = 16, height_px = 16 }}
selected_depth = {{ width_px = 16, height_px = 16 }}
shards = {{ rows_per_shard = 1, output_dir = "{name}" }}

[[candidates.mixture]]
position = "target_bearing_local"
count = 12

[[recipes]]
name = "oracle_greedy"
policy = "oracle_greedy"
"""


def build_tiny_source(folder: Path, rows: int) -> None:
    """A source of two small scenes with at least ``rows`` rows, at ``folder/source``."""
    options = SyntheticConfig(
        scenes=2, snippets_per_scene=-(-rows // 2), faces=30_000, min_points=500, max_points=2_000, workers=1
    )
    build_synthetic_store(folder / "source", options)


def write_tiny_campaign(folder: Path, name: str) -> Path:
    """A campaign file over ``folder/source``, one row a shard."""
    path = folder / f"{name}.toml"
    path.write_text(_CAMPAIGN.format(name=name))
    return path
