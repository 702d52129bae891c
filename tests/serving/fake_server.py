"""A real HTTP server with made-up results, which fails, hangs and drops connections on request."""

from __future__ import annotations

import asyncio
import hashlib
import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tests.support.waiting import POLL_S, wait_until

HEALTH = {
    "campaign": "made-up",
    "config_hashes": {"writer": "w"},
    "source_manifest_hash": "s",
    "split_manifest_hashes": {"train": "t", "val": "v"},
}
Fault = Callable[[dict[str, Any], int], str | None]


@dataclass
class FakeServer:
    """``fault(row, nth request of this row)`` says: fail, refuse, busy, hang, drop, nonsense or other; or nothing."""

    fault: Fault = lambda *_: None
    health: dict[str, Any] = field(default_factory=lambda: dict(HEALTH))
    url: str = ""
    requests: Counter[tuple[int, int]] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    order: list[int] = field(default_factory=list)
    under_way: int = 0
    most_under_way: int = 0
    held: Callable[[], bool] = lambda: False
    """Whether answers are held back for the moment."""
    idempotency_keys: set[str] = field(default_factory=set)

    async def run(self, request: Request) -> Response:
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            return await self._run(request)
        finally:
            self.under_way -= 1

    async def _run(self, request: Request) -> Response:
        row = json.loads(await request.body())
        key = row["_task_index"], row["_rollout_index"]
        self.idempotency_keys.add(request.headers["idempotency-key"])
        self.requests[key] += 1
        self.order.append(row["_task_index"])
        fault = self.fault(row, self.requests[key])
        if fault is not None:
            self.faults[fault] += 1
        match fault:
            case "fail":
                return failure(500, "RolloutFailed", "the oracle stumbled", True)
            case "refuse":
                return failure(422, "RowRefused", "params.horizon: too long", False)
            case "busy":
                return failure(429, "RequestRefused", "busy", True, {"Retry-After": "0.02"})
            case "hang":
                await asyncio.sleep(3600)
            case "drop":
                request.scope["transport"].abort()
                await asyncio.sleep(0.05)
            case "nonsense":
                return JSONResponse({"reward": "plenty"})
            case "other":
                return JSONResponse(fake_result(row | {"_task_index": key[0] + 1}))
        while self.held():
            await asyncio.sleep(POLL_S)
        return JSONResponse(fake_result(row))

    async def say_health(self, request: Request) -> Response:
        return JSONResponse({"status": "ok"} | self.health)


def failure(status: int, kind: str, message: str, transient: bool, headers: dict[str, str] | None = None) -> Response:
    return JSONResponse({"error": {"class": kind, "message": message, "transient": transient}}, status, headers)


def fake_result(row: dict[str, Any]) -> dict[str, Any]:
    """A result that depends on the row alone."""
    draw = chance(row["_task_index"], row["_rollout_index"], "reward")
    return {
        "sample_key": row["sample_key"],
        "source_row": 0,
        "split": "train",
        "target_id": "t",
        "target_rank": 0,
        "agent_ref": row["agent_ref"],
        "seed": row.get("seed", 0),
        "status": "completed",
        "reward": draw,
        "num_steps": 1,
        "views_scored": 4,
        "mean_valid_fanout": 4.0,
        "root_error_m2": 1.0,
        "final_error_m2": 1.0 - draw,
        "root_points": 10,
        "final_points": 20,
        "truncated": False,
        "truncation_reason": None,
        "end_reason": "horizon",
        "steps": [{"step": 0, "root_gain": draw}],
        "content_sha256": hashlib.sha256(json.dumps(row, sort_keys=True).encode()).hexdigest(),
        "timings_s": {"total": 0.0},
        "step_timings_s": [0.0],
        "_task_index": row["_task_index"],
        "_rollout_index": row["_rollout_index"],
    }


def chance(*parts: Any) -> float:
    """A number in [0, 1) that depends on the parts alone."""
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:6], "big") / 2**48


class _Server(uvicorn.Server):
    def install_signal_handlers(self) -> None:
        """The test's own process handles signals."""


class _Host:
    """A listening port in a thread, which serves one application after another.

    Starting and stopping uvicorn takes longer than most tests, so a host is used again. It ends with the process.
    """

    def __init__(self) -> None:
        self.app: Starlette | None = None
        served = {"port": 0, "log_config": None, "lifespan": "off", "http": "h11", "interface": "asgi3"}
        uv = _Server(uvicorn.Config(self._serve, **served))
        threading.Thread(target=uv.run, daemon=True).start()
        wait_until(lambda: uv.started, "a fake server that listens")
        self.url = f"http://127.0.0.1:{uv.servers[0].sockets[0].getsockname()[1]}"

    async def _serve(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass uvicorn's transport on to the application, which may abort it."""
        assert self.app is not None, "a request after the end of its test"
        await self.app(scope | {"transport": send.__self__.transport}, receive, send)


_idle_hosts: list[_Host] = []


@contextmanager
def running(server: FakeServer) -> Iterator[FakeServer]:
    """Serve at a port that no other running fake server has."""
    host = _idle_hosts.pop() if _idle_hosts else _Host()
    host.app = Starlette(routes=[Route("/run", server.run, methods=["POST"]), Route("/health", server.say_health)])
    server.url = host.url
    try:
        yield server
    finally:
        host.app = None
        _idle_hosts.append(host)
