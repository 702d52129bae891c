"""The server under good and bad clients: it answers, refuses with a reason, and stays up."""

import asyncio
import errno
import json
import os
import random
import socket
import time

import httpx
import pytest
from typer.testing import CliRunner

from rollout_assets.cli import app
from rollout_assets.config import RolloutRecipeConfig, load_campaign
from rollout_assets.errors import ConfigError
from rollout_assets.rollouts.remote.messages import RolloutRequest, RolloutResult
from rollout_assets.serving.server.app import rollout_app
from rollout_assets.serving.server.idempotency import IdempotencyCache
from rollout_assets.serving.server.options import ServerOptions
from rollout_assets.serving.server.streams import LineStream
from rollout_assets.serving.service import RolloutService
from tests.defs.campaigns import write_campaign
from tests.serving.server_process import RunningServer, running_server
from tests.support.refusals import assert_names, refused
from tests.support.waiting import PATIENCE_S, wait_until

TOKEN = "a-token-for-tests"
IN_FLIGHT = 240


@pytest.fixture(scope="module")
def campaign(small_store, tmp_path_factory):
    return write_campaign(tmp_path_factory.mktemp("served"), small_store)


@pytest.fixture(scope="module")
def server(campaign, tmp_path_factory):
    options = ("--max-in-flight", str(IN_FLIGHT), "--max-body-mib", "1", "--shutdown-s", "1", "--token-env", "TOKEN")
    with running_server(campaign, tmp_path_factory.mktemp("server"), *options, TOKEN=TOKEN) as running:
        yield running


@pytest.fixture
def client(server):
    with httpx.Client(
        base_url=server.url, headers={"Authorization": f"Bearer {TOKEN}"}, timeout=60, trust_env=False
    ) as http:
        yield http


def error(response: httpx.Response) -> dict:
    assert response.headers["content-type"] == "application/json"
    return response.json()["error"]


def lines(response: httpx.Response) -> list[dict]:
    return [json.loads(line) for line in response.text.splitlines()]


def wait_until_idle(client: httpx.Client) -> None:
    wait_until(lambda: not client.get("/health").json()["in_flight"], "an idle server")


def test_health_says_what_is_served(client):
    health = client.get("/health").json()
    assert (health["status"], health["campaign"], health["device"]) == ("ok", "tiny", "cpu")
    assert health["recipes"] == ["oracle_greedy"] and len(health["config_hashes"]) == 4
    assert (health["in_flight"], health["max_in_flight"]) == (0, IN_FLIGHT)


def test_one_row_gives_one_result(client):
    result = client.post("/run", json={"source_row": 0, "_task_index": 3, "_rollout_index": 1}).json()
    assert result["status"] == "completed" and result["reward"] > 0
    assert (result["_task_index"], result["_rollout_index"], result["seed"]) == (3, 1, 5)


def test_rows_are_streamed_and_one_that_fails_fails_alone(client):
    rows = [{"source_row": i, "_rowidx": i} for i in (3, 9, 0)]
    found = {line["_rowidx"]: line for line in lines(client.post("/run_rollouts", json={"rows": rows}))}
    assert found.keys() == {0, 3, 9}
    assert found[0]["status"] == found[3]["status"] == "completed"
    assert found[9]["error"] == {
        "class": "RowRefused",
        "message": "source_row: the source has rows 0 to 3, got 9",
        "transient": False,
        "field": "source_row",
    }


