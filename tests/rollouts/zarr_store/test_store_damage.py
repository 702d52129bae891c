"""Damage: whatever is done to a store behind its back is reported, with the array's name, and crashes nothing."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import zarr

from rollout_assets.rollouts.zarr_store import validate_rollout_zarr_store
from rollout_assets.rollouts.zarr_store.schema import GROUPS
from tests.rollouts.zarr_store.forging import forge_manifest
from tests.rollouts.zarr_store.store_under_test import Mutable

DEEP_ONLY = {"content_digests", "depth_rasters"}


@dataclass(frozen=True)
class Mutation:
    """One way of damaging a store; ``names`` are words one of which a finding's ``where`` must contain."""

    label: str
    names: tuple[str, ...]
    apply: Callable[[], None]


def owner(key: str) -> str:
    """What a report should name for a file: its array or group, or the file itself at the top."""
    if key.endswith("/zarr.json"):
        return key.removesuffix("/zarr.json")
    return key.split("/c/")[0]


def flips(store: Mutable, rng: np.random.Generator, count: int) -> Iterator[Mutation]:
    keys = store.files()
    chunks = [key for key in keys if "/c/" in key]
    documents = [key for key in keys if "/c/" not in key]
    for index in range(count):
        key = str(rng.choice(chunks if index % 3 else documents))
        data = bytearray((store.path / key).read_bytes())
        bit = int(rng.integers(len(data) * 8))

        def apply(key: str = key, data: bytearray = data, bit: int = bit) -> None:
            data[bit // 8] ^= 1 << (bit % 8)
            (store.path / key).write_bytes(data)

        names = ("zarr.json", "attribute", "/") if key == "zarr.json" else (owner(key),)
        yield Mutation(f"flip bit {bit} of {key}", names, apply)


def losses(store: Mutable, rng: np.random.Generator, count: int) -> Iterator[Mutation]:
    keys = store.files()
    for index in range(count):
        key = str(rng.choice(keys))
        file = store.path / key
        if index % 2:
            yield Mutation(f"delete {key}", (owner(key),), file.unlink)
        else:
            size = int(rng.integers(file.stat().st_size))

            def cut(key: str = key, size: int = size) -> None:
                (store.path / key).write_bytes(store.original[key][:size])

            yield Mutation(f"cut {key} to {size} bytes", (owner(key),), cut)


def swaps(store: Mutable, rng: np.random.Generator, count: int) -> Iterator[Mutation]:
    """Two chunks of one array, or the chunks of two arrays of one layout, change places."""
    chunks = [key for key in store.files() if "/c/" in key]
    pairs = []
    while len(pairs) < count:
        first, second = (str(key) for key in rng.choice(chunks, 2, replace=False))
        same_array = owner(first) == owner(second)
        same_table = first.split("/")[0] == second.split("/")[0] and first.split("/c/")[1] == second.split("/c/")[1]
        if (same_array or same_table) and store.original[first] != store.original[second]:
            pairs.append((first, second))
    for first, second in pairs:

        def swap(first: str = first, second: str = second) -> None:
            (store.path / first).write_bytes(store.original[second])
            (store.path / second).write_bytes(store.original[first])

        yield Mutation(f"swap {first} and {second}", (owner(first), owner(second)), swap)


def edited_attributes(store: Mutable) -> Iterator[Mutation]:
    """Each attribute of root and groups gets another value."""

    def other(value: object) -> object:
        if isinstance(value, bool):
            return not value
        if isinstance(value, (int, float)):
            return value + 1
        return f"{value}x"

    for group in ("", *GROUPS):
        key = f"{group}/zarr.json" if group else "zarr.json"
        for name in json.loads(store.original[key])["attributes"]:

            def edit(key: str = key, name: str = name) -> None:
                document = json.loads(store.original[key])
                document["attributes"][name] = other(document["attributes"][name])
                (store.path / key).write_text(json.dumps(document))

            yield Mutation(f"edit attribute {name} of {group or 'root'}", (name, group or "manifest"), edit)


def changed_values(store: Mutable, rng: np.random.Generator) -> Iterator[Mutation]:
    """One value of each array changes, written by plain zarr with matching checksums."""
    root = zarr.open_group(store.path, mode="r")
    for path in store.arrays():
        shape = root[path].shape
        if 0 in shape:
            continue
        at = tuple(int(rng.integers(size)) for size in shape)

        def change(path: str = path, at: tuple[int, ...] = at) -> None:
            array = zarr.open_array(store.path / path, mode="r+")
            value = array[at]
            if array.dtype.kind == "b":
                array[at] = not value
            elif array.dtype.kind == "f":
                array[at] = 0.125 if not np.isfinite(value) or value == 0 else value * 1.5
            else:
                array[at] = value + 1 if value < np.iinfo(array.dtype).max else value - 1

        yield Mutation(f"change {path}{list(at)}", (path,), change)


def removals(store: Mutable) -> Iterator[Mutation]:
    """Arrays vanish, with and without their mention in the root; groups change their name."""
    for index, path in enumerate(store.arrays()):
        if index % 6:
            continue

        def remove(path: str = path, index: int = index) -> None:
            shutil.rmtree(store.path / path)
            if index % 4:
                document = json.loads(store.original["zarr.json"])
                del document["consolidated_metadata"]["metadata"][path]
                (store.path / "zarr.json").write_text(json.dumps(document))

        yield Mutation(f"remove {path}", (path,), remove)
    for group in GROUPS:

        def rename(group: str = group) -> None:
            (store.path / group).rename(store.path / f"{group}_2")

        yield Mutation(f"rename {group}", (group,), rename)


def _later_first(document: dict[str, Any]) -> dict[str, Any]:
    return dict(reversed(document.items()))


def _compressor(document: dict[str, Any]) -> dict[str, Any]:
    codecs = document["codecs"]
    return (codecs[0]["configuration"]["codecs"] if len(codecs) == 1 else codecs)[1]["configuration"]


def _other_level(document: dict[str, Any]) -> dict[str, Any]:
    settings = _compressor(document)
    settings["level" if "level" in settings else "clevel"] += 1
    return document


DOCUMENT_EDITS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "fill value": lambda document: document | {"fill_value": 1},
    "kind of fill value": lambda document: document | {"fill_value": 0.0 if document["fill_value"] is False else False},
    "attributes": lambda document: document | {"attributes": {"note": "edited"}},
    "dimension names": lambda document: document | {"dimension_names": ["row"] * len(document["shape"])},
    "codec level": _other_level,
    "key order": _later_first,
}
"""What -> how to change it in an array's document; readers of the array need not notice any."""


