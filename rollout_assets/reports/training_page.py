"""A training's curves as a page: what was learned from epoch to epoch, and which epoch became the policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import plotly.graph_objects as go

from rollout_assets.reports import page as html
from rollout_assets.reports.store_figures import COLOURS, laid_out

CURVES: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "Share of the headroom": (
        "What the chosen views gain beyond the mean view, as a share of what the best views do, on scenes held out.",
        {"validation_share_of_headroom": "all steps", "validation_first_share": "first steps"},
    ),
    "Loss": ("On the training scenes, mean of each epoch.", {"loss": "loss"}),
    "Gain and regret": (
        "Root gain of the chosen views, and how much the best of each state would have gained on top.",
        {"validation_gain": "gain of the chosen view", "validation_regret": "regret to the best view"},
    ),
    "Order of the views": (
        "Spearman's rank correlation between scores and gains, mean over states held out.",
        {"validation_rank_correlation": "rank correlation"},
    ),
}
"""Section -> what it shows, and the metrics drawn in it with their names."""


def write_training_page(path: Path, title: str, facts: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> Path:
    """One self-contained page from a training's metrics, one row per epoch."""
    page = html.Page(title, f"{len(rows)} epochs")
    best = max(rows, key=lambda row: row["validation_share_of_headroom"], default=None)
    if best is not None:
        page.section("best", "Best epoch", html.cards(_cards(best)))
        for number, (section, (about, lines)) in enumerate(CURVES.items()):
            figure = page.figure(_curves(rows, lines, best["epoch"]))
            page.section(f"curve-{number}", section, html.text(about, soft=True), figure)
    page.section("facts", "What was trained", html.records(facts))
    columns = list(rows[0]) if rows else []
    table = html.table([name.replace("_", " ") for name in columns], [[row[name] for name in columns] for row in rows])
    page.section("epochs", "Every epoch", table)
    return page.write(path)


def _cards(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "epoch": row["epoch"],
        "share of the headroom": f"{row['validation_share_of_headroom']:.1%}",
        "at first steps": f"{row['validation_first_share']:.1%}",
        "rank correlation": row["validation_rank_correlation"],
        "states held out": row["validation_states"],
    }


def _curves(rows: Sequence[Mapping[str, Any]], lines: Mapping[str, str], best_epoch: int) -> go.Figure:
    figure = go.Figure()
    epochs = [row["epoch"] for row in rows]
    for colour, (name, label) in zip(COLOURS, lines.items(), strict=False):
        values = [row[name] for row in rows]
        figure.add_trace(go.Scatter(x=epochs, y=values, name=label, mode="lines+markers", line={"color": colour}))
    figure.add_vline(x=best_epoch, line={"dash": "dot", "color": "#868e96"})
    return laid_out(figure, 320, xaxis={"title": "epoch"}, showlegend=len(lines) > 1)