def test_results_are_those_of_a_service_in_this_process_to_the_bit(client, campaign):
    recipes = [
        RolloutRecipeConfig(name="walk", policy="random_valid", horizon=3),
        RolloutRecipeConfig(name="look", policy="temperature_softmax", branch=2, beam_width=2),
    ]
    rows = [
        RolloutRequest(source_row=index % 4, recipe=recipes[index // 4], include=("record", "chains"), row_index=index)
        for index in range(8)
    ]

    async def locally() -> list[RolloutResult]:
        service = RolloutService(load_campaign(campaign))
        try:
            return await asyncio.gather(*(service.run(row) for row in rows))
        finally:
            await service.aclose()

    body = {"rows": [row.model_dump(mode="json", by_alias=True) for row in rows]}
    told = client.post("/run_rollouts", json=body).text.splitlines()
    there = sorted(map(RolloutResult.model_validate_json, told), key=lambda result: result.row_index)
    here = asyncio.run(locally())
    timings = {"timings_s": {}, "step_timings_s": ()}
    assert [r.model_copy(update=timings) for r in there] == [r.model_copy(update=timings) for r in here]


def test_metrics_of_results_can_be_asked_for(client):
    results = [
        client.post("/run", json={"source_row": 0, "_task_index": 0, "_rollout_index": i}).json() for i in (0, 1)
    ]
    answer = client.post("/aggregate_metrics", json={"results": results})
    assert answer.status_code == 200
    (metrics,) = answer.json()
    assert metrics["agent_ref"] == {"name": "oracle_greedy"}


@pytest.mark.parametrize("given", [{}, {"Authorization": "Bearer wrong"}, {"Authorization": TOKEN}])
@pytest.mark.parametrize("route", ["/health", "/nowhere"])
def test_without_the_token_nothing_is_answered(server, given, route):
    answer = httpx.get(server.url + route, headers=given, trust_env=False)
    assert answer.status_code == 401 and error(answer)["class"] == "RequestRefused"
    assert answer.headers["www-authenticate"] == "Bearer"


def test_unknown_routes_and_methods_are_refused_as_json(client):
    absent = client.get("/nowhere")
    assert absent.status_code == 404 and "GET /nowhere" in error(absent)["message"]
    wrong = client.get("/run")
    assert wrong.status_code == 405 and wrong.headers["allow"] == "POST"
    assert "GET /run" in error(wrong)["message"]
    assert error(wrong) | {"message": ""} == {"class": "RequestRefused", "message": "", "transient": False}


@pytest.mark.parametrize(
    ("body", "field", "names"),
    [
        ({}, "body", ["sample_key", "source_row"]),
        ({"source_row": -1}, "source_row", [-1]),
        ({"source_row": 0, "seeed": 1}, "seeed", ["seeed"]),
        ({"source_row": 0, "params": {"horizon": 0}}, "params.horizon", [1, 0]),
        ({"source_row": 0, "recipe": {"name": "x", "policy": "y"}}, "recipe.policy", ["'y'"]),
        ({"source_row": 0, "include": ["all"]}, "include[0]", ["'chains'", "'record'", "'all'"]),
        ({"source_row": 77}, "source_row", ["0 to 3", 77]),
        ({"source_row": 0, "target": 5}, "target", ["0 to 0", 5]),
    ],
)
def test_a_malformed_row_is_422_with_the_field_and_the_value(client, body, field, names):
    answer = client.post("/run", json=body)
    assert answer.status_code == 422
    assert error(answer)["field"] == field and not error(answer)["transient"]
    assert_names(error(answer)["message"], *names)


def test_malformed_batches_name_the_row(client):
    rows = [{"source_row": 0, "_rowidx": 0}, {"source_row": "x", "_rowidx": 1}]
    assert error(client.post("/run_rollouts", json={"rows": rows}))["field"] == "rows[1].source_row"
    for second in ({}, {"_rowidx": 0}):
        answer = client.post("/run_rollouts", json={"rows": [rows[0], {"source_row": 0} | second]})
        assert answer.status_code == 422 and "rows[1]._rowidx" in error(answer)["message"]
    assert error(client.post("/run_rollouts", json={"rows": []}))["field"] == "rows"
    for junk in (b"", b"{", b"\xff\xfe", b"[" * 100_000, b"null"):
        assert client.post("/run_rollouts", content=junk).status_code == 422


def test_large_bodies_are_refused_with_and_without_a_length(client):
    declared = client.post("/run", content=b" " * (1 << 20) + b"{}")
    assert declared.status_code == 413 and "1,048,576 bytes" in error(declared)["message"]

    def endless():
        for _ in range(64):
            yield b" " * (1 << 16)

    streamed = client.post("/run", content=endless())
    assert streamed.status_code == 413
    assert client.get("/health").status_code == 200


def test_a_form_from_a_web_page_is_no_row(client):
    answer = client.post("/run", data={"source_row": "0"})
    assert answer.status_code == 415 and "application/json" in error(answer)["message"]


def test_more_rows_than_fit_are_told_to_come_again(client):
    rows = [{"source_row": i % 4, "seed": i, "_rowidx": i} for i in range(IN_FLIGHT)]
    with client.stream("POST", "/run_rollouts", json={"rows": rows}) as busy:
        assert busy.status_code == 200
        refused = client.post("/run", json={"source_row": 0})
        assert refused.status_code == 429 and refused.headers["retry-after"] == "1"
        assert error(refused)["transient"]
    wait_until_idle(client)
    too_many = client.post("/run_rollouts", json={"rows": [*rows, {"source_row": 0, "_rowidx": IN_FLIGHT}]})
    assert too_many.status_code == 413 and f"may ask for {IN_FLIGHT} rows" in error(too_many)["message"]


def test_a_client_that_goes_away_takes_its_work_with_it(client):
    rows = [{"source_row": i % 4, "seed": 5_000 + i, "_rowidx": i} for i in range(IN_FLIGHT)]
    with client.stream("POST", "/run_rollouts", json={"rows": rows}) as stream:
        next(stream.iter_raw())
    wait_until_idle(client)


def test_a_lone_run_whose_client_goes_away_is_cancelled(server, client):
    body = json.dumps({"source_row": 0, "seed": 123, "params": {"horizon": 250}}).encode()
    head = f"POST /run HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\nContent-Length: {len(body)}\r\n\r\n"
    host, _, port = server.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port))) as raw:
        raw.sendall(head.encode() + body)
        wait_until(lambda: client.get("/health").json()["in_flight"], "a run under way")
    wait_until_idle(client)


