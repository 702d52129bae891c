"""``bench oracle``: how fast and how exact the oracle is, with brute force on the same inputs in the same run.

On the CPU every figure is per core: one torch thread, and CPU seconds rather than wall time where both exist. Brute
force looks at every pair, so its time is proportional to the number of pairs; it is timed on a part of them and scaled
to all. Nothing here is asserted; tests hold exactness, not speed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from rollout_assets.benchmarks import oracle_results as results
from rollout_assets.benchmarks import oracle_workloads as workloads
from rollout_assets.benchmarks.measure import Seconds, Steps, least, peak_memory_mib, timed
from rollout_assets.config import OracleConfig
from rollout_assets.geometry.device_choice import hardware, peak_bytes, wait_for
from rollout_assets.geometry.devices import resolve_device
from rollout_assets.geometry.poses import Float32
from rollout_assets.oracle import naive
from rollout_assets.oracle.raycast import render_depth
from rollout_assets.oracle.surface_error import PointClouds, Surface, SurfaceState
from rollout_assets.progress import SILENT, ProgressSink
from rollout_assets.workers import RunTask, run_in_new_process, run_tasks

BUDGET = 1 << 29
"""Bytes for one device batch in the kernel measurements."""


def run_oracle_benchmark(
    sizes: results.BenchmarkSizes, *, device: str = "auto", seed: int = 0, progress: ProgressSink = SILENT
) -> results.OracleBenchmark:
    """Measure everything at ``sizes``, for example QUICK or FULL."""
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        return _measure(sizes, resolve_device(device), seed, Steps(progress, "oracle benchmark", 6, "measurements"))
    finally:
        torch.set_num_threads(threads)


def _measure(sizes: results.BenchmarkSizes, device: str, seed: int, step: Steps) -> results.OracleBenchmark:
    step("against brute force")
    comparisons = tuple(_comparison(device, seed, faces, sizes) for faces in sizes.target_faces)
    step("closest points")
    points_per_s = _points_per_s(device, seed)
    step("scenes")
    scenes = tuple(_scene_speed(device, seed, faces, sizes) for faces in sizes.scene_faces)
    step("growth")
    growth = _growths(device, seed, sizes)
    step("a second process")
    second_process_s, second_process_cpu_s = _second_process_s(device)
    step("two processes")
    speedup, cpu_speedup = two_process_speedup(device, seed, sizes.rounds)
    step()
    return results.OracleBenchmark(
        device=device,
        sizes=sizes.name,
        seed=seed,
        comparisons=comparisons,
        points_per_s=points_per_s,
        scenes=scenes,
        growth=growth,
        second_process_s=second_process_s,
        second_process_cpu_s=second_process_cpu_s,
        two_process_speedup=speedup,
        two_process_cpu_speedup=cpu_speedup,
        peak_memory_mib=peak_memory_mib() if device == "cpu" else peak_bytes(device) / 2**20,
        hardware=hardware(device),
    )


def _comparison(device: str, seed: int, faces: int, sizes: results.BenchmarkSizes) -> results.BruteComparison:
    case = _cloud_case(device, seed, faces, sizes.current_points, sizes.view_points, sizes.candidates)
    union = np.concatenate([case.current, case.views[0]])
    per_point = len(case.mesh[1])
    all_pairs = per_point * len(union) * sizes.candidates
    new_pairs = per_point * len(case.views[0]) * sizes.candidates

    triangles = torch.from_numpy(case.mesh[0])[torch.from_numpy(case.mesh[1]).long()]
    sample = torch.from_numpy(_some(union, sizes.brute_pairs // per_point))
    naive.torch_error(sample[:64], triangles)
    rate = len(sample) * per_point / timed(lambda: naive.torch_error(sample, triangles)).cpu
    worst, twin_pairs_per_s = _exactness(case, sizes.exact_pairs // per_point)
    return results.BruteComparison(
        faces=per_point,
        current_points=len(case.current),
        view_points=len(case.views[0]),
        candidates=sizes.candidates,
        state_s=_seconds(device, lambda: case.surface.extended(case.surface.unseen(), case.current)),
        candidates_s=_seconds(device, case.join),
        twin_s=all_pairs / twin_pairs_per_s,
        torch_pairs_per_s=rate,
        torch_s=all_pairs / rate,
        torch_incremental_s=new_pairs / rate,
        torch_measured_share=len(sample) * per_point / all_pairs,
        max_relative_error=worst,
    )


def _exactness(case: _CloudCase, points: int) -> tuple[float, float]:
    """Largest relative error of before and after on about ``points`` of the case's points, and the twin's pairs/s."""
    current, view = _some(case.current, max(points // 4, 8)), _some(case.views[0], max(points // 4, 8))
    state = case.surface.extended(case.surface.unseen(), current)
    joined = case.surface.extended(state, view)
    worst, spent, pairs = 0.0, 0.0, 0
    for reached, cloud in ((state, current), (joined, np.concatenate([current, view]))):
        started = time.process_time()
        exact = naive.whole_faces(*case.mesh, OracleConfig(face_weighting="uniform")).error(cloud)
        spent += time.process_time() - started
        pairs += len(cloud) * len(case.mesh[1])
        worst = max(worst, abs(float(case.surface.error(reached)) - exact) / exact)
    return worst, pairs / spent


def _some(points: Float32, count: int) -> Float32:
    """About ``count`` of the points, evenly chosen."""
    return points[:: max(len(points) // max(count, 1), 1)]


@dataclass(frozen=True, eq=False)
class _CloudCase:
    mesh: workloads.Mesh
    surface: Surface
    current: Float32
    views: list[Float32]
    state: SurfaceState
    clouds: PointClouds

    def join(self) -> Any:
        return self.surface.joined([self.state], self.clouds, np.zeros(len(self.clouds), np.int64), BUDGET)


def _cloud_case(device: str, seed: int, faces: int, current: int, view: int, candidates: int) -> _CloudCase:
    """A target half of which was seen, and clouds of ``view`` points on the side each candidate would see."""
    rng = np.random.default_rng(seed)
    mesh = workloads.bumpy_sphere(faces, workloads.TARGET_RADIUS_M)
    surface = Surface.of_faces(*mesh, device)
    seen = workloads.surface_points(mesh, current, rng, np.array([1.0, 0.0, 0.0], np.float32))
    views = [workloads.surface_points(mesh, view, rng, side) for side in workloads.directions(candidates, rng)]
    state = surface.extended(surface.unseen(), seen)
    return _CloudCase(mesh, surface, seen, views, state, PointClouds.of(views, device))


def _points_per_s(device: str, seed: int) -> float:
    """Closest-point queries per second, points near a surface of 5,000 faces."""
    case = _cloud_case(device, seed, 5_000, current=100_000, view=10, candidates=1)
    return len(case.current) / _seconds(device, lambda: case.surface.bvh.closest(case.current))


def _scene_speed(device: str, seed: int, faces: int, sizes: results.BenchmarkSizes) -> results.SceneSpeed:
    rng = np.random.default_rng(seed)
    mesh = workloads.furnished_room(faces, min(5_000, faces // 2), rng)
    config = OracleConfig(device=device)
    started = time.perf_counter()
    case = workloads.scoring_case(mesh, config, sizes.candidates, rng)
    build_s = time.perf_counter() - started
    poses, camera, bvh = case.request.poses_world_camera, case.state.camera, case.state.scene.bvh
    score_s = _seconds(device, lambda: case.scorer.score([case.request]))
    rays_s = _seconds(device, lambda: render_depth(bvh, poses, camera, config.znear_m, config.zfar_m))
    selected = camera.resized(240, 240)
    selected_s = _seconds(device, lambda: render_depth(bvh, poses[:6], selected, config.znear_m, config.zfar_m))
    return results.SceneSpeed(
        scene_faces=len(mesh[1]),
        target_faces=case.state.target.crop.surface.face_count,
        candidates=sizes.candidates,
        pixels=camera.height_px * camera.width_px,
        build_s=build_s,
        score_s=score_s,
        views_per_s=sizes.candidates / score_s,
        rays_per_s=sizes.candidates * camera.height_px * camera.width_px / rays_s,
        selected_views_per_s=6 / selected_s,
    )


def _growths(device: str, seed: int, sizes: results.BenchmarkSizes) -> tuple[results.Growth, ...]:
    def candidates_s(faces: int = 5_000, view: int = sizes.view_points, candidates: int = sizes.candidates) -> float:
        return _seconds(device, _cloud_case(device, seed, faces, sizes.current_points, view, candidates).join)

    def rays_s(faces: int) -> float:
        rng = np.random.default_rng(seed)
        mesh = workloads.furnished_room(faces, min(900, faces // 2), rng)
        case = workloads.scoring_case(mesh, OracleConfig(device=device), sizes.candidates, rng)
        poses, camera, bvh = case.request.poses_world_camera, case.state.camera, case.state.scene.bvh
        return _seconds(device, lambda: render_depth(bvh, poses, camera, 0.001, 20.0))

    measures: tuple[tuple[str, tuple[int, ...], Callable[[int], float]], ...] = (
        ("scene faces (rays)", sizes.growth_faces, rays_s),
        ("target faces", sizes.growth_faces, lambda faces: candidates_s(faces=faces)),
        ("points per view", sizes.growth_points, lambda points: candidates_s(view=points)),
        ("candidates", sizes.growth_candidates, lambda count: candidates_s(candidates=count)),
    )
    return tuple(results.Growth(what, steps, tuple(map(measure, steps))) for what, steps, measure in measures)


def _second_process_s(device: str) -> tuple[float, float]:
    """Wall and CPU seconds from starting an interpreter to its first labels, imports included, kernels compiled."""
    starts = [(time.time(), *run_in_new_process(workloads.first_score, device)) for _ in range(3)]
    return min(ended - began for began, ended, _ in starts), min(cpu for *_, cpu in starts)


def two_process_speedup(device: str, seed: int, rounds: int, turns: int = 5) -> tuple[float, float]:
    """Views per second of two worker processes over those of one, by wall time and by CPU time.

    By wall time it also shows what else the machine is doing; by CPU time it shows whether the two disturb each other.
    One and two take turns, because a machine's speed changes from minute to minute, and the middle ratio counts. Both
    are NaN on one core or a GPU.
    """
    if device != "cpu" or (os.cpu_count() or 1) < 2:
        return float("nan"), float("nan")
    job = (device, seed, rounds)
    ratios = []
    for _ in range(turns):
        alone = np.array(run_in_new_process(_score_rounds, job))
        together = np.array(list(run_tasks(_round_scorer, {"first": job, "second": job}, 2).values())).max(axis=0)
        ratios.append(2.0 * alone / together)
    wall, cpu = np.median(ratios, axis=0)
    return float(wall), float(cpu)


def _round_scorer() -> RunTask[tuple[str, int, int], Seconds]:
    return lambda job, _progress: _score_rounds(job)


def _score_rounds(job: tuple[str, int, int]) -> Seconds:
    """Wall and CPU seconds of scoring one case several times in this process."""
    device, seed, rounds = job
    torch.set_num_threads(1)
    rng = np.random.default_rng(seed)
    mesh = workloads.furnished_room(20_000, 5_000, rng)
    case = workloads.scoring_case(mesh, OracleConfig(device=device), 60, rng)
    case.scorer.score([case.request])
    return timed(lambda: [case.scorer.score([case.request]) for _ in range(rounds)])


def _seconds(device: str, work: Callable[[], Any]) -> float:
    """Least time of a few runs after one to warm up: CPU seconds of this process on the CPU, wall seconds on a GPU."""

    def work_and_wait() -> None:
        work()
        if device != "cpu":
            wait_for(device)

    work_and_wait()
    spent = least(work_and_wait)
    return spent.cpu if device == "cpu" else spent.wall
