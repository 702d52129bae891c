"""Figures of a store report. Everything is summed up before it is drawn, so a figure's size does not grow with rows."""

from __future__ import annotations

from itertools import cycle
from typing import Any

import numpy as np
import plotly.graph_objects as go
import polars as pl
from numpy.typing import NDArray

from rollout_assets.candidates.reasons import InvalidReason
from rollout_assets.geometry.poses import Float64
from rollout_assets.inspection.decode import decode_invalid_reason, decode_position_id, named
from rollout_assets.inspection.summary import validity_waterfall_rows
from rollout_assets.rollouts.zarr_store.reader import RolloutZarrStoreReader
from rollout_assets.rollouts.zarr_store.schema import CANDIDATES, ROLLOUTS, TARGETS

COLOURS = ("#1f77b4", "#ff7f0e", "#2ca02c", "#9467bd", "#8c564b", "#e377c2", "#7f7f7f", "#bcbd22", "#17becf")
"""One per recipe, in order of name."""

VALID_COLOUR = "#2f9e44"
_REDS, _BLUES = ("#e03131", "#f08c00", "#c2255c", "#f783ac", "#a9583e"), ("#1971c2", "#0c8599", "#5f3dc4", "#15aabf")
REASON_COLOURS = (*_REDS, *_BLUES, "#9c36b5", "#868e96")
"""By number of the reason, so that a reason has one colour on all pages."""

STAGES = {
    "full_shell": "offered",
    "actor_valid": "can be taken",
    "oracle_label": "labelled",
    "q_train": "trainable",
    "selected": "taken",
}

AZIMUTH_BINS = 36
MAX_TARGETS = 24
"""Targets shown in the coverage figure: those with most views."""


def funnel(reader: RolloutZarrStoreReader) -> go.Figure:
    """From the full shell to what was taken."""
    rows = validity_waterfall_rows(reader)
    figure = go.Figure(
        go.Funnel(
            y=[STAGES[stage] for stage in rows["stage"].to_list()],
            x=rows["count"].to_list(),
            texttemplate="%{value:,}  (%{percentInitial:.1%})",
            marker={"color": ["#adb5bd", "#74c0fc", "#4dabf7", "#2f9e44", "#e8590c"]},
            connector={"fillcolor": "#f1f3f5", "line": {"color": "#dee2e6"}},
        )
    )
    return laid_out(figure, 340, showlegend=False, yaxis={"automargin": True})


def primary_reasons(reader: RolloutZarrStoreReader) -> go.Figure:
    """What became of each position family's views, by the first rule that refused them."""
    frame = reader.table("candidates", columns=("position_id", "primary_invalid_reason"))
    counts = frame.group_by("position_id", "primary_invalid_reason").len("views").sort("primary_invalid_reason")
    totals = counts.group_by("position_id").agg(pl.col("views").sum().alias("total"))
    counts = counts.join(totals, on="position_id").with_columns(
        named(counts["position_id"], decode_position_id).alias("position"),
        (100.0 * pl.col("views") / pl.col("total")).alias("share"),
    )
    figure = go.Figure()
    for code in counts["primary_invalid_reason"].unique(maintain_order=True).to_list():
        part = counts.filter(pl.col("primary_invalid_reason") == code).sort("position")
        valid = code == InvalidReason.VALID
        figure.add_trace(
            go.Bar(
                y=part["position"].to_list(),
                x=part["share"].to_list(),
                customdata=part["views"].to_list(),
                name="can be taken" if valid else decode_invalid_reason(code),
                orientation="h",
                marker={"color": VALID_COLOUR if valid else REASON_COLOURS[code % len(REASON_COLOURS)]},
                hovertemplate="%{y}: %{x:.1f} % (%{customdata:,} views)<extra>%{fullData.name}</extra>",
            )
        )
    axis = {"title": "share of the family's views (%)", "range": [0, 100]}
    legend = {"orientation": "h", "y": -0.3, "traceorder": "normal"}
    return laid_out(figure, 380, barmode="stack", xaxis=axis, yaxis={"automargin": True}, legend=legend)


