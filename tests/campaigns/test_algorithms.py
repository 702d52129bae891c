"""A change of what is computed is a new version: labels of a small campaign are pinned beside the versions of the code.

If labels change on purpose, raise the number of the room in ``config/algorithms.py`` and pin anew:

    python -m tests.campaigns.test_algorithms
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rollout_assets.campaigns.plan import open_source, write_rollout_shard_manifest_from_config
from rollout_assets.campaigns.shard import run_rollout_shard
from rollout_assets.config import CampaignConfig
from rollout_assets.config import algorithms as versions
from rollout_assets.rollouts.zarr_store import RolloutZarrStoreReader
from rollout_assets.synthetic.config import SyntheticConfig
from rollout_assets.synthetic.store import build_synthetic_store
from tests.campaigns.kill_campaigns import TINY

PINNED = Path(__file__).with_name("pinned_labels.json")
COLUMNS = ("actor_action_mask", "target_rri", "target_root_gain", "selection_probabilities")
RECIPES = [
    {"name": "greedy", "policy": "oracle_greedy", "horizon": 2},
    {"name": "softmax", "policy": "temperature_softmax", "horizon": 1},
]


def labels(folder: Path) -> dict[str, Any]:
    """Labels, masks and probabilities of one row with two recipes, in store order; null where there is none."""
    source = SyntheticConfig(scenes=1, snippets_per_scene=1, faces=30_000, seed=11, workers=1)
    build_synthetic_store(folder / "source", source)
    shards = {"output_dir": folder / "out", "rows_per_shard": 1}
    settings = TINY | {"recipes": RECIPES, "targets": {"top_k": 2}, "shards": shards}
    config = CampaignConfig(name="pinned", seed=5, source={"store_dir": folder / "source"}, **settings)
    entry = write_rollout_shard_manifest_from_config(config).entries[0]
    reader = RolloutZarrStoreReader(run_rollout_shard(config, entry, source=open_source(config)).store_dir)
    table = reader.table("candidates", columns=COLUMNS)
    return {name: [_plain(value) for value in np.asarray(table[name], float)] for name in COLUMNS}


def _plain(value: float) -> float | None:
    return None if np.isnan(value) else round(float(value), 9)


def _array(column: list[float | None]) -> np.ndarray:
    return np.array([np.nan if value is None else value for value in column])


def test_labels_are_those_of_the_pinned_versions(tmp_path):
    pinned = json.loads(PINNED.read_text())
    assert pinned["versions"] == versions.ALGORITHM_VERSIONS, (
        "pin the labels of the new versions, as the docstring says"
    )
    made = labels(tmp_path)
    assert made.keys() == pinned["labels"].keys() and "target_root_gain" in made
    for name, expected in pinned["labels"].items():
        message = f"{name} changed: raise the version of what computes it in config/algorithms.py"
        np.testing.assert_allclose(_array(made[name]), _array(expected), rtol=1e-5, atol=1e-8, err_msg=message)


@pytest.mark.parametrize("room", list(versions.ALGORITHM_VERSIONS))
def test_a_new_version_of_a_room_makes_every_shard_stale(room, monkeypatch):
    config = CampaignConfig(name="any")
    before = config.hashes()
    monkeypatch.setitem(versions.ALGORITHM_VERSIONS, room, 2)
    after = config.hashes()
    changed = {name for name in before if before[name] != after[name]}
    assert "writer" in changed and len(changed) == (1 if room == "store" else 2)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        pinned = {"versions": versions.ALGORITHM_VERSIONS, "labels": labels(Path(folder))}
    PINNED.write_text(json.dumps(pinned, indent=1) + "\n")
