"""A Ray cluster with Postgres and Dagster's daemon on this machine alone: real processes, any of which can be killed.

Everything listens on 127.0.0.1 at free ports. Nodes are raylets, each with room for as many runs as it has CPUs. The
instance is made from a template for ``dagster.yaml``, by default the one that the repository gives to users.
"""

from __future__ import annotations

import getpass
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rollout_assets.errors import MachineFault

HOST = "127.0.0.1"
DATABASE_USER = "rollouts"
START_S = 300.0
"""How long a part of the cluster may take to start on a machine that does other things too."""

POSTGRES_FOLDERS = ("/usr/lib/postgresql/*/bin", "/usr/local/pgsql/bin", "/opt/homebrew/bin")
"""Where the server's programs are, when they are not on the PATH."""

_BUILDER = re.compile(r"\S*python\S* \S*/dagster api execute_run ")

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


def command_of(process: int) -> str:
    """The command line of a process, empty if it is gone."""
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


@contextmanager
def running_postgres() -> Iterator[str]:
    """A fresh Postgres server; its URL as Dagster wants it. Postgres refuses root, who starts it as ``postgres``."""
    folder = Path(tempfile.mkdtemp(prefix="rollout-postgres-"))
    prefix: list[str] = []
    if os.geteuid() == 0:
        shutil.chown(folder, "postgres", "postgres")
        prefix = ["runuser", "-u", "postgres", "--"]
    port, data = free_port(), str(folder / "data")
    try:
        run_quietly([*prefix, _postgres("initdb"), "-D", data, "-U", DATABASE_USER, "-A", "trust", "-N"], folder)
        options = ["-h", HOST, "-p", str(port), "-k", "", "-c", "fsync=off", "-c", "max_connections=200"]
        log = (folder / "log").open("wb")
        server = subprocess.Popen(
            [*prefix, _postgres("postgres"), "-D", data, *options],
            stdout=log,
            stderr=log,
            cwd="/",
            start_new_session=True,
        )
        try:
            wait_until("Postgres", lambda: answers(port))
            yield f"postgresql+psycopg2://{DATABASE_USER}@{HOST}:{port}/postgres"
        finally:
            end_process(server)
            log.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _postgres(program: str) -> str:
    path = shutil.which(program)
    for pattern in POSTGRES_FOLDERS if path is None else ():
        for folder in sorted(Path("/").glob(pattern.removeprefix("/")), reverse=True):
            if (folder / program).is_file():
                return str(folder / program)
    if path is None:
        raise MachineFault(f"{program} is not installed; install the Postgres server, for example postgresql-15")
    return path


def run_quietly(command: Sequence[str], folder: Path, environment: Mapping[str, str] | None = None) -> str:
    """Run a command to its end; what it printed, and a ``MachineFault`` with its last lines if it failed."""
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment, timeout=600)
    if done.returncode:
        last = "\n".join((done.stdout + done.stderr).splitlines()[-15:])
        raise MachineFault(f"{' '.join(command[:4])} … failed with exit code {done.returncode}:\n{last}")
    return done.stdout


@dataclass(frozen=True)
class RayNode:
    """One ``ray start --block`` with its raylet and workers, and the folder for its own copies of objects."""

    process: subprocess.Popen[Any]
    cache: Path

    @property
    def raylet(self) -> int:
        """The raylet of the node."""
        for child in children_of(self.process.pid):
            if re.match(r"\S*/raylet ", command_of(child)):
                return child
        raise MachineFault("the node has no raylet")

    def builders(self) -> list[int]:
        """Processes on this node that execute runs of Dagster."""
        return [child for child in children_of(self.process.pid) if _BUILDER.match(command_of(child))]

    def watchers_of(self, builder: int) -> list[int]:
        """Shells by which Ray ends an entry point, and all of its process group, once its supervisor is gone."""
        ending = f"kill -9 -{os.getpgid(builder)}"
        return [child for child in children_of(self.process.pid) if ending in command_of(child)]


