"""Collecting from servers: in order, bounded, tried finitely often, and never silent about what failed."""

import asyncio
import json
import os
import signal
import threading
from collections import Counter

import pytest

from rollout_assets.collection import RolloutCollectionConfig, RolloutCollectionHelper, collect_rollouts
from rollout_assets.collection.inputs import numbered_requests
from rollout_assets.errors import AnswerRefused, ConfigError, ResumeRefused, ServerUnavailable, ShardBusy
from rollout_assets.files import file_lock
from tests.serving.fake_server import HEALTH, FakeServer, chance, running
from tests.support.refusals import assert_names, refused
from tests.support.waiting import PATIENCE_S, wait_until


def write_rows(path, count, agents=("greedy",)):
    rows = [{"sample_key": f"s{n}", "agent_ref": {"name": agent}, "seed": n} for n in range(count) for agent in agents]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def config_for(tmp_path, *servers, rows=40, **changes):
    path = tmp_path / "rows.jsonl"
    if not path.exists():
        write_rows(path, rows)
    options = {"max_attempts": 3, "backoff_s": 0.01, "request_timeout_s": 5.0} | changes
    return RolloutCollectionConfig(
        input_jsonl_fpath=path,
        output_jsonl_fpath=tmp_path / "out.jsonl",
        server_urls=tuple(server.url for server in servers),
        **options,
    )


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_rows_are_collected_in_order_and_bounded_parallel(tmp_path):
    with running(FakeServer()) as server:
        report = collect_rollouts(config_for(tmp_path, server, num_samples_in_parallel=4))
    lines = lines_of(report.output)
    assert sorted(line["_task_index"] for line in lines) == list(range(40))
    assert {(line["agent_ref"]["name"], line["_rollout_index"], line["_attempt"]) for line in lines} == {
        ("greedy", 0, 1)
    }
    assert server.most_under_way <= 4
    assert all(abs(task - place) <= 4 for place, task in enumerate(server.order))
    assert len(server.idempotency_keys) == 40
    assert report.exit_code == 0 and report.failures is None
    metrics = json.loads(report.metrics.read_bytes())
    assert metrics[0]["counts"] == {
        "tasks": 40,
        "expected": 40,
        "done": 40,
        "refused": 0,
        "no_view": 0,
        "failed": 0,
        "missing": 0,
    }


def test_faulty_server_leaves_failures_and_an_exit_code(tmp_path):
    """10 % of requests fail, 2 % lose their connection, 2 % of rows are refused for good, and two rows hang once."""

    def fault(row, nth):
        draw = chance(row["_task_index"], nth)
        if chance(row["_task_index"], "refused") < 0.02:
            return "refuse"
        if row["_task_index"] in (17, 18) and nth == 1:
            return "hang"
        return "fail" if draw < 0.1 else "drop" if draw < 0.12 else None

    with running(FakeServer(fault)) as server:
        config = config_for(tmp_path, server, rows=300, max_attempts=2, request_timeout_s=1.0)
        report = collect_rollouts(config)
    lines, failures = lines_of(report.output), lines_of(report.failures)
    assert min(server.faults[kind] for kind in ("fail", "refuse", "hang", "drop")) >= 2
    assert report.exit_code == 3 and not report.coverage.complete
    assert report.coverage.missing == 0
    keys = [line["_task_index"] for line in (*lines, *failures)]
    assert sorted(keys) == list(range(300))
    assert {line["reward"] for line in lines} == {chance(line["_task_index"], 0, "reward") for line in lines}
    assert Counter(line["_attempt"] for line in lines)[2] > 10
    refused = [line for line in failures if line["error"]["class"] == "RowRefused"]
    assert refused and all(line["attempts"] == 1 and not line["error"]["transient"] for line in refused)
    given_up = [line for line in failures if line["error"]["class"] != "RowRefused"]
    assert given_up and all(line["attempts"] == 2 and line["error"]["transient"] for line in given_up)
    assert {line["row"]["sample"] for line in failures} == {f"s{line['_task_index']}" for line in failures}
    counts = json.loads(report.metrics.read_bytes())[0]["counts"]
    assert (counts["expected"], counts["done"], counts["failed"]) == (300, len(lines), len(failures))


