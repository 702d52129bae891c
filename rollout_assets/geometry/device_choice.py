"""Which GPU a process works on, and why one that is there cannot be used.

Processes that may take any GPU spread over those they can see: each holds a lock file per GPU and place for as long as
it lives, and the lowest free place decides. Our own workers, the runs of Dagster's pool and Ray's actors all come
through here, so they agree without asking each other; Ray and Slurm narrow what a process sees, which is respected.
"""

from __future__ import annotations

import fcntl
import os
import platform
import tempfile
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import warp as wp

from rollout_assets.errors import DeviceError

PLACES_PER_DEVICE = 64
"""Processes that are counted on one GPU; beyond them the first GPU is taken."""

_held: list[int] = []
"""Open lock files, which the system closes with the process."""

_chosen: dict[tuple[str, ...], int] = {}
_lock = threading.Lock()


def spread_over(names: Sequence[str], folder: Path | None = None) -> int:
    """The number of the GPU, among ``names`` that no other machine uses, with the fewest processes; held until the end.

    Asking again gives the same answer, so all threads of a process share one GPU.
    """
    key = (str(folder), *names)
    with _lock:
        if key not in _chosen:
            _chosen[key] = 0 if len(names) == 1 else claim_place(names, folder or _folder())
        return _chosen[key]


def claim_place(names: Sequence[str], folder: Path) -> int:
    """Lock the first free place, all GPUs' first places before any second one, and say which GPU it is on."""
    folder.mkdir(mode=0o777, parents=True, exist_ok=True)
    for place in range(PLACES_PER_DEVICE):
        for index, name in enumerate(names):
            with suppress(OSError):
                handle = os.open(folder / f"{name}.{place}", os.O_RDWR | os.O_CREAT, 0o666)
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError:
                    os.close(handle)
                    raise
                _held.append(handle)
                return index
    return 0


def usable_device(device: str) -> str:
    """``device`` after a look at it: one that Warp cannot compile for is refused; its memory pool keeps some memory."""
    found = wp.get_device(device)
    supported = wp.get_cuda_supported_archs()
    if supported and found.arch < min(supported):
        raise DeviceError(
            f"{device} ({found.name}) is of architecture sm_{found.arch}, but Warp {wp.config.version} compiles for "
            f'sm_{min(supported)} and newer; set device = "cpu", or install an older warp-lang'
        )
    if found.is_mempool_supported:
        wp.set_mempool_enabled(device, True)
        wp.set_mempool_release_threshold(device, 0.5)  # half of the GPU may stay with this process between batches
    return device


def hidden_gpu_problem() -> str | None:
    """Why Warp sees no GPU although this machine has one that the process may use; None if there is none."""
    if os.environ.get("CUDA_VISIBLE_DEVICES", "0").strip() in ("", "-1") or not any(Path("/dev").glob("nvidia[0-9]*")):
        return None
    driver, needed = wp.get_cuda_driver_version(), wp.get_cuda_toolkit_version()
    if driver is None:
        return (
            "there is an NVIDIA GPU, but its driver could not be loaded; install or repair the driver "
            '(nvidia-smi shows whether it works), or set device = "cpu"'
        )
    return (
        f"there is an NVIDIA GPU, but its driver knows CUDA {_version(driver)} and Warp {wp.config.version} was built "
        f'with CUDA {_version(needed)}; update the driver, or set device = "cpu"'
    )


def hardware(device: str) -> str:
    """What ``device`` is, for a table that is sent to somebody else."""
    if device == "cpu":
        return f"{platform.machine()}, {os.cpu_count()} cores, Warp {wp.config.version}"
    found = wp.get_device(device)
    driver = _version(wp.get_cuda_driver_version())
    return f"{found.name}, sm_{found.arch}, CUDA driver {driver}, Warp {wp.config.version}"


def peak_bytes(device: str) -> int:
    """Most memory that Warp's pool on a GPU has held at once."""
    return int(wp.get_mempool_used_mem_high(device))


def wait_for(device: str) -> None:
    """Return when everything that was queued on a device is done."""
    wp.synchronize_device(device)


def _version(parts: tuple[int, int] | None) -> str:
    return "of an unknown version" if parts is None else ".".join(map(str, parts))


def _folder() -> Path:
    return Path(tempfile.gettempdir()) / f"rollout_assets_gpus_{os.getuid()}"
