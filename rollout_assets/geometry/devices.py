"""Where arrays are computed: device names, arrays on a device, and kernels that run on them.

Arrays between kernels are Warp's. Torch is met only at the edge, by those who bring or want tensors: importing it takes
longer than everything else a worker does before its first result.
"""

from __future__ import annotations

import math
import os
import re
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from importlib import import_module
from time import perf_counter, thread_time
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import warp as wp
import warp.utils
from numpy.typing import ArrayLike, NDArray

from rollout_assets.errors import DeviceError, DeviceMemoryError, GeometryError
from rollout_assets.geometry.device_choice import hidden_gpu_problem, spread_over, usable_device

if TYPE_CHECKING:
    import torch

Array: TypeAlias = "ArrayLike | torch.Tensor"
"""NumPy, anything NumPy takes, or a torch tensor on any device."""

Parts: TypeAlias = "list[tuple[NDArray[Any], Any]]"
"""NumPy arrays, each with the Warp type of its elements."""

_NAME = re.compile(r"auto|cpu|cuda(:\d+)?")
_LOCK = threading.RLock()
_TORCH_LOCK = threading.Lock()
_SORT_LOCK = threading.Lock()
_streams: set[str] = set()
"""GPUs whose work queues up behind torch's."""

_ALIGNMENT = 64
_WORTH_A_COPY = 1 << 22
_ready: set[tuple[str, str] | None] = set()
"""Kernels whose module is loaded, by key and device; None stands for Warp itself."""


def resolve_device(name: str) -> str:
    """``auto``, ``cpu``, ``cuda`` or ``cuda:N`` -> ``cpu`` or ``cuda:N``, refused when it is not there.

    ``auto`` and ``cuda`` are the visible CUDA device with the fewest processes of ours, for the life of this process;
    without one, ``auto`` is the CPU. A GPU that is there but cannot be used is a ``DeviceError`` that says why: a run
    that silently takes the CPU instead would take a hundred times longer.
    """
    if not _NAME.fullmatch(name):
        raise DeviceError(f"unknown device {name!r}; use auto, cpu, cuda or cuda:N")
    if name == "cpu":
        return "cpu"
    _start_warp()
    count = wp.get_cuda_device_count()
    if count == 0:
        problem = hidden_gpu_problem()
        if problem is not None:
            raise DeviceError(f"device {name!r} cannot be used: {problem}")
        if name == "auto":
            return "cpu"
        raise DeviceError(f'device {name!r} is not there: no CUDA device or driver found; set device = "cpu" or "auto"')
    if name in ("auto", "cuda"):
        devices = wp.get_cuda_devices()
        return _aligned(usable_device(f"cuda:{spread_over([device.uuid for device in devices])}"))
    index = int(name.partition(":")[2])
    if index >= count:
        raise DeviceError(f'device {name!r} is not there: {count} CUDA device(s) found; set device = "cpu" or "auto"')
    return _aligned(usable_device(f"cuda:{index}"))


def to_warp(values: Any, dtype: Any, device: str) -> wp.array:
    """A copy of a NumPy array on ``device``."""
    _start_warp()
    _count("copies_to_device")
    with _naming_memory(device):
        return wp.array(values, dtype=dtype, device=device)


