"""How fast and how exact the oracle is on this machine: our kernels and brute force on the same inputs, in one run.

On the CPU every figure is per core: one torch thread, and CPU seconds rather than wall time where both exist. Brute
force looks at every pair, so its time is proportional to the number of pairs; it is timed on whole candidates until
``brute_seconds`` are spent and scaled to all of them. Nothing here is asserted; tests hold exactness, not speed.
"""

from __future__ import annotations

import multiprocessing
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from rollout_assets.config import OracleConfig
from rollout_assets.geometry.devices import resolve_device
from rollout_assets.oracle import naive, workloads
from rollout_assets.oracle.raycast import render_depth
from rollout_assets.oracle.surface_error import PointClouds, Surface, SurfaceState
from rollout_assets.progress import SILENT, ProgressEvent, ProgressSink

BUDGET = 1 << 29
"""Bytes for one device batch in the kernel measurements."""


@dataclass(frozen=True)
class BruteComparison:
    """60 candidates on one target: ours (incremental) and PyTorch brute force (P_t ∪ P_q measured anew for each)."""

    faces: int
    current_points: int
    view_points: int
    candidates: int
    state_s: float
    candidates_s: float
    torch_pairs_per_s: float
    torch_s: float
    torch_incremental_s: float
    torch_measured_candidates: int
    max_relative_error: float

    @property
    def ratio(self) -> float:
        """Brute force that measures P_t ∪ P_q for every candidate, over ours."""
        return self.torch_s / self.candidates_s

    @property
    def incremental_ratio(self) -> float:
        """Brute force that measures only each candidate's new points, over ours."""
        return self.torch_incremental_s / self.candidates_s


@dataclass(frozen=True)
class SceneSpeed:
    """Whole scoring (rays, back-projection, fusion, target error) and its ray casting alone."""

    scene_faces: int
    target_faces: int
    candidates: int
    pixels: int
    build_s: float
    score_s: float
    views_per_s: float
    rays_per_s: float
    selected_views_per_s: float


@dataclass(frozen=True)
class Growth:
    """Seconds over sizes, and the exponent of the power law through them: 1 is linear, 0 constant."""

    what: str
    sizes: tuple[int, ...]
    seconds: tuple[float, ...]

    @property
    def exponent(self) -> float:
        return float(np.polyfit(np.log(self.sizes), np.log(self.seconds), 1)[0])


@dataclass(frozen=True)
class OracleBenchmark:
    """Everything one run measured."""

    device: str
    quick: bool
    seed: int
    comparisons: tuple[BruteComparison, ...]
    points_per_s: float
    scenes: tuple[SceneSpeed, ...]
    growth: tuple[Growth, ...]
    second_process_s: float
    two_process_speedup: float
    peak_memory_mib: float

    def to_json(self) -> dict[str, Any]:
        """Plain values, ratios and exponents included."""
        plain = asdict(self)
        for entry, comparison in zip(plain["comparisons"], self.comparisons, strict=True):
            entry |= {"ratio": comparison.ratio, "incremental_ratio": comparison.incremental_ratio}
        for entry, growth in zip(plain["growth"], self.growth, strict=True):
            entry["exponent"] = growth.exponent
        return plain


def run_oracle_benchmark(
    *, quick: bool = False, device: str = "auto", seed: int = 0, progress: ProgressSink = SILENT
) -> OracleBenchmark:
    """Measure everything. ``quick`` uses small sizes and takes about half a minute; full runs a few minutes."""
    where = resolve_device(device)
    parts: list[tuple[str, Callable[[], Any]]] = [
        ("against brute force", lambda: _comparisons(where, seed, quick)),
        ("closest points", lambda: _points_per_s(where, seed)),
        ("scenes", lambda: _scenes(where, seed, quick)),
        ("growth", lambda: _growths(where, seed, quick)),
        ("second process", lambda: _second_process_s(where)),
        ("two processes", lambda: _two_process_speedup(where, seed, quick)),
    ]
    threads = torch.get_num_threads()
    results = []
    try:
        torch.set_num_threads(1)
        for done, (note, measure) in enumerate(parts):
            progress(ProgressEvent("oracle benchmark", done, len(parts), note, "measurements"))
            results.append(measure())
    finally:
        torch.set_num_threads(threads)
    progress(ProgressEvent("oracle benchmark", len(parts), len(parts), "", "measurements"))
    return OracleBenchmark(where, quick, seed, *results, peak_memory_mib=_peak_memory_mib(where))


def _comparisons(device: str, seed: int, quick: bool) -> tuple[BruteComparison, ...]:
    sizes = (500, 5_000) if quick else (500, 5_000, 20_000)
    return tuple(_comparison(device, seed, faces, 2.0 if quick else 15.0) for faces in sizes)


