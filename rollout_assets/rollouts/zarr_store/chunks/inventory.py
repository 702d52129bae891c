"""Which chunks a store holds, counted file by file and shard by shard, without decoding any.

Zarr silently reads a missing chunk as its fill value, also inside a shard, so presence is checked here. Each
chunk ends with the CRC-32C of its bytes. The digest over all of an array's stored checksums, kept in the manifest,
tells a rewritten, swapped or foreign chunk from the one that was written, at the price of reading four bytes.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np

from rollout_assets.rollouts.zarr_store.chunks.files import StoreFiles
from rollout_assets.rollouts.zarr_store.chunks.row_chunks import (
    CRC_BYTES,
    MISSING,
    RowLayout,
    checksum_matches,
    index_bytes,
    shard_index,
)

_MOST_PROBLEMS = 100
"""After so many an array is known to be damaged; its document can promise files without end."""


@dataclass(frozen=True)
class ArrayInventory:
    """What there is of one array: every problem, and the checksums its chunks end with, one after the other."""

    path: str
    files: tuple[str, ...]
    checksums: bytes
    problems: tuple[str, ...]

    @property
    def stored_crc32c(self) -> str:
        """Digest over the checksums, as a manifest keeps it."""
        return hashlib.sha256(self.checksums).hexdigest()


def take_inventory(
    files: StoreFiles, sizes: dict[str, int], path: str, layout: RowLayout, rows: int, verify: bool = False
) -> ArrayInventory:
    """Look at every file that an array of ``rows`` rows must have; ``verify`` also computes each chunk's checksum."""
    checksums = bytearray()
    keys, problems = [], []
    for index in range(layout.files(rows)):
        key = f"{path}/{layout.file_key(index)}"
        keys.append(key)
        if key not in sizes:
            problems.append(f"file {layout.file_key(index)} is missing")
            if len(problems) >= _MOST_PROBLEMS:
                problems.append(f"{layout.files(rows) - index - 1:,} more files are not looked at")
                break
            continue
        try:
            for chunk, tail in _checksums(files, key, sizes[key], layout, layout.chunks_in_file(index, rows), verify):
                checksums += tail
                if not tail:
                    problems.append(f"file {layout.file_key(index)}: chunk {chunk} does not match its checksum")
        except (ValueError, OSError) as error:
            problems.append(f"file {layout.file_key(index)}: {error}")
    return ArrayInventory(path, tuple(keys), bytes(checksums), tuple(problems))


def _checksums(
    files: StoreFiles, key: str, size: int, layout: RowLayout, chunks: int, verify: bool
) -> list[tuple[int, bytes]]:
    spans = _spans(files, key, size, layout, chunks)
    if not verify:
        return [
            (chunk, files.read_part(key, offset + length - CRC_BYTES, CRC_BYTES))
            for chunk, (offset, length) in enumerate(spans)
        ]
    data = memoryview(files.read(key))
    parts = [(chunk, data[offset : offset + length]) for chunk, (offset, length) in enumerate(spans)]
    return [(chunk, bytes(part[-CRC_BYTES:]) if checksum_matches(part) else b"") for chunk, part in parts]


def _spans(files: StoreFiles, key: str, size: int, layout: RowLayout, chunks: int) -> list[tuple[int, int]]:
    if not layout.sharded:
        if size <= CRC_BYTES:
            raise ValueError(f"is cut short: {size} bytes")
        return [(0, size)]
    tail = index_bytes(layout)
    if size < tail:
        raise ValueError(f"is cut short: {size} bytes do not even hold the shard's index")
    index = shard_index(layout, files.read_part(key, size - tail, tail))
    missing = [chunk for chunk in range(chunks) if MISSING in index[chunk]]
    if missing:
        raise ValueError(f"{len(missing)} of {chunks} chunks are missing in the shard's index, first {missing[0]}")
    extra = np.flatnonzero((index[chunks:] != MISSING).any(axis=1))
    if len(extra):
        raise ValueError(f"the shard's index names chunk {chunks + int(extra[0])}, which is beyond the array")
    spans = [(int(offset), int(length)) for offset, length in index[:chunks]]
    expected = 0
    for chunk, (offset, length) in enumerate(spans):
        if offset != expected or length <= CRC_BYTES:
            raise ValueError(
                f"chunk {chunk} must start at byte {expected} of the shard, got {offset} (length {length})"
            )
        expected = offset + length
    if expected + tail != size:
        raise ValueError(f"has {size} bytes, expected {expected + tail} from the shard's index")
    return spans
