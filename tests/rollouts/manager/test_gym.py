"""The gym way against the native way, over a real server; and against servers that answer badly."""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest
from pydantic import ValidationError

from rollout_assets.config import RolloutRecipeConfig, load_campaign
from rollout_assets.errors import (
    AnswerRefused,
    ConfigError,
    PayloadDamaged,
    RolloutFailed,
    RowRefused,
    ServerError,
    ServerUnavailable,
)
from rollout_assets.rollouts.evaluation import StateEvaluator
from rollout_assets.rollouts.generator import RolloutGenerator
from rollout_assets.rollouts.manager import (
    AsyncGymRolloutImpl,
    AsyncRolloutImpl,
    GymServerConfig,
    RolloutGroupRecord,
    RolloutManager,
    RolloutTask,
)
from rollout_assets.rollouts.manager.completions import derived_seed
from rollout_assets.rollouts.remote.messages import RolloutResult
from rollout_assets.serving.service import RolloutService
from rollout_assets.sources.vin_store import VinOfflineStore
from tests.defs.campaigns import write_campaign
from tests.serving.server_process import running_server
from tests.support.digests import content_digest
from tests.support.refusals import refused
from tests.support.waiting import PATIENCE_S

RECIPES = [
    RolloutRecipeConfig(name="random", policy="random_valid", horizon=3),
    RolloutRecipeConfig(name="lookahead", policy="temperature_softmax", branch=2, beam_width=2),
]
N = 3


@pytest.fixture(scope="module")
def campaign(small_store, tmp_path_factory):
    return write_campaign(tmp_path_factory.mktemp("gym"), small_store)


@pytest.fixture(scope="module")
def generator(campaign, small_store) -> RolloutGenerator:
    return RolloutGenerator(load_campaign(campaign), VinOfflineStore.open(small_store))


@pytest.fixture(scope="module")
def root(generator):
    return generator.prepare(generator.store.rows()[0]).roots[0]


@pytest.fixture(scope="module")
def url(campaign, tmp_path_factory) -> Iterator[str]:
    with running_server(campaign, tmp_path_factory.mktemp("server")) as server:
        yield server.url


def run(impl, root: RolloutTask) -> RolloutGroupRecord:
    async def work() -> RolloutGroupRecord:
        try:
            return await impl.run_rollout(root)
        finally:
            await impl.aclose()

    return asyncio.run(work())


def gym(url: str, **changes) -> AsyncGymRolloutImpl:
    settings = {"attempts": 2, "deadline_s": 20, "silence_s": 5} | changes
    return AsyncGymRolloutImpl(N, GymServerConfig(url=url, **settings))


def content(group: RolloutGroupRecord) -> tuple:
    """A group without its timings."""
    metrics = {name: value for name, value in group.rollout_metrics.items() if not name.startswith("timing/")}
    completions = [
        content_digest(replace(c, timings_s={}, steps=[replace(step, seconds=0.0) for step in c.steps]))
        for c in group.completions
    ]
    return completions, metrics, group.metadata, group.root_index


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)
@pytest.mark.parametrize(
    "limit", [{}, {"max_rollout_steps": 1}, {"max_views_scored": 1}], ids=["whole", "steps", "views"]
)
def test_a_group_equals_the_native_one_to_the_bit(generator, root, url, recipe, limit):
    asked = RolloutTask(7, root, recipe, seed=11)
    native = AsyncRolloutImpl(N, StateEvaluator(generator.config, generator.scorer), **limit)
    remote = AsyncGymRolloutImpl(N, GymServerConfig(url=url), **limit)
    here, there = run(native, asked), run(remote, asked)
    assert content(there) == content(here)
    assert [content_digest(c.step_log) for c in there.completions] == [
        content_digest(c.step_log) for c in here.completions
    ]
    assert there.rollout_metrics.keys() == here.rollout_metrics.keys()
    assert {c.truncation_reason for c in there.completions} == (set(limit) or {None})


