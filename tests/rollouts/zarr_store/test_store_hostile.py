"""Rollout stores that promise more than they hold, or have pipes and devices for files: reported, never waited for."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rollout_assets.errors import NotRegularFile, StoreDamaged, StoreError
from rollout_assets.files import file_sha256, seal_tree
from rollout_assets.inspection.summary import validity_waterfall_rows
from rollout_assets.parsing import read_regular, read_text_file
from rollout_assets.rollouts.zarr_store import RolloutZarrStoreReader, validate_rollout_zarr_store
from rollout_assets.sources.zarr_files import RegularFileStore
from tests.rollouts.zarr_store.store_under_test import Mutable

HUGE = 10**12
TABLES = ("sources", "targets", "rollouts", "steps", "candidates")


def pipe(path: Path) -> None:
    os.mkfifo(path)


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def socket_file(path: Path) -> None:
    os.mknod(path, 0o140644)


def pipe_behind_a_link(path: Path) -> None:
    os.mkfifo(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


def problems(store: Path) -> str:
    """What a deep validation finds, in one text."""
    return "\n".join(validate_rollout_zarr_store(store, deep=True).errors)


def read_everything(store: Path) -> None:
    """Read each table through the reader."""
    reader = RolloutZarrStoreReader(store)
    reader.manifest()
    for table in TABLES:
        reader.table(table)


@pytest.mark.parametrize("make", [pipe, device, socket_file, pipe_behind_a_link])
def test_only_regular_files_are_read(tmp_path: Path, make: Callable[[Path], None]) -> None:
    path, regular = tmp_path / "file", tmp_path / "regular"
    make(path)
    regular.write_text("text")
    for read in (read_regular, file_sha256, RegularFileStore(tmp_path, read_only=True).get_sync):
        with pytest.raises(NotRegularFile):
            read(path)  # type: ignore[operator]
    sealed = seal_tree(tmp_path)
    path.unlink()
    path.touch()
    assert seal_tree(tmp_path) != sealed
    (tmp_path / "link").symlink_to("regular")
    assert read_regular(tmp_path / "link") == b"text" and read_text_file(tmp_path / "link") == "text"
    with pytest.raises(IsADirectoryError):
        read_regular(tmp_path)


@pytest.mark.parametrize("make", [pipe, device])
def test_special_files_in_a_store_are_reported(mutable_store: Mutable, make: Callable[[Path], None]) -> None:
    chunk = next(key for key in mutable_store.files() if key.startswith("candidates/target_rri/c/"))
    for key in ("zarr.json", "manifest.json", "candidates/zarr.json", "candidates/target_rri/zarr.json", chunk):
        path = mutable_store.path / key
        path.unlink()
        make(path)
        try:
            assert key.removesuffix("/zarr.json").split("/c/")[0] in problems(mutable_store.path)
            if key in ("zarr.json", "manifest.json", chunk):  # the root repeats the documents of all others
                with pytest.raises(StoreError):
                    read_everything(mutable_store.path)
            seal_tree(mutable_store.path)
        finally:
            path.unlink()
            mutable_store.restore()


def more_rows(document: dict[str, Any]) -> None:
    document["shape"][0] = HUGE


def one_file(document: dict[str, Any]) -> None:
    document["shape"][0] = document["chunk_grid"]["configuration"]["chunk_shape"][0] = HUGE


def wider_rows(document: dict[str, Any]) -> None:
    document["shape"][1:] = [2**40, 2**40]
    document["chunk_grid"]["configuration"]["chunk_shape"][1:] = [2**40, 2**40]


def edit_document(store: Path, path: str, change: Callable[[dict[str, Any]], None]) -> None:
    """Change an array's document and the root's copy of it."""
    own, root = store / path / "zarr.json", store / "zarr.json"
    document, repeated = json.loads(own.read_bytes()), json.loads(root.read_bytes())
    change(document)
    change(repeated["consolidated_metadata"]["metadata"][path])
    own.write_text(json.dumps(document))
    root.write_text(json.dumps(repeated))


@pytest.mark.parametrize(
    ("path", "change"),
    [
        ("steps/step_row_id", more_rows),
        ("candidates/candidate_row_id", more_rows),
        ("candidates/candidate_row_id", one_file),
        ("q_h/q_train_mask", more_rows),
        ("q_h/q_train_mask", wider_rows),
        ("selected_depth/depth_m", more_rows),
        ("dictionaries/scene", more_rows),
    ],
)
def test_an_array_that_promises_too_much_is_reported(
    mutable_store: Mutable, path: str, change: Callable[[dict[str, Any]], None]
) -> None:
    try:
        edit_document(mutable_store.path, path, change)
        assert path in problems(mutable_store.path)
        reader = RolloutZarrStoreReader(mutable_store.path)
        with pytest.raises(StoreDamaged):
            reader.array(path)
        if path.startswith("candidates/"):
            with pytest.raises(StoreDamaged):
                validity_waterfall_rows(reader)
    finally:
        mutable_store.restore()
