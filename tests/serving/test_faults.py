"""A fault of the machine is a failure that may be asked again: never a refused row, never a row left out."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path

import pytest

from rollout_assets.collection.campaign_inputs import CampaignInputs
from rollout_assets.errors import DeviceError, RolloutAssetsError, RolloutFailed
from rollout_assets.rollouts.remote.messages import RolloutRequest
from rollout_assets.serving.error_entries import INTERNAL, error_entry, error_status
from rollout_assets.serving.service import RolloutService
from tests.campaigns.failing_machine import FAULTS, LAUNCH, Fault, failing
from tests.campaigns.kill_campaigns import real
from tests.support.refusals import refused

CHUNK = "vin/points_world/c/0/0/0"
PLACES = {"a source chunk": CHUNK, "the mesh": ".ply", "a launch": LAUNCH}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", FAULTS)
def test_a_request_that_meets_a_fault_fails_and_may_be_asked_again(
    place: str, kind: str, small_store: Path, tmp_path: Path
) -> None:
    config = real(tmp_path / "out", small_store)
    request = RolloutRequest(source_row=0, recipe=config.recipes[0])

    async def ask_twice() -> str:
        service = RolloutService(config)
        with failing(Fault(PLACES[place], kind)), pytest.raises(RolloutAssetsError) as caught:
            await service.run(request)
        entry = error_entry(caught.value)
        assert entry["transient"] and "field" not in entry and error_status(caught.value) == INTERNAL
        result = await service.run(request)
        await service.aclose()
        return result.status

    assert asyncio.run(ask_twice()) == "completed"


def test_a_server_without_its_device_does_not_start(small_store: Path, tmp_path: Path) -> None:
    config = real(tmp_path / "out", small_store, oracle={"width_px": 8, "height_px": 8, "device": "cuda:77"})
    with refused(DeviceError, "'cuda:77'", '"cpu"', '"auto"'):
        asyncio.run(RolloutService(config).warm_up())


def test_a_server_that_cannot_read_its_source_does_not_start(small_store: Path, tmp_path: Path) -> None:
    service = RolloutService(real(tmp_path / "out", small_store))
    with failing(Fault(CHUNK, "EIO")), refused(RolloutFailed, os.strerror(errno.EIO), CHUNK):
        asyncio.run(service.warm_up())


@pytest.mark.parametrize("kind", ["EIO", "EMFILE", "no memory"])
def test_a_row_that_could_not_be_read_fails_the_preparation(kind: str, small_store: Path, tmp_path: Path) -> None:
    inputs = CampaignInputs(real(tmp_path / "out", small_store), "benchmark", tmp_path / "requests.jsonl")
    with failing(Fault(CHUNK, kind)), pytest.raises((OSError, MemoryError)):
        inputs.write()
    assert not list(tmp_path.glob("*requests*"))
    assert inputs.write().skipped == {}