def every_rule(reader: RolloutZarrStoreReader) -> go.Figure:
    """How often each rule fails in each position family; one view may fail several."""
    bits, position = (reader.array(CANDIDATES.path(name)) for name in ("invalid_reason_bitset", "position_id"))
    families = np.unique(position)
    distinct, which = np.unique(bits, return_inverse=True)
    used = [bit for bit in range(1, 32) if any(int(value) >> bit & 1 for value in distinct.tolist())]
    share = np.zeros((len(used), len(families)))
    for column, family in enumerate(families.tolist()):
        counts = np.bincount(which[position == family], minlength=len(distinct))
        for row, bit in enumerate(used):
            failing = ((distinct >> np.uint32(bit)) & np.uint32(1)).astype(bool)
            share[row, column] = 100.0 * counts[failing].sum() / max(counts.sum(), 1)
    figure = go.Figure(
        go.Heatmap(
            z=share,
            x=[decode_position_id(family).replace("_", "<br>") for family in families.tolist()],
            y=[decode_invalid_reason(bit) for bit in used],
            text=[[f"{value:.1f} %" for value in row] for row in share],
            texttemplate="%{text}",
            colorscale="Reds",
            zmin=0,
            colorbar={"title": "%"},
            hovertemplate="%{y} fails on %{text} of %{x}<extra></extra>",
        )
    )
    return laid_out(figure, 380, yaxis={"automargin": True, "autorange": "reversed"}, xaxis={"automargin": True})


def gains_by_step(objectives: pl.DataFrame) -> go.Figure:
    """Root gain of what was taken, by step and recipe: quartiles, extremes and mean."""
    selected = objectives.drop_nulls("marginal_target_root_gain")
    gain = pl.col("marginal_target_root_gain").cast(pl.Float64)
    boxes = (
        selected.group_by("recipe", "step_index")
        .agg(
            *(gain.quantile(q, "linear").alias(name) for name, q in _QUANTILES.items()),
            gain.mean().alias("mean"),
            pl.len().alias("steps"),
        )
        .sort("recipe", "step_index")
    )
    figure = go.Figure()
    for colour, recipe in zip(cycle(COLOURS), boxes["recipe"].unique(maintain_order=True), strict=False):
        part = boxes.filter(pl.col("recipe") == recipe)
        figure.add_trace(
            go.Box(
                x=[f"step {step}" for step in part["step_index"].to_list()],
                q1=part["q25"].to_list(),
                median=part["q50"].to_list(),
                q3=part["q75"].to_list(),
                lowerfence=part["q05"].to_list(),
                upperfence=part["q95"].to_list(),
                mean=part["mean"].to_list(),
                name=recipe,
                marker={"color": colour},
            )
        )
    return laid_out(figure, 420, boxmode="group", yaxis={"title": "root gain of the view taken"})


def headroom(objectives: pl.DataFrame) -> go.Figure:
    """Mean root gain of the best view on offer, of the one taken, and of a view picked at random."""
    rows = (
        objectives.drop_nulls(["marginal_target_root_gain", "best_root_gain"])
        .group_by("recipe", "step_index")
        .agg(
            pl.col("best_root_gain").cast(pl.Float64).mean().alias("best on offer"),
            pl.col("marginal_target_root_gain").cast(pl.Float64).mean().alias("taken"),
            pl.col("mean_root_gain").mean().alias("picked at random"),
        )
        .sort("recipe", "step_index")
    )
    places = [rows["recipe"].to_list(), [f"step {step}" for step in rows["step_index"].to_list()]]
    colours = {"best on offer": "#2f9e44", "taken": "#1971c2", "picked at random": "#adb5bd"}
    figure = go.Figure(
        [go.Bar(x=places, y=rows[name].to_list(), name=name, marker={"color": c}) for name, c in colours.items()]
    )
    return laid_out(figure, 420, barmode="group", yaxis={"title": "mean root gain"})


