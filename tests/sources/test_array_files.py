"""Array files whose headers promise what they do not hold: damage of the source, found without taking memory."""

import shutil

import numpy as np
import pytest
from numpy.lib import format as npy_format

from rollout_assets.errors import SourceDamaged
from rollout_assets.sources.array_files import read_array_file
from rollout_assets.sources.audit import audit_store
from rollout_assets.sources.vin_store import VinOfflineStore
from tests.support.refusals import assert_names, refused


def with_header(header: bytes, version: bytes = b"\x01\x00", values: bytes = b"\0" * 8) -> bytes:
    return (
        npy_format.MAGIC_PREFIX
        + version
        + len(header).to_bytes(2 if version[0] == 1 else 4, "little")
        + header
        + values
    )


def promising(shape: str) -> bytes:
    return with_header(f"{{'descr': '<i8', 'fortran_order': False, 'shape': {shape}}}\n".encode())


DAMAGED = {
    "huge": promising("(1000000000000000000,)"),
    "huge in two": promising("(4294967296, 4294967296)"),
    "one too many": promising("(2,)"),
    "nested": with_header(b"-" * 9_000 + b"1"),
    "a header beyond the file": npy_format.MAGIC_PREFIX + b"\x02\x00\xff\xff\xff\xff{}",
    "empty": b"",
    "pickle": b"\x80\x04N.",
}


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED.keys())
def test_a_damaged_array_file_is_a_value_error(tmp_path, content):
    (tmp_path / "values.npy").write_bytes(content)
    with refused(ValueError):
        read_array_file(tmp_path / "values.npy")


@pytest.mark.parametrize("values", [np.arange(5), np.zeros(0, np.int64), np.zeros((3, 0), np.float32), np.float64(3)])
def test_arrays_are_read_back(tmp_path, values):
    np.save(tmp_path / "values.npy", values)
    assert np.array_equal(read_array_file(tmp_path / "values.npy"), values)


def test_a_source_with_a_huge_header_is_damaged(small_store, tmp_path):
    store = shutil.copytree(small_store, tmp_path / "source")
    opened = VinOfflineStore.open(store)
    row = opened.rows()[0]
    offsets = next(store.rglob(f"{row.shard_id}/**/*.offsets.npy"))
    for path in (store / "splits/train.npy", offsets):
        path.write_bytes(DAMAGED["huge"])
    assert_names("\n".join(audit_store(store).broken), "splits/train.npy", offsets.name)
    with refused(SourceDamaged, "splits/train.npy", offsets.name):
        VinOfflineStore.open(store)
    with refused(SourceDamaged, row.sample_key):
        opened.sample(row)
