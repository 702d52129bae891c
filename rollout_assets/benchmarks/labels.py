"""``bench labels``: how far a label depends on the tessellation of a mesh, under the old definitions and the new.

The same homes (walls, furniture, walk, points, boxes, candidate poses) are measured against meshes of three face
budgets. Flat furniture and walls keep their shape whatever the budget. Curved parts do not: a cylinder of 8 sides is
another body than one of 32. That is the discretisation; it is measured here as the distance between the meshes within a
target's region. Outside of it the meshes may differ too, so that a view may see a pixel of the region more or less:
a target of the same shape can still have single views whose gain moves.
"""

from __future__ import annotations

import tempfile
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from rollout_assets.benchmarks.measure import Steps, timed
from rollout_assets.benchmarks.results import Figure
from rollout_assets.config import CampaignConfig, OracleConfig
from rollout_assets.geometry.poses import Float32, Float64
from rollout_assets.oracle.scene import OracleScene
from rollout_assets.oracle.scorer import OracleScorer, OracleState, ScoreRequest, points_in
from rollout_assets.progress import SILENT, ProgressSink
from rollout_assets.rollouts.evaluation import StateEvaluator, StateRequest
from rollout_assets.rollouts.generator import RolloutGenerator
from rollout_assets.rollouts.roots import TargetedRoot
from rollout_assets.rollouts.target_sources import AllEligibleTargets
from rollout_assets.sources.vin_store import VinOfflineStore
from rollout_assets.synthetic.config import SyntheticConfig
from rollout_assets.synthetic.furniture_files import load_furniture
from rollout_assets.synthetic.scene import build_scene
from rollout_assets.synthetic.store import build_synthetic_store

BUDGETS = (30_000, 100_000, 300_000)
"""Faces per home. The walk and the points of a home are those of the middle one."""

DEFINITIONS: Mapping[str, Mapping[str, Any]] = {
    "old": {"crop_policy": "vertex_in_box", "face_weighting": "uniform", "voxel_origin": "zero"},
    "new": {},
}
"""Name -> options of the oracle; the new definitions are its defaults."""

SAME_SHAPE_M = 1e-5
"""Meshes whose distance within a target's region is below this are the same surface there."""

ROUNDING = 1e-9
"""A gain above the negative of this is not negative: the sums of two errors are rounded."""


@dataclass(frozen=True)
class NegativeShare:
    """Labels of one definition on the meshes of one budget."""

    definition: Annotated[str, Figure("definition")]
    faces: Annotated[int, Figure("faces per home", "{:,}")]
    labels: Annotated[int, Figure("labels", "{:,}")]
    negative: Annotated[float, Figure("negative", "{:.2%}")]
    lowest: Annotated[float, Figure("lowest gain", "{:.2g}")]


@dataclass(frozen=True)
class TessellationMove:
    """How far gains of the same views move between two meshes of a home."""

    definition: Annotated[str, Figure("definition")]
    meshes: Annotated[str, Figure("faces per home")]
    targets: Annotated[str, Figure("targets")]
    labels: Annotated[int, Figure("labels", "{:,}")]
    median: Annotated[float, Figure("median move of a gain", "{:.2g}")]
    largest: Annotated[float, Figure("largest", "{:.2g}")]


@dataclass(frozen=True)
class Discretisation:
    """How far two meshes of a home are apart within the targets' regions (root mean square, per target)."""

    meshes: Annotated[str, Figure("faces per home")]
    same_shape: Annotated[int, Figure("targets of the same shape")]
    others: Annotated[int, Figure("others")]
    median_mm: Annotated[float, Figure("their meshes' distance, median", "{:.2f} mm")]
    largest_mm: Annotated[float, Figure("largest", "{:.2f} mm")]


