"""Where arrays are computed: the one place that turns a device name into a device and switches Warp on."""

from __future__ import annotations

import functools
import re
import threading
from typing import Any

import torch
import warp as wp

from rollout_assets.errors import DeviceError

_NAME = re.compile(r"auto|cpu|cuda(:\d+)?")
_LOADING = threading.Lock()
_LOADED: set[tuple[str, str]] = set()


@functools.cache
def _start_warp() -> None:
    """Initialise Warp once per process, without its banner: stdout is for data."""
    wp.config.log_level = wp.LOG_ERROR
    wp.init()
    wp.config.log_level = wp.LOG_WARNING


def resolve_device(name: str) -> str:
    """``auto``, ``cpu``, ``cuda`` or ``cuda:N`` -> ``cpu`` or ``cuda:N``, refused when it is not there.

    ``auto`` is the first CUDA device that both Warp and PyTorch can use, else the CPU.
    """
    if not _NAME.fullmatch(name):
        raise DeviceError(f"unknown device {name!r}; use auto, cpu, cuda or cuda:N")
    _start_warp()
    if name == "cpu":
        return "cpu"
    count = min(wp.get_cuda_device_count(), torch.cuda.device_count())
    if name == "auto":
        return "cuda:0" if count else "cpu"
    index = int(name.partition(":")[2] or 0)
    if index >= count:
        found = f"{count} CUDA device(s) found" if count else "no CUDA device or driver found"
        raise DeviceError(f'device {name!r} is not there: {found}; set device = "cpu" or "auto"')
    return f"cuda:{index}"


def as_warp(tensor: torch.Tensor, dtype: Any = None) -> wp.array:
    """The tensor's memory as a Warp array; ``dtype`` may be a vector type over the last dimension.

    An empty tensor has no strides that Warp accepts, so it becomes an empty array of the same shape.
    """
    if tensor.numel() == 0:
        shape = tuple(tensor.shape[:-1]) if dtype is not None and hasattr(dtype, "_shape_") else tuple(tensor.shape)
        return wp.empty(shape, dtype=dtype or wp.dtype_from_torch(tensor.dtype), device=str(tensor.device))
    return wp.from_torch(tensor, dtype=dtype)


def launch(kernel: wp.Kernel, dim: int | tuple[int, ...], arguments: list[Any], device: str) -> None:
    """Run a kernel on torch tensors and plain values; (vector) arrays come in as Warp arrays. Nothing to do is fine.

    A kernel's first launch compiles or loads its module; the lock keeps two threads from doing that at once.
    """
    sizes = dim if isinstance(dim, tuple) else (dim,)
    if 0 in sizes:
        return
    inputs = [as_warp(value) if isinstance(value, torch.Tensor) else value for value in arguments]
    if (kernel.key, device) not in _LOADED:
        with _LOADING:
            wp.load_module(kernel.module, device=device)
            _LOADED.add((kernel.key, device))
    wp.launch(kernel, dim=dim, inputs=inputs, device=device)
