"""Shared by the collection tests: one tiny campaign, its rows, and one real server process, per session."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rollout_assets.serving.server.fleet import FleetOptions, server_fleet
from rollout_assets.testing.tiny_campaign import write_tiny_campaign


@contextmanager
def running_servers(options: FleetOptions) -> Iterator[tuple[str, ...]]:
    """Servers for code that is not asynchronous."""
    with asyncio.Runner() as runner:
        fleet = server_fleet(options)
        urls = runner.run(fleet.__aenter__())
        try:
            yield urls
        finally:
            runner.run(fleet.__aexit__(None, None, None))


@pytest.fixture(scope="session")
def tiny_campaign(small_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny campaign's file."""
    return write_tiny_campaign(tmp_path_factory.mktemp("tiny"), small_store, rows_per_shard=100)


@pytest.fixture(scope="session")
def tiny_rows(tiny_campaign: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows of both splits."""
    from rollout_assets.collection.campaign_inputs import CampaignInputs
    from rollout_assets.config import load_campaign

    path = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    CampaignInputs(load_campaign(tiny_campaign), "benchmark", path).write()
    return path


@pytest.fixture(scope="session")
def tiny_server(tiny_campaign: Path) -> Iterator[str]:
    """The address of a real server of the tiny campaign."""
    with running_servers(FleetOptions(str(tiny_campaign), 1, 120.0, 15.0)) as urls:
        yield urls[0]


@pytest.fixture(scope="session")
def tiny_train_rows(tiny_campaign: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows of the train split."""
    from rollout_assets.collection.campaign_inputs import CampaignInputs
    from rollout_assets.config import load_campaign

    path = tmp_path_factory.mktemp("rows") / "train.jsonl"
    CampaignInputs(load_campaign(tiny_campaign), "train", path).write()
    return path


@pytest.fixture(scope="session")
def tiny_train_shard(tiny_campaign: Path) -> Path:
    """The store that the shard path makes of the train split."""
    from rollout_assets.campaigns.layout import CampaignLayout
    from rollout_assets.campaigns.run import run_campaign
    from rollout_assets.config import load_campaign

    config = load_campaign(tiny_campaign)
    assert run_campaign(config, shard_ids=["shard-000000"]).ok
    return CampaignLayout.of(config).shard("shard-000000") / "rollouts.zarr"
