"""One small store with everything in it, shared by all tests of the store."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from rollout_assets.rollouts.zarr_store import write_rollout_zarr_store
from tests.rollouts.zarr_store.store_under_test import CONFIG, CREATED, RECORDS, Mutable


@pytest.fixture(scope="session")
def good_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shared: never change it."""
    path = tmp_path_factory.mktemp("rollouts") / "rollouts.zarr"
    write_rollout_zarr_store(path, RECORDS, CONFIG, created_at_utc=CREATED)
    return path


@pytest.fixture(scope="module")
def mutable_store(good_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mutable]:
    """Restore it before leaving a test."""
    copy = tmp_path_factory.mktemp("mutable") / "rollouts.zarr"
    shutil.copytree(good_store, copy)
    yield Mutable(copy)
    shutil.rmtree(copy)
