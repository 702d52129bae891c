"""Where arrays are computed: the one place that turns a device name into a device and switches Warp on."""

from __future__ import annotations

import functools
import re

import torch
import warp as wp

from rollout_assets.errors import DeviceError

_NAME = re.compile(r"auto|cpu|cuda(:\d+)?")


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
