"""End to end: rows prepared, servers started, waited for by name, and stopped however it ends."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from pathlib import Path

import pytest

from rollout_assets.collection import (
    CampaignInputs,
    E2ERolloutCollectionConfig,
    collect_end_to_end,
)
from rollout_assets.config import load_campaign
from rollout_assets.errors import CollectionError, ServerUnavailable
from rollout_assets.inspection.diff import diff_stores
from rollout_assets.rollouts.zarr_store import RolloutZarrStoreReader
from rollout_assets.serving.server.fleet import FleetOptions, server_fleet
from tests.collection.collect_processes import (
    children_of,
    count_lines,
    is_running,
    kill,
    own_children,
    start,
    wait_for,
)
from tests.support.digests import store_digests
from tests.support.refusals import assert_names, refused
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.ci


def test_two_servers_give_the_store_that_the_shard_path_gives(tmp_path, tiny_campaign, tiny_train_shard):
    before = own_children()
    config = E2ERolloutCollectionConfig(
        output_jsonl_fpath=tmp_path / "out.jsonl",
        campaign=str(tiny_campaign),
        split="train",
        num_servers=2,
        store_dir=tmp_path / "out.zarr",
    )
    report = collect_end_to_end(config)
    assert report.collected.exit_code == 0 and report.prepared.rows == report.collected.coverage.done
    assert report.prepared.targets_refused == 1, "a target without a label is in the rows, once"
    diff = diff_stores(RolloutZarrStoreReader(tmp_path / "out.zarr"), RolloutZarrStoreReader(tiny_train_shard))
    assert diff.equal, diff.differences
    assert store_digests(tmp_path / "out.zarr") == store_digests(tiny_train_shard)
    assert own_children() == before


def test_a_server_that_is_late_is_named_and_all_are_stopped(tiny_campaign):
    """The first server is held up by the system; it does not even heed SIGTERM."""
    before = set(own_children())
    held: list[int] = []

    def hold_up():
        started = wait_for(lambda: len(found := sorted(set(own_children()) - before)) == 2 and found)
        wait_for(lambda: b"--ready-file" in Path(f"/proc/{started[0]}/cmdline").read_bytes())
        os.kill(started[0], signal.SIGSTOP)
        held.append(started[0])

    async def fleet():
        async with server_fleet(FleetOptions(str(tiny_campaign), 2, 2.0, 1.0)):
            raise AssertionError("a server that is held up cannot be healthy")

    holder = threading.Thread(target=hold_up)
    holder.start()
    with refused(ServerUnavailable) as caught:
        asyncio.run(fleet())
    holder.join()
    assert_names(str(caught.value), "server 0", f"process {held[0]}", "2 s", "log")
    assert set(own_children()) == before


def test_a_server_that_cannot_start_shows_the_end_of_its_log(tmp_path):
    async def fleet():
        async with server_fleet(FleetOptions(str(tmp_path / "nowhere.toml"), 1, 30.0, 1.0)):
            pass

    with refused(ServerUnavailable, "server 0", "exit code 2") as caught:
        asyncio.run(fleet())
    assert_names(str(caught.value).replace("\n  ", ""), tmp_path / "nowhere.toml")


def test_servers_go_with_a_collector_that_is_interrupted(tmp_path, tiny_campaign, tiny_train_rows):
    output = tmp_path / "out.jsonl"
    process = start("collect", tiny_train_rows, "-o", output, "-c", tiny_campaign, "--servers", 1, "--repeats", 500)
    wait_for(lambda: count_lines(output) > 3)
    (server,) = children_of(process.pid)
    process.send_signal(signal.SIGINT)
    told, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130 and "--resume" in told
    assert not is_running(server)
    assert output.read_bytes().endswith(b"\n") and f"{count_lines(output):,} done" in told


def test_an_interrupt_while_servers_start_stops_them(tmp_path, tiny_campaign, tiny_train_rows):
    process = start("collect", tiny_train_rows, "-o", tmp_path / "out.jsonl", "-c", tiny_campaign, "--servers", 1)
    (server,) = wait_for(lambda: children_of(process.pid))
    wait_for(lambda: b"--ready-file" in Path(f"/proc/{server}/cmdline").read_bytes())
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130 and not is_running(server)


def test_servers_go_with_a_collector_that_is_killed(tmp_path, tiny_campaign, tiny_train_rows):
    process = start("collect", tiny_train_rows, "-o", tmp_path / "out.jsonl", "-c", tiny_campaign, "--servers", 1)
    (server,) = wait_for(lambda: children_of(process.pid))
    wait_for(lambda: b"--ready-file" in Path(f"/proc/{server}/cmdline").read_bytes())
    assert kill(process)
    wait_for(lambda: not is_running(server), seconds=20)


def test_prepared_rows_are_reused_for_the_same_campaign_only(tmp_path, tiny_campaign):
    config = load_campaign(tiny_campaign)
    rows = CampaignInputs(config, "validation", tmp_path / "rows.jsonl")
    first = rows.write()
    written = rows.path.stat().st_mtime_ns
    assert rows.write(reuse=True) == first and rows.path.stat().st_mtime_ns == written
    other = CampaignInputs(config.model_copy(update={"seed": 6}), "validation", rows.path)
    assert other.write(reuse=True).prepared_for != first.prepared_for
    rows.path.write_text("{}\n")
    assert rows.write(reuse=True) == first and count_lines(rows.path) == first.rows


def test_a_split_that_the_campaign_does_not_have_is_said(tmp_path, tiny_campaign):
    config = load_campaign(tiny_campaign)
    only_train = config.model_copy(update={"source": config.source.model_copy(update={"splits": ("train",)})})
    with refused(CollectionError, "tiny", "train", "validation"):
        CampaignInputs(only_train, "validation", tmp_path / "rows.jsonl").splits()
    assert CampaignInputs(config, "benchmark", tmp_path / "rows.jsonl").splits() == ("train", "val")
