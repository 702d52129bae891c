"""Run `rollout-assets` in this process, because a process of its own takes a second to start."""

from __future__ import annotations

import io
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from typing import Any
from unittest import mock

from rollout_assets import cli


@dataclass(frozen=True)
class Done:
    """How a command ended and what it printed."""

    code: Any
    out: str
    err: str


def call(*arguments: str) -> Done:
    """Run the program's main function with these arguments, its output in a pipe's place."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
    with mock.patch.object(sys, "argv", ["rollout-assets", *arguments]), redirect_stdout(out), redirect_stderr(err):
        try:
            cli.main()
        except SystemExit as ended:
            code = ended.code
    return Done(code, *(stream.buffer.getvalue().decode() for stream in (out, err)))
