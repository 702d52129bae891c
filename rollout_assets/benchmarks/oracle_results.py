"""What the oracle benchmark measures and at which sizes."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class BenchmarkSizes:
    """How large the measured inputs are."""

    name: str
    target_faces: tuple[int, ...]
    scene_faces: tuple[int, ...]
    growth_faces: tuple[int, ...]
    growth_points: tuple[int, ...]
    growth_candidates: tuple[int, ...]
    current_points: int
    view_points: int
    candidates: int
    brute_pairs: int
    exact_pairs: int
    rounds: int


QUICK = BenchmarkSizes(
    name="quick",
    target_faces=(500, 5_000),
    scene_faces=(100_000,),
    growth_faces=(1_000, 10_000, 100_000),
    growth_points=(500, 2_000, 8_000),
    growth_candidates=(15, 60, 240),
    current_points=20_000,
    view_points=2_000,
    candidates=60,
    brute_pairs=10_000_000,
    exact_pairs=3_000_000,
    rounds=5,
)
"""About half a minute."""

FULL = BenchmarkSizes(
    name="full",
    target_faces=(500, 5_000, 20_000),
    scene_faces=(100_000, 1_000_000, 5_000_000),
    growth_faces=(1_000, 10_000, 100_000, 1_000_000),
    growth_points=(500, 1_000, 2_000, 4_000, 8_000),
    growth_candidates=(15, 30, 60, 120, 240),
    current_points=20_000,
    view_points=2_000,
    candidates=60,
    brute_pairs=100_000_000,
    exact_pairs=20_000_000,
    rounds=20,
)
"""A few minutes and some gigabytes."""


@dataclass(frozen=True)
class BruteComparison:
    """Candidates on one target: ours (incremental) and brute force (P_t ∪ P_q measured anew for each).

    The seconds of brute force are scaled from the share of all pairs that was measured. max_relative_error is against
    the twin in double precision, on a sample of the same points.
    """

    faces: int
    current_points: int
    view_points: int
    candidates: int
    state_s: float
    candidates_s: float
    twin_s: float
    torch_pairs_per_s: float
    torch_s: float
    torch_incremental_s: float
    torch_measured_share: float
    max_relative_error: float

    @property
    def twin_ratio(self) -> float:
        """The NumPy twin in double precision, which measures P_t ∪ P_q for every candidate, over ours."""
        return self.twin_s / self.candidates_s

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
    sizes: str
    seed: int
    comparisons: tuple[BruteComparison, ...]
    points_per_s: float
    scenes: tuple[SceneSpeed, ...]
    growth: tuple[Growth, ...]
    second_process_s: float
    second_process_cpu_s: float
    two_process_speedup: float
    two_process_cpu_speedup: float
    peak_memory_mib: float

    def to_json(self) -> dict[str, Any]:
        """Plain values, ratios and exponents included."""
        plain = asdict(self)
        for entry, comparison in zip(plain["comparisons"], self.comparisons, strict=True):
            ratios = ("ratio", "incremental_ratio", "twin_ratio")
            entry |= {name: getattr(comparison, name) for name in ratios}
        for entry, growth in zip(plain["growth"], self.growth, strict=True):
            entry["exponent"] = growth.exponent
        return plain
