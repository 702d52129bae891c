"""``bench labels``: how far a label depends on a mesh's tessellation and on noise, by the old definitions and the new.

The same homes (walls, furniture, walk, points, boxes, candidate poses) are measured against meshes of three face
budgets. Flat furniture and walls keep their shape whatever the budget. Curved parts do not: a cylinder of 8 sides is
another body than one of 32. That is the discretisation; it is measured here as the distance between the meshes within a
target's region. What stands in front of a target is discretised too: a rounder lamp hides a pixel more, and the gain of
that view moves although the target has the same shape. Such views are told apart by the pixels that see the region.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from rollout_assets.benchmarks.label_noise import NoiseEffect, noise_effect
from rollout_assets.benchmarks.measure import Steps, timed
from rollout_assets.benchmarks.results import Figure
from rollout_assets.config import CampaignConfig, OracleConfig
from rollout_assets.geometry.poses import Float32, Float64
from rollout_assets.oracle.raycast import render_depth
from rollout_assets.oracle.scene import OracleScene
from rollout_assets.oracle.scorer import OracleScorer, OracleState, ScoreRequest, points_in
from rollout_assets.progress import SILENT, ProgressSink
from rollout_assets.randomness import rng_for
from rollout_assets.rollouts.evaluation import StateEvaluator, StateRequest
from rollout_assets.rollouts.generator import RolloutGenerator
from rollout_assets.rollouts.roots import TargetedRoot
from rollout_assets.rollouts.target_sources import AllEligibleTargets
from rollout_assets.rollouts.trace import RolloutZarrRecord
from rollout_assets.sources.layout import IndexRow
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

OTHER_SHAPE = "curved parts"
SAME_PIXELS = "same shape, same pixels"
OTHER_PIXELS = "same shape, something in front hides other pixels"
OTHER_SAMPLES = "same shape, a sample's line grazes an edge"
"""Kinds of views. The last: rounding of a mesh's vertices decides whether a line of the lattice meets the surface."""

NOISE_M = 1e-7
"""Noise on the points of a view, under which no gain may move by more than 1e-5."""

TIMED_HOMES = 8
"""Homes whose rollouts are timed; more would only take longer."""

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
    views: Annotated[str, Figure("views")]
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
class NoiseMove:
    """How far ``NOISE_M`` of noise on the points of views moves their gains, on the meshes of the middle budget."""

    definition: Annotated[str, Figure("definition")]
    targets: Annotated[int, Figure("targets", "{:,}")]
    labels: Annotated[int, Figure("labels", "{:,}")]
    other_points: Annotated[int, Figure("views of which other points are kept", "{:,}")]
    median: Annotated[float, Figure("median move of a gain", "{:.2g}")]
    largest: Annotated[float, Figure("largest", "{:.2g}")]


@dataclass(frozen=True)
class LabelBenchmark:
    """Gains of the same root views over three tessellations and under noise, and what the definitions cost."""

    homes: int
    targets: int
    without_root_view: Annotated[float, Figure("targets without a takeable root view", "{:.1%}", "under 5 %")]
    least_probability: Annotated[float, Figure("least probability of a chosen view", "{:.2g}", "at least 1e-9")]
    cpu_s_per_target_old: Annotated[float, Figure("processor time per target, old definitions", "{:.3f} s")]
    cpu_s_per_target_new: Annotated[float, Figure("processor time per target, new definitions", "{:.3f} s")]
    negatives: Annotated[tuple[NegativeShare, ...], Figure("negative labels")]
    moves: Annotated[tuple[TessellationMove, ...], Figure("gains of the same views on other tessellations")]
    discretisation: Annotated[tuple[Discretisation, ...], Figure("discretisation: curved parts change their shape")]
    noise: Annotated[tuple[NoiseMove, ...], Figure("gains under noise of 1e-7 m (goal of the new: at most 1e-5)")]

    @property
    def extra_cost(self) -> Annotated[float, Figure("the new definitions cost", "{:+.1%}", "at most +10 %")]:
        """Relative processor time of the new definitions over the old."""
        return self.cpu_s_per_target_new / self.cpu_s_per_target_old - 1.0

    def __str__(self) -> str:
        return f"{self.targets} targets in {self.homes} homes"