@dataclass(frozen=True)
class LabelBenchmark:
    """Gains of the same root views over three tessellations, and what the definitions cost."""

    homes: int
    targets: int
    cpu_s_per_target_old: Annotated[float, Figure("processor time per target, old definitions", "{:.3f} s")]
    cpu_s_per_target_new: Annotated[float, Figure("processor time per target, new definitions", "{:.3f} s")]
    negatives: Annotated[tuple[NegativeShare, ...], Figure("negative labels")]
    moves: Annotated[tuple[TessellationMove, ...], Figure("gains of the same views on other tessellations")]
    discretisation: Annotated[tuple[Discretisation, ...], Figure("discretisation: curved parts change their shape")]

    @property
    def extra_cost(self) -> Annotated[float, Figure("the new definitions cost", "{:+.1%}", "at most +10 %")]:
        """Relative processor time of the new definitions over the old."""
        return self.cpu_s_per_target_new / self.cpu_s_per_target_old - 1.0

    def __str__(self) -> str:
        return f"{self.targets} targets in {self.homes} homes"


@dataclass(frozen=True, eq=False)
class _Target:
    """A target on all meshes: gains by (definition, faces), and the distance in metres between two meshes."""

    gains: Mapping[tuple[str, int], Float64]
    apart_m: Mapping[tuple[int, int], float]