def test_what_is_not_http_does_not_take_it_down(server, client):
    rng = random.Random(7)
    host, _, port = server.url.removeprefix("http://").partition(":")
    starts = [b"", b"GET / HTTP/1.1\r\n", b"POST /run HTTP/1.1\r\nContent-Length: 99\r\n\r\n", b"\x16\x03\x01"]
    for number in range(60):
        with socket.create_connection((host, int(port)), timeout=5) as raw:
            raw.sendall(starts[number % len(starts)] + rng.randbytes(rng.randrange(300)))
    assert client.post("/run", json={"source_row": 0}).json()["status"] == "completed"
    wait_until_idle(client)


def test_the_same_key_and_row_is_run_once(client):
    row = {"source_row": 1, "seed": 31}
    headers = {"Idempotency-Key": "once"}
    first = client.post("/run", json=row, headers=headers).json()
    assert client.post("/run", json=row, headers=headers).json() == first
    other_key = client.post("/run", json=row, headers={"Idempotency-Key": "twice"}).json()
    assert other_key["timings_s"] != first["timings_s"] and other_key["content_sha256"] == first["content_sha256"]
    other_row = client.post("/run", json=row | {"seed": 32}, headers=headers).json()
    assert other_row["seed"] == 32
    assert client.post("/run", json=row, headers={"Idempotency-Key": "x" * 201}).status_code == 422


