"""Two collections that want one output or one store: the second is told, and nothing is removed under the first."""

import json
import os

import pytest

from rollout_assets.collection.configs import CollectCommandConfig, E2ERolloutCollectionConfig, lock_path
from rollout_assets.collection.e2e import collect_end_to_end, collect_from_command
from rollout_assets.errors import ShardBusy
from rollout_assets.files import file_lock
from tests.collection.collect_processes import run, start
from tests.collection.test_collector import lines_of
from tests.support.refusals import assert_names, refused
from tests.support.waiting import PATIENCE_S


def held_files(folder):
    """What another process has half written, by name."""
    names = (".partial-out_prepared_inputs.jsonl", ".partial-out_materialized_inputs.jsonl", ".partial-out.zarr")
    for name in names:
        (folder / name).write_text("of the other process")
    return {name: (folder / name).read_text() for name in names}


@pytest.mark.parametrize("servers", [None, 1])
@pytest.mark.parametrize("held", ["out.jsonl", "out.zarr"])
def test_whoever_comes_second_is_told_before_anything_is_written(tmp_path, tiny_campaign, servers, held):
    config = {
        "output_jsonl_fpath": tmp_path / "out.jsonl",
        "store_dir": tmp_path / "out.zarr",
        "campaign": str(tiny_campaign),
        "num_servers": servers,
    }
    before = held_files(tmp_path)
    with (
        file_lock(lock_path(tmp_path / held), "a test"),
        refused(ShardBusy, tmp_path / held, f"process {os.getpid()}"),
    ):
        if servers is None:
            collect_from_command(CollectCommandConfig(**config))
        else:
            collect_end_to_end(E2ERolloutCollectionConfig(**config))
    after = {path.name: path.read_text() for path in tmp_path.glob(".partial-*")}
    assert after == before and not (tmp_path / "out_prepared_inputs.jsonl").exists()


def test_requests_are_written_by_one_process_at_a_time(tmp_path, tiny_campaign):
    scratch = tmp_path / ".partial-rows.jsonl"
    scratch.write_text("of the other process")
    with file_lock(lock_path(tmp_path / "rows.jsonl"), "a test"):
        code, told = run("collect", "--write-requests", tmp_path / "rows.jsonl", "-c", tiny_campaign)
    assert code == 2
    assert_names(told, tmp_path / "rows.jsonl", f"process {os.getpid()}")
    assert scratch.read_text() == "of the other process"


@pytest.mark.ci
def test_of_two_that_start_at_once_one_collects_everything(tmp_path, tiny_campaign):
    command = ("collect", "-c", tiny_campaign, "-o", tmp_path / "out.jsonl", "--json")
    both = [start(*command) for _ in range(2)]
    told = {process.wait(PATIENCE_S): process.communicate()[0] for process in both}
    assert set(told) == {0, 2}, told
    assert_names(told[2], tmp_path / "out.jsonl")
    assert json.loads(told[0])["coverage"]["complete"]
    assert len(lines_of(tmp_path / "out.jsonl")) == 7 and not list(tmp_path.glob(".partial-*"))
