"""How processes share GPUs, and what is said about a GPU that cannot be used. No GPU is needed: Warp's answers are."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import warp as wp

from rollout_assets.errors import DeviceError, DeviceMemoryError
from rollout_assets.geometry import device_choice, devices
from tests.support.refusals import refused


def test_processes_spread_over_the_visible_devices(tmp_path: Path) -> None:
    names = ["GPU-a", "GPU-b", "GPU-c"]
    assert [device_choice.claim_place(names, tmp_path) for _ in range(7)] == [0, 1, 2, 0, 1, 2, 0]
    code = (
        "import sys; from pathlib import Path; from rollout_assets.geometry.device_choice import claim_place\n"
        "print(claim_place(['GPU-a', 'GPU-b', 'GPU-c'], Path(sys.argv[1])))"
    )
    root = Path(__file__).parents[2]
    for _ in range(2):  # the first has ended, so its place is free again
        done = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True, cwd=root
        )
        assert done.stdout == "1\n"


def test_threads_of_a_process_share_one_device(tmp_path: Path) -> None:
    assert device_choice.spread_over(["x", "y"], tmp_path) == device_choice.spread_over(["x", "y"], tmp_path) == 0
    assert device_choice.spread_over(["y", "x"], tmp_path) == 0  # y is free
    assert device_choice.spread_over(["only"], tmp_path) == 0


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> SimpleNamespace:
    """A Warp that has two GPUs, as far as choosing one is concerned."""
    gpu = SimpleNamespace(uuid="GPU-1", name="Test", arch=86, is_mempool_supported=True, pools=[])
    monkeypatch.setattr(devices, "_start_warp", lambda: None)
    monkeypatch.setattr(wp, "get_cuda_device_count", lambda: 2)
    monkeypatch.setattr(wp, "get_cuda_devices", lambda: [gpu, SimpleNamespace(uuid="GPU-2")])
    monkeypatch.setattr(wp, "get_device", lambda _name: gpu)
    monkeypatch.setattr(wp, "get_cuda_supported_archs", lambda: [75, 86, 120])
    monkeypatch.setattr(wp, "set_mempool_enabled", lambda *_: None)
    monkeypatch.setattr(wp, "set_mempool_release_threshold", lambda name, share: gpu.pools.append((name, share)))
    monkeypatch.setattr(device_choice, "_folder", lambda: tmp_path)
    monkeypatch.setattr(device_choice, "_chosen", {})
    return gpu


def test_auto_takes_a_gpu_where_torch_has_none(two_gpus: SimpleNamespace) -> None:
    """Torch may be installed for the CPU only, beside a GPU."""
    assert devices.resolve_device("auto") == "cuda:0"
    assert devices.resolve_device("cuda:1") == "cuda:1"
    assert two_gpus.pools == [("cuda:0", 0.5), ("cuda:1", 0.5)]


def test_a_gpu_that_is_too_old_says_so(two_gpus: SimpleNamespace) -> None:
    two_gpus.arch = 61
    with refused(DeviceError, "cuda:0", "Test", "sm_61", "sm_75"):
        devices.resolve_device("auto")


@pytest.mark.parametrize(
    ("driver", "names"),
    [((11, 4), ["driver", "CUDA 11.4", "CUDA 13.4"]), (None, ["driver"])],
)
def test_a_driver_that_is_too_old_is_not_a_silent_cpu_run(
    monkeypatch: pytest.MonkeyPatch, driver: tuple[int, int] | None, names: list[str]
) -> None:
    monkeypatch.setattr(devices, "_start_warp", lambda: None)
    monkeypatch.setattr(wp, "get_cuda_device_count", lambda: 0)
    monkeypatch.setattr(Path, "glob", lambda *_: iter([Path("/dev/nvidia0")]))
    monkeypatch.setattr(wp, "get_cuda_driver_version", lambda: driver)
    monkeypatch.setattr(wp, "get_cuda_toolkit_version", lambda: (13, 4))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with refused(DeviceError, *names):
        devices.resolve_device("auto")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert devices.resolve_device("auto") == "cpu"


def test_memory_that_runs_out_has_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_args: object, **_options: object) -> None:
        raise RuntimeError("Failed to allocate 99 bytes on device 'cuda:0'")

    devices.empty_warp(1, wp.float32, "cpu")
    monkeypatch.setattr(wp, "empty", full)
    with refused(DeviceMemoryError, "cpu", "99 bytes", "oracle.batch_mib"):
        devices.empty_warp(99, wp.uint8, "cpu")
