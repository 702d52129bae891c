"""What keeps a server within bounds: the gate before every route, bodies by size, rollouts in flight."""

from __future__ import annotations

import asyncio
import hmac
import re
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rollout_assets.serving.server.http_errors import RequestRefused
from rollout_assets.serving.server.options import ServerOptions, is_loopback

BODIES_AT_ONCE = 8
"""Bodies of the largest size that may be in memory together."""

CLOSE = {"Connection": "close"}
"""What is left of a refused request is not read."""

REQUEST_ID = b"x-request-id"
_SANE_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


class Gate:
    """Lets a request through when it carries the token and the server is not going down.

    A server without a token answers only to the names of this machine, and to no page of another site: a web page whose
    name is made to point to loopback could otherwise send requests through the browser of a user here.

    Every request has an id: the client's own, or a new one. The answer carries it, and so does the log.
    """

    def __init__(self, app: ASGIApp, options: ServerOptions) -> None:
        self._app = app
        self._expected = None if options.token is None else f"Bearer {options.token.get_secret_value()}".encode()
        self.closing = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        scope["request_id"] = self._request_id(headers.get(REQUEST_ID, b"").decode("latin-1"))

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), (REQUEST_ID, scope["request_id"].encode())]
            await send(message)

        refused = self._refusal(headers)
        await (self._app if refused is None else refused.response(scope))(scope, receive, send_with_id)

    def _request_id(self, given: str) -> str:
        """The client's id, if it is short, plain and not the token."""
        is_token = self._expected is not None and self._expected.endswith(f" {given}".encode())
        return given if _SANE_ID.fullmatch(given) and not is_token else uuid.uuid4().hex

    def _refusal(self, headers: Mapping[bytes, bytes]) -> RequestRefused | None:
        if self._expected is None:
            for name in (b"host", b"origin"):
                if name in headers and not _names_loopback(headers[name].decode("latin-1")):
                    problem = f"{name.decode()} must be this machine's own, such as localhost"
                    return RequestRefused(421, f"{problem}; a server with a token answers to any", headers=CLOSE)
        elif not hmac.compare_digest(headers.get(b"authorization", b""), self._expected):
            needed = "a bearer token is needed, and it must be this server's"
            return RequestRefused(401, needed, headers={"WWW-Authenticate": "Bearer"} | CLOSE)
        if self.closing:
            return RequestRefused(
                503, "the server is shutting down; ask another, or later", transient=True, headers=CLOSE
            )
        return None


def _names_loopback(place: str) -> bool:
    """Whether ``HOST``, ``HOST:PORT`` or ``http://HOST:PORT`` names this machine."""
    try:
        return is_loopback(urlsplit(place if "://" in place else f"//{place}").hostname or "")
    except ValueError:
        return False


class Bodies:
    """Reads bodies: each within its limit, and all that are in memory together within theirs."""

    def __init__(self, options: ServerOptions) -> None:
        self._options = options
        self._held = 0

    @asynccontextmanager
    async def read(self, request: Request) -> AsyncIterator[bytes]:
        """The body, counted as held until the context ends."""
        self._refuse_by_headers(request)
        body = bytearray()
        try:
            await self._fill(body, request)
            yield bytes(body)
        finally:
            self._held -= len(body)

    async def _fill(self, body: bytearray, request: Request) -> None:
        patience_s = self._options.body_timeout_s
        try:
            async with asyncio.timeout(patience_s):
                async for piece in request.stream():
                    self._refuse_more(len(body) + len(piece), len(piece))
                    self._held += len(piece)
                    body += piece
        except TimeoutError:
            raise RequestRefused(408, f"the body did not come within {patience_s:g} s", headers=CLOSE) from None

    def _refuse_by_headers(self, request: Request) -> None:
        """A web page can send a plain form to a server on loopback without asking it first, but not JSON."""
        kind = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise RequestRefused(415, "a body must be application/json, as its content-type says", headers=CLOSE)
        size = request.headers.get("content-length", "")
        if size.isascii() and size.isdigit():
            self._refuse_more(int(size), 0)

    def _refuse_more(self, size: int, piece: int) -> None:
        most = self._options.max_body_bytes
        if size > most:
            raise RequestRefused(413, f"a body may have {most:,} bytes, got {size:,} or more", headers=CLOSE)
        if self._held + piece > BODIES_AT_ONCE * most:
            raise busy("too many large bodies at once")


class Admission:
    """Counts rollouts that are run or wait for it; one more than the limit is not accepted."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.in_flight = 0

    def enter(self, rows: int) -> None:
        """Accept all rollouts of a request or none of them."""
        self.refuse_more(rows)
        if self.in_flight + rows > self.limit:
            raise busy(f"{self.in_flight} rows are in flight and {self.limit} may be; {rows} more do not fit now")
        self.in_flight += rows

    def refuse_more(self, rows: int) -> None:
        """Refuse a request for more rollouts than are ever run at a time."""
        if rows > self.limit:
            raise RequestRefused(413, f"a request may ask for {self.limit} rows, got {rows}; ask in several")

    def leave(self, _task: asyncio.Future[bytes] | None = None) -> None:
        """One rollout has ended, in whatever way."""
        self.in_flight -= 1


def busy(why: str) -> RequestRefused:
    """429 that asks the client to come again in a second."""
    return RequestRefused(429, why, transient=True, headers={"Retry-After": "1"})
