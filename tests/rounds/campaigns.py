"""Two rounds as files: a tiny campaign that trains and evaluates, and one that extends it with its policy."""

from pathlib import Path

FIRST = """
name = "first"
seed = 5
source.store_dir = "{source}"
targets.top_k = 2
oracle = {{ width_px = 8, height_px = 8, device = "cpu" }}
selected_depth = {{ width_px = 8, height_px = 8, chunk_steps = 4 }}
shards = {{ rows_per_shard = 2, output_dir = "first" }}

[[candidates.mixture]]
position = "target_bearing_local"
count = 5

[[recipes]]
name = "random"
policy = "random_valid"
horizon = 2

[training]
epochs = 2
batch_size = 4
threads = 1
observation = {{ points = 32, history = 3 }}
network = {{ patches = 2, width = 8, heads = 2, layers = 1 }}
cache_dir = "observations"

[evaluation]
policies = ["nearest_to_target"]
horizon = 2
seeds = 1
random_repeats = 2
failures = 1
max_pages = 1
"""

SECOND = """
extends = "first.toml"
name = "second"
seed = 105

[[recipes]]
name = "policy_drawn"
policy = "learned"
checkpoint = "first/policy/policy.safetensors"
draw = true
horizon = 2

[shards]
output_dir = "second"

[training]
stores = ["first/rollouts.zarr"]

[evaluation]
policies = ["first=first/policy/policy.safetensors"]
"""


def write_rounds(folder: Path, source: Path) -> tuple[Path, Path]:
    """Both files; the second can be read once the first campaign's policy is trained."""
    first, second = folder / "first.toml", folder / "second.toml"
    first.write_text(FIRST.format(source=source))
    second.write_text(SECOND)
    return first, second