def test_a_task_of_its_own_limits_travels_too(generator, root, url):
    native = AsyncRolloutImpl(N, StateEvaluator(generator.config, generator.scorer))
    whole = run(native, RolloutTask(0, root, RECIPES[0], seed=2))
    too_few = min(completion.views_scored for completion in whole.completions) - 1
    for limit in ({"max_rollout_steps": 2}, {"max_views_scored": too_few}):
        asked = RolloutTask(0, root, RECIPES[0], seed=2, **limit)
        group = run(gym(url), asked)
        assert content(group) == content(run(native, asked))
        assert {c.truncation_reason for c in group.completions} == set(limit)
        assert min(c.num_steps for c in group.completions) > 0


def test_views_are_counted_by_group_and_steps_have_their_time(root, url):
    async def groups() -> list[RolloutGroupRecord]:
        impl = gym(url)
        try:
            return [await impl.run_rollout(RolloutTask(0, root, RECIPES[0], seed)) for seed in (1, 2, 3)]
        finally:
            await impl.aclose()

    for group in asyncio.run(groups()):
        views = sum(completion.views_scored for completion in group.completions)
        assert group.rollout_metrics["per_worker_view_counts"] == {"0": views}
        for completion in group.completions:
            seconds = [step.seconds for step in completion.steps]
            assert min(seconds) > 0
            assert sum(seconds) == pytest.approx(completion.timings_s["score"] + completion.timings_s["select"])


def test_rows_carry_index_and_derived_seed(root):
    rows = gym("http://127.0.0.1:9")._build_inputs(RolloutTask(0, root, RECIPES[0], seed=4))
    assert [row.row_index for row in rows] == [0, 1, 2]
    assert [row.seed for row in rows] == [derived_seed(4, index) for index in range(N)]
    assert {row.include for row in rows} == {("chains",)}


def test_a_manager_takes_the_gym_way_when_asked(generator, root, url):
    manager = RolloutManager(N, use_gym=True, gym=GymServerConfig(url=url))
    group = run(manager, RolloutTask(0, root, RECIPES[0], seed=1))
    assert [c.rollout_index for c in group.completions] == [0, 1, 2]


def test_arguments_are_checked():
    with refused(ConfigError, "use_gym", "gym=GymServerConfig("):
        RolloutManager(1, use_gym=True)
    with refused(ConfigError, "use_gym", False):
        RolloutManager(1, gym=GymServerConfig(url="http://x:1"))
    with refused(ConfigError, "num_generations_per_root", 0):
        RolloutManager(0, use_gym=True, gym=GymServerConfig(url="http://x:1"))
    with refused(ConfigError, "max_rollout_steps", 0):
        AsyncGymRolloutImpl(1, GymServerConfig(url="http://x:1"), 0)
    for wrong in ({"url": "x:1"}, {"url": "http://x:1", "attempts": 0}, {"url": "http://x:1", "deadline_s": 0}):
        with pytest.raises(ValidationError):
            GymServerConfig(**wrong)


def test_nobody_there_is_unavailable_and_names_the_root(root):
    with refused(ServerUnavailable, root.name, "http://127.0.0.1:9", "0, 1, 2", "ConnectError"):
        run(gym("http://127.0.0.1:9"), RolloutTask(0, root, RECIPES[0], seed=1))


def test_another_oracle_on_the_server_is_noticed(generator, root, url):
    config = generator.config
    wider = config.oracle.model_copy(update={"crop_margin_m": 0.2})
    other = RolloutGenerator(config.model_copy(update={"oracle": wider}), generator.store)
    foreign = other.prepare(generator.store.rows()[0]).roots[0]
    with refused(AnswerRefused, foreign.name, url, "rollout 0", "/health"):
        run(gym(url), RolloutTask(0, foreign, RECIPES[0], seed=1))