@dataclass
class LocalCluster:
    """A running cluster. ``environment`` is that of every part, with what ``dagster.yaml`` asks for."""

    folder: Path
    environment: dict[str, str]
    ray_port: int
    nodes: list[RayNode] = field(default_factory=list)
    daemon: subprocess.Popen[Any] | None = None
    _parts: ExitStack = field(default_factory=ExitStack)

    @property
    def home(self) -> Path:
        """``DAGSTER_HOME``."""
        return self.folder / "home"

    def add_node(self, cpus: int = 1) -> RayNode:
        """Start one more raylet, and return when the head knows it."""
        address = ["--address", f"{HOST}:{self.ray_port}", "--num-cpus", str(cpus)]
        known = self.living_nodes()
        cache = self.folder / "caches" / str(len(self.nodes))
        command = [_program("ray"), "start", *address, *_RAY_OPTIONS]
        node = RayNode(self._start("ray", command, {"ROLLOUT_ASSETS_CACHE": str(cache)}), cache)
        self.nodes.append(node)
        wait_until("a Ray node", lambda: self.living_nodes() - known, every_s=1.0)
        return node

    def living_nodes(self) -> frozenset[str]:
        """Nodes besides the head that Ray takes to be alive; a killed one is still among them for a while."""
        code = (
            "from ray.util.state import list_nodes; "
            f"nodes = list_nodes(address='{self.dashboard}'); "
            "print(*(node.node_id for node in nodes if node.state == 'ALIVE' and not node.is_head_node))"
        )
        printed = run_quietly([sys.executable, "-c", code], self.folder, self.environment)
        return frozenset(printed.splitlines()[-1].split() if printed.strip() else ())

    @property
    def dashboard(self) -> str:
        """Where Ray takes jobs."""
        return self.environment["RAY_JOB_ADDRESS"]

    def start_daemon(self) -> None:
        """Start Dagster's daemon, and before it the server of definitions, which outlives daemons."""
        if not self._workspace.exists():
            port = free_port()
            place = ["--host", HOST, "--port", str(port)]
            self._start(
                "code", [_program("dagster"), "code-server", "start", "-m", "rollout_assets.definitions", *place]
            )
            self._workspace.write_text(f"load_from:\n  - grpc_server: {{host: {HOST}, port: {port}}}\n")
            wait_until("the server of definitions", lambda: answers(port))
        self.daemon = self._start("daemon", [_program("dagster-daemon"), "run", "-w", str(self._workspace)])

    @property
    def _workspace(self) -> Path:
        return self.home / "workspace.yaml"

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
        return run_quietly([_program("dagster"), *arguments], self.folder, self.environment)

    def materialize(self, job: str) -> None:
        """Run one job of a campaign here, not on the cluster."""
        self.dagster("job", "execute", "-m", "rollout_assets.definitions", "-j", job)

    def backfill(self, keys: Sequence[Sequence[str]], shards: Sequence[str]) -> str:
        """Launch a backfill of some assets, as the UI does; its id. The daemon must have been started."""
        variables = json.dumps({"keys": [{"path": list(key)} for key in keys], "shards": list(shards)})
        printed = self.folder / "backfill.json"
        asked = ["-w", str(self._workspace), "-t", _BACKFILL, "-v", variables, "-o", str(printed)]
        run_quietly([_program("dagster-graphql"), *asked], self.folder, self.environment)
        answer = json.loads(printed.read_text())
        launched = answer["data"]["launchPartitionBackfill"]
        if launched["__typename"] != "LaunchBackfillSuccess":
            raise MachineFault(f"the backfill was not launched: {launched}")
        return str(launched["backfillId"])

    def _start(
        self, name: str, command: Sequence[str], more: Mapping[str, str] = MappingProxyType({})
    ) -> subprocess.Popen[Any]:
        log = self._parts.enter_context((self.folder / f"{name}-{free_port()}.log").open("wb"))
        process = subprocess.Popen(
            command, env={**self.environment, **more}, cwd=self.folder, stdout=log, stderr=log, start_new_session=True
        )
        self._parts.callback(end_process, process)
        return process


_RAY_OPTIONS = ("--node-ip-address", HOST, "--disable-usage-stats", "--object-store-memory", "100000000", "--block")


@contextmanager
def local_cluster(
    folder: Path,
    template: Path,
    campaigns: Sequence[Path],
    *,
    nodes: int = 2,
    environment: Mapping[str, str] | None = None,
) -> Iterator[LocalCluster]:
    """Start Postgres, a Ray head without room for runs, and nodes with room for one run each; all end with the block.

    The daemon is started by whoever wants one.
    """
    home, logs = folder / "home", folder / "run_logs"
    for path in (home, logs):
        path.mkdir(parents=True)
    shutil.copy(template, home / "dagster.yaml")
    ray_port, dashboard_port = free_port(), free_port()
    with ExitStack() as stack, tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as ray_folder:
        own = {
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "DAGSTER_HOME": str(home),
            "DAGSTER_POSTGRES_URL": stack.enter_context(running_postgres()),
            "RAY_JOB_ADDRESS": f"http://{HOST}:{dashboard_port}",
            "ROLLOUT_ASSETS_CAMPAIGNS": os.pathsep.join(map(str, campaigns)),
            "ROLLOUT_RUN_LOGS": str(logs),
            "PYTHONPATH": os.pathsep.join(path for path in (_checkout(), os.environ.get("PYTHONPATH", "")) if path),
            "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
            "USER": getpass.getuser(),
        }
        cluster = LocalCluster(folder, {**os.environ, **own, **(environment or {})}, ray_port)
        stack.enter_context(cluster._parts)
        ports = ["--port", str(ray_port), "--dashboard-host", HOST, "--dashboard-port", str(dashboard_port)]
        head = ["--head", "--num-cpus", "0", "--temp-dir", ray_folder, "--include-dashboard", "true", *ports]
        cluster._start("ray-head", [_program("ray"), "start", *head, *_RAY_OPTIONS])
        wait_until("Ray's dashboard", lambda: answers(dashboard_port))
        for _ in range(nodes):
            cluster.add_node()
        yield cluster


def _program(name: str) -> str:
    """A program of this Python's environment."""
    path = Path(sys.executable).parent / name
    if not path.is_file():
        raise MachineFault(f"{name} is not installed; run: pip install 'rollout-assets[cluster]'")
    return str(path)


def _checkout() -> str:
    """Where this package is imported from, so that every process of the cluster has the same one."""
    return str(Path(__file__).resolve().parents[2])
