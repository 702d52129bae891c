"""Object storage on this machine, for tests and benchmarks: moto's S3 in a process of its own, every request logged.

It answers conditional writes, ranges and listings as S3 does, or in Google's dialect. The log tells how many requests
something really sent.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rollout_assets.errors import ObjectStorageUnavailable
from rollout_assets.locations.url import ObjectUrl

BUCKET = "rollouts"

AZURITE_ACCOUNT = "devstoreaccount1"
AZURITE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The account that every Azurite has, and its key, which is no secret."""

_START_S = 60.0
_REQUEST = re.compile(r'"(?:\x1b\[[0-9;]*m)*(GET|PUT|HEAD|POST|DELETE) (\S+) HTTP/1\.[01]')
_RUNNING = re.compile(r"Running on http://127\.0\.0\.1:(\d+)")


def _amazon(endpoint: str) -> dict[str, str]:
    return {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_REGION": "us-east-1",
    }


def _google(endpoint: str) -> dict[str, str]:
    account = {"private_key": "", "private_key_id": "", "client_email": "", "disable_oauth": True}
    return {
        "GOOGLE_SERVICE_ACCOUNT_KEY": json.dumps(account | {"gcs_base_url": endpoint}),
        "GOOGLE_ALLOW_HTTP": "true",
    }


def _azure(endpoint: str) -> dict[str, str]:
    return {
        "AZURE_STORAGE_ACCOUNT_NAME": AZURITE_ACCOUNT,
        "AZURE_STORAGE_ACCOUNT_KEY": AZURITE_KEY,
        "AZURE_STORAGE_ENDPOINT": endpoint,
        "AZURE_ALLOW_HTTP": "true",
    }


_VARIABLES = {"s3": _amazon, "gs": _google, "az": _azure}


@dataclass(frozen=True)
class LocalObjectStorage:
    """A running server: the environment that its clients need, and the log of its requests."""

    endpoint: str
    log: Path
    scheme: str = "s3"

    @property
    def environment(self) -> dict[str, str]:
        """Variables by which a client finds it."""
        return _VARIABLES[self.scheme](self.endpoint)

    def url(self, prefix: str) -> ObjectUrl:
        """A URL in its bucket."""
        return ObjectUrl(f"{self.scheme}://{BUCKET}/{prefix}")

    def requests(self) -> list[tuple[str, str]]:
        """Method and path of every request so far, in order."""
        return [(match[1], match[2]) for match in _REQUEST.finditer(self.log.read_text("utf-8", "replace"))]

    @contextmanager
    def counted(self) -> Iterator[Counter[str]]:
        """Count the requests within the block: ``list``, ``get``, ``put``, ``head``, ``delete``."""
        before = len(self.requests())
        counts: Counter[str] = Counter()
        yield counts
        counts.update(_kind(method, path) for method, path in self.requests()[before:])


def _kind(method: str, path: str) -> str:
    if method == "GET" and "list-type" in path:
        return "list"
    return "delete" if method == "POST" and "delete" in path else method.lower()


@contextmanager
def local_object_storage(folder: Path, scheme: str = "s3", *, conditions: bool = True) -> Iterator[LocalObjectStorage]:
    """Start a server with an empty bucket; it ends with the block. Without ``conditions`` it ignores those."""
    options = ["--google"] * (scheme == "gs") + ["--ignore-conditions"] * (not conditions)
    log = folder / "requests.log"
    with log.open("wb") as stream:
        process = subprocess.Popen(
            [sys.executable, "-m", "rollout_assets.testing.object_server", *options],
            stdout=stream,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
        )
    try:
        storage = LocalObjectStorage(f"http://127.0.0.1:{_port(process, log)}", log, scheme)
        request = urllib.request.Request(f"{storage.endpoint}/{BUCKET}", method="PUT")
        urllib.request.urlopen(request, timeout=_START_S).close()
        yield storage
    finally:
        process.kill()
        process.wait()


def _port(process: subprocess.Popen[bytes], log: Path) -> int:
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline and process.poll() is None:
        if match := _RUNNING.search(log.read_text("utf-8", "replace")):
            return int(match[1])
        time.sleep(0.05)
    raise ObjectStorageUnavailable(f"the server for tests did not start: {log.read_text('utf-8', 'replace')[-500:]}")


@contextmanager
def environment_of(storage: LocalObjectStorage, cache: Path) -> Iterator[None]:
    """Let this process, and those that it starts, use a server; copies of objects go to ``cache``."""
    variables = {**storage.environment, "ROLLOUT_ASSETS_CACHE": str(cache)}
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
