"""Figures of an evaluation of policies: headroom, gain per view, and groups of roots, each with its interval."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from typing import Any

import plotly.graph_objects as go
import polars as pl

from rollout_assets.reports.store_figures import COLOURS, laid_out

REFERENCE_COLOURS = ("#adb5bd", "#495057", "#212529")
"""Of the references, in order: they are the frame in which policies are seen."""

SHOWN_GROUPS = 40
"""Groups of a figure, those with most roots; the table below it has all."""


def policy_colours(policies: pl.DataFrame) -> dict[str, str]:
    """A colour per policy, by its place in the table, so that all figures agree. Columns: policy, role."""
    own, references = cycle(COLOURS), cycle(REFERENCE_COLOURS)
    rows = policies.select("policy", "role").iter_rows()
    return {name: next(references if role == "reference" else own) for name, role in rows}


def headroom_figure(policies: pl.DataFrame, colours: dict[str, str], confidence: float) -> go.Figure:
    """Share of the way from random to the greedy oracle, all views and the first alone, with intervals."""
    shown = policies.filter(pl.col("role") != "reference").sort("headroom", nulls_last=False)
    figure = go.Figure()
    for column, label, symbol in (
        ("headroom", "all views", "circle"),
        ("first_headroom", "first view", "diamond-open"),
    ):
        figure.add_trace(
            go.Scatter(
                x=_percent(shown, column),
                y=shown["policy"].to_list(),
                error_x=_errors(shown, column, 100.0),
                mode="markers",
                name=label,
                marker={
                    "size": 11,
                    "symbol": symbol,
                    "color": [colours[name] for name in shown["policy"]],
                },
                hovertemplate="%{y}, " + label + ": %{x:.1f} %<extra></extra>",
            )
        )
    for place, word in ((0, "random_valid"), (100, "oracle_greedy")):
        figure.add_vline(x=place, line={"dash": "dot", "color": "#868e96"}, annotation_text=word)
    title = f"share of the headroom recovered (%), with {100 * confidence:g} % intervals"
    legend = {"orientation": "h", "y": 1.2, "x": 0}
    axes: dict[str, Any] = {"xaxis": {"title": title}, "yaxis": {"automargin": True}, "scattermode": "group"}
    return laid_out(figure, 190 + 46 * max(shown.height, 1), legend=legend, **axes)


def gain_curves(views: pl.DataFrame, policies: pl.DataFrame, colours: dict[str, str]) -> go.Figure:
    """Mean gain once so many views are taken, a line per policy; references are dashed."""
    figure = go.Figure()
    roles = dict(policies.select("policy", "role").iter_rows())
    count = max(len(roles) - 1, 1)
    for at, (name, colour) in enumerate(colours.items()):
        part = views.filter(pl.col("policy") == name).sort("view")
        apart = 0.12 * (at / count - 0.5)
        figure.add_trace(
            go.Scatter(
                x=[0, *(view + apart for view in part["view"].to_list())],
                y=[0.0, *part["gain"].to_list()],
                error_y=_errors(part, "gain", 1.0, at_root=True),
                name=name,
                mode="lines+markers",
                line={"color": colour, "dash": "dash" if roles[name] == "reference" else "solid"},
                hovertemplate="%{y:.4f}<extra>" + name + "</extra>",
            )
        )
    axis = {"title": "views taken", "dtick": 1}
    return laid_out(figure, 460, xaxis=axis, yaxis={"title": "mean root gain so far", "rangemode": "tozero"})


def group_figure(groups: pl.DataFrame, named: Sequence[str], colours: dict[str, str]) -> go.Figure:
    """Mean gain of policies in every group between random and greedy, with intervals. ``groups``: of one kind."""
    largest = groups.select("group", "roots").unique(maintain_order=True)
    order = largest.with_row_index().top_k(SHOWN_GROUPS, by="roots").sort("index")["group"].to_list()
    figure = go.Figure()
    for name in ("random_valid", *named, "oracle_greedy"):
        part = groups.filter((pl.col("policy") == name) & pl.col("group").is_in(order))
        figure.add_trace(
            go.Scatter(
                x=part["group"].to_list(),
                y=part["gain"].to_list(),
                error_y=_errors(part, "gain", 1.0),
                customdata=part.select("roots", "scenes").rows(),
                mode="markers",
                name=name,
                marker={"color": colours[name], "size": 8, "symbol": "circle" if name in named else "line-ew-open"},
                hovertemplate="%{x}: %{y:.4f}, %{customdata[0]} roots of %{customdata[1]} scenes<extra>"
                + name
                + "</extra>",
            )
        )
    axes: dict[str, Any] = {"xaxis": {"automargin": True, "type": "category"}, "yaxis": {"title": "mean root gain"}}
    return laid_out(figure, 400, scattermode="group", **axes)


def _percent(frame: pl.DataFrame, column: str) -> list[float | None]:
    return [None if value is None else 100.0 * value for value in frame[column].to_list()]


def _errors(frame: pl.DataFrame, column: str, scale: float, *, at_root: bool = False) -> dict[str, Any]:
    """Arms of an interval around a value; none where there is no interval, and at a root that is put before."""
    rows = frame.select(column, f"{column}_low", f"{column}_high").iter_rows()
    arms = [(0.0, 0.0)] if at_root else []
    for value, low, high in rows:
        arms.append((0.0, 0.0) if value is None or low is None else (scale * (high - value), scale * (value - low)))
    up, down = zip(*arms, strict=True) if arms else ((), ())
    return {
        "type": "data",
        "symmetric": False,
        "array": list(up),
        "arrayminus": list(down),
        "thickness": 1.4,
        "width": 4,
    }
