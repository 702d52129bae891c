"""`rollout-assets` as processes of their own, to be stopped and killed, and their children."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.waiting import PATIENCE_S


def start(*arguments: object) -> subprocess.Popen[str]:
    """The command line in a process of its own."""
    command = [sys.executable, "-c", "from rollout_assets.cli import main; main()", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def run(*arguments: object) -> tuple[int, str]:
    """Exit code and everything that was printed."""
    process = start(*arguments)
    told, _ = process.communicate(timeout=PATIENCE_S)
    return process.returncode, told


def kill(process: subprocess.Popen[str]) -> bool:
    """SIGKILL; whether it was still running."""
    running = process.poll() is None
    process.kill()
    process.communicate(timeout=PATIENCE_S)
    return running


def wait_for(condition: Callable[[], Any], seconds: float = 60.0) -> Any:
    """What the condition gives once it holds."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)
    return found


def children_of(pid: int) -> list[int]:
    """Processes that a process has started and not yet buried."""
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            found += [int(child) for child in (task / "children").read_text().split()]
        except FileNotFoundError:
            continue
    return found


def is_running(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def count_lines(path: Path) -> int:
    """Lines of a file so far."""
    return path.read_bytes().count(b"\n") if path.exists() else 0


def own_children() -> list[int]:
    """Children of this process."""
    return children_of(os.getpid())
