"""A Ray cluster with Postgres and Dagster's daemon on this machine alone: real processes, any of which can be killed.

Everything listens on 127.0.0.1 at free ports. Nodes are raylets, each with room for as many runs as it has CPUs. The
instance is made from a template for ``dagster.yaml``, by default the one that the repository gives to users.
"""

from __future__ import annotations

import getpass
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rollout_assets.errors import MachineFault
from rollout_assets.testing.local_daemon import (
    HOST,
    LocalDaemon,
    answers,
    checkout,
    children_of,
    free_port,
    program,
    run_quietly,
    wait_until,
)
from rollout_assets.testing.postgres import running_postgres

_BUILDER = re.compile(r"\S*python\S* \S*/dagster api execute_run ")


def command_of(process: int) -> str:
    """The command line of a process, empty if it is gone."""
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


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
class LocalCluster(LocalDaemon):
    """A running cluster. ``environment`` is that of every part, with what ``dagster.yaml`` asks for."""

    ray_port: int = 0
    nodes: list[RayNode] = field(default_factory=list)

    def add_node(self, cpus: int = 1) -> RayNode:
        """Start one more raylet, and return when the head knows it."""
        address = ["--address", f"{HOST}:{self.ray_port}", "--num-cpus", str(cpus)]
        known = self.living_nodes()
        cache = self.folder / "caches" / str(len(self.nodes))
        command = [program("ray"), "start", *address, *_RAY_OPTIONS]
        node = RayNode(self.start("ray", command, {"ROLLOUT_ASSETS_CACHE": str(cache)}), cache)
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
            "PYTHONPATH": os.pathsep.join(path for path in (checkout(), os.environ.get("PYTHONPATH", "")) if path),
            "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
            "USER": getpass.getuser(),
        }
        cluster = LocalCluster(folder, {**os.environ, **own, **(environment or {})}, ray_port=ray_port)
        stack.enter_context(cluster.parts)
        ports = ["--port", str(ray_port), "--dashboard-host", HOST, "--dashboard-port", str(dashboard_port)]
        head = ["--head", "--num-cpus", "0", "--temp-dir", ray_folder, "--include-dashboard", "true", *ports]
        cluster.start("ray-head", [program("ray"), "start", *head, *_RAY_OPTIONS])
        wait_until("Ray's dashboard", lambda: answers(dashboard_port))
        for _ in range(nodes):
            cluster.add_node()
        yield cluster