def test_root_without_takeable_views_has_no_remote_reward(campaign):
    """All candidates are too close to something: the server has no view to offer, and neither have we."""
    config = load_campaign(campaign)
    rules = config.candidates.rules.model_copy(update={"min_mesh_distance_m": 50.0})
    targets = config.targets.model_copy(update={"require_reachable": False})
    candidates = config.candidates.model_copy(update={"rules": rules})
    closed = config.model_copy(update={"candidates": candidates, "targets": targets})

    async def work():
        service = RolloutService(closed)
        generator = RolloutGenerator(closed, service.store)
        task = RolloutTask(0, generator.prepare(service.store.rows()[0]).roots[0], RECIPES[0], seed=1)
        impl = AsyncGymRolloutImpl(1, GymServerConfig(url="http://127.0.0.1:9"))
        try:
            (request,) = impl._build_inputs(task)
            answer = (await service.run(request)).model_dump_json(by_alias=True)
            return impl._result_to_completion(task, RolloutResult.model_validate_json(answer))
        finally:
            await service.aclose()

    completion = asyncio.run(work())
    assert (completion.end_reason, completion.reward, completion.steps) == ("no_takeable_view", None, ())
    assert completion.num_steps == 0 and completion.worker_views == {}


Answer = Callable[[list[dict], int], tuple[int, list[bytes]]]


