"""Resuming: only what is missing is run, and only if nothing that results depend on has changed."""

import json

import pytest

from rollout_assets.collection import collect_rollouts
from rollout_assets.errors import ResultsRefused, ResumeRefused
from tests.collection.test_collector import config_for, lines_of
from tests.serving.fake_server import HEALTH, FakeServer, running
from tests.support.refusals import assert_names, refused


@pytest.fixture
def server():
    with running(FakeServer()) as found:
        yield found


def resumed(tmp_path, server, **changes):
    return collect_rollouts(config_for(tmp_path, server, resume_from_cache=True, **changes))


def cut(path, lines, torn=b""):
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:lines]) + torn)


def test_a_resume_without_anything_there_is_a_new_collection(tmp_path, server):
    assert resumed(tmp_path, server).exit_code == 0


def test_a_torn_last_line_is_dropped_and_only_missing_rows_are_run(tmp_path, server):
    whole = collect_rollouts(config_for(tmp_path, server))
    metrics = whole.metrics.read_bytes()
    cut(whole.output, 25, b'{"_task_index": 3, "agent_')
    server.requests.clear()
    report = resumed(tmp_path, server)
    assert (report.cached, report.coverage.done, sum(server.requests.values())) == (25, 40, 15)
    assert sorted(line["_task_index"] for line in lines_of(report.output)) == list(range(40))
    assert report.metrics.read_bytes() == metrics, "the same as undisturbed, to the bit"


def test_servers_parallelism_and_deadlines_may_change(tmp_path, server):
    cut(collect_rollouts(config_for(tmp_path, server)).output, 10)
    with running(FakeServer()) as another:
        report = resumed(tmp_path, another, num_samples_in_parallel=2, request_timeout_s=9.0, max_attempts=9)
    assert report.exit_code == 0


def test_a_changed_configuration_is_refused_with_the_fields(tmp_path, server):
    collect_rollouts(config_for(tmp_path, server))
    with refused(ResumeRefused) as caught:
        resumed(tmp_path, server, num_repeats=2, run_seed=3, responses_create_params={"horizon": 2})
    _, *changes = str(caught.value).split("\n  - ")
    assert len(changes) == 3
    for change, *names in (
        ("num_repeats", 1, 2),
        ("run_seed", 0, 3),
        ("responses_create_params.horizon", "null", 2),
    ):
        assert_names(next(line for line in changes if line.startswith(change)), *names)


def test_another_campaign_behind_the_same_address_is_refused(tmp_path, server):
    collect_rollouts(config_for(tmp_path, server))
    server.health = HEALTH | {"config_hashes": {"writer": "x"}}
    with refused(ResumeRefused, "config_hashes.writer", '"w"', '"x"'):
        resumed(tmp_path, server)
    server.health = HEALTH | {"split_manifest_hashes": {"train": "t", "val": "w"}}
    with refused(ResumeRefused, "split_manifest_hashes.val", '"v"', '"w"'):
        resumed(tmp_path, server)


@pytest.mark.parametrize(
    ("change", "names"),
    [
        (lambda rows: rows[6].update(seed=99), ["rows.jsonl:7: ", "seed", 6, 99]),
        (lambda rows: rows.append({**rows[0], "sample_key": "new"}), ["rows.jsonl:41: "]),
        (lambda rows: rows.pop(), ["rows.jsonl: ", "s39"]),
    ],
)
def test_a_changed_input_line_is_refused_with_its_number(tmp_path, server, change, names):
    collect_rollouts(config_for(tmp_path, server))
    path = tmp_path / "rows.jsonl"
    rows = lines_of(path)
    change(rows)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with refused(ResumeRefused, *names):
        resumed(tmp_path, server)


def test_lines_in_another_notation_are_no_change(tmp_path, server):
    collect_rollouts(config_for(tmp_path, server))
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(json.dumps(dict(reversed(row.items())), indent=None) for row in lines_of(path)) + "\n\n")
    assert resumed(tmp_path, server).cached == 40


