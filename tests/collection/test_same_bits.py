"""The same roots and seeds give the same bits in this process, from a server, and on the shard path."""

from __future__ import annotations

from rollout_assets.campaigns.plan import open_source
from rollout_assets.collection import RolloutCollectionConfig, aggregate_file, collect_rollouts
from rollout_assets.config import load_campaign
from rollout_assets.inspection.diff import diff_stores
from rollout_assets.rollouts.engine import Chain
from rollout_assets.rollouts.generator import RolloutGenerator
from rollout_assets.rollouts.remote.codec import content_sha256, from_text, pack, unpack
from rollout_assets.rollouts.trace import RolloutZarrRecord
from rollout_assets.rollouts.zarr_store import RolloutZarrStoreReader
from tests.collection.test_collector import lines_of
from tests.support.digests import content_digest


def collected(path, rows, **changes):
    """Lines in input order, without what may differ."""
    report = collect_rollouts(RolloutCollectionConfig(input_jsonl_fpath=rows, output_jsonl_fpath=path, **changes))
    assert report.exit_code == 0
    lines = sorted(lines_of(path), key=lambda line: (line["_task_index"], line["agent_ref"]["name"]))
    differs = ("timings_s", "step_timings_s", "_attempt")
    return [{name: value for name, value in line.items() if name not in differs} for line in lines]


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


def test_recipes_are_compared_on_the_same_views(tmp_path, tiny_campaign, tiny_train_rows):
    lines = collected(
        tmp_path / "out.jsonl",
        tiny_train_rows,
        campaign=str(tiny_campaign),
        num_repeats={"greedy": 2, "random": 3},
        num_repeats_add_seed=True,
        prompt_config={"include": ["chains"]},
    )
    shells = {
        (line["agent_ref"]["name"], line["_task_index"], line["_rollout_index"]): first_shell(line["chains"])
        for line in lines
        if line["status"] == "completed"
    }
    pairs = [(task, rollout) for agent, task, rollout in shells if agent == "greedy"]
    assert len(pairs) == 2 * 3
    for task, rollout in pairs:
        assert shells["greedy", task, rollout] == shells["random", task, rollout]
    assert len(set(shells.values())) == 3 * 3, "another repeat is another draw"


def first_shell(chains: str) -> str:
    """Digest of the views that were offered at the root."""
    (best, *_) = unpack(tuple[Chain, ...], from_text(chains))
    return content_digest(best.steps[0].state.shell)


def test_a_view_budget_cuts_collected_rollouts_with_its_reason(tmp_path, tiny_campaign, tiny_train_rows):
    options = {"campaign": str(tiny_campaign), "agent_name": "random"}
    whole = collected(tmp_path / "whole.jsonl", tiny_train_rows, **options)
    budget = max(line["views_scored"] for line in whole) - 1
    params = {"responses_create_params": {"max_views_scored": budget}}
    cut = collected(tmp_path / "cut.jsonl", tiny_train_rows, **options, **params)
    reasons = [line["truncation_reason"] for line in cut]
    assert "max_views_scored" in reasons
    for before, after in zip(whole, cut, strict=True):
        fits = before["views_scored"] <= budget
        assert after["truncation_reason"] == (None if fits else "max_views_scored")
        assert after["truncated"] != fits and after["views_scored"] <= budget
        assert after["num_steps"] == before["num_steps"] - (not fits)
        assert not fits or after["content_sha256"] == before["content_sha256"]
    (metrics,) = [entry for entry in aggregate_file(tmp_path / "cut.jsonl") if entry["agent_ref"]["name"] == "random"]
    assert metrics["agent_metrics"]["truncated/rate"] > 0
