"""Inputs that are made once per test run and shared read-only by all its worker processes."""

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest


def built_once(tmp_path_factory: pytest.TempPathFactory, name: str, build: Callable[[Path], object]) -> Path:
    """Return the folder ``name`` of this run, which the first worker process that asks for it has built."""
    base = tmp_path_factory.getbasetemp()
    shared = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "shared"
    shared.mkdir(exist_ok=True)
    with (shared / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        folder, done = shared / name, shared / f"{name}.done"
        if not done.exists():
            build(folder)
            done.touch()
    return folder