def test_remembered_answers_are_bounded_shared_and_forget_failures():
    runs = []

    async def work() -> None:
        answers = IdempotencyCache(max_bytes=25)

        async def slow(text: bytes) -> bytes:
            runs.append(text)
            await asyncio.sleep(0.02)
            if text == b"bad":
                raise RuntimeError("no")
            return text

        def ask(text: bytes) -> asyncio.Task[bytes]:
            return asyncio.ensure_future(answers.answer((text.decode(), ""), lambda: slow(text)))

        assert await asyncio.gather(*(ask(b"ten bytes!") for _ in range(5))) == [b"ten bytes!"] * 5
        for text in (b"ten others", b"ten bytes!", b"ten at end", b"ten others"):
            await ask(text)
        assert runs == [b"ten bytes!", b"ten others", b"ten at end", b"ten others"]
        assert isinstance((await asyncio.gather(ask(b"bad"), return_exceptions=True))[0], RuntimeError)
        assert isinstance((await asyncio.gather(ask(b"bad"), return_exceptions=True))[0], RuntimeError)
        assert runs[4:] == [b"bad", b"bad"]
        one, two = ask(b"shared"), ask(b"shared")
        await asyncio.sleep(0.005)
        one.cancel()
        assert await two == b"shared"
        alone = ask(b"alone")
        await asyncio.sleep(0.005)
        alone.cancel()
        await asyncio.sleep(0)
        assert await ask(b"alone") == b"alone"

    asyncio.run(work())
    assert runs[6:] == [b"shared", b"alone", b"alone"]


def ask(asgi, method: str, path: str, **request) -> httpx.Response:
    """One request to an application in this process."""

    async def work() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(asgi), base_url="http://localhost") as http:
            return await http.request(method, path, **request)

    return asyncio.run(work())


@pytest.fixture(scope="module")
def service(campaign) -> RolloutService:
    return RolloutService(load_campaign(campaign))


def test_going_down_it_turns_every_request_away(service):
    asgi = rollout_app(service, ServerOptions())
    assert ask(asgi, "GET", "/health").status_code == 200
    asgi.closing = True
    for method, path in (("GET", "/health"), ("POST", "/run")):
        answer = ask(asgi, method, path)
        assert answer.status_code == 503 and answer.headers["connection"] == "close"
        assert error(answer)["transient"] and "shutting down" in error(answer)["message"]


def test_a_body_that_does_not_come_is_not_waited_for(service):
    async def slow():
        yield b"{"
        await asyncio.sleep(5)

    answer = ask(rollout_app(service, ServerOptions(body_timeout_s=0.05)), "POST", "/run", content=slow())
    assert answer.status_code == 408 and "0.05 s" in error(answer)["message"]


def test_large_bodies_together_are_bounded_too(service):
    options = ServerOptions(max_body_bytes=1_000, body_timeout_s=0.3)
    asgi = rollout_app(service, options)

    async def slow():
        yield b" " * 900
        await asyncio.sleep(5)

    async def work() -> list[int]:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(asgi), base_url="http://localhost") as http:
            answers = await asyncio.gather(*(http.post("/run", content=slow()) for _ in range(10)))
            again = await http.post("/run", content=b" " * 900)
        return [answer.status_code for answer in (*answers, again)]

    assert sorted(asyncio.run(work())) == [408] * 8 + [422] + [429] * 2


def test_a_stream_with_nothing_to_tell_has_heartbeats():
    async def late(text: bytes, seconds: float) -> bytes:
        await asyncio.sleep(seconds)
        return text

    async def asgi(scope, receive, send):
        tasks = [asyncio.ensure_future(late(b'"b"', 0.2)), asyncio.ensure_future(late(b'"a"', 0.01))]
        await LineStream(tasks, heartbeat_s=0.05, patience_s=1)(scope, receive, send)

    told = lines(ask(asgi, "POST", "/"))
    assert (told[0], told[-1]) == ("a", "b")
    assert told[1:-1] == [{"heartbeat": beat} for beat in range(1, len(told) - 1)] and len(told) >= 4


def test_results_that_are_none_are_refused_by_field(client):
    assert client.post("/aggregate_metrics", json={"results": [3]}).status_code == 422
    assert client.post("/aggregate_metrics", json={"results": [{"reward": 1}]}).status_code == 422


