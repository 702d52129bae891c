"""Connections of the server: those without a request under way are bounded in time and number.

uvicorn answers 503 to every client once it has its largest number of connections, and waits without end for the headers
of a request. So a connection whose headers do not come is closed, and of too many idle ones the oldest.
"""

from __future__ import annotations

from asyncio import BaseTransport, TimerHandle
from typing import ClassVar

from uvicorn.protocols.http.h11_impl import H11Protocol

from rollout_assets.serving.server.options import ServerOptions


class BoundedConnection(H11Protocol):
    """One connection. It is idle while no request of it is under way."""

    options: ClassVar[ServerOptions]
    idle: ClassVar[dict[BoundedConnection, None]]
    """Idle connections of one server, the oldest first."""

    _deadline: TimerHandle | None = None

    def connection_made(self, transport: BaseTransport) -> None:
        """Expect headers."""
        super().connection_made(transport)  # type: ignore[arg-type]
        self._rest()
        self._expect_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._resume()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take bytes; those that complete no headers do not move the deadline."""
        super().data_received(data)
        if self._is_idle:
            self._expect_headers()
        else:
            self._resume()

    def on_response_complete(self) -> None:
        """Idle again, unless the next request is there already."""
        super().on_response_complete()
        if self._is_idle and not self.transport.is_closing():
            self._rest()

    @property
    def _is_idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _rest(self) -> None:
        self.idle[self] = None
        if len(self.idle) > self.options.max_connections * 3 // 4:
            oldest = next(iter(self.idle))
            oldest._resume()
            oldest.transport.abort()

    def _resume(self) -> None:
        self.idle.pop(self, None)
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _expect_headers(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(self.options.headers_timeout_s, self.transport.abort)


def connections_of(server: ServerOptions) -> type[BoundedConnection]:
    """Protocol of one server's connections."""

    class Connection(BoundedConnection):
        options = server
        idle: ClassVar[dict[BoundedConnection, None]] = {}

    return Connection
