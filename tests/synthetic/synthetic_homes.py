"""Small synthetic homes shared by the tests: built once per process."""

from __future__ import annotations

from functools import cache
from typing import Any

from numpy.typing import NDArray

from rollout_assets.geometry.triangle_bvh import TriangleBvh
from rollout_assets.randomness import rng_for
from rollout_assets.synthetic.config import SyntheticConfig
from rollout_assets.synthetic.furniture_files import BUILT_IN
from rollout_assets.synthetic.scene import SyntheticScene, build_scene
from rollout_assets.synthetic.sight import Sight, look
from rollout_assets.synthetic.snippet import build_snippet
from rollout_assets.synthetic.walk import Walk, draw_walk, walking_grid

SMALL = SyntheticConfig(
    scenes=2, snippets_per_scene=2, faces=30_000, poses=8, min_points=2_000, max_points=4_000, workers=1
)


@cache
def home(index: int) -> SyntheticScene:
    """Home number ``index`` of the small store."""
    return build_scene(SMALL, index, BUILT_IN)


@cache
def bvh_of(index: int) -> TriangleBvh:
    """Its triangles, for rays and distances."""
    return TriangleBvh(home(index).vertices, home(index).faces, "cpu")


@cache
def walk_in(index: int, number: int) -> Walk:
    """A walk through it."""
    return draw_walk(SMALL, home(index), walking_grid(home(index)), rng_for("test walk", index, number))


@cache
def sight_in(index: int, number: int) -> Sight:
    """What that walk sees."""
    return look(SMALL, home(index), bvh_of(index), walk_in(index, number), rng_for("test sight", index, number))


@cache
def snippet_in(index: int, number: int) -> dict[str, NDArray[Any]]:
    """The arrays of a whole snippet."""
    grid = walking_grid(home(index))
    return build_snippet(SMALL, index, number, home(index), bvh_of(index), grid)