@contextmanager
def scripted(answer: Answer) -> Iterator[tuple[str, list[dict]]]:
    """A server that answers a request's rows, and the how-manieth request it is, with a status and lines."""
    asked: list[dict] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            asked.append({"rows": body["rows"], "key": self.headers["Idempotency-Key"]})
            status, lines = answer(body["rows"], len(asked))
            self.send_response(status)
            self.end_headers()
            for line in lines:
                self.wfile.write(line)

        def log_message(self, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture(scope="module")
def good_lines(root, url) -> dict[int, bytes]:
    """What the real server says to the rows of seed 1."""
    rows = gym(url)._build_inputs(RolloutTask(0, root, RECIPES[0], seed=1))
    body = {"rows": [row.model_dump(mode="json", by_alias=True) for row in rows]}
    said = httpx.post(f"{url}/run_rollouts", json=body, timeout=PATIENCE_S, trust_env=False).content.splitlines(
        keepends=True
    )
    return {json.loads(line)["_rowidx"]: line for line in said if not line.startswith(b'{"heartbeat"')}


@pytest.fixture
def asked_root(root) -> RolloutTask:
    return RolloutTask(0, root, RECIPES[0], seed=1)


def test_only_missing_rows_are_asked_for_again_with_the_same_key(asked_root, good_lines):
    def answer(rows, nth):
        torn = good_lines[1][:50]
        return 200, [b'{"heartbeat": 1}\n', good_lines[2], torn] if nth == 1 else [
            good_lines[r["_rowidx"]] for r in rows
        ]

    with scripted(answer) as (url, asked):
        group = run(gym(url), asked_root)
    assert [c.rollout_index for c in group.completions] == [0, 1, 2]
    assert [[row["_rowidx"] for row in request["rows"]] for request in asked] == [[0, 1, 2], [0, 1]]
    assert len({request["key"] for request in asked}) == 1


def test_a_busy_server_is_asked_again_but_not_for_ever(asked_root, good_lines):
    with scripted(lambda _rows, nth: (503, []) if nth == 1 else (200, list(good_lines.values()))) as (url, asked):
        assert len(run(gym(url), asked_root).completions) == N and len(asked) == 2
    with scripted(lambda _rows, _nth: (429, [])) as (url, asked):
        with refused(ServerUnavailable, "0, 1, 2", url, 429):
            run(gym(url, attempts=3), asked_root)
        assert len(asked) == 3


def test_one_deadline_holds_for_all_attempts(asked_root):
    release = threading.Event()
    with scripted(lambda _rows, _nth: (release.wait(PATIENCE_S), (200, []))[1]) as (url, _):
        with refused(ServerUnavailable, "0, 1, 2", "0.3 s"):
            run(gym(url, deadline_s=0.3, attempts=9), asked_root)
        release.set()


def failure(index: int, *, transient: bool) -> bytes:
    told = {"class": "RolloutFailed", "message": "the device went away", "transient": transient}
    return json.dumps({"_rowidx": index, "error": told}).encode() + b"\n"


def changed(line: bytes, **changes) -> bytes:
    return json.dumps(json.loads(line) | changes).encode() + b"\n"


def test_a_failure_is_an_error_and_never_a_reward(asked_root, good_lines):
    lines = [good_lines[0], failure(1, transient=False), good_lines[2]]
    with scripted(lambda _rows, _nth: (200, lines)) as (url, asked):
        with refused(RolloutFailed, "rollout 1", url, "the device went away"):
            run(gym(url), asked_root)
        assert len(asked) == 1
    lines[1] = failure(1, transient=True)
    with scripted(lambda _rows, nth: (200, lines if nth == 1 else lines[1:2])) as (url, asked):
        with refused(ServerUnavailable, "rollout 1", "RolloutFailed"):
            run(gym(url), asked_root)
        assert [len(request["rows"]) for request in asked] == [3, 1]


@pytest.mark.parametrize(
    ("spoil", "error", "names"),
    [
        (lambda good: [good[0], good[0]], AnswerRefused, ["rollout 0"]),
        (lambda good: [changed(good[0], _rowidx=3)], AnswerRefused, ["rollout 3", "0 to 2"]),
        (lambda good: [changed(good[0], _rowidx=None)], AnswerRefused, ["rollout -1", "0 to 2"]),
        (lambda _good: [b"nonsense\n"], AnswerRefused, ["JSON"]),
        (lambda _good: [b'{"_rowidx": 1}\n'], AnswerRefused, ["'error'", '{"_rowidx": 1}']),
        (lambda good: [changed(good[0], seed=2), good[1], good[2]], AnswerRefused, ["rollout 0", 2, "/health"]),
        (lambda good: [changed(good[0], reward=0.5), good[1], good[2]], AnswerRefused, ["rollout 0", 0.5, "/health"]),
        (lambda good: [changed(good[0], reward=None), good[1], good[2]], AnswerRefused, ["rollout 0", None, "/health"]),
        (
            lambda good: [changed(good[0], end_reason="dead_end"), good[1], good[2]],
            AnswerRefused,
            ["rollout 0", "'dead_end'", "'horizon'"],
        ),
        (lambda good: [changed(good[0], final_points=1), good[1], good[2]], AnswerRefused, ["rollout 0", 1, "/health"]),
        (
            lambda good: [changed(good[0], step_timings_s=[0.1]), good[1], good[2]],
            AnswerRefused,
            ["rollout 0", 1, 3, "/health"],
        ),
        (lambda good: [changed(good[0], chains="AAAA"), good[1], good[2]], PayloadDamaged, ["3 bytes"]),
        (lambda good: [changed(good[0], chains=None), good[1], good[2]], PayloadDamaged, ["0 bytes"]),
    ],
)
def test_answers_that_cannot_be_used_are_refused(asked_root, good_lines, spoil, error, names):
    with scripted(lambda _rows, _nth: (200, spoil(good_lines))) as (url, _), refused(error, *names):
        run(gym(url), asked_root)


def test_a_target_that_the_server_refuses_is_a_failure(asked_root, good_lines):
    unmatched = changed(good_lines[0], status="refused", refused_reason="TARGET_GT_UNMATCHED", reward=None)
    with (
        scripted(lambda _rows, _nth: (200, [unmatched, good_lines[1], good_lines[2]])) as (url, _),
        refused(RolloutFailed, "rollout 0", url, "TARGET_GT_UNMATCHED"),
    ):
        run(gym(url), asked_root)


def test_what_asking_again_does_not_mend_is_not_asked_again(asked_root):
    told = json.dumps({"error": {"class": "X", "message": "no such sample", "field": "rows[0].sample_key"}}).encode()
    for status, body, error in ((422, told, RowRefused), (401, b"", ServerError), (404, b"<html>", ServerError)):
        with scripted(lambda _rows, _nth, said=(status, [body]): said) as (url, asked):
            with pytest.raises(error):
                run(gym(url), asked_root)
            assert len(asked) == 1
