"""Records that wait for their store: nothing is published half, over something else, or for another campaign."""

from __future__ import annotations

import json

import pytest

from rollout_assets.collection import RolloutCollectionConfig, collect_rollouts
from rollout_assets.errors import CollectionError, ConfigError, InputsRefused, RecordRefused, StoreExists
from rollout_assets.rollouts.zarr_store import RolloutZarrStoreReader
from tests.collection.test_collector import lines_of
from tests.support.refusals import refused


@pytest.fixture
def stored(tmp_path, tiny_campaign, tiny_server):
    """A collection from the real server into a store."""

    def collect(rows, **changes):
        options = {"campaign": str(tiny_campaign), "store_dir": tmp_path / "out.zarr", "resume_from_cache": True}
        return collect_rollouts(
            RolloutCollectionConfig(
                input_jsonl_fpath=rows,
                output_jsonl_fpath=tmp_path / "out.jsonl",
                server_urls=(tiny_server,),
                **(options | changes),
            )
        )

    return collect


def test_a_store_waits_for_all_rows_and_names_a_damaged_record(tmp_path, stored, tiny_train_rows, tiny_campaign):
    rows = tmp_path / "rows.jsonl"
    bad = json.loads(tiny_train_rows.read_text().splitlines()[0]) | {"target": "nobody"}
    rows.write_text(tiny_train_rows.read_text() + json.dumps(bad) + "\n")
    report = stored(rows)
    assert report.exit_code == 3 and report.store is None and not (tmp_path / "out.zarr").exists()
    (failure,) = lines_of(report.failures)
    assert failure["error"]["class"] == "RowRefused" and "nobody" in failure["error"]["message"]
    records = sorted((tmp_path / "out_records").rglob("*.record"))
    assert len(records) == report.coverage.done == len(lines_of(report.output))
    for path in (tmp_path / "out_materialized_inputs.jsonl", rows):
        path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    forget(tmp_path / "out_run.json", rows_of=tmp_path / "out_materialized_inputs.jsonl")
    whole = records[2].read_bytes()
    records[2].write_bytes(whole[:-40] + b"A" * 40)
    with refused(CollectionError, records[2], "'greedy'", "out.jsonl"):
        stored(rows)
    assert not (tmp_path / "out.zarr").exists()
    records[2].write_bytes(whole)
    assert stored(rows).store == tmp_path / "out.zarr"
    reader = RolloutZarrStoreReader(tmp_path / "out.zarr")
    assert reader.num_rows("sources") == 2
    made = reader.sidecar_manifest()["generation"]
    assert made["invocation"]["raw_toml_text"] == tiny_campaign.read_text() and made["invocation"]["argv"]
    assert made["writer_config"]["name"] == "tiny"


def forget(run, rows_of):
    """Make a run's facts those of fewer rows."""
    import hashlib

    facts = json.loads(run.read_bytes())
    facts |= {"rows": len(lines_of(rows_of)), "rows_sha256": hashlib.sha256(rows_of.read_bytes()).hexdigest()}
    run.write_text(json.dumps(facts))


def test_an_existing_store_is_refused_before_any_work(tmp_path, stored, tiny_train_rows):
    (tmp_path / "out.zarr").mkdir()
    with refused(StoreExists, tmp_path / "out.zarr"):
        stored(tiny_train_rows)
    assert not (tmp_path / "out.jsonl").exists()


def test_a_store_for_another_campaign_than_the_servers_is_refused(tmp_path, stored, tiny_campaign, tiny_train_rows):
    other = tmp_path / "other.toml"
    other.write_text(tiny_campaign.read_text().replace("seed = 5", "seed = 6"))
    with refused(ConfigError, "tiny", "rollout hash"):
        stored(tiny_train_rows, campaign=str(other))


def test_two_splits_do_not_fit_into_one_store_and_nothing_is_lost(tmp_path, stored, tiny_rows):
    with refused(RecordRefused, "'train'", "'val'"):
        stored(tiny_rows)
    assert not (tmp_path / "out.zarr").exists() and not (tmp_path / ".partial-out.zarr").exists()
    assert len(list((tmp_path / "out_records").rglob("*.record"))) == len(lines_of(tmp_path / "out.jsonl")) == 15


@pytest.mark.parametrize("changes", [{"seed": 7}, {"params": {"horizon": 1}}, {}])
def test_a_root_that_comes_twice_is_refused_before_anything_runs(tmp_path, tiny_campaign, tiny_train_rows, changes):
    lines = [json.loads(line) for line in tiny_train_rows.read_text().splitlines()[:2]]
    requests = tmp_path / "rows.jsonl"
    repeated = {name: value for name, value in lines[0].items() if name != "_task_index"} | changes
    requests.write_text("".join(json.dumps(line) + "\n" for line in (*lines, repeated)))
    config = RolloutCollectionConfig(
        input_jsonl_fpath=requests,
        output_jsonl_fpath=tmp_path / "out.jsonl",
        campaign=str(tiny_campaign),
        store_dir=tmp_path / "out.zarr",
    )
    with refused(InputsRefused, f"{requests}:3", "line 1"):
        collect_rollouts(config)
    assert list(tmp_path.glob("out*")) == []