@pytest.mark.parametrize(
    ("fault", "kind", "names"),
    [
        ("nonsense", AnswerRefused.__name__, ("sample_key",)),
        ("other", AnswerRefused.__name__, ("_task_index 1", "0")),
        ("drop", "RemoteProtocolError", ()),
        ("hang", "RequestTimeout", ("0.1 s",)),
    ],
)
def test_failure_line_names_the_kind_of_fault(tmp_path, fault, kind, names):
    timeout = {"request_timeout_s": 0.1} if fault == "hang" else {}
    with running(FakeServer(lambda *_: fault)) as server:
        report = collect_rollouts(config_for(tmp_path, server, rows=1, max_attempts=2, **timeout))
    (line,) = lines_of(report.failures)
    assert line["error"]["class"] == kind
    assert_names(line["error"]["message"], *names)


def test_retries_and_abandoned_requests_are_logged(tmp_path, caplog):
    caplog.set_level("INFO", "rollout_assets")
    with running(FakeServer(lambda *_: "fail")) as server:
        collect_rollouts(config_for(tmp_path, server, rows=1, max_attempts=2))
    retry, given_up = [record for record in caplog.records if record.name.startswith("rollout_assets")]
    assert (retry.levelname, given_up.levelname) == ("INFO", "WARNING")
    assert_names(retry.getMessage(), "attempt 1", "the oracle stumbled")
    assert_names(given_up.getMessage(), "2 attempt", "the oracle stumbled")


def test_busy_answers_do_not_count_as_attempts(tmp_path):
    with running(FakeServer(lambda _, nth: "busy" if nth <= 5 else None)) as server:
        report = collect_rollouts(config_for(tmp_path, server, rows=10, max_attempts=1))
    assert report.exit_code == 0 and server.faults["busy"] == 50
    assert {line["_attempt"] for line in lines_of(report.output)} == {1}


def test_server_that_stays_busy_is_abandoned(tmp_path):
    with running(FakeServer(lambda *_: "busy")) as server:
        report = collect_rollouts(config_for(tmp_path, server, rows=2, busy_patience_s=0.2))
    assert [line["error"]["class"] for line in lines_of(report.failures)] == ["RequestRefused"] * 2


def test_server_that_is_gone_is_abandoned_early(tmp_path):
    with running(FakeServer(lambda row, _: "drop" if row["_task_index"] >= 10 else None)) as server:
        config = config_for(tmp_path, server, rows=400, max_attempts=1, give_up_after=12)
        report = collect_rollouts(config)
    assert report.gave_up and report.exit_code == 3
    assert report.coverage.done == 10
    late = 8  # a result that comes among the first failures starts the count again
    assert 12 <= report.coverage.failed <= 12 + 2 * 8 + late and report.coverage.missing > 300


def test_rows_go_to_the_least_busy_server(tmp_path):
    """One server answers its first requests only after the other one has answered all the rest."""
    with running(FakeServer()) as fast, running(FakeServer()) as slow:
        slow.held = lambda: len(fast.order) < 38
        collect_rollouts(config_for(tmp_path, fast, slow, num_samples_in_parallel=4))
    assert (len(fast.order), len(slow.order)) == (38, 2)


@pytest.mark.parametrize(
    "change", [{"source_manifest_hash": "elsewhere"}, {"split_manifest_hashes": {"train": "all"}}], ids=str
)
def test_servers_that_differ_are_refused(tmp_path, change):
    with running(FakeServer()) as a, running(FakeServer(health=HEALTH | change)) as b:
        ((name, value),) = change.items()
        with refused(ServerUnavailable, name, value, a.url, b.url):
            collect_rollouts(config_for(tmp_path, a, b))
    assert not (tmp_path / "out.jsonl").exists()


def test_address_without_a_server_is_refused_before_writing(tmp_path):
    with refused(ServerUnavailable, "http://127.0.0.1:9"):
        collect_rollouts(config_for(tmp_path, FakeServer(url="http://127.0.0.1:9")))
    assert not (tmp_path / "out_run.json").exists()


def test_missing_token_variable_is_refused(tmp_path):
    with refused(ConfigError, "NO_SUCH_TOKEN"):
        collect_rollouts(config_for(tmp_path, FakeServer(url="http://x"), token_env="NO_SUCH_TOKEN"))


def test_one_collector_at_a_time(tmp_path):
    config = config_for(tmp_path, FakeServer(url="http://127.0.0.1:9"))
    with file_lock(config.lock_fpath, "a test"), refused(ShardBusy, "out.jsonl", f"process {os.getpid()}"):
        collect_rollouts(config)


