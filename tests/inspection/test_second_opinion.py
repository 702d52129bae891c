"""A second opinion is one: other rays, other arithmetic, and a distribution that names its worst rows."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from rollout_assets.config import CampaignConfig, OracleConfig
from rollout_assets.inspection.other_distances import BruteForceDistances, IglDistances, distances_of
from rollout_assets.inspection.other_rays import BruteForceRays, EmbreeRays, Rays, library
from rollout_assets.inspection.second_opinion import COMPARED
from rollout_assets.oracle import naive
from rollout_assets.oracle.raycast import render_depth
from rollout_assets.oracle.scene import OracleScene
from rollout_assets.rollouts import second_opinion
from rollout_assets.rollouts.zarr_store import RolloutZarrStoreReader
from tests.inspection.conftest import campaign_of, write_campaign
from tests.oracle.rooms import CAMERA, room_mesh, target_box, views

EMBREE = importlib.util.find_spec("embreex") is not None


@pytest.mark.parametrize(
    "kind", [BruteForceRays, pytest.param(EmbreeRays, marks=pytest.mark.skipif(not EMBREE, reason="needs embreex"))]
)
@pytest.mark.ci
def test_other_rays_see_what_the_renderer_sees(kind: type[BruteForceRays] | type[EmbreeRays]) -> None:
    mesh, poses = room_mesh(), views(4, seed=2)
    rendered = render_depth(OracleScene(mesh.vertices, mesh.faces, "cpu").bvh, poses, CAMERA, 0.001, 20.0).depth_m
    rays: Rays = kind(mesh.vertices.astype(np.float32), mesh.faces.astype(np.int32))
    for pose, expected in zip(poses, rendered.numpy(), strict=True):
        seen = rays.depth(pose, CAMERA, 0.001, 20.0)
        assert (np.abs(seen - expected) > 1e-5).mean() < 0.01
        assert np.abs(naive.unprojected(seen, pose, CAMERA, 1) - naive.back_project(seen, pose, CAMERA, 1)).max() < 1e-6


@pytest.fixture
def crop() -> naive.NaiveCrop:
    mesh = room_mesh()
    return naive.crop(mesh.vertices.astype(np.float32), mesh.faces.astype(np.int32), target_box(), OracleConfig())


def test_another_librarys_distances_are_those_of_all_pairs(crop: naive.NaiveCrop) -> None:
    pytest.importorskip("igl")
    points = np.random.default_rng(3).normal(crop.pieces[:, 0].mean(axis=0), 0.3, (200, 3))
    brute, other = (kind().error_m2(crop, points) for kind in (BruteForceDistances, IglDistances))
    assert other == pytest.approx(brute, rel=1e-12)
    assert IglDistances().error_m2(crop, points[:1]) == pytest.approx(crop.error(points[:1]), rel=1e-12)


def test_all_pairs_are_measured_where_no_other_library_can(monkeypatch: pytest.MonkeyPatch) -> None:
    assert distances_of(OracleConfig(crop_policy="vertex_in_box")).name == "brute force"
    monkeypatch.setattr(importlib.util, "find_spec", lambda *_: None)
    assert distances_of(OracleConfig()).name == library() == "brute force"


def test_brute_force_alone_confirms_labels(
    real: RolloutZarrStoreReader, campaign: CampaignConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda *_: None)
    opinion = second_opinion(real, 1.0, 4, campaign, limit=1)
    assert opinion.agrees and (opinion.rays, opinion.distances) == ("brute force", "brute force")


def test_agreement_is_a_distribution_and_the_worst_rows_are_named(
    real: RolloutZarrStoreReader, campaign: CampaignConfig
) -> None:
    opinion = second_opinion(real, 1.0, 4, campaign, limit=4)
    summary = {row["label"]: row for row in opinion.summary.to_dicts()}
    assert set(summary) == {"depth_pixels", *COMPARED}
    for row in summary.values():
        assert row["judged"] == 4 and row["gap_median"] <= row["gap_p90"] <= row["gap_max"]
        assert row["agrees"] == 1.0
    excess = (opinion.worst["gap"] / opinion.worst["tolerance"]).to_list()
    assert excess == sorted(excess, reverse=True)
    assert excess[0] == pytest.approx((opinion.labels["gap"] / opinion.labels["tolerance"]).max())
    assert opinion.scope.startswith("4 of ") and library() in opinion.scope
    assert distances_of(campaign.oracle).name in opinion.scope


def test_noise_of_a_centimetre_moves_labels_and_less_does_not(
    real: RolloutZarrStoreReader, campaign: CampaignConfig
) -> None:
    def moved(noise_m: float) -> float:
        config = campaign.model_copy(update={"quality": campaign.quality.model_copy(update={"noise_m": noise_m})})
        labels = second_opinion(real, 1.0, 3, config, limit=2).labels
        return float(labels.filter(pl.col("label") == "target_root_gain")["moved"].max())

    assert 0.0 < moved(campaign.quality.noise_m) < 1e-5
    assert moved(0.01) > 1e-4


def test_what_the_time_did_not_allow_is_said(real: RolloutZarrStoreReader, campaign: CampaignConfig) -> None:
    opinion = second_opinion(real, 1.0, 3, campaign, limit=3, budget_s=0.0)
    assert (opinion.candidates, opinion.asked) == (1, 3)
    assert opinion.scope.startswith("1 of ")


def test_where_rounding_decides_the_old_grid_is_allowed(small_store: Path, tmp_path: Path) -> None:
    """Floors lie on the borders of the old grid's voxels: labels are off, by no more than rounding explains."""
    old = campaign_of(small_store, oracle={"voxel_origin": "zero"}, recipes=[{"name": "r", "policy": "random_valid"}])
    reader = RolloutZarrStoreReader(write_campaign(old, tmp_path / "old.zarr", [0]))
    opinion = second_opinion(reader, 1.0, 1, old, limit=6)
    allowed = opinion.labels.filter(pl.col("rounding").is_not_null())
    assert opinion.agrees, opinion.findings.to_dicts()
    assert allowed.height and (allowed["rounding"] > 0).any()
