"""The rollout server: requests in, results out, over HTTP.

    GET  /health             what is served, with hashes, and how busy it is
    POST /run                one rollout request -> one result
    POST /run_rollouts       {"rows": [...]} with ``_rowidx`` each -> JSON lines in completion order, with heartbeats
    POST /aggregate_metrics  {"results": [...]} -> metrics per agent

A rollout that fails is an error in its own answer. The same ``Idempotency-Key`` with the same request is run once.
Every answer has an ``X-Request-Id``.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable
from typing import Annotated, Any

from pydantic import Field, TypeAdapter
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Scope

from rollout_assets.metrics.results import ResultTable
from rollout_assets.rollouts.remote.messages import Message, RolloutRequest
from rollout_assets.serving.error_entries import error_entry, error_status
from rollout_assets.serving.server.http_errors import HANDLERS, RequestRefused, log_failure, logged_reason
from rollout_assets.serving.server.idempotency import IdempotencyCache
from rollout_assets.serving.server.limits import Admission, Bodies, Gate
from rollout_assets.serving.server.options import ServerOptions
from rollout_assets.serving.server.streams import LineStream, while_client_waits
from rollout_assets.serving.service import RolloutService

IDEMPOTENCY_KEY = "idempotency-key"
MAX_KEY_CHARACTERS = 200
MAX_VALUES = 1_000
"""Keys and items of one rollout request; its recipe and parameters are a few dozen."""
MAX_FIGURES = 2_000
"""Agents whose metrics a request may ask for, with the numeric fields of each."""

_JSON: TypeAdapter[Any] = TypeAdapter(Any)


class _Batch(Message):
    """The body of ``/run_rollouts``."""

    rows: Annotated[tuple[RolloutRequest, ...], Field(min_length=1)]


class _Results(Message):
    """The body of ``/aggregate_metrics``."""

    results: tuple[dict[str, Any], ...]


def rollout_app(service: RolloutService, options: ServerOptions) -> Gate:
    """The ASGI application; its ``closing`` flag turns every further request away."""
    routes = _Routes(service, options)
    app = Starlette(
        routes=[
            Route("/health", routes.health),
            Route("/run", routes.run, methods=["POST"]),
            Route("/run_rollouts", routes.run_rollouts, methods=["POST"]),
            Route("/aggregate_metrics", routes.aggregate_metrics, methods=["POST"]),
        ],
        exception_handlers=HANDLERS,
    )
    return Gate(app, options)


class _Routes:
    def __init__(self, service: RolloutService, options: ServerOptions) -> None:
        self._service, self._options = service, options
        self._bodies = Bodies(options)
        self._admission = Admission(options.max_in_flight)
        self._answers = IdempotencyCache(options.remembered_bytes)
        self._aggregating = asyncio.Lock()

    async def health(self, _request: Request) -> Response:
        description = self._service.describe()
        limits = {"in_flight": self._admission.in_flight, "max_in_flight": self._admission.limit}
        return JSONResponse({"status": "ok"} | description | limits)

    async def run(self, request: Request) -> Response:
        async with self._bodies.read(request) as body:
            rollout = await asyncio.to_thread(_lone_rollout, body)
        key = _idempotency_key(request)
        self._admission.enter(1)
        try:
            answer = await while_client_waits(request.receive, self._answer(rollout, key))
        finally:
            self._admission.leave()
        return Response(answer, media_type="application/json")

    async def run_rollouts(self, request: Request) -> Callable[..., Any]:
        async with self._bodies.read(request) as body:
            rollouts = await asyncio.to_thread(_rollouts, body, self._admission)
        _refuse_bad_indices(rollouts)
        key = _idempotency_key(request)
        self._admission.enter(len(rollouts))
        tasks = [asyncio.ensure_future(self._line(rollout, key, request.scope)) for rollout in rollouts]
        for task in tasks:
            task.add_done_callback(self._admission.leave)
        return LineStream(tasks, self._options.heartbeat_s, self._options.body_timeout_s)

    async def aggregate_metrics(self, request: Request) -> Response:
        async with self._bodies.read(request) as body, self._aggregating:
            metrics = await asyncio.to_thread(_aggregated, body)
        return Response(metrics, media_type="application/json")

    async def _answer(self, rollout: RolloutRequest, key: str | None) -> bytes:
        async def work() -> bytes:
            return (await self._service.run(rollout)).model_dump_json(by_alias=True).encode()

        if key is None:
            return await work()
        digest = hashlib.sha256(rollout.model_dump_json(by_alias=True).encode()).hexdigest()
        return await self._answers.answer((key, digest), work)

    async def _line(self, rollout: RolloutRequest, key: str | None, scope: Scope) -> bytes:
        try:
            return await self._answer(rollout, key)
        except Exception as error:
            entry = error_entry(error)
            reason = f"_rowidx {rollout.row_index}: {logged_reason(error)}"
            log_failure(scope, error_status(error), entry["class"], reason, error)
            return json.dumps(
                {"_rowidx": rollout.row_index, "error": entry, "request_id": scope["request_id"]}
            ).encode()


def _lone_rollout(body: bytes) -> RolloutRequest:
    _refuse_many_values(_JSON.validate_json(body), "body")
    return RolloutRequest.model_validate_json(body)


def _rollouts(body: bytes, admission: Admission) -> tuple[RolloutRequest, ...]:
    content = _JSON.validate_json(body)
    rows = content.get("rows") if isinstance(content, dict) else None
    if isinstance(rows, list):
        admission.refuse_more(len(rows))
        for position, row in enumerate(rows):
            _refuse_many_values(row, f"rows[{position}]")
        content["rows"] = None
    _refuse_many_values(content, "body")
    return _Batch.model_validate_json(body).rows


def _aggregated(body: bytes) -> bytes:
    table = ResultTable()
    table.add_all(_Results.model_validate_json(body).results)
    if table.columns > MAX_FIGURES:
        problem = f"a request may have {MAX_FIGURES:,} agents and figures of agents, got {table.columns:,}"
        raise RequestRefused(413, f"{problem}; aggregate the files with 'rollout-assets aggregate'")
    return json.dumps(table.metrics(), allow_nan=False).encode()


def _refuse_many_values(given: Any, where: str) -> None:
    """Bound what a request can hold, and so the time and the memory that validating it takes."""
    count, rest = 0, [given]
    while rest:
        value = rest.pop()
        if isinstance(value, dict | list):
            count += len(value)
            if count > MAX_VALUES:
                raise RequestRefused(422, f"{where}: may hold {MAX_VALUES:,} values, got {count:,} or more")
            rest.extend(value.values() if isinstance(value, dict) else value)


def _idempotency_key(request: Request) -> str | None:
    key = request.headers.get(IDEMPOTENCY_KEY)
    if key is not None and not 0 < len(key) <= MAX_KEY_CHARACTERS:
        raise RequestRefused(422, f"{IDEMPOTENCY_KEY} must have 1 to {MAX_KEY_CHARACTERS} characters, got {len(key)}")
    return key


def _refuse_bad_indices(rollouts: tuple[RolloutRequest, ...]) -> None:
    """Results come in any order, so every rollout needs an index of its own."""
    seen: set[int] = set()
    for position, rollout in enumerate(rollouts):
        if rollout.row_index is None or rollout.row_index in seen:
            problem = "is missing" if rollout.row_index is None else f"{rollout.row_index} was given before"
            raise RequestRefused(422, f"rows[{position}]._rowidx: {problem}; every row needs its own")
        seen.add(rollout.row_index)
