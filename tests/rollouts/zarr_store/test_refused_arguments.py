"""What no store can be: refused where it is given, and found where it is stored."""

from pathlib import Path

import pytest

from rollout_assets.errors import ConfigError, RecordRefused
from rollout_assets.rollouts.zarr_store import (
    RolloutZarrStoreConfig,
    RolloutZarrStoreReader,
    RolloutZarrStoreWriter,
    validate_rollout_zarr_store,
    write_rollout_zarr_store,
)
from tests.rollouts.zarr_store.store_under_test import CONFIG, RECORDS
from tests.support.refusals import refused


def test_a_rollout_id_that_is_there_already_is_refused(good_store: Path, tmp_path: Path):
    record = next(record for record in RECORDS if record.chains)
    twice = record.rollout_id(record.chains[0])
    with refused(RecordRefused, twice):
        write_rollout_zarr_store(tmp_path / "records.zarr", [record, record], CONFIG)
    reader = RolloutZarrStoreReader(good_store)
    with refused(RecordRefused, good_store), RolloutZarrStoreWriter(tmp_path / "stores.zarr", CONFIG) as writer:
        writer.append_store(reader)
        writer.append_store(reader)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("profile", ["zz", "", "OWN", 1])
def test_an_unknown_profile_is_refused(good_store: Path, profile):
    reader = RolloutZarrStoreReader(good_store)
    for validate in (reader.validate, lambda **options: validate_rollout_zarr_store(good_store, **options)):
        with refused(ConfigError, "profile", repr(profile), "own", "foreign"):
            validate(profile=profile)


@pytest.mark.parametrize("gamma", [-1, 1.01, float("nan"), float("inf"), "1", None])
def test_a_discount_outside_its_range_is_refused(good_store: Path, gamma):
    reader = RolloutZarrStoreReader(good_store)
    with refused(ConfigError, "discount_gamma", repr(gamma)):
        reader.q_h_view(discount_gamma=gamma) if gamma is not None else list(reader.rebuilt_view(gamma))


@pytest.mark.parametrize("wrong", [{"return_semantics": "best_of_all"}, {"depth_znear_m": 30.0}])
def test_a_config_that_no_store_can_have_is_refused_and_found(tmp_path: Path, wrong):
    with refused(ValueError, *wrong.values()):
        RolloutZarrStoreConfig(**wrong)
    write_rollout_zarr_store(tmp_path / "rollouts.zarr", RECORDS, CONFIG.model_copy(update=wrong))
    result = validate_rollout_zarr_store(tmp_path / "rollouts.zarr")
    assert "attributes_as_derived" in result.counts(), result.errors
