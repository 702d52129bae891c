"""The few answers of a Kubernetes API server that Dagster's launcher needs; it keeps every job that it is asked for."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


@dataclass
class ApiServer:
    """``jobs`` are the bodies of all requests that created a job, as they came over the wire."""

    port: int
    jobs: list[dict[str, Any]] = field(default_factory=list)

    def write_kubeconfig(self, path: Path) -> Path:
        name = "local"
        path.write_text(
            json.dumps(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "clusters": [{"name": name, "cluster": {"server": f"http://127.0.0.1:{self.port}"}}],
                    "users": [{"name": name, "user": {}}],
                    "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
                    "current-context": name,
                }
            )
        )
        return path


@contextmanager
def running_api() -> Iterator[ApiServer]:
    """Serve until the block ends."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self.path.endswith("/jobs"):
                api.jobs.append(body)
            self._answer(201, body)

        def do_GET(self) -> None:
            self._answer(200, {"major": "1", "minor": "33", "gitVersion": "v1.33.0", "platform": "linux/amd64"})

        def _answer(self, code: int, body: Any) -> None:
            content = json.dumps(body).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    api = ApiServer(server.server_address[1])
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield api
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