def _comparison(device: str, seed: int, faces: int, brute_seconds: float) -> BruteComparison:
    case = _cloud_case(device, seed, faces, current=20_000, view=2_000, candidates=60)
    state_s = _seconds(device, lambda: case.surface.extended(case.surface.unseen(), case.current))
    candidates_s = _seconds(device, case.join)
    after = case.surface.error(case.join())

    triangles = torch.from_numpy(case.mesh[0])[torch.from_numpy(case.mesh[1]).long()]
    spent, pairs, measured, worst = 0.0, 0, 0, 0.0
    while measured < 60 and (measured == 0 or spent < brute_seconds):
        union = torch.from_numpy(np.concatenate([case.current, case.views[measured]]))
        rows = slice(None) if faces <= 5_000 else slice(None, None, 4)
        started = time.process_time()
        error = float(naive.torch_error(union[rows], triangles))
        spent += time.process_time() - started
        pairs += len(union[rows]) * len(triangles)
        if measured == 0:
            exact = naive.surface_error(union, *case.mesh, OracleConfig()) if faces <= 5_000 else float("nan")
            worst = abs(after[0] - exact) / exact
        elif faces <= 5_000:
            worst = float(np.fmax(worst, abs(after[measured] - error) / error))
        measured += 1
    rate = pairs / spent
    per_face = len(triangles) * 60
    return BruteComparison(
        faces=len(triangles),
        current_points=len(case.current),
        view_points=len(case.views[0]),
        candidates=60,
        state_s=state_s,
        candidates_s=candidates_s,
        torch_pairs_per_s=rate,
        torch_s=per_face * (len(case.current) + len(case.views[0])) / rate,
        torch_incremental_s=per_face * len(case.views[0]) / rate,
        torch_measured_candidates=measured,
        max_relative_error=worst,
    )


@dataclass(frozen=True, eq=False)
class _CloudCase:
    mesh: workloads.Mesh
    surface: Surface
    current: np.ndarray[Any, np.dtype[np.float32]]
    views: list[np.ndarray[Any, np.dtype[np.float32]]]
    state: SurfaceState
    clouds: PointClouds

    def join(self) -> Any:
        return self.surface.joined([self.state], self.clouds, np.zeros(len(self.clouds), np.int64), BUDGET)


def _cloud_case(device: str, seed: int, faces: int, current: int, view: int, candidates: int) -> _CloudCase:
    """A target half of which is known, and clouds of ``view`` points on the side each candidate would see."""
    rng = np.random.default_rng(seed)
    mesh = workloads.bumpy_sphere(faces, workloads.TARGET_RADIUS_M)
    surface = Surface(*mesh, device)
    known = workloads.surface_points(mesh, current, rng, np.array([1.0, 0.0, 0.0], np.float32))
    views = [workloads.surface_points(mesh, view, rng, side) for side in workloads.directions(candidates, rng)]
    state = surface.extended(surface.unseen(), known)
    return _CloudCase(mesh, surface, known, views, state, PointClouds.of(views, device))


def _points_per_s(device: str, seed: int) -> float:
    """Closest-point queries per second, points near a surface of 5,000 faces."""
    case = _cloud_case(device, seed, 5_000, current=100_000, view=10, candidates=1)
    return len(case.current) / _seconds(device, lambda: case.surface.bvh.closest(case.current))


def _scenes(device: str, seed: int, quick: bool) -> tuple[SceneSpeed, ...]:
    sizes = (100_000,) if quick else (100_000, 1_000_000, 5_000_000)
    return tuple(_scene_speed(device, seed, faces) for faces in sizes)


def _scene_speed(device: str, seed: int, faces: int) -> SceneSpeed:
    rng = np.random.default_rng(seed)
    mesh = workloads.furnished_room(faces, 5_000, rng)
    config = OracleConfig(device=device)
    started = time.perf_counter()
    case = workloads.scoring_case(mesh, config, 60, rng)
    build_s = time.perf_counter() - started
    poses, camera, bvh = case.request.poses_world_camera, case.state.camera, case.state.scene.bvh
    score_s = _seconds(device, lambda: case.scorer.score([case.request]))
    rays_s = _seconds(device, lambda: render_depth(bvh, poses, camera, config.znear_m, config.zfar_m))
    selected = camera.resized(240, 240)
    selected_s = _seconds(device, lambda: render_depth(bvh, poses[:6], selected, config.znear_m, config.zfar_m))
    return SceneSpeed(
        scene_faces=len(mesh[1]),
        target_faces=case.state.target.crop.surface.face_count,
        candidates=60,
        pixels=camera.height_px * camera.width_px,
        build_s=build_s,
        score_s=score_s,
        views_per_s=60 / score_s,
        rays_per_s=60 * camera.height_px * camera.width_px / rays_s,
        selected_views_per_s=6 / selected_s,
    )


