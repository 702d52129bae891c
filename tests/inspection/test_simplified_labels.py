"""Labels of simplified meshes: other labels, a version of their own, and the same ones when they are replayed."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from rollout_assets.config import CampaignConfig
from rollout_assets.inspection.replay import source_of
from rollout_assets.rollouts import RolloutZarrStoreReader, replay, second_opinion, write_rollout_zarr_store
from rollout_assets.rollouts.generator import RolloutGenerator
from rollout_assets.rollouts.trace import RolloutZarrRecord
from rollout_assets.rollouts.zarr_store import RolloutZarrStoreConfig
from rollout_assets.rollouts.zarr_store.manifest import RolloutStoreManifestContext
from tests.inspection.conftest import campaign_of

pytestmark = pytest.mark.skipif(find_spec("fast_simplification") is None, reason="fast-simplification is missing")

ONE_RECIPE = ({"name": "greedy", "policy": "oracle_greedy", "horizon": 1},)


def records_of(campaign: CampaignConfig) -> list[RolloutZarrRecord]:
    source = source_of(campaign)
    return list(RolloutGenerator(campaign, source).records(source.rows("train")[:1]))


def test_labels_are_of_the_simplified_mesh_and_replay(small_store: Path, tmp_path: Path) -> None:
    targets = {"top_k": 1}
    plain = campaign_of(small_store, recipes=ONE_RECIPE, targets=targets)
    tenth = campaign_of(small_store, recipes=ONE_RECIPE, targets=targets, oracle={"simplify": 0.1})
    (whole,), simplified = records_of(plain), records_of(tenth)
    (record,) = simplified
    meshes = source_of(tenth).meshes
    assert record.lineage.mesh_version == meshes.known_hash(record.lineage.scene_id) != whole.lineage.mesh_version
    assert record.lineage.oracle_config_hash != whole.lineage.oracle_config_hash
    gains = [made.chains[0].steps[0].labels.target_root_gain for made in (whole, record)]
    assert np.nanmax(np.abs(gains[0] - gains[1])) > 1e-3
    config, context = RolloutZarrStoreConfig.from_campaign(tenth), RolloutStoreManifestContext.here(tenth)
    write_rollout_zarr_store(tmp_path / "s.zarr", simplified, config, context=context)
    reader = RolloutZarrStoreReader(tmp_path / "s.zarr")
    assert reader.validate(deep=True).ok
    assert replay(reader, 0, tenth).identical
    assert second_opinion(reader, 1.0, 0, tenth, limit=2).agrees
