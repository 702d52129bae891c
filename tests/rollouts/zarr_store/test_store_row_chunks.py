"""Chunk files are plain Zarr v3, byte for byte decodable by zarr-python, for every layout, dtype and length."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import zarr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from zarr.codecs import BloscCodec, Crc32cCodec, ZstdCodec
from zarr.storage import LocalStore, MemoryStore

from rollout_assets.errors import StoreDamaged
from rollout_assets.rollouts.zarr_store.chunks.arrays import RowArray
from rollout_assets.rollouts.zarr_store.chunks.files import LocalFiles
from rollout_assets.rollouts.zarr_store.chunks.inventory import take_inventory
from rollout_assets.rollouts.zarr_store.chunks.row_chunks import (
    CodecName,
    RowLayout,
    encode_file,
    layout_of,
)
from rollout_assets.rollouts.zarr_store.documents import document_bytes, read_document
from tests.support.refusals import assert_names, refused

pytestmark = pytest.mark.quick


def write(folder: Path, layout: RowLayout, values: np.ndarray) -> None:
    folder.mkdir(parents=True)
    (folder / "zarr.json").write_bytes(document_bytes(layout.document(len(values))))
    with ThreadPoolExecutor(1) as worker:
        for index in range(layout.files(len(values))):
            file = folder / layout.file_key(index)
            file.parent.mkdir(parents=True, exist_ok=True)
            rows = values[index * layout.file_rows : (index + 1) * layout.file_rows]
            file.write_bytes(worker.submit(encode_file, layout, rows).result())


@given(
    rows=st.integers(0, 90),
    chunk_rows=st.integers(1, 30),
    chunks=st.integers(1, 5),
    codec=st.sampled_from(["rows", "view", "raster"]),
    dtype=st.sampled_from(["bool", "int16", "uint32", "int64", "float16", "float32"]),
    row_shape=st.sampled_from([(), (3,), (2, 5)]),
    data=st.data(),
)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_zarr_reads_what_is_written_here(
    tmp_path_factory: pytest.TempPathFactory,
    rows: int,
    chunk_rows: int,
    chunks: int,
    codec: CodecName,
    dtype: str,
    row_shape: tuple[int, ...],
    data: st.DataObject,
) -> None:
    values = (np.random.default_rng(rows).normal(size=(rows, *row_shape)) * 3).astype(dtype)
    layout = RowLayout(values.dtype, row_shape, chunk_rows, chunks, codec).fitted(rows)
    folder = tmp_path_factory.mktemp("array")
    write(folder / "x", layout, values)
    plain = zarr.open_array(LocalStore(folder / "x", read_only=True), mode="r")
    np.testing.assert_array_equal(plain[...], values, strict=True)
    assert layout_of(layout.document(rows)) == layout
    own = RowArray(LocalFiles(folder), "x", layout.document(rows))
    start = data.draw(st.integers(0, rows))
    stop = data.draw(st.integers(start, rows))
    np.testing.assert_array_equal(own.read(start, stop), values[start:stop], strict=True)
    found = take_inventory(LocalFiles(folder), LocalFiles(folder).sizes(), "x", layout, rows, verify=True)
    assert found.problems == ()
    assert len(found.files) == layout.files(rows)


@pytest.mark.parametrize("codec", ["rows", "view", "raster"])
@pytest.mark.parametrize("dtype", ["bool", "uint8", "int16", "int64", "float16", "float32"])
@pytest.mark.parametrize(("rows", "row_shape"), [(5, ()), (90, (2, 5)), (90, (3, 0))])
def test_documents_are_those_that_zarr_writes(codec: CodecName, dtype: str, rows: int, row_shape: tuple[int, ...]):
    layout = RowLayout(np.dtype(dtype), row_shape, 30, 2, codec).fitted(rows)
    chunk = (layout.chunk_rows, *(max(size, 1) for size in row_shape))
    size = np.dtype(dtype).itemsize
    compressor = {
        "rows": ZstdCodec(level=1),
        "view": BloscCodec(typesize=size, cname="lz4", clevel=5, shuffle="shuffle"),
        "raster": BloscCodec(typesize=size, cname="zstd", clevel=5, shuffle="bitshuffle"),
    }[codec]
    array = zarr.create_array(
        MemoryStore(),
        shape=(rows, *row_shape),
        dtype=dtype,
        chunks=chunk,
        shards=(layout.file_rows, *chunk[1:]) if layout.sharded else None,
        compressors=(compressor, Crc32cCodec()),
        fill_value=None,
    )
    assert document_bytes(layout.document(rows)) == document_bytes(array.metadata.to_dict())


def test_layout_of_a_full_file_is_independent_of_later_rows() -> None:
    full = RowLayout(np.dtype("f4"), (), 100, 4, "rows").fitted(400)
    assert RowLayout(np.dtype("f4"), (), 100, 4, "rows").fitted(4_000) == full
    assert RowLayout(np.dtype("f4"), (), 100, 4, "rows").fitted(250).chunks_per_file == 3
    assert RowLayout(np.dtype("f4"), (), 100, 4, "rows").fitted(30).chunk_rows == 30


def test_a_chunk_missing_inside_a_shard_is_named(tmp_path: Path) -> None:
    values = np.zeros(400, np.float32)
    layout = RowLayout(values.dtype, (), 100, 4, "rows").fitted(400)
    write(tmp_path / "x", layout, values[:300])
    document = layout.document(400)
    plain = RowArray(LocalFiles(tmp_path), "x", document)
    np.testing.assert_array_equal(plain.read(0, 300), values[:300])
    with refused(StoreDamaged, "c/0", "chunk 3", where="x"):
        plain.read()
    found = take_inventory(LocalFiles(tmp_path), LocalFiles(tmp_path).sizes(), "x", layout, 400)
    (problem,) = found.problems
    assert_names(problem, "c/0", "1 of 4 chunks", 3)


def test_a_chunk_of_another_length_is_refused(tmp_path: Path) -> None:
    layout = RowLayout(np.dtype("f8"), (), 100, 1, "rows")
    short = RowLayout(np.dtype("f4"), (), 100, 1, "rows")
    write(tmp_path / "x", short, np.ones(100, np.float32))
    with refused(StoreDamaged, "800 bytes", 400, where="x"):
        RowArray(LocalFiles(tmp_path), "x", layout.document(100)).read()


def test_arrays_of_other_writers_are_read_through_zarr(tmp_path: Path) -> None:
    values = np.arange(60.0).reshape(20, 3)
    written = zarr.create_array(LocalStore(tmp_path / "x"), shape=values.shape, dtype=values.dtype, chunks=(7, 2))
    written[...] = values
    foreign = zarr.open_array(tmp_path / "x", mode="r")
    files = LocalFiles(tmp_path)
    array = RowArray(files, "x", read_document(files, "x")[1], through_zarr=lambda: foreign)
    assert array.layout is None
    np.testing.assert_array_equal(array.read(3, 11), values[3:11])
