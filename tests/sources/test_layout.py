"""The format written down once: names, paths, shapes and hashes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

from rollout_assets.config import canonical_json
from rollout_assets.sources import layout
from tests.support.refusals import refused

pytestmark = pytest.mark.quick


def _row(**changes: Any) -> layout.IndexRow:
    fields: dict[str, Any] = {"sample_index": 0, "sample_key": "a__1", "scene_id": "a", "snippet_id": "1"}
    fields |= {"split": "train", "shard_id": "shard-000000", "row": 0}
    return layout.IndexRow.model_validate(fields | changes)


def _manifest(**changes: Any) -> layout.Manifest:
    fields: dict[str, Any] = {
        "version": 7,
        "created_at": "now",
        "source": {"dataset_config": {}},
        "oracle": {},
        "vin": {},
    }
    fields |= {"materialized_blocks": {"backbone": False, "depths": False, "candidate_pcs": False, "novel": True}}
    fields |= {"stats": {"num_samples": 0, "num_shards": 0, "num_train": 0, "num_val": 0}, "shards": []}
    return layout.Manifest.model_validate(fields | changes)


def test_blocks_know_their_place() -> None:
    assert layout.zarr_path("oracle.p3d.focal_length") == "oracle/p3d/focal_length"
    assert layout.record_paths("gt.obb_sem_id_to_name") == (
        "gt__obb_sem_id_to_name.msgpack",
        "gt__obb_sem_id_to_name.offsets.npy",
    )
    assert layout.record_paths("a/b.c")[0] == "a__b__c.msgpack"
    assert layout.shard_dir(layout.shard_name(3)) == "shards/shard-000003"
    assert layout.shard_number("shard-000003") == 3
    assert layout.shard_number("part-3") is None


@pytest.mark.parametrize(
    ("block", "trailing", "fits"),
    [
        (layout.GT_OBBS, (20, 128, 34), True),
        (layout.GT_OBBS, (20, 128, 33), False),
        (layout.POINTS_WORLD, (9, 4), True),
        (layout.POINTS_WORLD, (9, 5), True),
        (layout.POINTS_WORLD, (9, 3), False),
        (layout.EVIDENCE_COUNTS, (1, 96, 96, 96), True),
        (layout.T_WORLD_SNIPPET, (1, 12), True),
        (layout.T_WORLD_SNIPPET, (12,), True),
        (layout.T_WORLD_SNIPPET, (2, 12), False),
        (layout.IN_NDC, (), True),
        (layout.POINTS_WORLD, (9, 4, 1), False),
        (layout.LENGTHS, (), False),
    ],
)
def test_shapes_are_told_apart(block: str, trailing: tuple[int, ...], fits: bool) -> None:
    assert (layout.KNOWN_BLOCKS[block].fitting(trailing) is not None) is fits


def test_what_the_real_format_adds_is_kept() -> None:
    manifest = _manifest(novelty={"x": 1})
    again = json.loads(manifest.to_json())
    assert again["novelty"] == {"x": 1}
    assert again["materialized_blocks"]["novel"] is True
    assert manifest.to_json() == canonical_json(again) + b"\n"


@pytest.mark.parametrize("path", ["/etc", "../elsewhere", "shards/../../x", ""])
def test_paths_that_leave_the_store_are_refused(path: str) -> None:
    shard = {"shard_id": "s", "relative_dir": path, "row_start": 0, "num_rows": 0, "blocks": {}}
    with refused(ValidationError, "shards.0.relative_dir", repr(path)):
        _manifest(shards=[shard])


@pytest.mark.parametrize("change", [{"row": -1}, {"row": "0"}, {"split": "test"}, {"sample_key": ""}])
def test_impossible_rows_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        _row(**change)


def test_hashes_cover_order_split_and_source() -> None:
    rows = [_row(), _row(sample_index=1, sample_key="a__2", row=1)]
    base = layout.split_manifest_hash("0" * 16, "train", rows)
    others = {
        layout.split_manifest_hash("1" * 16, "train", rows),
        layout.split_manifest_hash("0" * 16, "val", rows),
        layout.split_manifest_hash("0" * 16, "train", rows[::-1]),
        layout.split_manifest_hash("0" * 16, "train", rows[:1]),
    }
    assert len(others | {base}) == 5
    assert len(base) == layout.HASH_DIGITS


def test_the_source_hash_does_not_depend_on_key_order_or_spacing() -> None:
    manifest = json.loads(_manifest().to_json())
    turned = dict(reversed(manifest.items()))
    assert layout.source_manifest_hash(manifest) == layout.source_manifest_hash(
        json.loads(json.dumps(turned, indent=2))
    )
    assert layout.source_manifest_hash(manifest) != layout.source_manifest_hash(manifest | {"created_at": "later"})
