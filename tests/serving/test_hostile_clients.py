"""Clients that send too much or too little, or come under a foreign name: every other client is still answered."""

import json
import logging
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import httpx
import pytest
from pydantic import ValidationError

from rollout_assets.collection import RolloutCollectionConfig
from rollout_assets.config.problems import validation_problems
from rollout_assets.errors import ConfigError, StoreError
from rollout_assets.rollouts.manager.gym import GymServerConfig
from rollout_assets.rollouts.remote.client import RolloutClient
from rollout_assets.rollouts.remote.messages import RolloutRequest
from rollout_assets.rollouts.zarr_store import RolloutZarrStoreReader
from rollout_assets.serving.server.app import MAX_FIGURES, MAX_VALUES, rollout_app
from rollout_assets.serving.server.options import ServerOptions
from rollout_assets.serving.server.process import _Server, bind
from tests.serving.test_server import TOKEN, ask, error
from tests.support.waiting import PATIENCE_S, wait_until

MANY = 20_000
SECRET = "a-secret-of-a-client"


class IdleService:
    """What a server needs of a service that is asked for no rollout."""

    def describe(self) -> dict[str, object]:
        return {}

    async def warm_up(self) -> None:
        return None

    async def aclose(self) -> None:
        return None


@contextmanager
def serving(**options: object) -> Iterator[tuple[str, int]]:
    """Serve from a thread of this process; gives host and port."""
    settings, ready = ServerOptions(**options), threading.Event()
    with bind(settings) as listener:
        server = _Server(IdleService(), settings, ready.set)
        thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
        thread.start()
        try:
            assert ready.wait(PATIENCE_S)
            yield listener.getsockname()
        finally:
            server.should_exit = True
            thread.join(PATIENCE_S)
            assert not thread.is_alive()


def is_closed(raw: socket.socket) -> bool:
    """Whether the server has ended a connection that it sent nothing on."""
    raw.setblocking(False)
    try:
        return raw.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


def health(address: tuple[str, int]) -> int:
    return httpx.get("http://{}:{}/health".format(*address), trust_env=False, timeout=PATIENCE_S).status_code


def test_many_unknown_keys_are_one_refusal():
    row = {"source_row": 0} | {f"key{number}": number for number in range(MANY)}
    with pytest.raises(ValidationError) as caught:
        RolloutRequest.model_validate(row | {"params": {"horizon": 0}})
    assert len(validation_problems(caught.value)) == MANY + 1
    asgi = rollout_app(IdleService(), ServerOptions())
    for path, body, where in (("/run", row, "body"), ("/run_rollouts", {"rows": [{}, row]}, "rows[1]")):
        answer = ask(asgi, "POST", path, json=body)
        assert answer.status_code == 422 and error(answer)["class"] == "RequestRefused"
        assert error(answer)["message"].startswith(f"{where}: ") and f"{MAX_VALUES:,}" in error(answer)["message"]
    some = ask(asgi, "POST", "/run", json={"source_row": 0} | {f"key{number}": 0 for number in range(500)})
    assert some.status_code == 422 and len(error(some)["problems"]) == 100
    many_rows = ask(asgi, "POST", "/run_rollouts", json={"rows": [1] * MANY})
    assert many_rows.status_code == 413 and str(MANY) in error(many_rows)["message"]


def test_a_result_with_too_many_figures_is_refused():
    asgi = rollout_app(IdleService(), ServerOptions())
    result = {"agent_ref": {"name": "one"}, "_task_index": 0, "_rollout_index": 0, "reward": 1.0}
    wide = result | {f"figure{number}": number for number in range(MANY)}
    agents = [result | {"agent_ref": {"name": f"agent{number}"}} for number in range(MAX_FIGURES)]
    for results in ([wide], agents):
        assert ask(asgi, "POST", "/aggregate_metrics", json={"results": results}).status_code == 413
    assert ask(asgi, "POST", "/aggregate_metrics", json={"results": [result]}).status_code == 200


