"""Where arrays are computed: device names, and Warp kernels on torch tensors."""

from __future__ import annotations

import os
import re
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch
import warp as wp

from rollout_assets.errors import DeviceError

_NAME = re.compile(r"auto|cpu|cuda(:\d+)?")
_LOCK = threading.RLock()
_ready: set[tuple[str, str] | None] = set()
"""Kernels whose module is loaded, by key and device; None stands for Warp itself."""


def resolve_device(name: str) -> str:
    """``auto``, ``cpu``, ``cuda`` or ``cuda:N`` -> ``cpu`` or ``cuda:N``, refused when it is not there.

    ``auto`` is the first CUDA device that both Warp and PyTorch can use, else the CPU.
    """
    if not _NAME.fullmatch(name):
        raise DeviceError(f"unknown device {name!r}; use auto, cpu, cuda or cuda:N")
    if name == "cpu":
        return "cpu"
    _start_warp()
    count = min(wp.get_cuda_device_count(), torch.cuda.device_count())
    if name == "auto":
        return _on_torch_stream("cuda:0") if count else "cpu"
    index = int(name.partition(":")[2] or 0)
    if index >= count:
        found = f"{count} CUDA device(s) found" if count else "no CUDA device or driver found"
        raise DeviceError(f'device {name!r} is not there: {found}; set device = "cpu" or "auto"')
    return _on_torch_stream(f"cuda:{index}")


def as_warp(values: torch.Tensor, dtype: Any = None) -> wp.array:
    """The tensor's memory as a Warp array; ``dtype`` may be a vector type over the last dimension.

    An empty tensor has no strides that Warp accepts, so it becomes an empty array of the same shape.
    """
    _start_warp()
    if values.numel() == 0:
        shape = tuple(values.shape[:-1]) if dtype is not None else tuple(values.shape)
        return wp.empty(shape, dtype=dtype or wp.dtype_from_torch(values.dtype), device=str(values.device))
    return wp.from_torch(values, dtype=dtype)


def to_warp(values: Any, dtype: Any, device: str) -> wp.array:
    """A copy of a NumPy array on ``device``."""
    _start_warp()
    return wp.array(values, dtype=dtype, device=device)


def empty_warp(shape: int | tuple[int, ...], dtype: Any, device: str) -> wp.array:
    """An array with undefined values on ``device``."""
    _start_warp()
    return wp.empty(shape, dtype=dtype, device=device)


def launch(kernel: wp.Kernel, dim: int | tuple[int, ...], arguments: list[Any], device: str) -> None:
    """Run a kernel on Warp arrays, torch tensors of plain scalars, and numbers. A dimension of 0 means nothing to do.

    A kernel's first launch compiles or loads its module; the lock keeps two threads from doing that at once.
    """
    if 0 in (dim if isinstance(dim, tuple) else (dim,)):
        return
    inputs = [as_warp(value) if isinstance(value, torch.Tensor) else value for value in arguments]
    if (kernel.key, device) not in _ready:
        with _LOCK:
            wp.load_module(kernel.module, device=device)
            _ready.add((kernel.key, device))
    began = perf_counter()
    wp.launch(kernel, dim=dim, inputs=inputs, device=device)
    if _clocks:
        wp.synchronize_device(device)
        for clock in _clocks:
            clock.add(perf_counter() - began)


@dataclass
class KernelClock:
    """Seconds and launches inside device kernels, summed over threads."""

    seconds: float = 0.0
    launches: int = 0

    def add(self, seconds: float) -> None:
        """Count one launch."""
        with _LOCK:
            self.seconds += seconds
            self.launches += 1


@contextmanager
def kernel_clock() -> Iterator[KernelClock]:
    """Measure the kernels launched meanwhile. On a GPU every launch is then waited for, so use it to measure only."""
    clock = KernelClock()
    _clocks.append(clock)
    try:
        yield clock
    finally:
        _clocks.remove(clock)


_clocks: list[KernelClock] = []


def _on_torch_stream(device: str) -> str:
    """Let Warp's work on a GPU queue up behind torch's, so that neither reads what the other has yet to write."""
    wp.set_stream(wp.stream_from_torch(torch.cuda.default_stream(device)), device)
    return device


def _start_warp() -> None:
    """Initialise Warp once per process, without its banner and without a word about a missing CUDA driver."""
    if None in _ready:
        return
    with _LOCK, _without_line_on_stderr(b"Could not find or load the NVIDIA CUDA driver"):
        wp.config.log_level = wp.LOG_WARNING
        wp.init()
        _ready.add(None)


@contextmanager
def _without_line_on_stderr(unwanted: bytes) -> Iterator[None]:
    """Hold back what native code writes to stderr meanwhile, and pass all of it on but lines with ``unwanted``.

    Warp's library prints its driver notice past Python and past its own log level. A machine without a GPU is no news:
    whoever asks for one gets a ``DeviceError``.
    """
    sys.stderr.flush()
    with tempfile.TemporaryFile() as held:
        stderr = os.dup(2)
        os.dup2(held.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(stderr, 2)
            held.seek(0)
            os.write(stderr, b"".join(line for line in held if unwanted not in line))
            os.close(stderr)
