"""``bench kernels``: rays, trees and two processes, the figures that the page about kernels promises, in one table.

Processor seconds of one core, because other work on a machine changes wall time more than any of these. To compare two
versions, run the command of each in turn several times.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import numpy as np
import torch

from rollout_assets.benchmarks.measure import Steps, least, timed
from rollout_assets.benchmarks.oracle import two_process_speedup
from rollout_assets.benchmarks.oracle_results import FULL
from rollout_assets.benchmarks.oracle_workloads import furnished_room, scoring_case
from rollout_assets.benchmarks.results import Figure
from rollout_assets.config import OracleConfig
from rollout_assets.errors import MeshError
from rollout_assets.geometry.triangle_bvh import build_tree
from rollout_assets.oracle.raycast import render_depth
from rollout_assets.oracle.tree_files import read_tree, write_tree
from rollout_assets.progress import SILENT, ProgressSink

RAY_FACES, RAY_VIEWS = 100_000, 60


@dataclass(frozen=True)
class KernelBenchmark:
    """Figures of the CPU. Goals of rays are ratios to an older version, so they stand on the page, not here."""

    ray_faces: int
    tree_faces: int
    small_rays_per_s: Annotated[float, Figure("rays of 48 x 48 images", "{:,.0f} /s")]
    large_rays_per_s: Annotated[float, Figure("rays of 240 x 240 images", "{:,.0f} /s")]
    tree_cpu_s: Annotated[float, Figure("building the tree, processor time", "{:.2f} s", "4 s for 5 million faces")]
    tree_wall_s: Annotated[float, Figure("  wall time", "{:.2f} s")]
    tree_file_cpu_s: Annotated[float, Figure("reading it from disk, processor time", "{:.2f} s")]
    tree_file_wall_s: Annotated[float, Figure("  wall time", "{:.2f} s", "0.5 s for 5 million faces")]
    two_process_cpu_speedup: Annotated[float, Figure("two processes over one, processor time", "{:.2f}x", "1.9x")]
    two_process_speedup: Annotated[float, Figure("  wall time", "{:.2f}x")]

    def __str__(self) -> str:
        return f"Kernels on one core: rays in {self.ray_faces:,} faces, a tree of {self.tree_faces:,}"


def benchmark_kernels(
    tree_faces: int = 5_000_000, rounds: int = FULL.rounds, seed: int = 0, progress: ProgressSink = SILENT
) -> KernelBenchmark:
    """Measure rays in 100,000 faces, a tree of ``tree_faces`` and a second process; the best of three turns each."""
    step = Steps(progress, "kernel benchmark", 3, "measurements")
    step("rays")
    threads = torch.get_num_threads()
    try:
        small, large = _rays_per_s(seed)
    finally:
        torch.set_num_threads(threads)
    step("trees")
    mesh = furnished_room(tree_faces, min(5_000, tree_faces // 2), np.random.default_rng(seed))
    built = least(lambda: build_tree(*mesh))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "measured.tree"
        write_tree(path, build_tree(*mesh))
        if read_tree(path) is None:
            raise MeshError(f"{path}: the tree that was just written cannot be read; check the disk")
        read = timed(lambda: read_tree(path))
    step("two processes")
    by_wall, by_cpu = two_process_speedup("cpu", seed, rounds)
    step()
    return KernelBenchmark(
        ray_faces=RAY_FACES,
        tree_faces=len(mesh[1]),
        small_rays_per_s=small,
        large_rays_per_s=large,
        tree_cpu_s=built.cpu,
        tree_wall_s=built.wall,
        tree_file_cpu_s=read.cpu,
        tree_file_wall_s=read.wall,
        two_process_cpu_speedup=by_cpu,
        two_process_speedup=by_wall,
    )


def _rays_per_s(seed: int) -> tuple[float, float]:
    """Rays a processor second of 48 x 48 and of 240 x 240 images in a furnished room.

    One thread of torch: its others spin for a while after each operation, and their time would count for the next rays.
    """
    torch.set_num_threads(1)
    rng, config = np.random.default_rng(seed), OracleConfig(device="cpu")
    case = scoring_case(furnished_room(RAY_FACES, 5_000, rng), config, RAY_VIEWS, rng)
    poses, bvh = case.request.poses_world_camera, case.state.scene.bvh
    rates = []
    for side_px in (48, 240):
        camera = case.state.camera.resized(side_px, side_px)
        render = partial(render_depth, bvh, poses, camera, config.znear_m, config.zfar_m)
        render()
        rates.append(len(poses) * side_px**2 / least(render).cpu)
    return rates[0], rates[1]
