"""Aggregation: the right files, every line once, the same figures in any order, and errors with file and line."""

import json
import os
from pathlib import Path

import pytest

from rollout_assets.benchmarks.aggregation import benchmark_aggregation, write_fake_results
from rollout_assets.collection import (
    RolloutAggregationConfig,
    aggregate_file,
    aggregate_results,
    aggregate_rollouts,
    collect_rollouts,
)
from rollout_assets.collection import _expand_input_glob as expand
from rollout_assets.errors import CollectionError, ResultsRefused, ShardBusy
from rollout_assets.files import file_lock, file_sha256
from tests.collection.test_collector import config_for, lines_of
from tests.serving.fake_server import FakeServer, running
from tests.support.refusals import refused

pytestmark = pytest.mark.quick


@pytest.fixture
def shards(tmp_path) -> Path:
    """Three shards in two folders, with all the files that a collection leaves beside its results."""
    folder = tmp_path / "results"
    for number, name in enumerate(("a/one.jsonl", "a/two.jsonl", "b/three.jsonl")):
        write_fake_results(folder / name, number, 40)
    for beside in ("_materialized_inputs.jsonl", "_prepared_inputs.jsonl", "_failures.jsonl"):
        (folder / f"a/left{beside}").write_text("not results\n")
    for beside in ("_aggregate_metrics.json", "_run.json", "_prepared_inputs.json"):
        (folder / f"a/left{beside}").write_text("{}")
    (folder / "a/.partial-one.jsonl").write_text("{")
    (folder / "a/left_records.jsonl").mkdir()
    return folder


def config_of(folder, pattern="**/*.jsonl", **changes):
    return RolloutAggregationConfig(
        input_glob=f"{folder}/{pattern}", output_jsonl_fpath=folder / "merged.jsonl", **changes
    )


def test_globs_are_sorted_deduplicated_and_leave_derived_files_out(shards, monkeypatch):
    monkeypatch.chdir(shards)
    Path("merged.jsonl").write_text("{}\n")
    assert expand("**/*", Path("merged.jsonl")) == ["a/one.jsonl", "a/two.jsonl", "b/three.jsonl"]
    assert expand("b/*.jsonl, a/*.jsonl,./a/one.jsonl ,", None) == ["a/one.jsonl", "a/two.jsonl", "b/three.jsonl"]
    assert expand("a/one.jsonl") == ["a/one.jsonl"] and expand("nowhere/*.jsonl") == []


def test_shards_are_merged_and_aggregated_as_one(shards):
    report = aggregate_rollouts(config_of(shards))
    lines = lines_of(report.merged)
    assert report.lines == len(lines) == 120
    assert report.merged.read_bytes() == b"".join(Path(name).read_bytes() for name in report.files)
    written = json.loads(report.metrics_path.read_bytes())
    assert written == report.metrics == aggregate_results(lines)
    assert [entry["agent_ref"]["name"] for entry in written] == sorted({line["agent_ref"]["name"] for line in lines})
    again = aggregate_rollouts(config_of(shards))
    assert again.lines == 120, "the merged file is not merged into itself"
    assert not list(shards.glob(".partial-*"))


def test_the_order_of_files_and_lines_changes_no_bit(shards, tmp_path):
    before = aggregate_rollouts(config_of(shards, merge_shards=False)).metrics_path.read_bytes()
    assert not (shards / "merged.jsonl").exists()
    lines = [line for name in expand(f"{shards}/**/*.jsonl") for line in Path(name).read_bytes().splitlines(True)]
    other = tmp_path / "other"
    other.mkdir()
    (other / "x.jsonl").write_bytes(b"".join(reversed(lines)))
    assert aggregate_rollouts(config_of(other, "*.jsonl")).metrics_path.read_bytes() == before


def test_a_key_that_comes_twice_is_refused_with_both_places(shards):
    repeated = (shards / "a/two.jsonl").read_bytes().splitlines(True)[4]
    path = shards / "b/three.jsonl"
    path.write_bytes(path.read_bytes() + repeated)
    with refused(ResultsRefused, f"{path}:41", f"{shards / 'a/two.jsonl'}:5", "'oracle_greedy'"):
        aggregate_rollouts(config_of(shards))
    assert not (shards / "merged.jsonl").exists() and not list(shards.glob(".partial-*"))


