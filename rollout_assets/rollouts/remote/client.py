"""The one HTTP client of rollout servers: connections, token, idempotency key, and what each status means.

What the server says becomes a typed error: ``ServerUnavailable`` when asking again may help, ``RowRefused`` when a
field of the request is at fault, ``AnswerRefused`` when the answer cannot be used, and ``ServerError`` otherwise.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import httpx
from pydantic import ValidationError

from rollout_assets.config.problems import problems_text
from rollout_assets.errors import AnswerRefused, RowRefused, ServerError, ServerUnavailable
from rollout_assets.locations.url import server_url
from rollout_assets.parsing import parse_json
from rollout_assets.rollouts.remote.messages import RolloutRequest, RolloutResult

BUSY = 429
LONGEST_RETRY_AFTER_S = 60.0
"""A server may ask for a longer pause; it is not waited for."""

_TRANSIENT = {408, BUSY}
"""Statuses below 500 that a later request may not meet."""

_SHOWN_CHARACTERS, _ID_CHARACTERS = 200, 64


@dataclass(frozen=True)
class RequestFailure:
    """What a server says of one request of a batch that it could not run."""

    row_index: int
    error_class: str
    message: str
    transient: bool


class RolloutClient:
    """One server.

    Each request under way has a connection of its own, kept open for the next one of its event loop: what a shared
    ``httpx`` client does for a request grows with the number of its connections. ``in_flight`` and ``sent`` count
    requests, so that a caller with several servers can choose. A server that says nothing for ``silence_s``, not even a
    heartbeat, counts as gone.
    """

    def __init__(
        self, url: str, token: str | None = None, *, connect_s: float | None = None, silence_s: float | None = None
    ) -> None:
        self.url = server_url(url)
        self.in_flight = self.sent = 0
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._timeout = httpx.Timeout(silence_s, connect=connect_s)
        self._verify = ssl.create_default_context() if url.startswith("https://") else False
        self._idle: WeakKeyDictionary[asyncio.AbstractEventLoop, list[httpx.AsyncClient]] = WeakKeyDictionary()

    async def health(self, timeout_s: float) -> dict[str, Any]:
        """What the server says it serves."""
        try:
            async with asyncio.timeout(timeout_s), self._answer("GET", "/health") as response:
                said = parse_json(await response.aread())
        except TimeoutError:
            raise ServerUnavailable(f"{self.url}: no answer within {timeout_s:g} s") from None
        except ValueError as error:
            raise AnswerRefused(f"{self.url}: /health is not that of a rollout server: {error}") from None
        if not isinstance(said, dict):
            raise AnswerRefused(f"{self.url}: /health is not that of a rollout server: {said!r}")
        return said

    async def run(self, request: RolloutRequest) -> RolloutResult:
        """The result of one request. Sent again, it is answered from the server's memory and not run again."""
        body = request.model_dump_json(by_alias=True, exclude_none=True).encode()
        async with self._answer("POST", "/run", body, hashlib.sha256(body).hexdigest()) as response:
            answer = await response.aread()
        return self._result(answer)

    async def stream(
        self, requests: Sequence[RolloutRequest], idempotency_key: str
    ) -> AsyncGenerator[RolloutResult | RequestFailure]:
        """What the server says of each request, in its order; it may end early. Leaving the loop cancels the rest."""
        rows = [request.model_dump(mode="json", by_alias=True, exclude_none=True) for request in requests]
        body = json.dumps({"rows": rows}).encode()
        async with self._answer("POST", "/run_rollouts", body, idempotency_key) as response:
            async for line in _lines(response):
                if (answer := self._line(line)) is not None:
                    yield answer

    async def aclose(self) -> None:
        """Close the running loop's connections."""
        for http in self._idle.pop(asyncio.get_running_loop(), []):
            await http.aclose()

    @asynccontextmanager
    async def _answer(
        self, method: str, path: str, body: bytes | None = None, key: str | None = None
    ) -> AsyncIterator[httpx.Response]:
        """An answer of status 200 whose content is still to be read; anything else is a typed error."""
        headers = {} if body is None else {"Content-Type": "application/json", "Idempotency-Key": key or ""}
        idle = self._idle.setdefault(asyncio.get_running_loop(), [])
        http = idle.pop() if idle else self._connect()
        self.sent += 1
        self.in_flight += 1
        try:
            async with http.stream(method, f"{self.url}{path}", content=body, headers=headers) as response:
                if response.status_code != httpx.codes.OK:
                    await response.aread()
                    raise self._refusal(response)
                yield response
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            kind = type(error).__name__
            raise ServerUnavailable(f"{self.url}: {kind}: {error or 'no answer'}", error_class=kind) from error
        finally:
            self.in_flight -= 1
            idle.append(http)

    def _connect(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(headers=self._headers, timeout=self._timeout, verify=self._verify, trust_env=False)

    def _line(self, line: bytes) -> RolloutResult | RequestFailure | None:
        """A line's answer; None for a heartbeat."""
        if not line.startswith((b'{"heartbeat"', b'{"_rowidx"')):
            return self._result(line, "a line")
        try:
            said = parse_json(line)
            if "heartbeat" in said:
                return None
            index, error = int(said["_rowidx"]), said["error"]
            return RequestFailure(index, str(error["class"]), str(error["message"]), bool(error["transient"]))
        except (ValueError, KeyError, TypeError) as problem:
            raise AnswerRefused(f"{self.url}: a line cannot be read: {problem!r}: {line[:80]!r}") from None

    def _result(self, answer: bytes, what: str = "the answer") -> RolloutResult:
        try:
            return RolloutResult.model_validate_json(answer)
        except ValidationError as error:
            raise AnswerRefused(f"{self.url}: {what} is not a result: {problems_text(error, RolloutResult)}") from None

    def _refusal(self, response: httpx.Response) -> ServerError | RowRefused:
        """The error that a status other than 200 stands for. What the server itself says of it goes first."""
        status = response.status_code
        transient = status in _TRANSIENT or status >= httpx.codes.INTERNAL_SERVER_ERROR
        try:
            said = response.json()["error"]
            kind, message, field = str(said["class"]), str(said["message"]), said.get("field")
            transient = bool(said.get("transient", transient)) or status == BUSY
        except (ValueError, KeyError, TypeError, AttributeError):
            kind, message, field = f"HTTP{status}", response.text[:_SHOWN_CHARACTERS] or "no reason given", None
        if field is not None and not transient:
            return RowRefused(str(field), f"{message} (said {self.url})")
        request_id = response.headers.get("X-Request-Id", "")[:_ID_CHARACTERS]
        shown = f"{self.url}: {status}: {message}" + (f" (request {request_id})" if request_id else "")
        if transient:
            after = _retry_after(response)
            return ServerUnavailable(shown, after, busy=status == BUSY, error_class=kind)
        return ServerError(shown, error_class=kind)


def _retry_after(response: httpx.Response) -> float:
    """Seconds that the server asks to wait; 0 when it does not say, or names a date."""
    try:
        seconds = float(response.headers.get("Retry-After", ""))
    except ValueError:
        return 0.0
    return min(max(seconds, 0.0), LONGEST_RETRY_AFTER_S) if math.isfinite(seconds) else 0.0


async def _lines(response: httpx.Response) -> AsyncIterator[bytes]:
    """Whole lines; a last one without its end was torn off and is left out."""
    rest = bytearray()
    async for piece in response.aiter_bytes():
        begin = len(rest)
        rest += piece
        while (end := rest.find(b"\n", begin)) >= 0:
            yield bytes(rest[:end])
            del rest[: end + 1]
            begin = 0
