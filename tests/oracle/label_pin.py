"""Digests of labels that were recorded before the kernels were rewritten, so that every later step is held to the bit.

Run ``python -m tests.oracle.label_pin`` to record them anew, and only when labels are meant to change. Meshes and poses
come from NumPy's trigonometry, which may round differently on another processor: every digest of labels therefore lies
beside the digest of what they were computed from.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from rollout_assets.benchmarks.oracle_workloads import Mesh, furnished_room, surface_points
from rollout_assets.campaigns.plan import open_source
from rollout_assets.config import DEMO_CAMPAIGN, CampaignConfig, OracleConfig, load_campaign
from rollout_assets.geometry.boxes import OrientedBoxes
from rollout_assets.geometry.cameras import PinholeCamera
from rollout_assets.geometry.poses import Float32, compose, look_along
from rollout_assets.oracle.raycast import render_depth
from rollout_assets.oracle.scene import OracleScene
from rollout_assets.oracle.scorer import OracleScorer, Refused, ScoreRequest
from rollout_assets.rollouts.generator import RolloutGenerator
from rollout_assets.sources.vin_store import VinOfflineStore
from tests.support.digests import content_digest

RECORDED = Path(__file__).with_name("label_pin.json")

Pin = tuple[str, str]
"""Digest of the inputs, digest of what the oracle made of them."""

ROOMS, CASES_PER_ROOM = 10, 20

_ARIA_NBV = {"crop_policy": "vertex_in_box", "face_weighting": "uniform", "voxel_origin": "zero"}

CONFIGS = (
    OracleConfig(device="cpu", width_px=24, height_px=24),
    OracleConfig(device="cpu", width_px=24, height_px=20, face_weighting="uniform", surface_samples=600),
    OracleConfig(device="cpu", width_px=32, height_px=24, voxel_origin="off_grid", scene_labels=True),
    OracleConfig(device="cpu", width_px=24, height_px=20, crop_policy="vertex_in_box", voxel_origin="zero"),
    OracleConfig(device="cpu", width_px=20, height_px=24, pixel_stride=2, distance="pytorch3d", **_ARIA_NBV),
)


def random_cases(rooms: int = ROOMS) -> Iterator[Pin]:
    """200 small problems: rooms of 300 to 6,000 faces, random boxes, clouds and views, two depths of a rollout."""
    for room in range(rooms):
        rng = np.random.default_rng([18, room])
        faces = int(rng.integers(300, 6_000))
        mesh = furnished_room(faces, max(faces // 4, 60), rng)
        scene = OracleScene(*mesh, "cpu")
        for case in range(CASES_PER_ROOM):
            yield _random_case(scene, mesh, CONFIGS[case % len(CONFIGS)], rng)


def rows(store: VinOfflineStore, config: CampaignConfig, count: int) -> Iterator[Pin]:
    """The first rows of a campaign: all that a policy and a trainer see of its labels."""
    generator = RolloutGenerator(config, store)
    for row in store.rows()[:count]:
        sample = store.sample(row)
        records = list(generator.records([row]))
        chains = [chain for record in records for chain in record.chains]
        offered = [chain.steps[0].shell.pose_world_camera for chain in chains]
        steps = [step for chain in chains for step in chain.steps]
        made = [(step.labels, step.selection.selected_shell_index, step.selected_depth) for step in steps]
        yield content_digest((sample.actor.points_world, offered))[:16], content_digest(made)[:16]


def demo_config() -> CampaignConfig:
    """The shipped demo on the CPU."""
    config = load_campaign(DEMO_CAMPAIGN)
    return config.model_copy(update={"oracle": config.oracle.model_copy(update={"device": "cpu"})})


def small_config() -> CampaignConfig:
    """Default recipes at a small size, for the store that all tests share."""
    return CampaignConfig(
        name="pin", seed=5, selected_depth={"width_px": 24, "height_px": 24}, oracle=OracleConfig(device="cpu")
    )


def recorded(kind: str) -> list[Pin]:
    """What was recorded of one kind."""
    return [(inputs, made) for inputs, made in json.loads(RECORDED.read_text(encoding="utf-8"))[kind]]


def compared(pins: Sequence[Pin], before: Sequence[Pin]) -> tuple[int, list[int]]:
    """How many pins have the inputs of then, and which of those differ."""
    same_inputs = [index for index, (now, then) in enumerate(zip(pins, before, strict=True)) if now[0] == then[0]]
    return len(same_inputs), [index for index in same_inputs if pins[index] != before[index]]


def _random_case(scene: OracleScene, mesh: Mesh, config: OracleConfig, rng: np.random.Generator) -> Pin:
    scorer = OracleScorer(config)
    points = surface_points(mesh, int(rng.integers(200, 4_000)), rng)
    box, camera = _random_box(rng), PinholeCamera(125.0, 120.0, 119.0, 121.5, 240, 240)
    cloud = scorer.fuse(scene, points)
    region = scorer.region(scene, cloud, _random_box(rng, 3.0)) if config.scene_labels else None
    state = scorer.begin(scene, camera, cloud, box, None if isinstance(region, Refused) else region)
    inputs = content_digest((*mesh, points, box.pose_world_object, box.extents_m))
    if isinstance(state, Refused):
        return inputs[:16], content_digest((state.reason, state.detail))[:16]
    made: list[object] = [state.target.error_m2]
    for depth in range(2):
        poses = _random_views(box, 3, rng)
        valid = rng.random(3) < 0.9
        labels = scorer.score([ScoreRequest(state, poses, valid)])[0]
        images = render_depth(scene.bvh, poses, state.camera, config.znear_m, config.zfar_m)
        made += [labels, images.depth_m.numpy()]
        if depth == 0:
            state = scorer.advance(state, poses[1])
            made += [state.target.error_m2, state.cloud.points]
        inputs = content_digest((inputs, poses, valid))
    return inputs[:16], content_digest(made)[:16]


def _random_box(rng: np.random.Generator, size_m: float = 1.0) -> OrientedBoxes:
    turn = look_along(np.zeros((1, 3)), rng.normal(size=(1, 3)) * [1, 1, 0.2])
    pose = compose(turn, look_along(np.zeros((1, 3)), rng.normal(size=(1, 3))))
    pose[:, 9:] = rng.uniform(-0.15, 0.15, (1, 3))
    return OrientedBoxes(pose.astype(np.float32), rng.uniform(0.6, 1.1, (1, 3)).astype(np.float32) * np.float32(size_m))


def _random_views(box: OrientedBoxes, count: int, rng: np.random.Generator) -> Float32:
    forward = rng.normal(size=(count, 3)) * [1, 1, 0.4]
    forward /= np.linalg.norm(forward, axis=1, keepdims=True)
    start = box.pose_world_object[:, 9:] - forward * rng.uniform(0.9, 1.6, (count, 1))
    return look_along(start, forward + rng.normal(0, 0.1, forward.shape))


def _record() -> None:
    from rollout_assets.commands.demo import build_source
    from rollout_assets.progress import SILENT
    from rollout_assets.synthetic.config import SyntheticConfig
    from rollout_assets.synthetic.store import build_synthetic_store
    from tests.conftest import SMALL_STORE

    config = demo_config()
    with tempfile.TemporaryDirectory() as folder:
        build_synthetic_store(Path(folder) / "small", SyntheticConfig(**SMALL_STORE))
        build_source(config, SILENT)
        pins = {
            "random": list(random_cases()),
            "small": list(rows(VinOfflineStore.open(Path(folder) / "small"), small_config(), 4)),
            "demo": list(rows(open_source(config), config, 4)),
        }
    RECORDED.write_text(json.dumps(pins, indent=0) + "\n", encoding="utf-8")


if __name__ == "__main__":
    _record()