def test_unfinished_headers_are_closed_and_others_answered():
    unfinished = b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-"
    with ExitStack() as stack:
        address = stack.enter_context(serving(max_connections=8, headers_timeout_s=PATIENCE_S))
        started = [stack.enter_context(socket.create_connection(address)) for _ in range(20)]
        for raw in started:
            raw.sendall(unfinished)
        assert health(address) == 200
        wait_until(lambda: is_closed(started[0]), "the oldest connection is closed")
        assert not is_closed(started[-1])
    with ExitStack() as stack:
        address = stack.enter_context(serving(headers_timeout_s=0.2))
        silent, slow = (stack.enter_context(socket.create_connection(address)) for _ in range(2))
        again = stack.enter_context(socket.create_connection(address))
        again.sendall(unfinished + b"A: b\r\n\r\n")
        assert again.recv(65_536).startswith(b"HTTP/1.1 200")
        slow.sendall(unfinished)
        again.sendall(unfinished)
        for raw in (silent, slow, again):
            wait_until(lambda raw=raw: is_closed(raw), "a connection without a request is closed")
        assert health(address) == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "attacker.example"}, 421),
        ({"Host": "attacker.example:8000"}, 421),
        ({"Host": "127.0.0.1.attacker.example"}, 421),
        ({"Host": "localhost@attacker.example:1"}, 421),
        ({"Host": "[::1"}, 421),
        ({"Origin": "https://attacker.example"}, 421),
        ({"Origin": "null"}, 421),
        ({"Host": "[::1]:8000", "Origin": "http://localhost:3000"}, 200),
        ({"Host": "127.0.0.1:8000"}, 200),
    ],
)
def test_without_a_token_only_names_of_this_machine_count(headers, status):
    open_server, guarded = (rollout_app(IdleService(), ServerOptions(token=token)) for token in (None, TOKEN))
    assert ask(open_server, "GET", "/health", headers=headers).status_code == status
    assert ask(guarded, "GET", "/health", headers=headers | {"Authorization": f"Bearer {TOKEN}"}).status_code == 200


def test_a_refused_request_puts_none_of_its_words_into_the_log(caplog):
    caplog.set_level(logging.INFO)
    asgi = rollout_app(IdleService(), ServerOptions())
    bodies = [
        {"source_row": 0, SECRET: 1},
        {"source_row": 0, "recipe": {"name": SECRET, SECRET: SECRET}},
        {"source_row": 0, "params": {SECRET: {SECRET: 1}}},
        {"source_row": 0, "include": [SECRET]},
    ]
    for body in bodies:
        assert ask(asgi, "POST", "/run", json=body).status_code == 422
    result = {"agent_ref": SECRET, "_task_index": 0}
    assert ask(asgi, "POST", "/aggregate_metrics", json={"results": [result]}).status_code == 422
    assert ask(asgi, "POST", "/run", content=json.dumps(SECRET), headers={"Content-Type": SECRET}).status_code == 415
    assert caplog.text.count("RowRefused") == len(bodies) and SECRET not in caplog.text


def test_passwords_in_urls_are_refused_and_not_shown(tmp_path):
    url = f"http://user:{SECRET}@localhost:1"
    given = {"input_jsonl_fpath": tmp_path / "in", "output_jsonl_fpath": tmp_path / "out.jsonl"}
    attempts = (
        lambda: RolloutClient(url),
        lambda: GymServerConfig(url=url),
        lambda: RolloutCollectionConfig(**given, server_urls=(url,)),
        lambda: RolloutCollectionConfig(**given, server_urls=(f"ftp://user:{SECRET}@localhost",)),
        lambda: RolloutCollectionConfig(**given, server_urls=(f"user:{SECRET}@localhost",)),
        lambda: RolloutZarrStoreReader(f"{url}/store"),
    )
    for attempt in attempts:
        with pytest.raises((ConfigError, StoreError, ValidationError)) as caught:
            attempt()
        assert "localhost" in str(caught.value) and SECRET not in str(caught.value)
