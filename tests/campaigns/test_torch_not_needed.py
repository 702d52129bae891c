"""A shard is built without torch, whose import takes longer than everything else before the first result."""

import subprocess
import sys

from tests.defs.campaigns import write_campaign

BUILD = """
import sys
from rollout_assets.campaigns.plan import write_rollout_shard_manifest_from_config
from rollout_assets.campaigns.shard import run_rollout_shard
from rollout_assets.config import load_campaign
config = load_campaign(sys.argv[1])
entry = write_rollout_shard_manifest_from_config(config).entries[0]
print(run_rollout_shard(config, entry).outcome, "torch" in sys.modules)
"""


def test_a_shard_is_built_without_torch(tmp_path, small_store):
    campaign = write_campaign(tmp_path, small_store, splits=("train",))
    done = subprocess.run([sys.executable, "-c", BUILD, str(campaign)], capture_output=True, text=True)
    assert done.stdout.split() == ["built", "False"], done.stderr
