"""Kernels are compiled ahead of their first use: all of them, and for every process."""

from pathlib import Path

import rollout_assets
from rollout_assets.oracle.kernels import HOST_KERNELS, KERNELS, LANE_KERNELS, compile_kernels

SLOW_TWINS = {"geometry.bvh_build_kernels"}


def test_every_module_with_kernels_is_compiled_ahead():
    package = Path(rollout_assets.__file__).parent
    files = [path for room in ("geometry", "oracle") for path in (package / room).glob("*.py")]
    modules = {f"{path.parent.name}.{path.stem}" for path in files if "@wp.kernel" in path.read_text()}
    assert modules - SLOW_TWINS == {*HOST_KERNELS, *KERNELS, *LANE_KERNELS}
    compile_kernels("cpu")
