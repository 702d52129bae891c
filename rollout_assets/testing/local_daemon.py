"""Dagster's daemon and its server of definitions on this machine alone: real processes, any of which can be killed.

Everything listens on 127.0.0.1 at free ports and ends with the block that started it.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rollout_assets.defs.run_origin import LOCATION
from rollout_assets.errors import MachineFault

HOST = "127.0.0.1"
WORKSPACE = "workspace.yaml"
START_S = 300.0
"""How long a process may take to start on a machine that does other things too."""

_BACKFILL = """
mutation ($keys: [AssetKeyInput!]!, $shards: [String!]) {
  launchPartitionBackfill(backfillParams: {assetSelection: $keys, partitionNames: $shards}) {
    __typename
    ... on LaunchBackfillSuccess { backfillId }
    ... on PythonError { message }
  }
}
"""


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def wait_until(what: str, holds: Callable[[], Any], seconds: float = START_S, every_s: float = 0.2) -> Any:
    """What ``holds`` returns once that is true; a ``MachineFault`` that names ``what`` if it never is."""
    deadline = time.monotonic() + seconds
    while True:
        if result := holds():
            return result
        if time.monotonic() > deadline:
            raise MachineFault(f"{what}: not after {seconds:.0f} s")
        time.sleep(every_s)


def answers(port: int) -> bool:
    """Whether somebody listens on a port."""
    with suppress(OSError), socket.create_connection((HOST, port), timeout=1):
        return True
    return False


def end_process(process: subprocess.Popen[Any], seconds: float = 20.0) -> None:
    """Ask a process, and everything in its session, to end, and end it if it does not."""
    for sent in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, sent)
        with suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
    process.wait()


def children_of(process: int) -> Iterator[int]:
    """Every living descendant of a process."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            number, parent = int(path.parent.name), int(path.read_text().rpartition(")")[2].split()[1])
            if parent == process:
                yield number
                yield from children_of(number)


def run_quietly(command: Sequence[str], folder: Path, environment: Mapping[str, str] | None = None) -> str:
    """Run a command to its end; what it printed, and a ``MachineFault`` with its last lines if it failed."""
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment, timeout=600)
    if done.returncode:
        last = "\n".join((done.stdout + done.stderr).splitlines()[-15:])
        raise MachineFault(f"{' '.join(command[:4])} … failed with exit code {done.returncode}:\n{last}")
    return done.stdout


@dataclass
class LocalDaemon:
    """An instance with a daemon. ``environment`` is that of every process, with what ``dagster.yaml`` asks for."""

    folder: Path
    environment: dict[str, str]
    daemon: subprocess.Popen[Any] | None = None
    parts: ExitStack = field(default_factory=ExitStack)

    @property
    def home(self) -> Path:
        """``DAGSTER_HOME``."""
        return self.folder / "home"

    def start_daemon(self) -> None:
        """Start Dagster's daemon, and before it the server of definitions, which outlives daemons."""
        self.daemon = self.start("daemon", [program("dagster-daemon"), "run", "-w", str(self._workspace())])

    def start_web(self) -> str:
        """Start the web server, and before it the server of definitions; its address."""
        port = free_port()
        place = ["-h", HOST, "-p", str(port)]
        self.start("web", [program("dagster-webserver"), "-w", str(self._workspace()), *place])
        wait_until("the web server", lambda: answers(port))
        return f"http://{HOST}:{port}"

    def _workspace(self) -> Path:
        """The file that names the server of definitions, which is started the first time that somebody asks."""
        path = self.home / WORKSPACE
        if not path.exists():
            port = free_port()
            place = ["--host", HOST, "--port", str(port)]
            self.start("code", [program("dagster"), "code-server", "start", "-m", LOCATION, *place])
            wait_until("the server of definitions", lambda: answers(port))
            path.write_text(f"load_from:\n  - grpc_server: {{host: {HOST}, port: {port}, location_name: {LOCATION}}}\n")
        return path

    def stop_daemon(self) -> None:
        """Ask the daemon to end, and wait for it."""
        assert self.daemon is not None
        end_process(self.daemon)

    @contextmanager
    def variables(self) -> Iterator[None]:
        """The environment of the cluster in this process, for whoever opens its instance here."""
        before = dict(os.environ)
        os.environ.update(self.environment)
        try:
            yield
        finally:
            os.environ.clear()
            os.environ.update(before)

    def kill_daemon(self) -> None:
        """End the daemon without asking."""
        assert self.daemon is not None
        os.killpg(self.daemon.pid, signal.SIGKILL)
        self.daemon.wait()

    def dagster(self, *arguments: str) -> str:
        """Run ``dagster`` against this instance."""
        return run_quietly([program("dagster"), *arguments], self.folder, self.environment)

    def materialize(self, job: str) -> None:
        """Run one job of a campaign here, not on the cluster."""
        self.dagster("job", "execute", "-m", LOCATION, "-j", job)

    def backfill(self, keys: Sequence[Sequence[str]], shards: Sequence[str]) -> str:
        """Launch a backfill of some assets, as the UI does; its id. The daemon must have been started."""
        variables = json.dumps({"keys": [{"path": list(key)} for key in keys], "shards": list(shards)})
        printed = self.folder / "backfill.json"
        asked = ["-w", str(self._workspace()), "-t", _BACKFILL, "-v", variables, "-o", str(printed)]
        run_quietly([program("dagster-graphql"), *asked], self.folder, self.environment)
        answer = json.loads(printed.read_text())
        launched = answer["data"]["launchPartitionBackfill"]
        if launched["__typename"] != "LaunchBackfillSuccess":
            raise MachineFault(f"the backfill was not launched: {launched}")
        return str(launched["backfillId"])

    def start(
        self, name: str, command: Sequence[str], more: Mapping[str, str] = MappingProxyType({})
    ) -> subprocess.Popen[Any]:
        """Start a process that ends with the block; what it prints goes to a file of its own."""
        log = self.parts.enter_context((self.folder / f"{name}-{free_port()}.log").open("wb"))
        process = subprocess.Popen(
            command, env={**self.environment, **more}, cwd=self.folder, stdout=log, stderr=log, start_new_session=True
        )
        self.parts.callback(end_process, process)
        return process


@contextmanager
def local_daemon(
    folder: Path, campaigns: Sequence[Path], settings: str = "", environment: Mapping[str, str] = MappingProxyType({})
) -> Iterator[LocalDaemon]:
    """A home below ``folder`` with these campaigns and this ``dagster.yaml``; whoever wants a daemon starts it."""
    home = folder / "home"
    home.mkdir(parents=True, exist_ok=True)
    (home / WORKSPACE).unlink(missing_ok=True)  # it names a server that ended with an earlier block
    if settings:
        (home / "dagster.yaml").write_text(settings)
    own = {
        "DAGSTER_HOME": str(home),
        "ROLLOUT_ASSETS_CAMPAIGNS": os.pathsep.join(map(str, campaigns)),
        "PYTHONPATH": os.pathsep.join(path for path in (checkout(), os.environ.get("PYTHONPATH", "")) if path),
    }
    daemon = LocalDaemon(folder, {**os.environ, **own, **environment})
    with daemon.parts:
        yield daemon


def program(name: str) -> str:
    """A program of this Python's environment."""
    path = Path(sys.executable).parent / name
    if not path.is_file():
        raise MachineFault(f"{name} is not installed; run: pip install 'rollout-assets[platform]'")
    return str(path)


def checkout() -> str:
    """Where this package is imported from, so that every process of the cluster has the same one."""
    return str(Path(__file__).resolve().parents[2])
