"""Metrics: equal to plain loops, independent of line order to the bit, and never silent about what is missing."""

import json
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout_assets.errors import ResultsRefused
from rollout_assets.metrics.estimators import bootstrap_intervals
from rollout_assets.metrics.results import MetricOptions, aggregate_results, metrics_json
from tests.metrics.naive_metrics import naive_best, naive_success, naive_summary, tasks_of
from tests.support.refusals import refused

pytestmark = pytest.mark.quick

OPTIONS = MetricOptions(success_threshold=0.25, bootstrap_samples=200)


def result(agent="greedy", task=0, rollout=0, reward=0.5, **more):
    refused = reward is None
    return {
        "agent_ref": {"name": agent},
        "_task_index": task,
        "_rollout_index": rollout,
        "_attempt": 3,
        "status": "refused" if refused else "completed",
        "reward": reward,
        "num_steps": 2,
        "truncated": not refused,
        "seed": 12,
        "source_row": 4,
        "target_rank": 1,
        "steps": [{"rri": 0.3}],
        "timings_s": {"total": random.random()},
    } | more


rewards = st.floats(-1, 1, allow_nan=False).map(lambda x: round(x, 6)) | st.none()
tables = st.dictionaries(
    st.tuples(st.sampled_from(["b", "a"]), st.integers(0, 4), st.integers(0, 5)), rewards, min_size=1, max_size=40
)


@given(tables, st.randoms(use_true_random=False))
def test_metrics_equal_plain_loops_in_any_line_order(table, shuffler):
    results = [result(*key, reward=reward) for key, reward in table.items()]
    metrics = aggregate_results(results, OPTIONS)
    assert [entry["agent_ref"]["name"] for entry in metrics] == sorted({agent for agent, _, _ in table})
    for entry in metrics:
        agent = entry["agent_ref"]["name"]
        tasks = tasks_of(results, agent, "reward")
        flat = [value for values in tasks.values() for value in values]
        if flat:
            assert_summary(entry["agent_metrics"], "reward", flat)
        else:
            assert "reward/mean" not in entry["agent_metrics"]
        for group in entry["group_level_metrics"]:
            values = tasks.get(group["_task_index"], [])
            if values:
                assert_summary(group["metrics"], "reward", values)
            elif flat:
                assert (group["metrics"]["reward/mean"], group["metrics"]["reward/count"]) == (None, 0)
            assert group["done"] == group["refused"] + len(values)
        for name, found in entry["key_metrics"].items():
            kind, _, k = name.partition("@")
            if kind in ("best", "success"):
                enough = [values for values in tasks.values() if len(values) >= int(k)]
                twin = naive_best if kind == "best" else lambda v, k: naive_success(v, k, 0.25)
                assert found["tasks"] == len(enough)
                assert found["value"] == pytest.approx(naive_summary([twin(v, int(k)) for v in enough])["mean"])
    shuffler.shuffle(results)
    assert json.dumps(aggregate_results(results, OPTIONS)) == json.dumps(metrics)
    assert json.loads(b"".join(metrics_json(metrics))) == metrics


def assert_summary(metrics, field, values):
    twin = naive_summary(values)
    for kind, value in twin.items():
        assert metrics[f"{field}/{kind}"] == (None if value is None else pytest.approx(value, abs=1e-12))


def test_refused_results_are_counted_and_are_no_zero():
    entry = aggregate_results([result(reward=0.4), result(rollout=1, reward=None)])[0]
    assert entry["counts"] == {
        "tasks": 1,
        "expected": None,
        "done": 2,
        "refused": 1,
        "no_view": 0,
        "failed": 0,
        "missing": None,
    }
    assert entry["agent_metrics"]["reward/mean"] == 0.4
    assert entry["agent_metrics"]["reward/count"] == 1
    assert entry["agent_metrics"]["reward/std"] is None
    assert entry["agent_metrics"]["truncated/rate"] == 0.5


def test_roots_without_a_takeable_view_count_and_are_no_zero():
    nowhere = result(rollout=1, status="completed", end_reason="no_takeable_view", num_steps=0) | {"reward": None}
    entry = aggregate_results([result(reward=0.4, end_reason="horizon"), nowhere])[0]
    assert (entry["counts"]["refused"], entry["counts"]["no_view"]) == (0, 1)
    assert entry["group_level_metrics"][0]["no_view"] == 1
    assert (entry["agent_metrics"]["reward/mean"], entry["agent_metrics"]["reward/count"]) == (0.4, 1)
    assert entry["key_metrics"]["reward/mean"]["value"] == 0.4


def test_identifiers_stamps_timings_and_steps_are_no_metrics():
    names = {name.split("/")[0] for name in aggregate_results([result()])[0]["agent_metrics"]}
    assert names == {"reward", "num_steps", "truncated"}


def test_expected_failed_and_missing_are_counted_per_task():
    expected = {("a", 0): 2, ("a", 1): 2, ("b", 0): 1}
    entries = aggregate_results([result("a", 0, 0)], expected=expected, failed={("a", 0): 1})
    a, b = entries
    assert a["counts"] == {"tasks": 2, "expected": 4, "done": 1, "refused": 0, "no_view": 0, "failed": 1, "missing": 2}
    assert [(g["_task_index"], g["done"], g["failed"], g["missing"]) for g in a["group_level_metrics"]] == [
        (0, 1, 1, 0),
        (1, 0, 0, 2),
    ]
    assert b["counts"] == {"tasks": 1, "expected": 1, "done": 0, "refused": 0, "no_view": 0, "failed": 0, "missing": 1}
    assert b["agent_metrics"] == {} and b["key_metrics"] == {}


def test_intervals_hold_the_mean_are_seeded_and_need_two_tasks():
    results = [result(task=task, rollout=r, reward=(task * 7 + r) % 10 / 10) for task in range(30) for r in range(2)]
    found = aggregate_results(results, OPTIONS)[0]["key_metrics"]
    for metric in found.values():
        low, high = metric["interval"]
        assert low <= metric["value"] <= high and low < high
    other = aggregate_results(results, OPTIONS.model_copy(update={"seed": 1}))[0]["key_metrics"]
    assert other["reward/mean"]["value"] == found["reward/mean"]["value"]
    assert other["reward/mean"]["interval"] != found["reward/mean"]["interval"]
    assert aggregate_results(results[:2])[0]["key_metrics"]["reward/mean"]["interval"] is None


def test_an_interval_is_as_wide_as_the_normal_approximation_says():
    values = np.random.Generator(np.random.Philox(3)).normal(size=400)
    found = bootstrap_intervals({"x": values}, 4_000, 0.95, np.random.Generator(np.random.Philox(4)))
    low, high = found["x"]
    assert high - low == pytest.approx(2 * 1.96 * values.std(ddof=1) / 20, rel=0.06)


@pytest.mark.parametrize(
    ("bad", "names"),
    [
        ([result(), result()], ["agent greedy", "task 0", "rollout 0"]),
        ([result(), result(task=None)], ["result 1", "_task_index", "None"]),
        ([result(rollout=True)], ["_rollout_index", "True"]),
        ([result(agent_ref={})], ["agent_ref.name", "{}"]),
        ([result(reward=float("nan"))], ["reward", "nan"]),
    ],
)
def test_results_that_cannot_be_counted_are_refused(bad, names):
    with refused(ResultsRefused, *names):
        aggregate_results(bad)
