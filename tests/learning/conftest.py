"""A store that a small campaign wrote from the shared source, for tests of what training is shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollout_assets.config import CampaignConfig
from rollout_assets.sources.vin_store import VinOfflineStore
from tests.inspection.conftest import campaign_of, write_campaign

RECIPES = (
    {"name": "random_valid", "policy": "random_valid", "horizon": 3},
    {"name": "softmax", "policy": "temperature_softmax", "branch": 2, "beam_width": 3, "horizon": 3},
)


@pytest.fixture(scope="session")
def observed_campaign(small_store: Path) -> CampaignConfig:
    return campaign_of(small_store, name="observed", recipes=RECIPES)


@pytest.fixture(scope="session")
def observed_store(observed_campaign: CampaignConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every row of one split. Shared: copy before changing."""
    source = VinOfflineStore.open(observed_campaign.source.store_dir)
    rows = [row.sample_index for row in source.rows("train")]
    return write_campaign(observed_campaign, tmp_path_factory.mktemp("observed") / "rollouts.zarr", rows)


@pytest.fixture(scope="session")
def played_campaign(small_store: Path) -> CampaignConfig:
    """Eight views, two steps and few pixels, for tests of the environment."""
    return campaign_of(
        small_store,
        name="played",
        oracle={"width_px": 8, "height_px": 8, "device": "cpu"},
        selected_depth={"width_px": 8, "height_px": 8},
        candidates={"mixture": [{"position": "target_bearing_local", "count": 8}]},
    )