@pytest.mark.parametrize(
    ("spoil", "names"),
    [
        (lambda lines: lines.insert(3, b'{"torn": \n'), ["out.jsonl:4: ", "JSON"]),
        (lambda lines: lines.append(lines[2]), ["out.jsonl:41: ", "'greedy'", "line 3"]),
        (lambda lines: lines.insert(0, b"[1]\n"), ["out.jsonl:1: ", "JSON object"]),
        (lambda lines: lines.insert(0, b'{"a": NaN}\n'), ["out.jsonl:1: ", "NaN"]),
        (lambda lines: lines.insert(0, b'{"a": 1}\n'), ["out.jsonl:1: ", "agent_ref"]),
    ],
)
def test_a_damaged_output_is_refused_with_the_line(tmp_path, server, spoil, names):
    output = collect_rollouts(config_for(tmp_path, server)).output
    lines = output.read_bytes().splitlines(keepends=True)
    spoil(lines)
    output.write_bytes(b"".join(lines))
    with refused(ResultsRefused, *names):
        resumed(tmp_path, server)


def test_a_result_that_nobody_asked_for_is_refused(tmp_path, server):
    output = collect_rollouts(config_for(tmp_path, server)).output
    strange = json.loads(output.read_text().splitlines()[0]) | {"_task_index": 77}
    output.write_text(output.read_text() + json.dumps(strange) + "\n")
    with refused(ResultsRefused, "out.jsonl:41", "'greedy'", "task 77"):
        resumed(tmp_path, server)


def test_missing_or_altered_side_files_are_refused(tmp_path, server):
    collect_rollouts(config_for(tmp_path, server))
    rows, run = tmp_path / "out_materialized_inputs.jsonl", tmp_path / "out_run.json"
    before = run.read_bytes()
    run.write_bytes(before.replace(b'"rows_sha256": "', b'"rows_sha256": "0'))
    with refused(ResumeRefused, rows):
        resumed(tmp_path, server)
    run.write_bytes(before[:40])
    with refused(ResumeRefused, run):
        resumed(tmp_path, server)
    run.write_bytes(before)
    rows.unlink()
    with refused(ResumeRefused, rows):
        resumed(tmp_path, server)
    run.unlink()
    with refused(ResumeRefused, run):
        resumed(tmp_path, server)


def failing(*tasks, kind="fail"):
    return lambda row, _: kind if row["_task_index"] in tasks else None


def test_what_failed_for_good_is_left_alone_until_it_is_asked_for(tmp_path, server):
    server.fault = lambda row, _: {3: "fail", 5: "refuse"}.get(row["_task_index"])
    first = collect_rollouts(config_for(tmp_path, server))
    assert (first.exit_code, first.coverage.failed) == (3, 2)
    before = first.failures.read_bytes()
    server.fault = lambda *_: None
    server.requests.clear()
    for _ in range(2):
        again = resumed(tmp_path, server)
        assert (again.exit_code, again.coverage.done, again.coverage.failed) == (3, 38, 2)
    assert not server.requests and first.failures.read_bytes() == before
    asked = resumed(tmp_path, server, retry_failed=True)
    assert asked.exit_code == 0 and sorted(server.requests) == [(3, 0), (5, 0)]
    attempts = {line["_task_index"]: line["_attempt"] for line in lines_of(asked.output)}
    assert (attempts[3], attempts[5], attempts[0]) == (4, 2, 1)
    assert not first.failures.exists()


def test_attempts_are_counted_over_all_runs(tmp_path, server):
    server.fault = failing(3, 5)
    first = collect_rollouts(config_for(tmp_path, server))
    with first.failures.open("ab") as stream:
        stream.write(b'{"torn')
    server.requests.clear()
    resumed(tmp_path, server, max_attempts=5)
    assert server.requests == {(3, 0): 2, (5, 0): 2}, "three of five were made before"
    assert [line["attempts"] for line in lines_of(first.failures)] == [5, 5]
    server.fault = failing(5)
    second = resumed(tmp_path, server, retry_failed=True)
    (line,) = lines_of(second.failures)
    assert (line["_task_index"], line["attempts"]) == (5, 8), "asked for again, a request is tried as often once more"


def test_a_server_that_was_busy_did_not_try(tmp_path, server):
    server.fault = failing(3, kind="busy")
    first = collect_rollouts(config_for(tmp_path, server, busy_patience_s=0.05))
    assert [line["attempts"] for line in lines_of(first.failures)] == [1]
    server.fault = lambda *_: None
    assert resumed(tmp_path, server).exit_code == 0, "the attempts that are left are made"
