"""Whether to trust a store's labels: the figures and tables of the report's quality section.

Everything but the agreement of weightings comes from the store alone and is summed up column by column.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import plotly.graph_objects as go
import polars as pl
from numpy.typing import NDArray

from rollout_assets.config import CampaignConfig, QualityConfig
from rollout_assets.errors import RolloutAssetsError
from rollout_assets.geometry.poses import Float32, Float64
from rollout_assets.inspection.context import candidate_span, rollout_context
from rollout_assets.inspection.provenance import generation, recorded_campaign
from rollout_assets.inspection.replay import source_of
from rollout_assets.inspection.second_opinion import second_opinion
from rollout_assets.inspection.stored_opinion import SecondOpinion
from rollout_assets.oracle.scorer import OracleScorer, OracleState, ScoreRequest
from rollout_assets.progress import SILENT, ProgressSink
from rollout_assets.reports import page as html
from rollout_assets.reports.store_figures import COLOURS, laid_out
from rollout_assets.rollouts.roots import SceneLoader
from rollout_assets.rollouts.trace import RolloutLineage
from rollout_assets.rollouts.zarr_store.reader import RolloutZarrStoreReader
from rollout_assets.rollouts.zarr_store.schema import CANDIDATES
from rollout_assets.sources.vin_store import VinOfflineStore

ONE_POINT_MOVES = (0.005, 0.01, 0.02, 0.05, 0.1)
"""Limits that the page shows the share of labels for which hang on single points.

