"""The same roots and seeds give the same bits in this process, from a server, and on the shard path."""

from __future__ import annotations

from rollout_assets.campaigns.plan import open_source
from rollout_assets.collection import RolloutCollectionConfig, collect_rollouts
from rollout_assets.config import load_campaign
from rollout_assets.inspection.diff import diff_stores
from rollout_assets.rollouts.generator import RolloutGenerator
from rollout_assets.rollouts.remote.codec import content_sha256, pack
from rollout_assets.rollouts.trace import RolloutZarrRecord
from rollout_assets.rollouts.zarr_store import RolloutZarrStoreReader
from tests.collection.test_collector import lines_of


def collected(path, rows, **changes):
    """Lines in input order, without what may differ."""
    report = collect_rollouts(RolloutCollectionConfig(input_jsonl_fpath=rows, output_jsonl_fpath=path, **changes))
    assert report.exit_code == 0
    lines = sorted(lines_of(path), key=lambda line: (line["_task_index"], line["_rollout_index"]))
    return [{name: value for name, value in line.items() if name not in ("timings_s", "_attempt")} for line in lines]


def test_local_remote_and_shard_path_are_the_same_to_the_bit(
    tmp_path, tiny_campaign, tiny_rows, tiny_train_rows, tiny_train_shard, tiny_server
):
    remote = collected(tmp_path / "remote.jsonl", tiny_rows, server_urls=(tiny_server,))
    local = collected(tmp_path / "local.jsonl", tiny_rows, campaign=str(tiny_campaign))
    assert local == remote
    config = load_campaign(tiny_campaign)
    source = open_source(config)
    rows = [row for split in ("train", "val") for row in source.rows(split)]
    records = RolloutGenerator(config, source).records(rows)
    assert [line["content_sha256"] for line in remote] == [
        content_sha256(pack(RolloutZarrRecord, record)) for record in records
    ]
    assert [line["status"] for line in remote].count("refused") == 1
    store = tmp_path / "local.zarr"
    stored = collected(tmp_path / "stored.jsonl", tiny_train_rows, campaign=str(tiny_campaign), store_dir=store)
    assert stored == remote[: len(stored)], "no payload is left in the lines"
    assert diff_stores(RolloutZarrStoreReader(store), RolloutZarrStoreReader(tiny_train_shard)).equal
