"""Where arrays are computed: device names, arrays on a device, and kernels that run on them.

Arrays between kernels are Warp's. Torch is met only at the edge, by those who bring or want tensors: importing it takes
longer than everything else a worker does before its first result.
"""

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
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import warp as wp
from numpy.typing import ArrayLike, NDArray

from rollout_assets.errors import DeviceError, GeometryError

if TYPE_CHECKING:
    import torch

Array: TypeAlias = "ArrayLike | torch.Tensor"
"""NumPy, anything NumPy takes, or a torch tensor on any device."""

_NAME = re.compile(r"auto|cpu|cuda(:\d+)?")
_LOCK = threading.RLock()
_TORCH_LOCK = threading.Lock()
_ready: set[tuple[str, str] | None] = set()
"""Kernels whose module is loaded, by key and device; None stands for Warp itself."""


def resolve_device(name: str) -> str:
    """``auto``, ``cpu``, ``cuda`` or ``cuda:N`` -> ``cpu`` or ``cuda:N``, refused when it is not there.

    ``auto`` is the first CUDA device, else the CPU.
    """
    if not _NAME.fullmatch(name):
        raise DeviceError(f"unknown device {name!r}; use auto, cpu, cuda or cuda:N")
    if name == "cpu":
        return "cpu"
    _start_warp()
    count = wp.get_cuda_device_count()
    if name == "auto":
        return _on_torch_stream("cuda:0") if count else "cpu"
    index = int(name.partition(":")[2] or 0)
    if index >= count:
        present = f"{count} CUDA device(s) found" if count else "no CUDA device or driver found"
        raise DeviceError(f'device {name!r} is not there: {present}; set device = "cpu" or "auto"')
    return _on_torch_stream(f"cuda:{index}")


def to_warp(values: Any, dtype: Any, device: str) -> wp.array:
    """A copy of a NumPy array on ``device``."""
    _start_warp()
    return wp.array(values, dtype=dtype, device=device)


def empty_warp(shape: int | tuple[int, ...], dtype: Any, device: str) -> wp.array:
    """An array with undefined values on ``device``."""
    _start_warp()
    return wp.empty(shape, dtype=dtype, device=device)


def full_warp(shape: int | tuple[int, ...], value: float, dtype: Any, device: str) -> wp.array:
    """An array with one value everywhere on ``device``."""
    _start_warp()
    return wp.full(shape, value=value, dtype=dtype, device=device)


def to_torch(array: wp.array) -> torch.Tensor:
    """The array's memory as a tensor, (n, 3) float32 for n vectors."""
    _import_torch()
    return wp.to_torch(array)


def vectors(values: Array, name: str, device: str) -> wp.array:
    """(n, 3) numbers as n float32 vectors on ``device``, without a copy where the memory already fits."""
    _start_warp()
    torch_or_none = sys.modules.get("torch")
    tensor_type = getattr(torch_or_none, "Tensor", None)  # None also while another thread still imports torch
    if torch_or_none is not None and tensor_type is not None and isinstance(values, tensor_type):
        tensor = values.detach().to(device=device, dtype=torch_or_none.float32).contiguous()
        _check_shape(tuple(tensor.shape), name)
        return wp.from_torch(tensor, dtype=wp.vec3) if len(tensor) else empty_warp(0, wp.vec3, device)
    if isinstance(values, wp.array):
        return values
    array = np.ascontiguousarray(values, np.float32)
    _check_shape(array.shape, name)
    return wp.array(array, dtype=wp.vec3, device=device, copy=device != "cpu")


def as_numpy(values: Array) -> NDArray[Any]:
    """On the host, whatever brought it."""
    torch_or_none = sys.modules.get("torch")
    if torch_or_none is not None and isinstance(values, torch_or_none.Tensor):
        return values.detach().cpu().numpy()
    return np.asarray(values)


def launch(kernel: wp.Kernel, dim: int | tuple[int, ...], arguments: list[Any], device: str) -> None:
    """Run a kernel on Warp arrays and numbers. A dimension of 0 means nothing to do.

    A kernel's first launch compiles or loads its module; the lock keeps two threads from doing that at once.
    """
    if 0 in (dim if isinstance(dim, tuple) else (dim,)):
        return
    if (kernel.key, device) not in _ready:
        with _LOCK:
            wp.load_module(kernel.module, device=device)
            _ready.add((kernel.key, device))
    began = perf_counter()
    wp.launch(kernel, dim=dim, inputs=arguments, device=device)
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


def _check_shape(shape: tuple[int, ...], name: str) -> None:
    if len(shape) != 2 or shape[1] != 3:
        raise GeometryError(f"{name} must have shape (n, 3), got {shape}")


def _on_torch_stream(device: str) -> str:
    """Let Warp's work on a GPU queue up behind torch's, so that neither reads what the other has yet to write."""
    import torch

    wp.set_stream(wp.stream_from_torch(torch.cuda.default_stream(device)), device)
    return device


def _import_torch() -> None:
    """Import torch in one thread while the others wait: two that import it at once see half of it."""
    with _TORCH_LOCK:
        import torch  # noqa: F401


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
