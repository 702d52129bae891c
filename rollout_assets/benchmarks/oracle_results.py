"""What the oracle benchmark measures and at which sizes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

from rollout_assets.benchmarks.measure import exponent
from rollout_assets.benchmarks.results import Figure


@dataclass(frozen=True)
class BenchmarkSizes:
    """How large the measured inputs are."""

    name: str
    target_faces: tuple[int, ...]
    scene_faces: tuple[int, ...]
    growth_faces: tuple[int, ...]
    growth_points: tuple[int, ...]
    growth_candidates: tuple[int, ...]
    brute_pairs: int
    exact_pairs: int
    rounds: int
    current_points: int = 20_000
    view_points: int = 2_000
    candidates: int = 60


QUICK = BenchmarkSizes(
    name="quick",
    target_faces=(500, 5_000),
    scene_faces=(100_000,),
    growth_faces=(1_000, 10_000, 100_000),
    growth_points=(500, 2_000, 8_000),
    growth_candidates=(15, 60, 240),
    brute_pairs=10_000_000,
    exact_pairs=3_000_000,
    rounds=5,
)
"""About half a minute."""

FULL = replace(
    QUICK,
    name="full",
    target_faces=(500, 5_000, 20_000),
    scene_faces=(100_000, 1_000_000, 5_000_000),
    growth_faces=(1_000, 10_000, 100_000, 1_000_000),
    growth_points=(500, 1_000, 2_000, 4_000, 8_000),
    growth_candidates=(15, 30, 60, 120, 240),
    brute_pairs=100_000_000,
    exact_pairs=20_000_000,
    rounds=60,
)
"""A few minutes and some gigabytes."""


@dataclass(frozen=True)
class BruteComparison:
    """Candidates on one target: ours (incremental) and brute force (P_t ∪ P_q measured anew for each).

    The seconds of brute force are scaled from the share of all pairs that was measured. max_relative_error is against
    the twin in double precision, on a sample of the same points.
    """

    faces: Annotated[int, Figure("faces", "{:,}")]
    current_points: int
    view_points: int
    candidates: int
    state_s: Annotated[float, Figure("P_t", "{:.3f}")]
    candidates_s: Annotated[float, Figure("candidates", "{:.3f}")]
    twin_s: Annotated[float, Figure("NumPy twin", "{:,.0f}")]
    torch_pairs_per_s: float
    torch_s: Annotated[float, Figure("torch", "{:,.0f}")]
    torch_incremental_s: Annotated[float, Figure("torch, new points", "{:,.1f}")]
    torch_measured_share: float
    max_relative_error: Annotated[float, Figure("error", "{:.1e}")]

    @property
    def twin_ratio(self) -> Annotated[float, Figure("twin / ours", "{:,.0f}x")]:
        """The NumPy twin in double precision, which measures P_t ∪ P_q for every candidate, over ours."""
        return self.twin_s / self.candidates_s

    @property
    def ratio(self) -> Annotated[float, Figure("torch / ours", "{:,.0f}x")]:
        """Brute force that measures P_t ∪ P_q for every candidate, over ours."""
        return self.torch_s / self.candidates_s

    @property
    def incremental_ratio(self) -> Annotated[float, Figure("torch, new / ours", "{:,.0f}x")]:
        """Brute force that measures only each candidate's new points, over ours."""
        return self.torch_incremental_s / self.candidates_s


@dataclass(frozen=True)
class SceneSpeed:
    """Whole scoring (rays, back-projection, fusion, target error) and its ray casting alone."""

    scene_faces: Annotated[int, Figure("scene faces", "{:,}")]
    target_faces: Annotated[int, Figure("target faces", "{:,}")]
    candidates: int
    pixels: int
    build_s: Annotated[float, Figure("build (wall)", "{:.2f}")]
    score_s: float
    views_per_s: Annotated[float, Figure("views/s", "{:,.0f}")]
    rays_per_s: Annotated[float, Figure("rays/s", "{:,.0f}")]
    selected_views_per_s: Annotated[float, Figure("240 x 240 views/s", "{:,.1f}")]


@dataclass(frozen=True)
class Growth:
    """Seconds over sizes, and the exponent of the power law through them: 1 is linear, 0 constant."""

    what: Annotated[str, Figure("over")]
    sizes: tuple[int, ...]
    seconds: tuple[float, ...]

    @property
    def exponent(self) -> Annotated[float, Figure("exponent", "{:.2f}")]:
        return exponent(self.sizes, self.seconds)

    @property
    def steps(self) -> Annotated[str, Figure("size: seconds")]:
        """The seconds by size, in words."""
        return "  ".join(f"{size:,}: {seconds:.3f}" for size, seconds in zip(self.sizes, self.seconds, strict=True))


@dataclass(frozen=True)
class OracleBenchmark:
    """Everything one run measured."""

    device: str
    sizes: str
    seed: int
    comparisons: Annotated[tuple[BruteComparison, ...], Figure("Candidates on one target, against brute force")]
    points_per_s: Annotated[float, Figure("closest points", "{:,.0f} /s")]
    scenes: Annotated[tuple[SceneSpeed, ...], Figure("Scoring views of 48 x 48")]
    growth: Annotated[tuple[Growth, ...], Figure("Growth of time")]
    second_process_s: Annotated[float, Figure("start of a second process until its first labels", "{:.2f} s")]
    second_process_cpu_s: Annotated[float, Figure("  of processor time", "{:.2f} s")]
    two_process_speedup: Annotated[float, Figure("two processes over one, by wall time", "{:.2f}x")]
    two_process_cpu_speedup: Annotated[float, Figure("  by processor time", "{:.2f}x")]
    hardware: str
    peak_memory_mib: Annotated[float, Figure("peak memory", "{:,.0f} MiB")]

    def __str__(self) -> str:
        kind = "CPU seconds, one core" if self.device == "cpu" else "wall seconds"
        return f"Oracle on {self.device} ({kind}), {self.sizes}, seed {self.seed}: {self.hardware}"
