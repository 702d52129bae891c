"""Answers that watch their client: work is cancelled when nobody waits for it any more."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Coroutine
from typing import Any

from starlette.types import Message, Receive, Scope, Send


class ClientGone(Exception):
    """The client went away before its answer was there."""


async def while_client_waits(receive: Receive, work: Coroutine[Any, Any, bytes]) -> bytes:
    """The work's result; a client that goes away cancels it."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientGone
    finally:
        await _cancel((task, gone))


class LineStream:
    """An ASGI answer of JSON lines in completion order, with heartbeats while no line is ready.

    A client that goes away, or takes no bytes for ``patience_s``, cancels what is left of the work.
    """

    def __init__(self, tasks: Collection[asyncio.Future[bytes]], heartbeat_s: float, patience_s: float) -> None:
        self._tasks, self._heartbeat_s, self._patience_s = tasks, heartbeat_s, patience_s

    async def __call__(self, _scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        waiting, gone = set(self._tasks), asyncio.ensure_future(_gone(receive))
        beats = 0
        try:
            headers = [(b"content-type", b"application/x-ndjson"), (b"cache-control", b"no-store")]
            await self._send(send, {"type": "http.response.start", "status": 200, "headers": headers})
            while waiting:
                done, _ = await asyncio.wait(
                    {*waiting, gone}, timeout=self._heartbeat_s, return_when=asyncio.FIRST_COMPLETED
                )
                if gone in done:
                    return
                waiting -= done
                lines = b"".join(task.result() + b"\n" for task in done)
                if not done:
                    beats += 1
                    lines = b'{"heartbeat": %d}\n' % beats
                await self._send(send, {"type": "http.response.body", "body": lines, "more_body": True})
            await self._send(send, {"type": "http.response.body", "body": b""})
        except (OSError, TimeoutError):
            return
        finally:
            await _cancel((*waiting, gone))

    async def _send(self, send: Send, message: Message) -> None:
        async with asyncio.timeout(self._patience_s):
            await send(message)


async def _gone(receive: Receive) -> bytes:
    while (await receive())["type"] != "http.disconnect":
        pass
    return b""


async def _cancel(tasks: Collection[asyncio.Future[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