def _growths(device: str, seed: int, quick: bool) -> tuple[Growth, ...]:
    top = 100_000 if quick else 1_000_000
    decades = [size for size in (1_000, 10_000, 100_000, 1_000_000) if size <= top]

    def candidates_s(faces: int = 5_000, view: int = 2_000, candidates: int = 60) -> float:
        return _seconds(device, _cloud_case(device, seed, faces, 20_000, view, candidates).join)

    def rays_s(faces: int) -> float:
        rng = np.random.default_rng(seed)
        case = workloads.scoring_case(workloads.furnished_room(faces, 900, rng), OracleConfig(device=device), 60, rng)
        poses, camera, bvh = case.request.poses_world_camera, case.state.camera, case.state.scene.bvh
        return _seconds(device, lambda: render_depth(bvh, poses, camera, 0.001, 20.0))

    return (
        _growth("scene faces (rays of 60 views)", decades, rays_s),
        _growth("target faces (60 candidates)", decades, lambda faces: candidates_s(faces=faces)),
        _growth("points per view", (500, 1_000, 2_000, 4_000, 8_000), lambda points: candidates_s(view=points)),
        _growth("candidates", (15, 30, 60, 120, 240), lambda count: candidates_s(candidates=count)),
    )


def _growth(what: str, sizes: Sequence[int], measure: Callable[[int], float]) -> Growth:
    return Growth(what, tuple(sizes), tuple(measure(size) for size in sizes))


_FIRST_SCORE = """
import sys, numpy as np
from rollout_assets.config import OracleConfig
from rollout_assets.oracle import workloads
rng = np.random.default_rng(0)
case = workloads.scoring_case(workloads.furnished_room(3000, 900, rng), OracleConfig(device=sys.argv[1]), 2, rng)
case.scorer.score([case.request])
print("scored", flush=True)
"""


def _second_process_s(device: str) -> float:
    """Wall time from starting a fresh interpreter to its first labels, imports included; kernels are compiled by now."""
    best = np.inf
    for _ in range(3):
        started = time.perf_counter()
        with subprocess.Popen(
            [sys.executable, "-c", _FIRST_SCORE, device], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        ) as process:
            if process.stdout is not None and process.stdout.readline():
                best = min(best, time.perf_counter() - started)
    return float(best)


def _two_process_speedup(device: str, seed: int, quick: bool) -> float:
    """Views per wall second of two worker processes over those of one; NaN on one core or a GPU."""
    if device != "cpu" or (multiprocessing.cpu_count() or 1) < 2:
        return float("nan")
    rounds = 6 if quick else 20
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        list(pool.map(_score_rounds, [(device, seed, 1)] * 2))
        alone = max(pool.map(_score_rounds, [(device, seed, rounds)]))
        started = time.perf_counter()
        together = max(pool.map(_score_rounds, [(device, seed, rounds)] * 2))
        _ = time.perf_counter() - started
    return 2.0 * alone / together


def _score_rounds(job: tuple[str, int, int]) -> float:
    """Wall seconds of scoring one case several times in this process."""
    device, seed, rounds = job
    torch.set_num_threads(1)
    rng = np.random.default_rng(seed)
    mesh = workloads.furnished_room(20_000, 5_000, rng)
    case = workloads.scoring_case(mesh, OracleConfig(device=device), 60, rng)
    case.scorer.score([case.request])
    started = time.perf_counter()
    for _ in range(rounds):
        case.scorer.score([case.request])
    return time.perf_counter() - started


def _seconds(device: str, work: Callable[[], Any], repeats: int = 3) -> float:
    """Least time of a few runs after one to warm up: CPU seconds of this process on the CPU, wall seconds on a GPU."""
    work()
    best = np.inf
    for _ in range(repeats):
        if device == "cpu":
            started = time.process_time()
            work()
            best = min(best, time.process_time() - started)
        else:
            torch.cuda.synchronize(device)
            started = time.perf_counter()
            work()
            torch.cuda.synchronize(device)
            best = min(best, time.perf_counter() - started)
    return float(best)


def _peak_memory_mib(device: str) -> float:
    """Largest resident size of this process so far, or of torch's allocations on a GPU."""
    if device != "cpu":
        return torch.cuda.max_memory_allocated(device) / 2**20
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 2**10
