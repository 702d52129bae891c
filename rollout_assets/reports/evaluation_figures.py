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

_HEADROOMS = (("headroom", "all views", "circle", 0.12), ("first_headroom", "first view", "diamond-open", -0.12))
"""Column, its words, its symbol, and how far above its policy's line it is drawn."""

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
    for column, label, symbol, apart in _HEADROOMS:
        legend = go.Scatter(
            x=[None], y=[None], mode="markers", name=label, marker={"symbol": symbol, "color": "#495057"}
        )
        figure.add_trace(legend)
        for at, row in enumerate(shown.iter_rows(named=True)):
            own = shown.slice(at, 1)
            name = row["policy"]
            figure.add_trace(
                go.Scatter(
                    x=[None if value is None else 100.0 * value for value in own[column].to_list()],
                    y=[at + apart],
                    error_x=_errors(own, column, 100.0),
                    mode="markers",
                    marker={"size": 11, "symbol": symbol, "color": colours[name]},
                    showlegend=False,
                    hovertemplate=f"{name}, {label}: %{{x:.1f}} %<extra></extra>",
                )
            )
    for place, word in ((0, "random_valid"), (100, "oracle_greedy")):
        figure.add_vline(x=place, line={"dash": "dot", "color": "#868e96"})
        anchor: dict[str, Any] = {"yref": "paper", "xanchor": "left", "yanchor": "bottom", "showarrow": False}
        figure.add_annotation(x=place, y=0.0, text=word, font={"color": "#868e96"}, **anchor)
    title = f"share of the headroom recovered (%), with {100 * confidence:g} % intervals"
    names = {"tickvals": list(range(shown.height)), "ticktext": shown["policy"].to_list()}
    room = [-0.8, max(shown.height, 1) - 0.5]
    axes: dict[str, Any] = {"xaxis": {"title": title}, "yaxis": {"automargin": True, "range": room, **names}}
    return laid_out(figure, 150 + 60 * max(shown.height, 1), legend={"y": 0.5}, **axes)


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
