"""Failed requests in the server's log: with their id and the reason, and never with a token or a body."""

import asyncio
import logging

import httpx
import pytest

from rollout_assets.config import load_campaign
from rollout_assets.serving.server.app import rollout_app
from rollout_assets.serving.server.options import ServerOptions
from rollout_assets.serving.service import RolloutService
from tests.defs.campaigns import write_campaign
from tests.serving.test_server import TOKEN, ask, lines

pytestmark = pytest.mark.quick


@pytest.fixture(scope="module")
def service(small_store, tmp_path_factory) -> RolloutService:
    return RolloutService(load_campaign(write_campaign(tmp_path_factory.mktemp("logged"), small_store)))


@pytest.fixture
def log(caplog):
    caplog.set_level(logging.INFO, "rollout_assets")
    return caplog


GUARDED = {"Authorization": f"Bearer {TOKEN}"}


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "reason"),
    [
        ("POST", "/run", {"source_row": 77}, 422, "POST /run: 422 RowRefused: source_row"),
        ("POST", "/run", {"seed": "a secret"}, 422, "POST /run: 422 RowRefused: seed: int_type"),
        ("POST", "/run_rollouts", {"rows": []}, 422, "POST /run_rollouts: 422 RowRefused: rows: "),
        ("GET", f"/{TOKEN}", None, 404, "GET an unknown path: 404 RequestRefused: "),
        ("GET", f"/run?token={TOKEN}", None, 405, "GET /run: 405 RequestRefused: "),
    ],
)
def test_a_failed_request_is_logged_with_its_id_and_why(service, log, method, path, body, status, reason):
    asgi = rollout_app(service, ServerOptions(token=TOKEN))
    answer = ask(asgi, method, path, json=body, headers=GUARDED | {"X-Request-Id": "night-7"})
    assert answer.status_code == status
    assert answer.headers["x-request-id"] == answer.json()["request_id"] == "night-7"
    (line,) = [record.getMessage() for record in log.records if record.name.startswith("rollout_assets")]
    assert line.startswith(f"request night-7: {reason}")
    assert TOKEN not in log.text and "a secret" not in log.text


def test_a_request_without_a_sane_id_gets_one(service, log):
    asgi = rollout_app(service, ServerOptions(token=TOKEN))
    for given in ("", "two words", "x" * 65, "line\tbreak", TOKEN):
        answer = ask(asgi, "POST", "/run", json={}, headers=GUARDED | {"X-Request-Id": given})
        made = answer.json()["request_id"]
        assert len(made) == 32 and answer.headers["x-request-id"] == made and f"request {made}: " in log.text
    fine = ask(asgi, "GET", "/health", headers=GUARDED)
    assert fine.status_code == 200 and fine.headers["x-request-id"] not in log.text, "what worked is not logged"
    assert TOKEN not in log.text


def test_a_wrong_token_is_logged_as_such_and_never_shown(service, log):
    asgi = rollout_app(service, ServerOptions(token=TOKEN))
    wrong = ask(asgi, "GET", "/health", headers={"Authorization": "Bearer guessed-token"})
    assert wrong.json()["request_id"] == wrong.headers["x-request-id"]
    assert f"request {wrong.json()['request_id']}: GET /health: 401 RequestRefused: " in log.text
    assert TOKEN not in log.text and "guessed" not in log.text


def test_a_rollout_that_fails_in_a_stream_is_logged_with_its_index(service, log):
    body = {"rows": [{"source_row": 9, "_rowidx": 5}]}
    answer = ask(rollout_app(service, ServerOptions()), "POST", "/run_rollouts", json=body)
    (line,) = lines(answer)
    assert line["request_id"] == answer.headers["x-request-id"]
    assert f"request {line['request_id']}: POST /run_rollouts: 422 RowRefused: _rowidx 5: source_row" in log.text


def test_a_fault_of_the_program_is_logged_with_its_traceback(log):
    class Broken:
        def describe(self):
            raise ZeroDivisionError("no such thing")

    asgi = rollout_app(Broken(), ServerOptions())

    async def work() -> httpx.Response:
        transport = httpx.ASGITransport(asgi, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
            return await http.get("/health")

    answer = asyncio.run(work())
    assert answer.status_code == 500 and answer.headers["x-request-id"] == answer.json()["request_id"]
    (record,) = [record for record in log.records if record.name.startswith("rollout_assets")]
    assert record.levelname == "ERROR" and record.exc_info[0] is ZeroDivisionError