def benchmark_labels(
    homes: int = 2,
    budgets: Sequence[int] = BUDGETS,
    turns: int = 3,
    progress: ProgressSink = SILENT,
) -> LabelBenchmark:
    """Build the homes in a temporary folder, label the same root views on every mesh, and time whole rollouts."""
    step = Steps(progress, "labels", homes + 2)
    with tempfile.TemporaryDirectory(prefix="bench-labels-") as folder:
        step("building the homes")
        source = Path(folder) / "source"
        middle = sorted(budgets)[len(budgets) // 2]
        options = SyntheticConfig(scenes=homes, snippets_per_scene=1, faces=middle, workers=1)
        build_synthetic_store(source, options)
        store, targets = VinOfflineStore.open(source), []
        for home in range(homes):
            step(f"home {home}")
            meshes = {faces: _mesh(options.model_copy(update={"faces": faces}), home) for faces in budgets}
            targets += list(_home_targets(store, home, meshes))
        step("seconds per target")
        old, new = _seconds_per_target(store, turns)
        step()
    pairs = list(combinations(sorted(budgets), 2))
    return LabelBenchmark(
        homes=homes,
        targets=len(targets),
        cpu_s_per_target_old=old,
        cpu_s_per_target_new=new,
        negatives=tuple(_negative(targets, name, faces) for name in DEFINITIONS for faces in sorted(budgets)),
        moves=tuple(move for name in DEFINITIONS for pair in pairs for move in _moves(targets, name, pair)),
        discretisation=tuple(_apart(targets, pair) for pair in pairs),
    )


def _mesh(options: SyntheticConfig, home: int) -> OracleScene:
    scene = build_scene(options, home, load_furniture(None, options.faces))
    return OracleScene(scene.vertices, scene.faces, "cpu")


def _campaign(store: VinOfflineStore, definition: str) -> CampaignConfig:
    oracle = OracleConfig(device="cpu", **DEFINITIONS[definition])
    return CampaignConfig(name="labels", source={"store_dir": store.root}, oracle=oracle)


def _home_targets(store: VinOfflineStore, home: int, meshes: Mapping[int, OracleScene]) -> Iterator[_Target]:
    """Every target of a home that all definitions can label on all meshes."""
    config = _campaign(store, "new")
    generator = RolloutGenerator(config, store, AllEligibleTargets())
    evaluator = StateEvaluator(config, generator.scorer)
    for root in generator.prepare(store.rows()[home]).roots:
        (state,) = evaluator.evaluate([StateRequest(root, config.seed, ())])
        poses = state.shell.pose_world_camera[state.shell.actor_action_mask]
        target = _target(store, root, poses, meshes) if len(poses) else None
        if target is not None:
            yield target


def _target(
    store: VinOfflineStore, root: TargetedRoot, poses: Float32, meshes: Mapping[int, OracleScene]
) -> _Target | None:
    truth = store.sample(store.row(root.actor.identity.sample_key)).truth
    assert root.match.best_row is not None, "a root has a matched box"
    box = truth.gt_boxes.boxes[root.match.best_row : root.match.best_row + 1]
    gains, states = {}, {}
    for name in DEFINITIONS:
        scorer = OracleScorer(_campaign(store, name).oracle)
        for faces, scene in meshes.items():
            state = scorer.begin(scene, root.actor.camera, scorer.fuse(scene, root.actor.points_world), box)
            if not isinstance(state, OracleState):
                return None
            request = ScoreRequest(state, poses, np.ones(len(poses), bool))
            gains[name, faces], states[name, faces] = scorer.score([request])[0].target.root_gain, state
    pairs = combinations(sorted(meshes), 2)
    return _Target(gains, {pair: _distance_m(*(states["new", faces] for faces in pair)) for pair in pairs})


def _distance_m(coarse: OracleState, fine: OracleState) -> float:
    """Root mean square distance of the finer mesh's vertices in the region to the coarser mesh's surface."""
    crop, vertices = coarse.target.crop, fine.scene.vertices
    measured = crop.surface.extended(crop.surface.unseen(), vertices[points_in(vertices, crop.box_row)])
    return float(np.sqrt(measured.point_sum / max(measured.point_count, 1)))


def _seconds_per_target(store: VinOfflineStore, turns: int) -> tuple[float, float]:
    """Processor seconds per target of whole rollouts, old and new in turns: the least of each after a warm-up."""
    seconds: dict[str, list[float]] = {name: [] for name in DEFINITIONS}
    for _ in range(turns + 1):
        for name in DEFINITIONS:
            generator = RolloutGenerator(_campaign(store, name), store)
            rows = store.rows()
            for row in rows:
                generator.scenes.find(row.scene_id)  # trees are built once per scene, not per target
            used = timed(partial(_exhaust, generator.records(rows))).cpu
            seconds[name].append(used / max(generator.stats.targets, 1))
    old, new = (min(values[1:] or values) for values in seconds.values())
    return old, new


def _exhaust(records: Iterator[Any]) -> None:
    deque(records, maxlen=0)


def _negative(targets: Sequence[_Target], name: str, faces: int) -> NegativeShare:
    gains = _joined([target.gains[name, faces] for target in targets])
    negative = float((gains < -ROUNDING).mean()) if len(gains) else 0.0
    return NegativeShare(name, faces, len(gains), negative, float(gains.min(initial=0.0)))


def _moves(targets: Sequence[_Target], name: str, pair: tuple[int, int]) -> Iterator[TessellationMove]:
    same = [target for target in targets if target.apart_m[pair] < SAME_SHAPE_M]
    curved = [target for target in targets if target.apart_m[pair] >= SAME_SHAPE_M]
    for label, chosen in {"all": targets, "same shape": same, "curved parts": curved}.items():
        moved = _joined([np.abs(target.gains[name, pair[0]] - target.gains[name, pair[1]]) for target in chosen])
        if len(moved):
            yield TessellationMove(name, _named(pair), label, len(moved), float(np.median(moved)), float(moved.max()))


def _apart(targets: Sequence[_Target], pair: tuple[int, int]) -> Discretisation:
    apart = np.array([target.apart_m[pair] for target in targets])
    others = 1e3 * apart[apart >= SAME_SHAPE_M]
    median = float(np.median(others)) if len(others) else 0.0
    return Discretisation(_named(pair), len(apart) - len(others), len(others), median, float(others.max(initial=0.0)))


def _joined(parts: Sequence[Float64]) -> NDArray[np.float64]:
    return np.concatenate([np.zeros(0), *parts])


def _named(pair: tuple[int, int]) -> str:
    return f"{pair[0]:,} and {pair[1]:,}"
