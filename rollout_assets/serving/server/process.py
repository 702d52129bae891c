"""A server process: bind, warm up, serve, and end in bounded time when asked to stop."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from types import FrameType

import uvicorn

from rollout_assets.errors import ServerError
from rollout_assets.serving.server.app import rollout_app
from rollout_assets.serving.server.connections import connections_of
from rollout_assets.serving.server.limits import Gate
from rollout_assets.serving.server.options import ServerOptions
from rollout_assets.serving.service import RolloutService

KEEP_ALIVE_S = 75
"""Longer than clients keep their idle connections, so that the client closes them."""

CLOSING_S = 5.0
"""Time for the service's threads to end after the last request, and as long again for the interpreter."""


def bind(options: ServerOptions) -> socket.socket:
    """A socket that holds the address but accepts no connection yet."""
    try:
        family = socket.getaddrinfo(options.host, options.port, type=socket.SOCK_STREAM)[0][0]
        with ExitStack() as closed_on_error:
            listener = closed_on_error.enter_context(socket.socket(family, socket.SOCK_STREAM))
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((options.host, options.port))
            closed_on_error.pop_all()
            return listener
    except OSError as error:
        problem = f"cannot listen on {options.host} port {options.port}: {error.strerror or error}"
        hint = "; --port 0 takes any free one" if error.errno == errno.EADDRINUSE else ""
        raise ServerError(problem + hint) from None


def run_server(
    service: RolloutService, options: ServerOptions, listener: socket.socket, on_ready: Callable[[str], None]
) -> None:
    """Serve until SIGTERM or SIGINT. ``on_ready`` gets the address once kernels are loaded and requests are accepted.

    It ends within ``shutdown_s`` plus twice ``CLOSING_S``, whatever clients and device do.
    """
    host, port = listener.getsockname()[:2]
    url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    server = _Server(service, options, lambda: on_ready(url))
    before = {sig: signal.signal(sig, _ignored) for sig in (signal.SIGTERM, signal.SIGINT)}
    try:
        server.run([listener])
    finally:
        for sig, handler in before.items():
            signal.signal(sig, handler)
    _leave_in_bounded_time()


class _Server(uvicorn.Server):
    """uvicorn with a warm-up before and an orderly end after."""

    def __init__(self, service: RolloutService, options: ServerOptions, on_ready: Callable[[], None]) -> None:
        self._service, self._on_ready = service, on_ready
        self._app: Gate = rollout_app(service, options)
        super().__init__(
            uvicorn.Config(
                self._app,
                http=connections_of(options),
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                limit_concurrency=options.max_connections,
                timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=max(1, round(options.shutdown_s)),
            )
        )

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Warm up, then listen; a signal in between ends it there."""
        warm_up = asyncio.ensure_future(self._service.warm_up())
        while not warm_up.done() and not self.should_exit:
            await asyncio.wait({warm_up}, timeout=0.1)
        if self.should_exit:
            warm_up.cancel()
            return
        warm_up.result()
        await super().startup(sockets)
        self._on_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Wait for requests under way, then for the device launches."""
        await super().shutdown(sockets)
        with suppress(TimeoutError):
            await asyncio.wait_for(self._service.aclose(), CLOSING_S)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """From here on requests are turned away."""
        self._app.closing = True
        super().handle_exit(sig, frame)


def _ignored(_sig: int, _frame: FrameType | None) -> None:
    """uvicorn raises its signals again when it has ended; they have been handled by then."""


def _leave_in_bounded_time() -> None:
    """A thread that hangs in a device must not keep the process."""
    last_resort = threading.Timer(CLOSING_S, os._exit, (0,))
    last_resort.daemon = True
    last_resort.start()
