"""Killed at random moments and resumed, a collection ends as if nothing had happened."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path

import pytest

from rollout_assets.collection import RolloutCollectionConfig, collect_rollouts
from rollout_assets.inspection.diff import diff_stores
from rollout_assets.rollouts.zarr_store import RolloutZarrStoreReader
from tests.collection.collect_processes import count_lines, kill, run, start, wait_for

LONGEST_START_S = 1.5


def keys_and_digests(path: Path) -> dict[tuple[str, int, int], str]:
    """Every key once, with the digest of its record; a torn line or a second one is an error here."""
    lines = [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]
    found = {(r["agent_ref"]["name"], r["_task_index"], r["_rollout_index"]): r["content_sha256"] for r in lines}
    assert len(found) == len(lines)
    return found


def collect_with_kills(command, output: Path, total: int, kills: int, rng: random.Random) -> int:
    """Start, kill at a random moment, start again, …, and let the last one finish; returns how many were hit."""
    hit = 0
    for number in range(kills):
        process = start(*command)
        if number % 3 == 2:
            time.sleep(rng.uniform(0.1, LONGEST_START_S))
        else:
            wanted = count_lines(output) + rng.randrange(1, max(total // (kills + 1), 2))
            wait_for(lambda p=process, w=wanted: count_lines(output) >= w or p.poll() is not None)
            time.sleep(rng.uniform(0, 0.02))
        hit += kill(process)
    code, told = run(*command)
    assert code == 0, told
    return hit


def killed_equals_undisturbed(tmp_path, tiny_campaign, tiny_rows, tiny_server, repeats, kills):
    rows = count_lines(tiny_rows)
    output = tmp_path / "killed.jsonl"
    options = ["--servers", tiny_server, "--repeats", repeats, "--set", "run_seed=3", "--resume"]
    command = ["collect", tiny_rows, "-o", output, *options]
    hit = collect_with_kills(command, output, rows * repeats, kills, random.Random(repeats))
    assert hit == kills, "every kill found the collector at work"
    undisturbed = collect_rollouts(
        RolloutCollectionConfig(
            input_jsonl_fpath=tiny_rows,
            output_jsonl_fpath=tmp_path / "undisturbed.jsonl",
            campaign=str(tiny_campaign),
            num_repeats=repeats,
            num_repeats_add_seed=True,
            run_seed=3,
        )
    )
    found = keys_and_digests(output)
    assert len(found) == rows * repeats
    assert found == keys_and_digests(undisturbed.output), "local and remote, killed or not: the same to the bit"
    assert (tmp_path / "killed_aggregate_metrics.json").read_bytes() == undisturbed.metrics.read_bytes()
    assert not (tmp_path / "killed_failures.jsonl").exists()


@pytest.mark.ci
def test_killed_five_times_every_key_is_there_once(tmp_path, tiny_campaign, tiny_rows, tiny_server):
    killed_equals_undisturbed(tmp_path, tiny_campaign, tiny_rows, tiny_server, repeats=20, kills=5)


@pytest.mark.slow
def test_two_thousand_rollouts_killed_ten_times(tmp_path, tiny_campaign, tiny_rows, tiny_server):
    killed_equals_undisturbed(tmp_path, tiny_campaign, tiny_rows, tiny_server, repeats=134, kills=10)


@pytest.mark.slow
def test_killed_while_records_are_kept_and_written_the_store_is_the_shards(
    tmp_path, tiny_campaign, tiny_train_rows, tiny_server, tiny_train_shard
):
    output, store = tmp_path / "out.jsonl", tmp_path / "out.zarr"
    command = ["collect", tiny_train_rows, "-o", output, "--servers", tiny_server, "-c", tiny_campaign]
    command += ["--store", store, "--set", "num_samples_in_parallel=1", "--resume"]
    process = start(*command)
    wait_for(lambda: count_lines(output) >= 2 or process.poll() is not None)
    assert kill(process) and not store.exists()
    records = list((tmp_path / "out_records").rglob("*.record"))
    assert len(records) >= count_lines(output), "no line without its record"
    process = start(*command)
    wait_for(lambda: (tmp_path / ".partial-out.zarr").exists() or process.poll() is not None)
    assert kill(process) and not store.exists(), "a store is there whole or not at all"
    assert run(*command)[0] == 0
    assert not (tmp_path / "out_records").exists()
    diff = diff_stores(RolloutZarrStoreReader(store), RolloutZarrStoreReader(tiny_train_shard))
    assert diff.equal, diff.differences
    assert run(*command)[0] == 0, "nothing is left to do"
