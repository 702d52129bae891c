"""Real stores from real parts: one that a small campaign wrote, shared by all tests of this room."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from rollout_assets.config import CampaignConfig
from rollout_assets.rollouts.generator import RolloutGenerator
from rollout_assets.rollouts.zarr_store import (
    RolloutZarrStoreConfig,
    RolloutZarrStoreReader,
    write_rollout_zarr_store,
)
from rollout_assets.rollouts.zarr_store.manifest import RolloutStoreManifestContext
from rollout_assets.sources.vin_store import VinOfflineStore

RECIPES = (
    {"name": "random_valid", "policy": "random_valid"},
    {"name": "lookahead", "policy": "oracle_greedy", "branch": 2, "beam_width": 2},
    {"name": "softmax", "policy": "temperature_softmax", "branch": [2, 1]},
)


def campaign_of(source: Path, **changes) -> CampaignConfig:
    """A small campaign with branching recipes."""
    defaults = {
        "name": "inspected",
        "seed": 5,
        "source": {"store_dir": source},
        "recipes": RECIPES,
        "targets": {"top_k": 2},
        "selected_depth": {"width_px": 24, "height_px": 24},
    }
    return CampaignConfig(**(defaults | changes))


def write_campaign(config: CampaignConfig, path: Path, rows: Iterable[int]) -> Path:
    """Generate some source rows into a store, manifest and all."""
    source = VinOfflineStore.open(config.source.store_dir)
    records = RolloutGenerator(config, source).records([source.row(row) for row in rows])
    context = RolloutStoreManifestContext.here(config)
    write_rollout_zarr_store(path, records, RolloutZarrStoreConfig.from_campaign(config), context=context)
    return path


@pytest.fixture(scope="session")
def campaign(small_store: Path) -> CampaignConfig:
    return campaign_of(small_store)


@pytest.fixture(scope="session")
def real_store(campaign: CampaignConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two source rows of one split. Shared: copy before changing."""
    source = VinOfflineStore.open(campaign.source.store_dir)
    rows = [row.sample_index for row in source.rows("train")]
    return write_campaign(campaign, tmp_path_factory.mktemp("inspected") / "rollouts.zarr", rows)


@pytest.fixture
def real(real_store: Path) -> RolloutZarrStoreReader:
    return RolloutZarrStoreReader(real_store)
