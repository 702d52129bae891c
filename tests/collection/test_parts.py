"""Requests that are collected in parts: aggregated together they are what one collection gives."""

import json

import pytest

from rollout_assets.collection import (
    RolloutAggregationConfig,
    RolloutCollectionConfig,
    aggregate_rollouts,
    collect_rollouts,
)
from rollout_assets.errors import ResultsRefused
from tests.collection.test_collector import lines_of, write_rows
from tests.serving.fake_server import FakeServer, running
from tests.support.refusals import refused


def collected(folder, requests, **where):
    """The results of some request lines, in a folder of their own."""
    folder.mkdir()
    (folder / "requests.jsonl").write_bytes(b"".join(requests))
    config = RolloutCollectionConfig(
        input_jsonl_fpath=folder / "requests.jsonl",
        output_jsonl_fpath=folder / "results.jsonl",
        disable_aggregation=True,
        **where,
    )
    return collect_rollouts(config).output


def aggregated(folder, *files):
    config = RolloutAggregationConfig(
        input_glob=",".join(map(str, files)), output_jsonl_fpath=folder / f"merged-{len(files)}.jsonl"
    )
    return aggregate_rollouts(config)


def test_prepared_requests_in_parts_are_one_collection(tmp_path, tiny_campaign, tiny_train_rows):
    requests = tiny_train_rows.read_bytes().splitlines(True)
    half = len(requests) // 2
    parts = [
        collected(tmp_path / name, part, campaign=str(tiny_campaign), num_repeats=2, num_repeats_add_seed=True)
        for name, part in {"a": requests[:half], "b": requests[half:], "all": requests}.items()
    ]
    in_parts, whole = aggregated(tmp_path, *parts[:2]), aggregated(tmp_path, parts[2])
    assert in_parts.lines == whole.lines == 2 * len(requests)
    contents = [sorted(line["content_sha256"] for line in lines_of(report.merged)) for report in (in_parts, whole)]
    assert contents[0] == contents[1]
    rewards = [[entry["key_metrics"] for entry in report.metrics] for report in (in_parts, whole)]
    assert rewards[0] == rewards[1]


@pytest.fixture
def two_parts(tmp_path):
    """Results of the two halves of requests that name no task, so that each half numbers its own from 0."""
    requests = write_rows(tmp_path / "rows.jsonl", 10).read_bytes().splitlines(True)
    with running(FakeServer(lambda row, _: "refuse" if row["sample_key"] == "s9" else None)) as server:
        return [collected(tmp_path / name, part, server_urls=(server.url,)) for name, part in
                {"a": requests[:6], "b": requests[6:]}.items()]  # fmt: skip


def test_tasks_that_parts_number_alike_are_told_apart_by_root(tmp_path, two_parts):
    report = aggregated(tmp_path, *two_parts)
    counts = report.metrics[0]["counts"]
    assert [counts[name] for name in ("tasks", "expected", "done", "failed", "missing")] == [10, 10, 9, 1, 0]
    merged = lines_of(report.merged)
    assert {line["sample_key"]: line["_task_index"] for line in merged} == {f"s{n}": n for n in range(9)}
    again = aggregated(tmp_path / "again", report.merged)
    assert again.lines == 9 and again.metrics[0]["key_metrics"] == report.metrics[0]["key_metrics"]


def test_a_rollout_that_two_parts_hold_is_refused(tmp_path, two_parts):
    line = json.loads(two_parts[0].read_text().splitlines()[2])
    with two_parts[1].open("a") as stream:
        stream.write(json.dumps(line | {"_task_index": 40}) + "\n")
    with refused(ResultsRefused, f"{two_parts[1]}:4", f"{two_parts[0]}:3"):
        aggregated(tmp_path, *two_parts)
