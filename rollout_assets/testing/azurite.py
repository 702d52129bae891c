"""Azure's object storage on this machine, for tests on request: Microsoft's emulator Azurite, installed with npm."""

from __future__ import annotations

import base64
import hashlib
import hmac
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from pathlib import Path

from rollout_assets.errors import MachineFault
from rollout_assets.testing.local_daemon import answers, free_port, wait_until
from rollout_assets.testing.object_storage import AZURITE_ACCOUNT, AZURITE_KEY, BUCKET, LocalObjectStorage

_VERSION = "2021-08-06"


@contextmanager
def local_azurite(folder: Path) -> Iterator[LocalObjectStorage]:
    """Start Azurite with an empty container; it ends with the block."""
    program = shutil.which("azurite-blob")
    if program is None:
        raise MachineFault("azurite-blob is not on the PATH; install it with 'npm install --global azurite'")
    port, log = free_port(), folder / "azurite.log"
    options = ["--inMemoryPersistence", "--disableTelemetry", "--skipApiVersionCheck", "--blobPort", str(port)]
    with log.open("wb") as stream:
        process = subprocess.Popen([program, *options], stdout=stream, stderr=stream, cwd=folder)
    try:
        wait_until("Azurite", lambda: answers(port))
        storage = LocalObjectStorage(f"http://127.0.0.1:{port}/{AZURITE_ACCOUNT}", log, "az")
        _create_container(storage.endpoint)
        yield storage
    finally:
        process.kill()
        process.wait()


def _create_container(endpoint: str) -> None:
    headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": _VERSION}
    lines = "".join(f"{name}:{value}\n" for name, value in headers.items())
    signed = f"PUT{12 * chr(10)}{lines}/{AZURITE_ACCOUNT}/{AZURITE_ACCOUNT}/{BUCKET}\nrestype:container"
    digest = hmac.new(base64.b64decode(AZURITE_KEY), signed.encode(), hashlib.sha256).digest()
    headers["Authorization"] = f"SharedKey {AZURITE_ACCOUNT}:{base64.b64encode(digest).decode()}"
    request = urllib.request.Request(f"{endpoint}/{BUCKET}?restype=container", method="PUT", headers=headers)
    urllib.request.urlopen(request).close()