@dataclass(frozen=True, eq=False)
class _Target:
    """A target on all meshes: what its n views gain and see there, and how far two meshes are apart in its region.

    gains: (n,) by definition and faces; seen: (n, pixels) by faces, which pixels see the region; samples: of the
    region's surface by faces; noise: by definition.
    """

    gains: Mapping[tuple[str, int], Float64]
    seen: Mapping[int, NDArray[np.bool_]]
    samples: Mapping[int, int]
    apart_m: Mapping[tuple[int, int], float]
    noise: Mapping[str, NoiseEffect]

    def moved(self, definition: str, pair: tuple[int, int]) -> Float64:
        """(n,): how far the gain of each view is from one mesh to another."""
        coarse, fine = (self.gains[definition, faces] for faces in pair)
        return np.abs(coarse - fine)

    def kinds(self, pair: tuple[int, int]) -> NDArray[np.str_]:
        """(n,): what differs between two meshes for each view."""
        coarse, fine = (self.seen[faces] for faces in pair)
        if self.apart_m[pair] >= SAME_SHAPE_M:
            return np.full(len(coarse), OTHER_SHAPE)
        if len({self.samples[faces] for faces in pair}) > 1:
            return np.full(len(coarse), OTHER_SAMPLES)
        return np.where((coarse == fine).all(axis=1), SAME_PIXELS, OTHER_PIXELS)


@dataclass(frozen=True, eq=False)
class _Home:
    """What one home gave: its targets that have views, and how many have none at the root."""

    targets: tuple[_Target, ...]
    without_view: int


@dataclass(frozen=True)
class _Cost:
    """Processor seconds per target by definition, and the least probability of a view that was chosen."""

    seconds: Mapping[str, float]
    least_probability: float


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
        store, results = VinOfflineStore.open(source), []
        for home in range(homes):
            step(f"home {home}")
            meshes = {faces: _mesh(options.model_copy(update={"faces": faces}), home) for faces in budgets}
            results.append(_home(store, home, meshes, middle))
        step("seconds per target")
        cost = _cost(store, turns)
        step()
    targets, pairs = [target for home in results for target in home.targets], list(combinations(sorted(budgets), 2))
    without = sum(home.without_view for home in results)
    return LabelBenchmark(
        homes=homes,
        targets=len(targets),
        without_root_view=without / max(len(targets) + without, 1),
        least_probability=cost.least_probability,
        cpu_s_per_target_old=cost.seconds["old"],
        cpu_s_per_target_new=cost.seconds["new"],
        negatives=tuple(_negative(targets, name, faces) for name in DEFINITIONS for faces in sorted(budgets)),
        moves=tuple(move for name in DEFINITIONS for pair in pairs for move in _moves(targets, name, pair)),
        discretisation=tuple(_apart(targets, pair) for pair in pairs),
        noise=tuple(_noise(targets, name) for name in DEFINITIONS),
    )


def _mesh(options: SyntheticConfig, home: int) -> OracleScene:
    scene = build_scene(options, home, load_furniture(None, options.faces))
    return OracleScene(scene.vertices, scene.faces, "cpu")


def _campaign(store: VinOfflineStore, definition: str) -> CampaignConfig:
    oracle = OracleConfig(device="cpu", **DEFINITIONS[definition])
    return CampaignConfig(name="labels", source={"store_dir": store.root}, oracle=oracle)


def _home(store: VinOfflineStore, home: int, meshes: Mapping[int, OracleScene], middle: int) -> _Home:
    """Every target of a home that all definitions can label on all meshes."""
    config = _campaign(store, "new")
    generator = RolloutGenerator(config, store, AllEligibleTargets())
    evaluator = StateEvaluator(config, generator.scorer)
    targets, without_view = [], 0
    for root in generator.prepare(store.rows()[home]).roots:
        (state,) = evaluator.evaluate([StateRequest(root, config.seed, ())])
        poses = state.shell.pose_world_camera[state.shell.actor_action_mask]
        without_view += not len(poses)
        target = _target(store, root, poses, meshes, middle) if len(poses) else None
        targets += [] if target is None else [target]
    return _Home(tuple(targets), without_view)


def _target(
    store: VinOfflineStore, root: TargetedRoot, poses: Float32, meshes: Mapping[int, OracleScene], middle: int
) -> _Target | None:
    truth = store.sample(store.row(root.actor.identity.sample_key)).truth
    assert root.match.best_row is not None, "a root has a matched box"
    box = truth.gt_boxes.boxes[root.match.best_row : root.match.best_row + 1]
    gains, states, noise = {}, {}, {}
    for name in DEFINITIONS:
        scorer = OracleScorer(_campaign(store, name).oracle)
        for faces, scene in meshes.items():
            state = scorer.begin(scene, root.actor.camera, scorer.fuse(scene, root.actor.points_world), box)
            if not isinstance(state, OracleState):
                return None
            request = ScoreRequest(state, poses, np.ones(len(poses), bool))
            gains[name, faces], states[name, faces] = scorer.score([request])[0].target.root_gain, state
        noise[name] = noise_effect(states[name, middle], poses, scorer.config, NOISE_M, rng_for("bench labels noise"))
    seen = {faces: _seen(states["new", faces], poses, _campaign(store, "new").oracle) for faces in meshes}
    samples = {faces: len(states["new", faces].target.crop.surface.weights) for faces in meshes}
    apart_m = {pair: _distance_m(*(states["new", faces] for faces in pair)) for pair in combinations(sorted(meshes), 2)}
    return _Target(gains, seen, samples, apart_m, noise)


