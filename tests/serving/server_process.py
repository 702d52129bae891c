"""A real server in a process of its own, for tests."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.waiting import PATIENCE_S


@dataclass(frozen=True)
class RunningServer:
    """Where a server listens, and its process."""

    url: str
    process: subprocess.Popen[str]
    log: Path

    def rss_mib(self) -> float:
        """Memory that the process holds."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith("VmRSS"))
        return int(line.split()[1]) / 1024

    def stop(self) -> tuple[int, float]:
        """Tell it to end; exit code and seconds."""
        began = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(PATIENCE_S)
        return code, time.monotonic() - began


@contextmanager
def running_server(campaign: Path, folder: Path, *options: str, **environment: str) -> Iterator[RunningServer]:
    """``rollout-assets serve`` on a free port; ended at the end, whatever happened."""
    folder.mkdir(parents=True, exist_ok=True)
    ready, log = folder / "ready", folder / "log"
    command = [sys.executable, "-c", "from rollout_assets.cli import main; main()", "serve", "-c", str(campaign)]
    with log.open("w") as out:
        process = subprocess.Popen(
            [*command, "--ready-file", str(ready), *options],
            stdout=out,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ | environment,
        )
    try:
        deadline = time.monotonic() + PATIENCE_S
        while not ready.exists():
            assert process.poll() is None and time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
        yield RunningServer(ready.read_text().strip(), process, log)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
