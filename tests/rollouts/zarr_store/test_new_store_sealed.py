"""A new store that fails validation: damage may pass by itself, rows that break a rule would break it again."""

import pytest

from rollout_assets.campaigns.markers import validate_and_seal
from rollout_assets.errors import NotReadBack, StoreError, may_pass
from tests.rollouts.zarr_store.forging import bump, forge
from tests.rollouts.zarr_store.store_under_test import Mutable
from tests.support.refusals import refused


def test_only_damage_of_a_new_store_may_pass(mutable_store: Mutable):
    forge(mutable_store, "candidates/selection_probabilities", bump(0, 0.5), {})
    with refused(StoreError, "candidates/selection_probabilities row 0") as broken:
        validate_and_seal(mutable_store.path)
    assert not may_pass(broken.value)
    mutable_store.restore()
    column = next(key for key in mutable_store.files() if key.startswith("candidates/selection_probabilities/c/"))
    (mutable_store.path / column).write_bytes(mutable_store.original[column][:-1] + b"?")
    with pytest.raises(NotReadBack) as damaged:
        validate_and_seal(mutable_store.path)
    assert may_pass(damaged.value)
    mutable_store.restore()