def edited_documents(store: Mutable) -> Iterator[Mutation]:
    """An array's document is changed in both copies, its own and the root's."""
    for index, path in enumerate(store.arrays()):
        names = list(DOCUMENT_EDITS)
        for what in names[index % 3 :: 3]:

            def edit(path: str = path, what: str = what) -> None:
                root = json.loads(store.original["zarr.json"])
                nodes = root["consolidated_metadata"]["metadata"]
                nodes[path] = DOCUMENT_EDITS[what](nodes[path])
                (store.path / path / "zarr.json").write_text(json.dumps(nodes[path]))
                (store.path / "zarr.json").write_text(json.dumps(root))

            yield Mutation(f"{what} of {path}", (path,), edit)


def reordered_documents(store: Mutable) -> Iterator[Mutation]:
    """The same keys in another order: in a group, in the root, among its attributes and nodes."""

    def write(key: str, document: dict[str, Any]) -> None:
        (store.path / key).write_text(json.dumps(document))

    def reorder_nodes() -> None:
        root = json.loads(store.original["zarr.json"])
        root["consolidated_metadata"]["metadata"] = _later_first(root["consolidated_metadata"]["metadata"])
        write("zarr.json", root)

    def reorder_attributes() -> None:
        root = json.loads(store.original["zarr.json"])
        write("zarr.json", root | {"attributes": _later_first(root["attributes"])})

    def reorder_root() -> None:
        write("zarr.json", _later_first(json.loads(store.original["zarr.json"])))

    def reorder_group() -> None:
        root = json.loads(store.original["zarr.json"])
        nodes = root["consolidated_metadata"]["metadata"]
        nodes["q_h"] = nodes["q_h"] | {"attributes": _later_first(nodes["q_h"]["attributes"])}
        write("q_h/zarr.json", nodes["q_h"])
        write("zarr.json", root)

    yield Mutation("order of nodes", ("zarr.json",), reorder_nodes)
    yield Mutation("order of root attributes", ("attribute",), reorder_attributes)
    yield Mutation("order of the root's keys", ("zarr.json",), reorder_root)
    yield Mutation("order of a group's attributes", ("q_h attribute",), reorder_group)


def foreign_things(store: Mutable) -> Iterator[Mutation]:
    """Files and empty folders that belong to nobody."""
    array = "candidates/target_rri"
    for folder in ("notes", "candidates/notes", f"{array}/notes", f"{array}/c/notes", "target_eval_crops/lengths/c"):

        def make(folder: str = folder) -> None:
            (store.path / folder).mkdir()

        yield Mutation(f"empty folder {folder}", (folder,), make)
    for file in ("notes.txt", "_notes.json", "_owner.json", ".zattrs", "q_h/notes.json", f"{array}/c/notes"):

        def write(file: str = file) -> None:
            (store.path / file).write_text("{}")

        yield Mutation(f"foreign file {file}", (file,), write)


