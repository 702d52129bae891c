"""A campaign so small that thousands of its rollouts run in a minute, with the real oracle."""

from __future__ import annotations

from pathlib import Path

CAMPAIGN = """
name = "tiny"
seed = 5
source.store_dir = "{source}"
targets.top_k = 2
oracle = {{ width_px = 8, height_px = 8, device = "cpu" }}
selected_depth = {{ width_px = 8, height_px = 8, chunk_steps = 4 }}
shards = {{ rows_per_shard = 100, output_dir = "campaign" }}

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


def write_campaign(folder: Path, source: Path) -> Path:
    """A campaign file over a source store."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "tiny.toml"
    path.write_text(CAMPAIGN.format(source=source))
    return path
