"""Tiny campaigns for tests: small images, few views, one row a shard, on a small synthetic store."""

from pathlib import Path

from rollout_assets.config import CampaignConfig, load_campaign

TINY = """
name = "{name}"
seed = 5

[source]
store_dir = "{store}"
splits = {splits}

[targets]
top_k = 1

[candidates]
radius_max_m = 0.9

[[candidates.mixture]]
position = "target_bearing_local"
count = 12

[oracle]
width_px = 16
height_px = 16
device = "cpu"

[[recipes]]
name = "oracle_greedy"
policy = "oracle_greedy"
horizon = 2

[selected_depth]
width_px = 16
height_px = 16

[shards]
rows_per_shard = {rows_per_shard}
output_dir = "{name}"
"""


def write_campaign(
    folder: Path,
    store: Path,
    name: str = "tiny",
    *,
    rows_per_shard: int = 1,
    splits: tuple[str, ...] = ("train", "val"),
) -> Path:
    """A campaign file in ``folder``; its data goes to ``folder/<name>``."""
    path = folder / f"{name}.toml"
    path.write_text(TINY.format(name=name, store=store, rows_per_shard=rows_per_shard, splits=list(splits)))
    return path


def edit(path: Path, old: str, new: str) -> CampaignConfig:
    """Replace text in a campaign file."""
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    return load_campaign(path)
