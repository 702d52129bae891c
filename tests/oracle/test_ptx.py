"""What can be known about a GPU without one: every kernel compiles, and no instruction rounds differently there."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import warp as wp

import rollout_assets
from rollout_assets.geometry import bvh_query_kernels
from rollout_assets.geometry.devices import to_warp
from rollout_assets.oracle import cloud_kernels, view_kernels
from tests.oracle import loose_kernel

ON_A_GPU = (bvh_query_kernels, cloud_kernels, view_kernels)
"""Modules whose kernels are launched on the campaign's device."""

ON_THE_HOST = {
    "rollout_assets.geometry.bvh_build_kernels",  # the twin of the native builder
    "rollout_assets.geometry.bvh_build_native",
    "rollout_assets.geometry.clipping_native",
    "rollout_assets.oracle.sample_lanes",
    "rollout_assets.oracle.view_lanes",
}
"""Modules whose kernels only ever run on the CPU; those of a GPU have the same bits (``test_lanes``)."""

ROUNDS_OTHERWISE = re.compile(
    r"\b(?:fma|mad)\.(?:\w+\.)*f(?:32|64)|\.approx|\.ftz|\b(?:add|sub|mul|div|sqrt)\.f(?:32|64)"
)
"""Fused or approximate instructions, flushed denormals, and arithmetic that leaves the rounding to the assembler."""


def ptx(module: wp.Module, arch: int, folder: Path) -> str:
    wp.compile_aot_module(module, arch=arch, module_dir=folder, use_ptx=True)
    (file,) = folder.glob("*.ptx")
    return file.read_text(encoding="ascii")


def test_every_module_with_kernels_is_listed() -> None:
    package = Path(rollout_assets.__file__).parent
    with_kernels = {
        ".".join(path.relative_to(package.parent).with_suffix("").parts)
        for path in package.rglob("*.py")
        if "@wp.kernel" in path.read_text(encoding="utf-8")
    }
    assert with_kernels == {module.__name__ for module in ON_A_GPU} | ON_THE_HOST


@pytest.mark.parametrize("arch", [75, pytest.param(120, marks=pytest.mark.ci)])
@pytest.mark.parametrize("source", ON_A_GPU, ids=lambda source: source.__name__.rpartition(".")[2])
def test_kernels_compile_for_a_gpu_and_round_as_on_the_cpu(source: object, arch: int, tmp_path: Path) -> None:
    to_warp(np.zeros(1), wp.float32, "cpu")  # starts Warp without its banner
    module = wp.get_module(source.__name__)  # type: ignore[attr-defined]
    text = ptx(module, arch, tmp_path)
    entries = set(re.findall(r"\.entry (\w+)_[0-9a-f]{8}_cuda_kernel_forward", text))
    assert entries == {value.key for value in vars(source).values() if isinstance(value, wp.Kernel)}
    assert f".target sm_{arch}" in text
    assert ROUNDS_OTHERWISE.findall(text) == []


def test_fused_products_are_noticed(tmp_path: Path) -> None:
    """A module that allows fused products has them, and the pattern sees it."""
    to_warp(np.zeros(1), wp.float32, "cpu")
    assert ROUNDS_OTHERWISE.findall(ptx(loose_kernel.scaled.module, 75, tmp_path))
