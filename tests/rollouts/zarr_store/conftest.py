"""One small store with everything in it, shared by all tests of the store."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from rollout_assets.config import CampaignConfig
from rollout_assets.rollouts.generator import RolloutGenerator
from rollout_assets.rollouts.trace import RolloutZarrRecord
from rollout_assets.rollouts.zarr_store import RolloutZarrStoreConfig, write_rollout_zarr_store
from rollout_assets.rollouts.zarr_store.manifest import RolloutStoreManifestContext
from rollout_assets.sources.vin_store import VinOfflineStore
from tests.rollouts.zarr_store.research_store import write_research_store
from tests.rollouts.zarr_store.store_under_test import CONFIG, CREATED, RECORDS, Mutable


@pytest.fixture(scope="session")
def good_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shared: never change it."""
    path = tmp_path_factory.mktemp("rollouts") / "rollouts.zarr"
    write_rollout_zarr_store(path, RECORDS, CONFIG, created_at_utc=CREATED)
    return path


@pytest.fixture(scope="session")
def every_step_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same records with dead ends in the training view, as the research code has it. Shared: never change it."""
    path = tmp_path_factory.mktemp("every_step") / "rollouts.zarr"
    config = CONFIG.model_copy(update={"dead_ends_in_training_view": True})
    write_rollout_zarr_store(path, RECORDS, config, created_at_utc=CREATED)
    return path


@pytest.fixture(scope="session")
def research_store(every_step_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """That store as the research code lays it out, with crops. Shared: never change it."""
    return write_research_store(tmp_path_factory.mktemp("research") / "research.zarr", every_step_store, crops=5)


@pytest.fixture(scope="module")
def mutable_store(good_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mutable]:
    """Restore it before leaving a test."""
    copy = tmp_path_factory.mktemp("mutable") / "rollouts.zarr"
    shutil.copytree(good_store, copy)
    yield Mutable(copy)
    shutil.rmtree(copy)


@pytest.fixture(scope="session")
def campaign(small_store: Path) -> CampaignConfig:
    """A small campaign with every kind of policy and branching."""
    return CampaignConfig(
        name="forged",
        seed=5,
        source={"store_dir": small_store},
        targets={"top_k": 2},
        candidates={
            "mixture": [{"position": "forward_local", "count": 8}, {"position": "target_bearing_local", "count": 6}]
        },
        oracle={"width_px": 16, "height_px": 16, "device": "cpu"},
        selected_depth={"width_px": 12, "height_px": 10},
        recipes=[
            {"name": "random", "policy": "random_valid", "horizon": 3},
            {"name": "labelled", "policy": "random", "branch": {"counts": [1, 3], "probabilities": [0.5, 0.5]}},
            {"name": "lookahead", "policy": "oracle_greedy", "branch": 2, "beam_width": 2},
            {"name": "softmax", "policy": "temperature_softmax", "branch": [2, 1], "temperature": 0.5},
            {"name": "far", "policy": "farthest_from_history", "branch": 2, "min_history_distance_m": 0.4},
            {"name": "apart", "policy": "farthest_from_reference", "branch": 2, "min_sibling_distance_m": 0.3},
        ],
    )


@pytest.fixture(scope="session")
def campaign_records(campaign: CampaignConfig) -> list[RolloutZarrRecord]:
    """What that campaign makes of two source rows."""
    source = VinOfflineStore.open(campaign.source.store_dir)
    return list(RolloutGenerator(campaign, source).records(source.rows("train")))


@pytest.fixture(scope="session")
def campaign_store(
    campaign: CampaignConfig, campaign_records: list[RolloutZarrRecord], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Those records as a store, the campaign in its manifest. Shared: never change it."""
    path = tmp_path_factory.mktemp("campaign") / "rollouts.zarr"
    return write_campaign_store(path, campaign, campaign_records)


def write_campaign_store(path: Path, campaign: CampaignConfig, records: Iterable[RolloutZarrRecord]) -> Path:
    """Records as a store that names its campaign."""
    write_rollout_zarr_store(
        path,
        records,
        RolloutZarrStoreConfig.from_campaign(campaign),
        context=RolloutStoreManifestContext.here(campaign),
        created_at_utc=CREATED,
    )
    return path