def _seen(state: OracleState, poses: Float32, config: OracleConfig) -> NDArray[np.bool_]:
    """(n, pixels): which pixels of each pose see a point of the target's region."""
    images = render_depth(state.scene.bvh, poses, state.camera, config.znear_m, config.zfar_m)
    depth, valid = images.depth_m.cpu().numpy(), images.valid.cpu().numpy()
    points = np.stack([state.camera.unproject(image, pose) for image, pose in zip(depth, poses, strict=True)])
    inside = points_in(points.reshape(-1, 3), state.target.crop.box_row).reshape(valid.shape)
    return np.asarray(inside & valid).reshape(len(poses), -1)


def _distance_m(coarse: OracleState, fine: OracleState) -> float:
    """Root mean square distance of the finer mesh's vertices in the region to the coarser mesh's surface."""
    crop, vertices = coarse.target.crop, fine.scene.vertices
    measured = crop.surface.extended(crop.surface.unseen(), vertices[points_in(vertices, crop.box_row)])
    return float(np.sqrt(measured.point_sum / max(measured.point_count, 1)))


def _cost(store: VinOfflineStore, turns: int) -> _Cost:
    """Processor seconds per target of whole rollouts, old and new in turns: the least of each after a warm-up."""
    runs: dict[str, list[tuple[float, float]]] = {name: [] for name in DEFINITIONS}
    for _ in range(turns + 1):
        for name in DEFINITIONS:
            runs[name].append(_timed_run(RolloutGenerator(_campaign(store, name), store), store.rows()[:TIMED_HOMES]))
    seconds = {name: min(used for used, _ in some[1:] or some) for name, some in runs.items()}
    return _Cost(seconds, min(probability for some in runs.values() for _, probability in some))


def _timed_run(generator: RolloutGenerator, rows: Sequence[IndexRow]) -> tuple[float, float]:
    """Processor seconds per target, and the least probability of a chosen view."""
    for row in rows:
        generator.scenes.find(row.scene_id)  # trees are built once per scene, not per target
    least: list[float] = []
    used = timed(lambda: least.append(_least_probability(generator.records(rows)))).cpu
    return used / max(generator.stats.targets, 1), least[0]


def _least_probability(records: Iterator[RolloutZarrRecord]) -> float:
    """The least inclusion probability of a view that a chain took; 1 when there is none."""
    least = 1.0
    for step in (step for record in records for chain in record.chains for step in chain.steps):
        chosen = step.selection.inclusion_probabilities[step.selected_mask]
        least = min([least, *chosen[np.isfinite(chosen)].tolist()])
    return least


def _negative(targets: Sequence[_Target], name: str, faces: int) -> NegativeShare:
    gains = _joined([target.gains[name, faces] for target in targets])
    negative = float((gains < -ROUNDING).mean()) if len(gains) else 0.0
    return NegativeShare(name, faces, len(gains), negative, float(gains.min(initial=0.0)))


def _moves(targets: Sequence[_Target], name: str, pair: tuple[int, int]) -> Iterator[TessellationMove]:
    moved = _joined([target.moved(name, pair) for target in targets])
    kinds = np.concatenate([np.zeros(0, np.str_), *(target.kinds(pair) for target in targets)])
    for kind in ("all", SAME_PIXELS, OTHER_PIXELS, OTHER_SAMPLES, OTHER_SHAPE):
        some = moved if kind == "all" else moved[kinds == kind]
        if len(some):
            yield TessellationMove(name, _named(pair), kind, len(some), float(np.median(some)), float(some.max()))


def _apart(targets: Sequence[_Target], pair: tuple[int, int]) -> Discretisation:
    apart = np.array([target.apart_m[pair] for target in targets])
    others = 1e3 * apart[apart >= SAME_SHAPE_M]
    median = float(np.median(others)) if len(others) else 0.0
    return Discretisation(_named(pair), len(apart) - len(others), len(others), median, float(others.max(initial=0.0)))


def _noise(targets: Sequence[_Target], name: str) -> NoiseMove:
    moved = _joined([target.noise[name].moved for target in targets])
    other = sum(int(target.noise[name].other_points.sum()) for target in targets)
    median = float(np.median(moved)) if len(moved) else 0.0
    return NoiseMove(name, len(targets), len(moved), other, median, float(moved.max(initial=0.0)))


def _joined(parts: Sequence[Float64]) -> NDArray[np.float64]:
    return np.concatenate([np.zeros(0), *parts])


def _named(pair: tuple[int, int]) -> str:
    return f"{pair[0]:,} and {pair[1]:,}"