def assert_withstands(server: RunningServer, clients: int, seconds: float) -> int:
    """Clients that ask without pause, each at least once; every answer is a result. Returns how many there were."""

    async def one(http: httpx.AsyncClient, number: int, until: float) -> int:
        answered = 0
        while not answered or time.monotonic() < until:
            row = {"source_row": number % 4, "seed": time.monotonic_ns()}
            answer = await http.post("/run", json=row)
            assert answer.status_code == 200 and answer.json()["status"] == "completed", answer.text
            answered += 1
        return answered

    async def all_of_them() -> int:
        limits = httpx.Limits(max_connections=clients, max_keepalive_connections=clients)
        headers = {"Authorization": f"Bearer {TOKEN}"}
        async with httpx.AsyncClient(
            base_url=server.url, headers=headers, timeout=PATIENCE_S, limits=limits, trust_env=False
        ) as http:
            until = time.monotonic() + seconds
            return sum(await asyncio.gather(*(one(http, number, until) for number in range(clients))))

    return asyncio.run(all_of_them())


@pytest.mark.parametrize("clients", [40, pytest.param(200, marks=pytest.mark.ci)])
def test_many_clients_at_once_get_their_answers(server, clients):
    before = server.rss_mib()
    assert assert_withstands(server, clients, seconds=0) >= clients
    assert server.rss_mib() - before < 300


@pytest.mark.slow
def test_200_clients_meet_no_error_and_memory_stays_bounded(server):
    assert_withstands(server, clients=200, seconds=15)
    before = server.rss_mib()
    answered = assert_withstands(server, clients=200, seconds=60)
    grown = server.rss_mib() - before
    assert answered > 500 and grown < 64, f"grew by {grown:.0f} MiB over {answered} rollouts"


def test_the_log_never_shows_the_token(server):
    assert TOKEN not in server.log.read_text()


def answers(server: RunningServer) -> bool:
    try:
        return httpx.get(f"{server.url}/health", trust_env=False).is_success
    except httpx.TransportError:
        return False


def test_told_to_stop_it_ends_with_work_under_way(server, client):
    """Last in this file: it ends the server."""
    rows = [{"source_row": i % 4, "seed": i, "params": {"horizon": 250}, "_rowidx": i} for i in range(IN_FLIGHT)]
    with client.stream("POST", "/run_rollouts", json={"rows": rows}) as stream:
        assert stream.status_code == 200
        server.process.terminate()
        wait_until(lambda: not answers(server), "a server that is told to stop to answer no more")
        assert server.process.wait(PATIENCE_S) == 0
    assert "stopped" in server.log.read_text()


def test_beyond_loopback_a_token_is_needed(campaign):
    answer = CliRunner().invoke(app, ["serve", "-c", str(campaign), "--host", "0.0.0.0"])
    assert isinstance(answer.exception, ConfigError)
    assert_names(str(answer.exception), "'0.0.0.0'", "--token-env")


def test_a_token_that_is_not_there_or_cannot_be_sent_is_refused(campaign):
    command = ["serve", "-c", str(campaign), "--token-env", "NOT_SET_ANYWHERE"]
    assert "NOT_SET_ANYWHERE" in str(CliRunner().invoke(app, command).exception)
    answer = CliRunner().invoke(app, [*command[:-1], "ODD"], env={"ODD": "two words"})
    assert "ASCII" in str(answer.exception) and "two words" not in str(answer.exception)


def test_a_port_that_is_taken_is_one_clear_line(campaign):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        answer = CliRunner().invoke(app, ["serve", "-c", str(campaign), "--port", str(port)])
    assert_names(str(answer.exception), "127.0.0.1", port, os.strerror(errno.EADDRINUSE))


@pytest.mark.parametrize(
    ("host", "safe"), [("127.0.0.1", True), ("127.8.8.8", True), ("::1", True), ("localhost", True), ("", False)]
)
def test_what_counts_as_loopback(host, safe):
    assert ServerOptions(host=host, token=TOKEN).host == host
    if safe:
        assert ServerOptions(host=host).token is None
    else:
        with refused(ValueError, "host", "token"):
            ServerOptions(host=host)
    assert os.environ.get("TOKEN") is None and TOKEN not in repr(ServerOptions(token=TOKEN))
