"""One page about one store: what it holds, what was lost, what was gained, what looks wrong, and how it was made."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from rollout_assets.config import CampaignConfig
from rollout_assets.errors import StoreDamaged, counted
from rollout_assets.inspection.depth import selected_depth_preview, selected_depth_summary_rows
from rollout_assets.inspection.explain import config_rows
from rollout_assets.inspection.objectives import rollout_step_objective_rows
from rollout_assets.inspection.provenance import generation, recorded_campaign
from rollout_assets.inspection.readiness import training_readiness
from rollout_assets.inspection.stored_opinion import SecondOpinion
from rollout_assets.inspection.summary import candidate_group_summary_rows, rollout_tree_summary_rows
from rollout_assets.progress import SILENT, ProgressEvent, ProgressSink
from rollout_assets.reports import page as html
from rollout_assets.reports import store_figures as figures
from rollout_assets.reports.quality_section import QualityReport, quality_parts
from rollout_assets.reports.suspicious_rows import add_suspicious_rows
from rollout_assets.rollouts.zarr_store.reader import RolloutZarrStoreReader

GALLERY_IMAGES = 12


@dataclass(frozen=True, eq=False)
class _Report:
    """A page in the making, and the store it is about."""

    page: html.Page
    reader: RolloutZarrStoreReader
    campaign: CampaignConfig | None
    opinion: SecondOpinion | None
    path: Path

    @cached_property
    def objectives(self) -> pl.DataFrame:
        return rollout_step_objective_rows(self.reader)


def write_store_report(
    reader: RolloutZarrStoreReader,
    path: Path,
    *,
    campaign: CampaignConfig | None = None,
    opinion: SecondOpinion | None = None,
    progress: ProgressSink = SILENT,
) -> Path:
    """Write the report as one self-contained HTML file: no network, no other files needed.

    With a campaign whose source is there, some targets are measured again under both weightings of faces, rows that
    look wrong link to 3-D pages in ``pictures_folder(path)``, and its ``[quality]`` says what is good; without one,
    the ``[quality]`` of the campaign that made the store. ``opinion`` is shown if there is one.
    """
    html.refuse_other_endings(path)
    page = html.Page(f"Rollout store {Path(reader.location).name}", reader.location)
    report = _Report(page, reader, campaign, opinion, path)
    for done, part in enumerate(PARTS, start=1):
        part(report)
        progress(ProgressEvent("report", done, len(PARTS), unit="sections"))
    again = f"rollout-assets report {shlex.quote(reader.location)} -o {shlex.quote(str(path))}"
    page.section("again", "Make this page again", html.command(again))
    return page.write(path)


def pictures_folder(path: Path) -> Path:
    """Where the 3-D pages that a report links to are: beside it, so that both can be moved together."""
    return path.with_name(f"{path.stem}_rollouts")


def _overview(report: _Report) -> None:
    page, reader = report.page, report.reader
    ready = training_readiness(reader)
    status = {"ready": "good", "ready with care": "careful", "not ready": "bad"}[ready.verdict]
    counts = {name: reader.num_rows(name) for name in ("sources", "targets", "rollouts", "steps", "candidates")}
    about = reader.attributes
    facts = html.cards(
        counts
        | {
            "split": about.get("source_split"),
            "target protocol": about.get("target_protocol_version"),
            "for training": html.tagged(status, ready.verdict),
        }
    )
    measures = [(m.name, float(m.value), m.wanted, html.tagged(m.status, m.status), m.meaning) for m in ready.measures]
    page.section(
        "overview",
        "Overview",
        facts,
        "<h3>Is it worth training on?</h3>",
        html.table(("measure", "value", "wanted", "", "why it matters"), measures),
        "<h3>Support by recipe</h3>",
        html.frame(ready.by_policy),
    )


def _quality(report: _Report) -> None:
    about = QualityReport(report.reader, report.objectives, report.campaign, report.opinion)
    report.page.section("quality", "Quality: can these labels be trusted?", *quality_parts(report.page, about))


def _validity(report: _Report) -> None:
    page, reader = report.page, report.reader
    page.section(
        "validity",
        "From the full shell to what was taken",
        html.text("Every view that was offered keeps its row; this is how many of them are left after each stage."),
        page.figure(figures.funnel(reader)),
    )
    page.section(
        "reasons",
        "Why views were refused",
        html.text("Left: the first rule that refused a view. Right: every rule that fails, so a view may count twice."),
        html.pair(page.figure(figures.primary_reasons(reader)), page.figure(figures.every_rule(reader))),
        "<h3>By position family</h3>",
        html.frame(
            candidate_group_summary_rows(reader, "position").select(
                "position",
                "count",
                "actor_valid_fraction",
                "q_train_fraction",
                "selected",
                "root_gain_mean",
                "root_gain_std",
            )
        ),
    )


def _gains(report: _Report) -> None:
    page, reader = report.page, report.reader
    if report.objectives["marginal_target_root_gain"].drop_nulls().is_empty():
        page.section("gains", "Gains", html.text("No step of this store took a view."))
        return
    page.section(
        "gains",
        "Gains by step and recipe",
        html.text(
            "Root gain is the share of the target's error at the root that a view takes away. Boxes are quartiles, "
            "whiskers the 5th and 95th percentile, dashed lines means."
        ),
        page.figure(figures.gains_by_step(report.objectives)),
    )
    page.section(
        "headroom",
        "Headroom: best, taken, random",
        html.text(
            "The best labelled view of every shell, the one that was taken, and the average of all labelled views, "
            "which is what a random choice would get."
        ),
        page.figure(figures.headroom(report.objectives)),
        html.folded(
            "What was taken, by position family",
            html.frame(
                rollout_tree_summary_rows(reader).select(
                    "recipe",
                    "step_index",
                    "position",
                    "selected",
                    "share",
                    "distinct_views",
                    "root_gain_mean",
                    "probability_mean",
                )
            ),
        ),
    )


def _coverage(report: _Report) -> None:
    page, reader = report.page, report.reader
    figure, title = figures.coverage(reader), "From which sides targets are seen"
    if figure is None:
        page.section("coverage", title, html.text("No view of this store can be taken."))
        return
    shown = counted(len(figure.data[0].y), "target")
    what = f"The {shown} with most views that can be taken. White: no view from that side was on offer."
    page.section("coverage", title, html.text(what), page.figure(figure))


def _depths(report: _Report) -> None:
    page, reader = report.page, report.reader
    rows = selected_depth_summary_rows(reader, GALLERY_IMAGES)
    if rows.is_empty():
        page.section("depth", "What selected views see", html.text("This store keeps no depth."))
        return
    limits = rows.select("depth_min_m", "depth_max_m").drop_nulls().to_numpy()
    near, far = (float(limits[:, 0].min()), float(np.quantile(limits[:, 1], 0.75))) if len(limits) else (0.0, 1.0)
    about_step = rows.select("step_row_id").join(report.objectives, on="step_row_id", how="left", maintain_order="left")
    pictures = []
    for row, about in zip(rows.iter_rows(named=True), about_step.iter_rows(named=True), strict=True):
        step = int(row["step_row_id"])
        preview = selected_depth_preview(reader, step)
        span = (
            f"{row['depth_min_m']:.2f} to {row['depth_max_m']:.2f} m" if row["depth_min_m"] is not None else "no depth"
        )
        caption = (
            f"step row {step}: {about['recipe']}, step {about['step_index']}<br>"
            f"{span}, {row['valid_fraction']:.0%} valid"
        )
        pictures.append(html.depth_picture(preview.depth_m, near, far, caption))
    page.section(
        "depth",
        "What selected views see",
        html.text(
            f"{len(pictures)} steps spread evenly over the store. "
            f"Dark is near ({near:.1f} m), bright far ({far:.1f} m), grey no depth."
        ),
        f"<div class=gallery>{''.join(pictures)}</div>",
    )


def _suspicious(report: _Report) -> None:
    folder = pictures_folder(report.path)
    add_suspicious_rows(report.page, report.reader, report.objectives, report.campaign, folder)


def _lineage(report: _Report) -> None:
    page, reader = report.page, report.reader
    try:
        manifest = reader.sidecar_manifest()
    except StoreDamaged as error:
        page.section("lineage", "Where it comes from", html.text(f"The manifest cannot be read: {error}"))
        return
    about, campaign = generation(reader), recorded_campaign(reader)
    runtime, invocation = about.get("runtime", {}), about.get("invocation", {})
    hashes: dict[str, Any] = {
        name: html.code(", ".join(values)) for name, values in manifest.get("config_hashes", {}).items() if values
    }
    git = runtime.get("git", {})
    made = {
        "created": reader.attributes.get("created_at_utc"),
        "schema": f"{reader.attributes.get('schema_id')} {reader.attributes.get('schema_version')}",
        "manifest SHA-256": html.code(str(reader.attributes.get("manifest_sha256"))),
        "commit": html.code(f"{git.get('commit')}{' (with local changes)' if git.get('dirty') else ''}"),
        "Python": runtime.get("python"),
        "platform": runtime.get("platform"),
        "packages": ", ".join(f"{name} {version}" for name, version in sorted((runtime.get("packages") or {}).items())),
        "made by": html.code(shlex.join(invocation.get("argv") or []) or str(invocation.get("mode"))),
    }
    parts = [html.records(made), "<h3>Hashes</h3>", html.records(hashes)]
    if campaign is not None:
        rows = html.table(("key", "value"), config_rows(campaign))
        parts.append(html.folded(f"Campaign {campaign.name}: every hashed value", rows))
    page.section("lineage", "Where it comes from", *parts)


PARTS: tuple[Callable[[_Report], None], ...] = (
    _overview,
    _quality,
    _validity,
    _gains,
    _coverage,
    _depths,
    _suspicious,
    _lineage,
)
"""Sections in the order of the page."""