@pytest.mark.parametrize(
    ("line", "names"),
    [
        (b'{"torn": ', ["JSON"]),
        (b"{oops}\n", ["JSON"]),
        (b"\n", ["JSON"]),
        (b"\xff\n", ["JSON"]),
        (b'{"reward": 1.0}\n', ["agent_ref.name", None]),
        (b'{"agent_ref": {"name": "x"}, "_task_index": 1}\n', ["_rollout_index", None]),
        (
            b'{"agent_ref": {"name": "x"}, "_task_index": 1, "_rollout_index": 0, "reward": 1e999}\n',
            ["reward", "inf"],
        ),
    ],
)
def test_a_malformed_line_is_refused_with_its_place(shards, line, names):
    path = shards / "a/one.jsonl"
    path.write_bytes(path.read_bytes() + line)
    with refused(ResultsRefused, f"{path}:41", *names):
        aggregate_rollouts(config_of(shards))


def test_a_last_line_without_newline_that_is_whole_counts(shards):
    path = shards / "a/one.jsonl"
    path.write_bytes(path.read_bytes().rstrip(b"\n"))
    report = aggregate_rollouts(config_of(shards))
    assert len(lines_of(report.merged)) == report.lines == 120


def test_nothing_to_aggregate_is_said(tmp_path):
    with refused(CollectionError, tmp_path / "no*"):
        aggregate_rollouts(config_of(tmp_path, "no*"))


def file_digests(folder) -> dict[str, str]:
    return {path.name: file_sha256(path) for path in folder.iterdir() if path.suffix in (".json", ".jsonl")}


def collected(folder, name="out", rows=6):
    with running(FakeServer()) as server:
        config = config_for(folder, server, rows=rows).model_copy(update={"output_jsonl_fpath": folder / name})
        return collect_rollouts(config)


def test_a_file_is_never_merged_into_itself(tmp_path):
    output = collected(tmp_path, "out.jsonl").output
    before = file_digests(tmp_path)
    itself = {"input_glob": str(output), "output_jsonl_fpath": tmp_path / "." / "out.jsonl"}
    report = aggregate_rollouts(RolloutAggregationConfig(**itself, merge_shards=False))
    assert report.lines == 6 and report.merged is None
    assert report.metrics_path == tmp_path / "out_aggregate_metrics.json"
    assert file_digests(tmp_path) == before, "the collection's own metrics again, to the bit"
    with refused(CollectionError, output):
        aggregate_rollouts(RolloutAggregationConfig(**itself))
    with refused(CollectionError, f"{tmp_path}/ou*.jsonl"):
        aggregate_rollouts(RolloutAggregationConfig(**itself | {"input_glob": f"{tmp_path}/ou*.jsonl"}))
    assert file_digests(tmp_path) == before


@pytest.mark.parametrize("merge", [True, False])
def test_what_was_collected_is_not_replaced_by_what_was_merged(tmp_path, merge):
    output = collected(tmp_path, "out.jsonl").output
    write_fake_results(tmp_path / "more/other.jsonl", 1, 10)
    before = file_digests(tmp_path)
    for pattern in (f"{tmp_path}/**/*.jsonl", f"{tmp_path}/more/*.jsonl"):
        with refused(CollectionError, output):
            aggregate_rollouts(
                RolloutAggregationConfig(input_glob=pattern, output_jsonl_fpath=output, merge_shards=merge)
            )
    assert file_digests(tmp_path) == before


def test_only_one_process_writes_an_output(shards):
    config = config_of(shards)
    (shards / ".partial-merged.jsonl").write_text("of the other process")
    with (
        file_lock(config.lock_fpath, "a test"),
        refused(ShardBusy, shards / "merged.jsonl", f"process {os.getpid()}"),
    ):
        aggregate_rollouts(config)
    assert (shards / ".partial-merged.jsonl").read_text() == "of the other process"


def test_expected_and_failed_come_from_files_beside_results(tmp_path):
    with running(FakeServer(lambda row, _: "refuse" if row["_task_index"] == 3 else None)) as server:
        report = collect_rollouts(config_for(tmp_path, server, rows=10, num_samples_in_parallel=1))
    lines = report.output.read_bytes().splitlines(True)
    report.output.write_bytes(b"".join(lines[:-2]))
    counts = aggregate_file(report.output)[0]["counts"]
    assert counts == {"tasks": 10, "expected": 10, "done": 7, "refused": 0, "no_view": 0, "failed": 1, "missing": 2}
    (tmp_path / "out_materialized_inputs.jsonl").unlink()
    assert aggregate_file(report.output)[0]["counts"]["missing"] is None


def test_many_shards_take_seconds_and_little_memory():
    few, many = (benchmark_aggregation(shards, 250) for shards in (4, 40))
    assert many.lines == 10_000
    assert many.seconds < 5.0
    assert many.grown_mb - few.grown_mb < 30