def extra_manifest_keys(store: Mutable) -> Iterator[Mutation]:
    """Keys that nobody writes, with the manifest's digest made again."""
    for place in ("", "generation", "generation.invocation", "generation.runtime", "counts", "content_sha256"):

        def add(place: str = place) -> None:
            def change(manifest: dict[str, Any]) -> None:
                part = manifest
                for name in filter(None, place.split(".")):
                    part = part[name]
                part["note"] = "added"

            forge_manifest(store, change)

        yield Mutation(f"extra key in manifest {place}", (f"{place} note".strip(),), add)


def assert_reported(
    store: Mutable, mutations: list[Mutation], at_least: int, deep_every: int = 12, every: int = 1
) -> None:
    """Mutations, all or some, are reported by name without ``deep``; with it, the same and more (every so often)."""
    assert len(mutations) >= at_least
    silent, nameless = [], []
    try:
        for index, mutation in enumerate(mutations[::every]):
            store.restore()
            mutation.apply()
            result = validate_rollout_zarr_store(store.path)
            if result.ok:
                silent.append(mutation.label)
            elif not any(name in finding.where for finding in result.findings for name in mutation.names):
                nameless.append((mutation.label, result.errors))
            if index % deep_every == 0:
                deep = validate_rollout_zarr_store(store.path, deep=True)
                without = [str(finding) for finding in deep.findings if finding.check not in DEEP_ONLY]
                assert without == result.errors, mutation.label
                assert not deep.ok
    finally:
        store.restore()
    assert not silent
    assert not nameless


def test_the_undamaged_store_is_right(mutable_store: Mutable) -> None:
    for deep in (False, True):
        result = validate_rollout_zarr_store(mutable_store.path, deep=deep)
        assert result.errors == []


@pytest.mark.ci
def test_flipped_bits_are_reported(mutable_store: Mutable) -> None:
    assert_reported(mutable_store, list(flips(mutable_store, np.random.default_rng(1), 90)), 90, every=2)


@pytest.mark.ci
def test_lost_and_cut_files_are_reported(mutable_store: Mutable) -> None:
    assert_reported(mutable_store, list(losses(mutable_store, np.random.default_rng(2), 60)), 60, every=2)


@pytest.mark.ci
def test_swapped_chunks_are_reported(mutable_store: Mutable) -> None:
    assert_reported(mutable_store, list(swaps(mutable_store, np.random.default_rng(3), 20)), 20)


@pytest.mark.ci
def test_edited_attributes_are_reported(mutable_store: Mutable) -> None:
    assert_reported(mutable_store, list(edited_attributes(mutable_store)), 70, every=2)


@pytest.mark.ci
def test_one_changed_value_in_any_array_is_reported(mutable_store: Mutable) -> None:
    assert_reported(mutable_store, list(changed_values(mutable_store, np.random.default_rng(4))), 150, every=4)


@pytest.mark.ci
def test_removed_arrays_and_renamed_groups_are_reported(mutable_store: Mutable) -> None:
    assert_reported(mutable_store, list(removals(mutable_store)), 35)


@pytest.mark.ci
def test_documents_edited_in_both_copies_are_reported(mutable_store: Mutable) -> None:
    mutations = [*edited_documents(mutable_store), *reordered_documents(mutable_store)]
    assert_reported(mutable_store, mutations[::7] + mutations[-4:], 45, deep_every=20)


@pytest.mark.slow
def test_every_edit_of_every_document_is_reported(mutable_store: Mutable) -> None:
    assert_reported(mutable_store, list(edited_documents(mutable_store)), 300, deep_every=50)


def test_foreign_files_folders_and_manifest_keys_are_reported(mutable_store: Mutable) -> None:
    mutations = [*foreign_things(mutable_store), *extra_manifest_keys(mutable_store)]
    assert_reported(mutable_store, mutations, 17, deep_every=20)


@pytest.mark.slow
def test_every_changed_value_and_attribute_is_reported(mutable_store: Mutable) -> None:
    mutations = [*changed_values(mutable_store, np.random.default_rng(4)), *edited_attributes(mutable_store)]
    assert_reported(mutable_store, mutations, 220, deep_every=50)


@pytest.mark.slow
def test_a_thousand_more_mutations_are_reported(mutable_store: Mutable) -> None:
    rng = np.random.default_rng(5)
    mutations = [
        *flips(mutable_store, rng, 600),
        *losses(mutable_store, rng, 300),
        *swaps(mutable_store, rng, 100),
    ]
    assert_reported(mutable_store, mutations, 1_000, deep_every=1)
