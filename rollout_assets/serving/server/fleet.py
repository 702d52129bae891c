"""Rollout servers as child processes: started together, waited for, and stopped whatever happens."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from rollout_assets.errors import ServerError, ServerUnavailable
from rollout_assets.rollouts.remote.client import RolloutClient

_POLL_S = 0.05
_HEALTH_TIMEOUT_S = 2.0
_TAIL_LINES = 12

_ENDS_WITH_PARENT = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGTERM)
if os.getppid() != {parent}:
    sys.exit("the process that started this server has ended")
from rollout_assets.cli import main
main()
"""
"""A server that ends with the process that started it, even if that one is killed. 1 is PR_SET_PDEATHSIG."""


@dataclass(frozen=True)
class FleetOptions:
    """How many servers of which campaign, and how long they may take to start and to stop."""

    campaign: str
    count: int
    start_timeout_s: float
    stop_timeout_s: float
    token_env: str | None = None
    arguments: tuple[str, ...] = ()
    """Further arguments of ``rollout-assets serve``."""


@asynccontextmanager
async def server_fleet(options: FleetOptions, stop: asyncio.Event | None = None) -> AsyncIterator[tuple[str, ...]]:
    """Addresses of running, healthy servers; in the end all are stopped, in bounded time.

    A server that is not healthy by the deadline is ``ServerUnavailable`` with its name and the end of its log. Servers
    have sessions of their own, so a Ctrl-C in the terminal reaches the caller only; ``stop`` ends the waiting.
    """
    with tempfile.TemporaryDirectory(prefix="rollout-servers-") as folder:
        servers: list[ServerProcess] = []
        try:
            for number in range(options.count):
                servers.append(ServerProcess(f"server {number}", Path(folder) / f"{number}", options))
            deadline = monotonic() + options.start_timeout_s
            yield tuple([await server.ready(deadline, stop) for server in servers])
        finally:
            _stop(servers, options.stop_timeout_s)


class ServerProcess:
    """One server: its process, its log and its address once it has one."""

    def __init__(self, name: str, folder: Path, options: FleetOptions) -> None:
        folder.mkdir()
        self.name, self._allowed_s = name, options.start_timeout_s
        self._ready_file, self._log = folder / "ready", folder / "log"
        self._token = None if options.token_env is None else os.environ.get(options.token_env)
        serve = ["serve", "-c", options.campaign, "--port", "0", "--ready-file", str(self._ready_file)]
        serve += ["--token-env", options.token_env] if options.token_env is not None else []
        code = _ENDS_WITH_PARENT.format(parent=os.getpid())
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", code, *serve, *options.arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    async def ready(self, deadline: float, stop: asyncio.Event | None) -> str:
        """The address, once the server says that it is healthy; ``stop`` cancels the waiting."""
        while monotonic() < deadline:
            if stop is not None and stop.is_set():
                raise asyncio.CancelledError
            if (code := self.process.poll()) is not None:
                raise ServerUnavailable(f"{self.name} ended with exit code {code} before it was ready{self._tail()}")
            if self._ready_file.exists():
                url = self._ready_file.read_text().strip()
                if await _is_healthy(RolloutClient(url, self._token)):
                    return url
            await asyncio.sleep(_POLL_S)
        raise ServerUnavailable(
            f"{self.name} (process {self.process.pid}) was not healthy after {self._allowed_s:g} s{self._tail()}"
        )

    def _tail(self) -> str:
        lines = self._log.read_text("utf-8", "replace").splitlines()[-_TAIL_LINES:]
        return "; the end of its log:" + "".join(f"\n  - {line}" for line in lines) if lines else "; its log is empty"


async def _is_healthy(server: RolloutClient) -> bool:
    try:
        await server.health(_HEALTH_TIMEOUT_S)
    except ServerError:
        return False
    finally:
        await server.aclose()
    return True


def _stop(servers: Sequence[ServerProcess], limit_s: float) -> None:
    """SIGTERM to all, and SIGKILL to those that still run after the limit."""
    deadline = monotonic() + limit_s
    for server in servers:
        if server.process.poll() is None:
            server.process.send_signal(signal.SIGTERM)
    for server in servers:
        try:
            server.process.wait(max(deadline - monotonic(), 0.0))
        except subprocess.TimeoutExpired:
            server.process.kill()
            server.process.wait()
