"""Files appear whole or not at all, and a tree is sealed by the bytes that were read."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from rollout_assets.files import (
    append_bytes,
    file_sha256,
    link_tree,
    make_folder,
    publish_bytes,
    publishing,
    replace_bytes,
    seal_tree,
    tree_sizes,
)
from rollout_assets.rollouts.zarr_store.chunks.files import HashingFiles
from tests.full_disk import full_after
from tests.support.power_loss import Recording
from tests.support.refusals import refused

pytestmark = pytest.mark.quick


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    folder = tmp_path / "tree"
    (folder / "a/b").mkdir(parents=True)
    (folder / "a/b/one").write_bytes(b"1" * 100)
    (folder / "two").write_bytes(b"22")
    return folder


def test_a_failed_writer_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("old")
    with refused(ValueError, "half way"), publishing(path) as scratch:
        scratch.write_text("new, but")
        raise ValueError("half way")
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]
    with publishing(path) as scratch:
        scratch.write_text("new")
    replace_bytes(path, path.read_bytes() + b"er")
    assert path.read_text() == "newer" and list(tmp_path.iterdir()) == [path]


def test_a_tree_is_sealed_by_the_bytes_that_were_read_before(tree: Path) -> None:
    files = HashingFiles(tree)
    assert files.read("a/b/one") == b"1" * 100 and files.read_part("two", 1, 1) == b"2"
    assert files.hashed == {"a/b/one": (100, file_sha256(tree / "a/b/one")), "two": (2, file_sha256(tree / "two"))}
    assert seal_tree(tree, files.hashed) == seal_tree(tree)
    (tree / "two").write_bytes(b"23")
    assert files.read("two") == b"22", "what was hashed is what is used"
    assert seal_tree(tree, files.hashed) != seal_tree(tree)
    (tree / "two").unlink()
    assert seal_tree(tree, files.hashed).files == 1


def test_a_linked_tree_has_the_same_files(tree: Path) -> None:
    linked = tree.with_name("linked")
    link_tree(tree, linked)
    assert tree_sizes(linked) == tree_sizes(tree) == {"a/b/one": 100, "two": 2}
    assert (linked / "two").samefile(tree / "two")


@pytest.mark.parametrize("publish", [publish_bytes, replace_bytes])
def test_a_full_disk_is_named_with_the_path_and_leaves_nothing(
    tmp_path: Path, publish: Callable[[Path, bytes], None]
) -> None:
    path = tmp_path / "plan.jsonl"
    with refused(OSError, filename=str(path)), full_after(100):
        publish(path, b"x" * 1_000)
    assert list(tmp_path.iterdir()) == []


def test_an_error_about_reading_does_not_get_the_written_path(tmp_path: Path) -> None:
    with pytest.raises(OSError) as caught, publishing(tmp_path / "out"):
        raise OSError(errno.EIO, "a read failed")
    assert caught.value.filename is None


def test_a_published_file_survives_any_power_loss_and_a_renamed_one_does_not(tmp_path):
    """Shows as well that the enumeration of power losses finds what is not flushed."""

    def left(write):
        """What the file may hold at any time, and what when all is done; None if it may not be there."""
        disk = tmp_path / write.__name__
        with Recording(disk) as recording:
            write(disk / "file", b"old")
            write(disk / "file", b"new")
        found = [(state.tree.files.get("file", (None, 0))[0], state.returned) for state in recording.states]
        return {data for data, _ in found}, {data for data, returned in found if returned}

    assert left(publish_bytes) == ({None, b"old", b"new"}, {b"new"})
    anything = {None, b"", b"\0\0\0", b"old", b"new"}
    assert left(replace_bytes) == (anything, anything)


def test_a_folder_and_an_added_line_last(tmp_path):
    with Recording(tmp_path / "disk") as recording:
        make_folder(tmp_path / "disk" / "a" / "b")
        assert append_bytes(tmp_path / "disk" / "a" / "b" / "lines", b"one\n") == 4
        assert append_bytes(tmp_path / "disk" / "a" / "b" / "lines", b"two\n") == 8
    finished = [state.tree.folders["a"].folders["b"].files["lines"][0] for state in recording.states if state.returned]
    assert finished == [b"one\ntwo\n"]