def coverage(reader: RolloutZarrStoreReader) -> go.Figure | None:
    """From which sides each target could be looked at, and from which it was; None when nothing can be taken."""
    takeable = np.flatnonzero(reader.array(CANDIDATES.path("actor_action_mask")))
    target_of_chain = reader.array(ROLLOUTS.path("target_row_id"))
    target = target_of_chain[reader.array(CANDIDATES.path("rollout_row_id"))[takeable]]
    if not len(target):
        return None
    centres = reader.array(TARGETS.path("target_center_world")).astype(np.float64)
    azimuth = _azimuths(reader.array(CANDIDATES.path("pose_world_cam"))[takeable, 9:], centres[target])
    bins = np.clip(((azimuth + 180.0) / 360.0 * AZIMUTH_BINS).astype(np.int64), 0, AZIMUTH_BINS - 1)
    counts = np.bincount(target * AZIMUTH_BINS + bins, minlength=len(centres) * AZIMUTH_BINS).reshape(len(centres), -1)
    shown = np.argsort(-counts.sum(axis=1), kind="stable")[:MAX_TARGETS]
    shown = shown[counts[shown].sum(axis=1) > 0]
    classes = reader.table("targets", columns=("target_class_name_id",), decode=True)["target_class_name_id"]
    names = [f"{classes[row] or 'target'} (row {row})" for row in shown.tolist()]
    sides = 360.0 / AZIMUTH_BINS
    figure = go.Figure(
        go.Heatmap(
            z=np.where(counts[shown] > 0, counts[shown].astype(float), np.nan),
            x=[-180.0 + sides * (index + 0.5) for index in range(AZIMUTH_BINS)],
            y=names,
            colorscale="Blues",
            colorbar={"title": "views<br>that can<br>be taken"},
            hovertemplate="%{y}<br>seen from %{x:.0f} deg: %{z} views<extra></extra>",
        )
    )
    selected = reader.array(CANDIDATES.path("selected_mask"))[takeable] & np.isin(target, shown)
    name_of = dict(zip(shown.tolist(), names, strict=True))
    chosen = zip(target[selected].tolist(), azimuth[selected].tolist(), strict=True)
    points = sorted({(name_of[row], round(angle, 0)) for row, angle in chosen})
    figure.add_trace(
        go.Scatter(
            x=[angle for _, angle in points],
            y=[name for name, _ in points],
            mode="markers",
            marker={"color": "#e8590c", "size": 5, "symbol": "diamond"},
            name="view taken",
            showlegend=True,
            hovertemplate="%{y}<br>taken from %{x:.0f} deg<extra></extra>",
        )
    )
    axis = {"title": "azimuth of the view around the target (deg, world)", "range": [-180, 180], "dtick": 45}
    legend = {"orientation": "h", "y": 1.08}
    height = 160 + 22 * len(shown)
    return laid_out(figure, height, xaxis=axis, yaxis={"automargin": True, "autorange": "reversed"}, legend=legend)


_QUANTILES = {"q05": 0.05, "q25": 0.25, "q50": 0.5, "q75": 0.75, "q95": 0.95}


def _azimuths(cameras: NDArray[np.float32], targets: Float64) -> Float64:
    """(n, 3), (n, 3) -> (n,) degrees: where the camera stands, seen from the target."""
    away = cameras.astype(np.float64) - targets
    return np.degrees(np.arctan2(away[:, 1], away[:, 0]))


def laid_out(figure: go.Figure, height: int, **layout: Any) -> go.Figure:
    """The figure in the report's style."""
    figure.update_layout(
        height=height,
        margin={"l": 10, "r": 10, "t": 36, "b": 40},
        template="plotly_white",
        font={"family": "system-ui, sans-serif", "size": 13},
        **layout,
    )
    return figure