def test_existing_output_is_refused_without_resume(tmp_path):
    with running(FakeServer()) as server:
        config = config_for(tmp_path, server)
        collect_rollouts(config)
        with refused(ResumeRefused, "out.jsonl"):
            collect_rollouts(config)


def test_interrupt_finishes_rows_under_way_and_resume_the_rest(tmp_path):
    """The server holds its answers back once it has eight requests, until the signal has been sent."""
    sent = threading.Event()
    with running(FakeServer()) as server:
        server.held = lambda: len(server.order) >= 8 and not sent.is_set()
        config = config_for(tmp_path, server, num_samples_in_parallel=4)

        def interrupt():
            wait_until(lambda: len(server.order) >= 8, "eight requests")
            os.kill(os.getpid(), signal.SIGINT)
            sent.set()

        threading.Thread(target=interrupt).start()
        report = collect_rollouts(config)
        assert report.interrupted and report.exit_code == 130
        assert 0 < report.coverage.done < 20 and report.coverage.missing == 40 - report.coverage.done
        assert len(server.order) == report.coverage.done, "what was asked is written"
        again = collect_rollouts(config.model_copy(update={"resume_from_cache": True}))
    assert again.exit_code == 0 and again.cached == report.coverage.done
    assert len(server.order) == 40, "nothing is asked twice"


def test_second_interrupt_ends_at_once_and_keeps_results(tmp_path):
    ended = threading.Event()
    with running(FakeServer(lambda row, _: "hang" if row["_task_index"] >= 10 else None)) as server:

        def interrupt_twice():
            wait_until(lambda: len(server.order) >= 14, "requests that hang")
            while not ended.wait(0.1):
                os.kill(os.getpid(), signal.SIGINT)

        threading.Thread(target=interrupt_twice).start()
        with pytest.raises(KeyboardInterrupt):
            try:
                collect_rollouts(config_for(tmp_path, server, request_timeout_s=PATIENCE_S))
            finally:
                ended.set()
    assert len(lines_of(tmp_path / "out.jsonl")) == 10


def test_run_examples_gives_one_awaitable_per_row(tmp_path):
    async def collect(server, lazily):
        config = config_for(tmp_path, server, rows=12, num_samples_in_parallel=3)
        helper = RolloutCollectionHelper()
        agent = helper.setup_server_client(config)
        rows = (numbered.request for numbered in numbered_requests(config))
        coming = helper.run_examples(rows, agent, config, asyncio.Semaphore(2))
        try:
            if lazily:
                return [await outcome for outcome in coming]
            return await asyncio.gather(*coming)
        finally:
            await agent.aclose()

    for lazily in (True, False):
        with running(FakeServer()) as server:
            outcomes = asyncio.run(collect(server, lazily))
        assert sorted(outcome.request.task_index for outcome in outcomes) == list(range(12))
        assert all(outcome.result["_task_index"] == outcome.request.task_index for outcome in outcomes)
        assert server.most_under_way <= 2


def test_results_are_not_kept(tmp_path):
    """Only keys grow with a collection: the rows under way are all that is held."""
    held = []

    class Watched(RolloutCollectionHelper):
        def _pending(self, run):
            for given, row in enumerate(super()._pending(run)):
                held.append(given - run.new)
                yield row

    with running(FakeServer()) as server:
        config = config_for(tmp_path, server, rows=300, num_samples_in_parallel=4)
        asyncio.run(Watched().run_from_config(config))
    assert max(held) < 2 * 4, "those under way, and those that finished together"


def test_progress_counts_what_was_there_before(tmp_path):
    events = []
    with running(FakeServer(lambda row, _: "refuse" if row["_task_index"] == 39 else None)) as server:
        collect_rollouts(config_for(tmp_path, server))
        server.fault = lambda *_: None
        collect_rollouts(config_for(tmp_path, server, resume_from_cache=True), events.append)
        assert [(event.done, event.total) for event in events] == [(40, 40)], "what is left alone is dealt with"
        events.clear()
        collect_rollouts(config_for(tmp_path, server, resume_from_cache=True, retry_failed=True), events.append)
    assert [(event.done, event.total) for event in events] == [(39, 40), (40, 40)]
    assert not (tmp_path / "out_failures.jsonl").exists()