def upload(parts: Sequence[tuple[NDArray[Any], Any]], device: str) -> list[wp.array]:
    """NumPy arrays with the Warp type of their elements, brought to ``device`` in a single copy.

    Many small copies cost a GPU more than one large one. Each part begins at a multiple of 64 bytes, and keeps the
    memory of all alive. Large arrays are used where they lie if the device is the CPU, so do not change them.
    """
    _start_warp()
    arrays = [np.ascontiguousarray(values) for values, _ in parts]
    if device == "cpu" and sum(array.nbytes for array in arrays) > _WORTH_A_COPY:
        _count("copies_to_device")
        return [
            wp.array(array, dtype=dtype, device=device, copy=False)
            for array, (_, dtype) in zip(arrays, parts, strict=True)
        ]
    starts, size = [], 0
    for array in arrays:
        starts.append(size)
        size += -(-array.nbytes // _ALIGNMENT) * _ALIGNMENT
    packed = empty_warp(size, wp.uint8, "cpu")
    content = packed.numpy()
    for array, start in zip(arrays, starts, strict=True):
        content[start : start + array.nbytes] = array.reshape(-1).view(np.uint8)
    _count("copies_to_device")
    with _naming_memory(device):
        whole = packed if device == "cpu" else packed.to(device)
    return [_part(whole, start, array, dtype) for array, start, (_, dtype) in zip(arrays, starts, parts, strict=True)]


def struct_value(kind: Any, **values: Any) -> np.void:
    """A Warp struct with these values, as an array holds it; arrays in it must outlive the array."""
    struct = kind()
    for name, value in values.items():
        setattr(struct, name, value)
    return struct.numpy_value()


def struct_array(kind: Any, values: Sequence[np.void]) -> tuple[NDArray[Any], Any]:
    """Values of one Warp struct as ``upload`` takes them."""
    return np.array(values, kind.numpy_dtype()), kind


def on_host(values: NDArray[Any], dtype: Any) -> wp.array:
    """A NumPy array as Warp sees it on the CPU, without a copy."""
    _start_warp()
    return wp.array(values, dtype=dtype, device="cpu", copy=False)


def in_lanes(device: str) -> bool:
    """Whether the kernels for vector instructions run there, sixteen items a thread; elsewhere every item has its own.

    Both kinds give the same bits; a test lets the CPU run those for a GPU.
    """
    return device == "cpu"


def run_on_host(kernel: wp.Kernel, dim: int, arguments: list[Any]) -> None:
    """Run compiled work of the host, which is the same whatever device the results go to. Not a launch on a device."""
    _load(kernel, "cpu")
    used = thread_time()
    wp.launch(kernel, dim=dim, inputs=arguments, device="cpu")
    for clock in _clocks:
        clock.add_host_code(thread_time() - used)


def _part(whole: wp.array, start: int, values: NDArray[Any], dtype: Any) -> wp.array:
    own = len(getattr(dtype, "_shape_", ()))
    shape = values.shape[: values.ndim - own]
    if 0 in shape or not shape:
        return empty_warp(shape or 0, dtype, str(whole.device))
    part = wp.array(ptr=whole.ptr + start, shape=shape, dtype=dtype, device=whole.device, copy=False)
    part.memory = whole
    return part


def to_host(array: wp.array) -> NDArray[Any]:
    """The values on the host; on the CPU this is the array's own memory."""
    _count("copies_to_host")
    return array.numpy()


def empty_warp(shape: int | tuple[int, ...], dtype: Any, device: str) -> wp.array:
    """An array with undefined values on ``device``."""
    _start_warp()
    with _naming_memory(device):
        return wp.empty(shape, dtype=dtype, device=device)


def full_warp(shape: int | tuple[int, ...], value: float, dtype: Any, device: str) -> wp.array:
    """An array with one value everywhere on ``device``."""
    _start_warp()
    with _naming_memory(device):
        return wp.full(shape, value=value, dtype=dtype, device=device)


def to_torch(array: wp.array) -> torch.Tensor:
    """The array's memory as a tensor, (n, 3) float32 for n vectors; on the host where torch has no CUDA."""
    _import_torch()
    device = str(array.device)
    if device != "cpu" and not sys.modules["torch"].cuda.is_available():
        array = array.to("cpu")
    elif _aligned(device) in _streams:
        wp.synchronize_device(device)  # what was queued before torch was loaded
    return wp.to_torch(array)


def vectors(values: Array, name: str, device: str) -> wp.array:
    """(n, 3) numbers as n float32 vectors on ``device``, without a copy where the memory already fits."""
    _start_warp()
    torch_or_none = sys.modules.get("torch")
    tensor_type = getattr(torch_or_none, "Tensor", None)  # None also while another thread still imports torch
    if torch_or_none is not None and tensor_type is not None and isinstance(values, tensor_type):
        if device != "cpu" and not torch_or_none.cuda.is_available():
            return vectors(values.detach().cpu().numpy(), name, device)
        tensor = values.detach().to(device=_aligned(device), dtype=torch_or_none.float32).contiguous()
        _check_shape(tuple(tensor.shape), name)
        return wp.from_torch(tensor, dtype=wp.vec3) if len(tensor) else empty_warp(0, wp.vec3, device)
    if isinstance(values, wp.array):
        return values
    array = np.ascontiguousarray(values, np.float32)
    _check_shape(array.shape, name)
    _count("copies_to_device")
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
    _load(kernel, device)
    if not _clocks:
        wp.launch(kernel, dim=dim, inputs=arguments, device=device)
        return
    timed = device == "cpu"
    began, used = perf_counter(), thread_time()
    wp.launch(kernel, dim=dim, inputs=arguments, device=device)
    spent = (perf_counter() - began, thread_time() - used) if timed else (0.0, 0.0)
    for clock in _clocks:
        clock.add(kernel.key, math.prod(dim) if isinstance(dim, tuple) else dim, *spent)


def _load(kernel: wp.Kernel, device: str) -> None:
    if (kernel.key, device) in _ready:
        return
    _start_warp()
    with _LOCK:
        wp.load_module(kernel.module, device=device)
        _ready.add((kernel.key, device))


def load_kernels(modules: Sequence[str], device: str) -> None:
    """Compile or load all kernels of some modules of this package, for example ``geometry.clipping_native``."""
    _start_warp()
    for name in modules:
        with _LOCK:
            wp.load_module(import_module(f"rollout_assets.{name}"), device=device)


def sort_pairs(keys: wp.array, values: wp.array, count: int, bits: int) -> None:
    """Sort the first ``count`` of (2 n,) integer keys by their lowest ``bits``, values with them; the rest is scratch.

    Warp keeps the scratch memory of its sort per device, not per thread, so threads take turns on a GPU.
    """
    if count == 0:
        return
    device = str(keys.device)
    with nullcontext() if device == "cpu" else _SORT_LOCK, wp.ScopedDevice(device):
        warp.utils.radix_sort_pairs(keys, values, count, end_bit=bits)


def running_sums(values: wp.array) -> wp.array:
    """(n,) int32 sums up to and with each of (n,) int32 values."""
    device = str(values.device)
    sums = empty_warp(values.shape, wp.int32, device)
    if len(values):
        with nullcontext() if device == "cpu" else _SORT_LOCK, wp.ScopedDevice(device):
            warp.utils.array_scan(values, sums, inclusive=True)
    return sums


@dataclass
class KernelClock:
    """What went to devices meanwhile, summed over threads.

    Seconds are those inside kernels on the CPU: wall time, and processor time of the thread that launched. A GPU runs
    beside the host, and waiting for each kernel would measure the waiting, so nothing is added up for it.
    """

    seconds: float = 0.0
    cpu_seconds: float = 0.0
    launches: int = 0
    single_thread_launches: int = 0
    copies_to_device: int = 0
    copies_to_host: int = 0
    seconds_of: dict[str, float] = field(default_factory=dict)
    """Processor seconds by kernel."""
    host_code_seconds: float = 0.0
    """Processor seconds in compiled code of the host (``run_on_host``), which is outside kernels."""

    def add(self, kernel: str, threads: int, seconds: float, cpu_seconds: float) -> None:
        """Count one launch."""
        with _LOCK:
            self.seconds += seconds
            self.cpu_seconds += cpu_seconds
            self.launches += 1
            self.single_thread_launches += threads == 1
            self.seconds_of[kernel] = self.seconds_of.get(kernel, 0.0) + cpu_seconds

    def add_host_code(self, cpu_seconds: float) -> None:
        """Count compiled work of the host."""
        with _LOCK:
            self.host_code_seconds += cpu_seconds


@contextmanager
def kernel_clock() -> Iterator[KernelClock]:
    """Count the kernels launched and the copies made meanwhile, and time the kernels that run on the CPU."""
    clock = KernelClock()
    _clocks.append(clock)
    try:
        yield clock
    finally:
        _clocks.remove(clock)


_clocks: list[KernelClock] = []


def _count(what: str) -> None:
    for clock in _clocks:
        with _LOCK:
            setattr(clock, what, getattr(clock, what) + 1)


@contextmanager
def _naming_memory(device: str) -> Iterator[None]:
    """Make an allocation that failed a ``DeviceMemoryError``, which callers answer with a smaller batch."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "allocate" not in str(error):
            raise
        raise DeviceMemoryError(
            f"{device} has no memory left: {error}; set oracle.batch_mib lower, or end what else uses it"
        ) from error


def _check_shape(shape: tuple[int, ...], name: str) -> None:
    if len(shape) != 2 or shape[1] != 3:
        raise GeometryError(f"{name} must have shape (n, 3), got {shape}")


def _aligned(device: str) -> str:
    """Let Warp's work on a GPU queue up behind torch's, so that neither reads what the other has yet to write.

    Only where torch is loaded and has CUDA: a process without tensors on the GPU has nothing to wait for.
    """
    torch_or_none = sys.modules.get("torch")
    if device == "cpu" or device in _streams or getattr(torch_or_none, "cuda", None) is None:
        return device
    if torch_or_none is not None and torch_or_none.cuda.is_available():
        with _LOCK:
            wp.set_stream(wp.stream_from_torch(torch_or_none.cuda.default_stream(device)), device)
            _streams.add(device)
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
