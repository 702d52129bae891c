"""Numbers, depths and bytes that nobody means: one refusal with file and line, whatever a line or side file holds."""

import json

import pytest

from rollout_assets.collection import RolloutAggregationConfig, aggregate_rollouts, collect_rollouts
from rollout_assets.errors import CollectionError, InputsRefused, ResultsRefused, ResumeRefused
from tests.collection.test_collector import config_for
from tests.serving.fake_server import FakeServer, running
from tests.support.refusals import refused

RESULT = {"agent_ref": {"name": "greedy"}, "_task_index": 0, "_rollout_index": 0, "reward": 0.5}


def aggregated(path):
    return aggregate_rollouts(RolloutAggregationConfig(input_glob=str(path), output_jsonl_fpath=f"{path}.merged.jsonl"))


@pytest.mark.parametrize(
    ("field", "value"),
    [("reward", 10**400), ("reward", 1e308), ("reward", -1e200), ("_task_index", 2**70), ("_rollout_index", 2**63)],
)
def test_a_number_that_no_figure_can_hold_is_refused(tmp_path, field, value):
    path = tmp_path / "results.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in (RESULT, RESULT | {"_rollout_index": 1, field: value})))
    with refused(ResultsRefused, f"{path}:2", field):
        aggregated(path)


def test_the_largest_numbers_are_added_up(tmp_path):
    path = tmp_path / "results.jsonl"
    lines = (RESULT | {"_rollout_index": number, "reward": sign * 1e150} for number, sign in enumerate((1, 1, -1)))
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    (entry,) = aggregated(path).metrics
    assert entry["agent_metrics"]["reward/max"] == 1e150


def nested(depth):
    return json.loads("[" * depth + "]" * depth)


REQUEST = {"sample_key": "s0", "agent_ref": {"name": "greedy"}}


@pytest.mark.parametrize(
    "changes",
    [
        {"params": {"branch": nested(200)}},
        {"params": {"branch": nested(900)}},
        {"unknown": nested(900)},
        {"sample_key": "s\ud800"},
        {"target": "\udfff"},
        {"params": {"branch": "\ud800"}},
    ],
)
def test_a_request_that_cannot_be_sent_is_refused(tmp_path, changes):
    (tmp_path / "rows.jsonl").write_text(f"{json.dumps(REQUEST)}\n{json.dumps(REQUEST | changes)}\n")
    with running(FakeServer()) as server, refused(InputsRefused, f"{tmp_path / 'rows.jsonl'}:2"):
        collect_rollouts(config_for(tmp_path, server))
    assert not (tmp_path / "out.jsonl").exists()


def test_a_surrogate_in_bytes_is_refused_too(tmp_path):
    (tmp_path / "rows.jsonl").write_bytes(json.dumps(REQUEST).encode().replace(b"s0", b"s\xed\xa0\x80") + b"\n")
    with running(FakeServer()) as server, refused(InputsRefused, f"{tmp_path / 'rows.jsonl'}:1"):
        collect_rollouts(config_for(tmp_path, server))


@pytest.mark.parametrize("damage", [b"\xff\x00{\n", b"hello\n", b"[]\n", b"[" * 100_000 + b"\n", b"{}\n", b"\0" * 400])
def test_damaged_requests_of_a_collection_are_refused(tmp_path, damage):
    with running(FakeServer()) as server:
        output = collect_rollouts(config_for(tmp_path, server, rows=3)).output
        requests = tmp_path / "out_materialized_inputs.jsonl"
        requests.write_bytes(damage + requests.read_bytes())
        with refused(ResumeRefused, requests):
            collect_rollouts(config_for(tmp_path, server, resume_from_cache=True))
        with refused(CollectionError, f"{requests}:1"):
            aggregated(output)


@pytest.mark.parametrize("damage", [{"error": 3}, {"attempts": "x"}, {"error": {"transient": "no"}}])
def test_a_damaged_failure_is_refused(tmp_path, damage):
    with running(FakeServer(lambda *_: "refuse")) as server:
        failures = collect_rollouts(config_for(tmp_path, server, rows=2)).failures
        lines = failures.read_text().splitlines()
        failures.write_text(f"{lines[0]}\n{json.dumps(json.loads(lines[1]) | damage)}\n")
        with refused(ResultsRefused, f"{failures}:2"):
            collect_rollouts(config_for(tmp_path, server, resume_from_cache=True))