Such a label's gain, shared among the view's pixels in the region, exceeds the limit for each. It is an estimate from
the store alone: the average pixel's share, not the most important one's. The share of labels depends much on the limit.
Only a second opinion measures it.
"""

HISTOGRAM_BINS = 60
CLASSES_SHOWN = 12

_OLD_DEFAULTS = {"face_weighting": "uniform", "voxel_origin": "zero", "distance": "true"}
"""What a manifest means that does not name an option: it was written before there was a choice."""

_MEANINGS = {
    "gt_obb_clipped_surface_v1": ("good", "the surface inside the box, whatever the tessellation"),
    "gt_obb_oriented_any_vertex_v1": (
        "bad",
        "whole faces with a vertex in the box: points on a coarse wall beside the target count against a view",
    ),
    "area": ("good", "surface counts by its area"),
    "uniform": ("careful", "every face counts the same: a finely cut knob outweighs a door"),
    "half_voxel": ("good", "floors and walls lie inside voxels"),
    "off_grid": ("good", "every surface at a whole millimetre lies inside voxels"),
    "zero": ("careful", "floors and walls lie on borders of voxels, where rounding decides which point stays"),
    "true": ("good", "distances to whole triangles"),
    "pytorch3d": ("careful", "small triangles count as their edges"),
}


@dataclass(frozen=True)
class Agreement:
    """Gains of the same root views under weighting by area and per face, one row per target, or why there are none."""

    targets: pl.DataFrame
    problem: str | None = None

    @property
    def spearman(self) -> float | None:
        """Median rank correlation over the targets."""
        return None if self.targets.is_empty() else float(np.nanmedian(self.targets["spearman"].to_numpy()))

    @property
    def same_best(self) -> float | None:
        """Share of states with the same best view."""
        return None if self.targets.is_empty() else float(self.targets["same_best"].to_numpy().mean())


def verdict(share: float, limits: tuple[float, float]) -> str:
    """Good below the first limit, bad from the second on, careful between them."""
    return "good" if share < limits[0] else "careful" if share < limits[1] else "bad"


def limits_for(reader: RolloutZarrStoreReader, campaign: CampaignConfig | None) -> QualityConfig:
    """What a store is held against: ``[quality]`` of the campaign, or of the one that made the store."""
    known = campaign or recorded_campaign(reader)
    return QualityConfig() if known is None else known.quality


def measured_opinion(
    reader: RolloutZarrStoreReader, campaign: CampaignConfig, progress: ProgressSink = SILENT
) -> SecondOpinion:
    """A second opinion on as many labels as the campaign asks for, always the same ones."""
    return second_opinion(reader, 1.0, 0, campaign, limit=campaign.quality.second_opinions_per_split, progress=progress)


def labelled_views(reader: RolloutZarrStoreReader) -> pl.DataFrame:
    """Every labelled candidate: its chain, step, gain, and the average gain of a point that it adds."""
    columns = ("rollout_row_id", "step_index", "oracle_label_mask", "target_root_gain", "target_candidate_support")
    frame = reader.table("candidates", columns=columns).filter("oracle_label_mask")
    support = pl.col("target_candidate_support").cast(pl.Float64)
    per_point = pl.col("target_root_gain").cast(pl.Float64).abs() / pl.max_horizontal(support, pl.lit(1.0))
    return frame.select("rollout_row_id", "step_index", "target_root_gain", per_point.alias("gain_per_point"))


def one_point_rows(views: pl.DataFrame) -> list[tuple[float, str]]:
    """Limit -> share of labels whose average pixel stands for more root gain than that."""
    per_point = views["gain_per_point"].to_numpy()
    return [(limit, f"{float((per_point > limit).mean()):.2%}") for limit in ONE_POINT_MOVES]


def definitions(reader: RolloutZarrStoreReader) -> list[tuple[str, str, html.Markup, str]]:
    """Which definitions made the labels: option, value, a verdict and what it means."""
    policies = reader.table("lineage", columns=("target_crop_policy_id",), decode=True)["target_crop_policy_id"]
    values = [("crop policy", str(name)) for name in policies.drop_nulls().unique().sort().to_list()]
    recorded = generation(reader).get("writer_config")
    if isinstance(recorded, dict) and isinstance(recorded.get("oracle"), dict):
        oracle = recorded["oracle"]
        values += [(name.replace("_", " "), str(oracle.get(name, old))) for name, old in _OLD_DEFAULTS.items()]
    unknown = ("careful", "not a definition that this version knows")
    return [(name, value, html.tagged(s, s), m) for name, value in values for s, m in [_MEANINGS.get(value, unknown)]]


def causes(reader: RolloutZarrStoreReader, views: pl.DataFrame) -> pl.DataFrame:
    """Negative labels by crop policy, recipe, step and class: how many there are, their share, and the lowest gain."""
    policy = reader.table("lineage", columns=("rollout_row_id", "target_crop_policy_id"), decode=True)
    chains = (
        rollout_context(reader)
        .select("rollout_row_id", "recipe", "target_class")
        .join(policy, on="rollout_row_id", how="left")
    )
    gain = pl.col("target_root_gain")
    sums = (
        views.group_by("rollout_row_id", "step_index")
        .agg(pl.len().alias("labels"), (gain < 0).sum().alias("negative"), gain.min().alias("lowest gain"))
        .join(chains, on="rollout_row_id", how="left")
    )
    groups = {"crop policy": "target_crop_policy_id", "recipe": "recipe", "step": "step_index", "class": "target_class"}
    return pl.concat(_by(sums, name, column) for name, column in groups.items())


def _by(sums: pl.DataFrame, name: str, column: str) -> pl.DataFrame:
    return (
        sums.group_by(pl.col(column).cast(pl.String).fill_null("not given").alias("value"))
        .agg(pl.col("labels").sum(), pl.col("negative").sum(), pl.col("lowest gain").min())
        .with_columns((pl.col("negative") / pl.col("labels")).alias("share"), pl.lit(name).alias("by"))
        .sort("share", "value", descending=[True, False])
        .select("by", "value", "labels", "negative", "share", "lowest gain")
    )


def headroom_rows(objectives: pl.DataFrame) -> pl.DataFrame:
    """Per recipe and step: what the best view would have gained, what was gained, and what was left."""
    best, gained = (pl.col(name).cast(pl.Float64).mean() for name in ("best_root_gain", "marginal_target_root_gain"))
    return (
        objectives.drop_nulls(["marginal_target_root_gain", "best_root_gain"])
        .group_by("recipe", pl.col("step_index").alias("step"))
        .agg(pl.len().cast(pl.Int64).alias("states"), best.alias("best"), gained.alias("taken"))
        .with_columns((pl.col("best") - pl.col("taken")).alias("headroom"))
        .sort("recipe", "step")
    )


def gain_histogram(gains: NDArray[np.float32]) -> go.Figure:
    """How often each gain occurs; the outermost thousandths are in the outermost bars, zero is a border of bars."""
    low, high = np.quantile(gains, (0.001, 0.999)).tolist()
    width = max((max(high, 0.0) - min(low, 0.0)) / HISTOGRAM_BINS, 1e-6)
    edges = width * np.arange(np.floor(min(low, 0.0) / width), np.ceil(max(high, 0.0) / width) + 1)
    counts, _ = np.histogram(np.clip(gains, edges[0], edges[-1]), edges)
    middle = (edges[:-1] + edges[1:]) / 2
    bar = go.Bar(
        x=middle,
        y=100.0 * counts / max(counts.sum(), 1),
        customdata=counts,
        marker={"color": np.where(middle < 0, "#e03131", "#1971c2").tolist()},
        hovertemplate="gain around %{x:.3f}: %{y:.2f} % (%{customdata:,} views)<extra></extra>",
    )
    axes: dict[str, Any] = {"xaxis": {"title": "root gain of a view"}, "yaxis": {"title": "share of labels (%)"}}
    return laid_out(go.Figure(bar), 360, bargap=0.02, title="Gains (red: negative)", showlegend=False, **axes)


def negative_bars(rows: pl.DataFrame) -> go.Figure:
    """Negative share of every group; of classes those with the largest share."""
    shown = pl.concat(part.head(CLASSES_SHOWN) for part in rows.partition_by("by", maintain_order=True))
    names = [f"{by}: {value}".replace("gt_obb_", "") for by, value in shown.select("by", "value").rows()]
    colour = dict(zip(rows["by"].unique(maintain_order=True), COLOURS, strict=False))
    bar = go.Bar(
        y=names,
        x=(100.0 * shown["share"]).to_list(),
        customdata=shown["labels"].to_list(),
        orientation="h",
        text=[f"{100.0 * share:.2f} %" for share in shown["share"].to_list()],
        marker={"color": [colour[by] for by in shown["by"].to_list()]},
        hovertemplate="%{y}: %{x:.2f} % of %{customdata:,} labels<extra></extra>",
    )
    axes: dict[str, Any] = {
        "xaxis": {"title": "negative labels (%)", "rangemode": "tozero"},
        "yaxis": {"automargin": True, "autorange": "reversed", "dtick": 1},
    }
    return laid_out(go.Figure(bar), max(360, 110 + 20 * len(names)), title="Where labels are negative", **axes)


def headroom_bars(rows: pl.DataFrame) -> go.Figure:
    """What each recipe left on the table, step by step."""
    figure = go.Figure()
    for number, part in enumerate(rows.partition_by("recipe", maintain_order=True)):
        figure.add_trace(
            go.Bar(
                x=[f"step {step}" for step in part["step"].to_list()],
                y=part["headroom"].to_list(),
                name=part["recipe"][0],
                marker={"color": COLOURS[number % len(COLOURS)]},
            )
        )
    axis = {"title": "best gain - gain taken", "rangemode": "tozero"}
    return laid_out(figure, 360, barmode="group", title="Headroom by step", yaxis=axis)


def weighting_agreement(reader: RolloutZarrStoreReader, campaign: CampaignConfig) -> Agreement:
    """Measure the root views of some targets under both weightings; what cannot be measured is said in words."""
    try:
        rows = list(_agreement_rows(reader, campaign, source_of(campaign)))
    except RolloutAssetsError as error:
        return Agreement(pl.DataFrame(), f"The weightings cannot be compared: {error}")
    return Agreement(pl.DataFrame(rows), None if rows else "No target of this store can be measured again.")


def _agreement_rows(
    reader: RolloutZarrStoreReader, campaign: CampaignConfig, source: VinOfflineStore
) -> Iterator[dict[str, Any]]:
    scenes = SceneLoader(source.meshes, campaign.oracle)
    chains = rollout_context(reader).unique("target_row_id", keep="first", maintain_order=True)
    spread = np.unique(
        np.linspace(0, chains.height - 1, min(campaign.quality.weighting_targets, chains.height)).astype(np.int64)
    )
    for chain in chains[spread.tolist()].iter_rows(named=True) if chains.height else ():
        stored = reader.rollout(chain["rollout_row_id"])
        poses = _root_poses(reader, chain["rollout_row_id"])
        if len(poses) < 3:
            continue
        both = [_root_gains(stored.lineage, poses, campaign, source, scenes, name) for name in ("area", "uniform")]
        area, uniform = both
        if area is not None and uniform is not None:
            about = {"target": f"{chain['target_class']} (row {chain['target_row_id']})", "views": len(poses)}
            yield about | {"spearman": spearman(area, uniform), "same_best": bool(area.argmax() == uniform.argmax())}


def _root_poses(reader: RolloutZarrStoreReader, rollout_row_id: int) -> Float32:
    span = candidate_span(reader, rollout_row_id)
    views = reader.columns(CANDIDATES, start=span.start, stop=span.stop)
    poses: Float32 = views["pose_world_cam"][(views["step_index"] == 0) & views["oracle_label_mask"]]
    return poses


def _root_gains(
    lineage: RolloutLineage,
    poses: Float32,
    campaign: CampaignConfig,
    source: VinOfflineStore,
    scenes: SceneLoader,
    weighting: str,
) -> Float64 | None:
    """Root gains of poses under a weighting; None when the source has no such mesh or box any more."""
    scorer = OracleScorer(campaign.oracle.model_copy(update={"face_weighting": weighting}))
    loaded = scenes.find(lineage.scene_id or "")
    sample = source.sample(source.row(lineage.source_sample_key or ""))
    row = np.flatnonzero(sample.truth.gt_boxes.source_index == lineage.matched_gt_target_row_id)
    if loaded is None or len(row) != 1:
        return None
    box = sample.truth.gt_boxes.boxes[int(row[0]) : int(row[0]) + 1]
    cloud = scorer.fuse(loaded[0], sample.actor.points_world)
    state = scorer.begin(loaded[0], sample.actor.camera, cloud, box)
    if not isinstance(state, OracleState):
        return None
    return scorer.score([ScoreRequest(state, poses, np.ones(len(poses), bool))])[0].target.root_gain


def spearman(left: Float64, right: Float64) -> float:
    """Rank correlation; NaN when one side is constant."""
    ranks = pl.DataFrame({"left": left, "right": right}).select(pl.all().rank())
    value = ranks.select(pl.corr("left", "right")).item()
    return float("nan") if value is None else float(value)
