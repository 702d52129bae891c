"""The part of a store's report about rows that look wrong, each with a link to its rollout in 3-D."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from itertools import chain, zip_longest
from pathlib import Path
from urllib.parse import quote

import polars as pl

from rollout_assets.config import CampaignConfig
from rollout_assets.errors import counted
from rollout_assets.inspection.suspicious import suspicious_rollout_rows
from rollout_assets.reports import page as html
from rollout_assets.reports.rollout_picture import StoredPictures
from rollout_assets.rollouts.zarr_store.reader import RolloutZarrStoreReader

EXAMPLES_PER_KIND = 12
"""Findings of one kind that the page lists; the command below them lists all."""

MAX_PICTURES = 6
"""Rollouts that get a 3-D page, a megabyte or two each; rows of others say how to make theirs."""

_COLUMNS = ("rollout_row_id", "step_row_id", "candidate_row_id", "target_row_id", "message")


def add_suspicious_rows(
    page: html.Page,
    reader: RolloutZarrStoreReader,
    objectives: pl.DataFrame,
    campaign: CampaignConfig | None,
    folder: Path,
) -> None:
    """Add the sections about suspicious rows and the steps they name; 3-D pages of them go into ``folder``.

    A campaign brings its own thresholds and the source for the 3-D pages; without one, the store's thresholds count.
    """
    suspicious = suspicious_rollout_rows(reader, None if campaign is None else campaign.suspicious)
    if suspicious.is_empty():
        page.section("suspicious", "What looks wrong", html.text("Nothing. Every kind of finding was looked for."))
        return
    kinds = suspicious.group_by("kind", "severity", maintain_order=True).agg(pl.len().alias("rows"))
    overview = [
        (html.link(f"kind-{kind}", kind), html.tagged(severity, severity), rows)
        for kind, severity, rows in kinds.rows()
    ]
    shown = {kind: _examples(suspicious, kind, reader) for kind in kinds["kind"]}
    pictures = StoredPictures(reader, campaign)
    pages, words = _pictures(reader, [frame["picture"].to_list() for frame in shown.values()], pictures, folder)
    links = _Links(pages, dict(objectives.select("step_row_id", "step_index").iter_rows()))
    parts = [html.table(("kind", "severity", "rows"), overview), *words]
    for kind, _, count in kinds.rows():
        parts += _kind(kind, count, shown[kind], links)
    place = shlex.quote(reader.location)
    parts.append(html.text("All of them, and everything about one candidate:", soft=True))
    parts.append(
        html.command(
            f"rollout-assets inspect suspicious {place} --csv", f"rollout-assets inspect explain {place} CANDIDATE"
        )
    )
    page.section("suspicious", "What looks wrong", *parts)
    mentioned = {step for frame in shown.values() for step in frame["step_row_id"].drop_nulls().to_list()}
    if mentioned:
        page.section("steps", "Steps named above", _steps(objectives, sorted(mentioned)))


class _Links:
    """Links from a row to its rollout in 3-D, opened at its step, and to its step on this page."""

    def __init__(self, pages: Mapping[int, Path], step_index: Mapping[int, int]) -> None:
        self._pages, self._step_index = pages, step_index

    def rollout(self, rollout: int | None, picture: int | None, step: int | None) -> html.Markup | int | None:
        """The rollout of a row, or for a row about a target "see" and one of its rollouts."""
        if picture is None or picture not in self._pages:
            return rollout
        path = self._pages[picture]
        place = "" if step is None else f"#step-{self._step_index[step]}"
        label = f"{picture:,}" if rollout is not None else f"see {picture:,}"
        return html.file_link(f"{quote(path.parent.name)}/{path.name}{place}", f"{label} in 3-D")

    def step(self, step: int | None) -> html.Markup | None:
        """The step in the table of this page."""
        return None if step is None else html.link(f"step-{step}", step)


def _examples(suspicious: pl.DataFrame, kind: str, reader: RolloutZarrStoreReader) -> pl.DataFrame:
    """The first findings of a kind; ``picture`` is the rollout that shows one: its own, or the first of its target."""
    firsts = reader.table("rollouts", columns=("rollout_row_id", "target_row_id")).unique("target_row_id", keep="first")
    of_target = firsts.select("target_row_id", pl.col("rollout_row_id").alias("of_target"))
    rows = suspicious.filter(pl.col("kind") == kind).head(EXAMPLES_PER_KIND).select(_COLUMNS)
    joined = rows.join(of_target, on="target_row_id", how="left", maintain_order="left")
    return joined.with_columns(pl.coalesce("rollout_row_id", "of_target").alias("picture")).drop("of_target")


def _kind(kind: str, count: int, shown: pl.DataFrame, links: _Links) -> list[str]:
    more = f", first {shown.height}" if shown.height < count else ""
    lines = [
        (links.rollout(rollout, picture, step), links.step(step), candidate, target, message)
        for rollout, step, candidate, target, message, picture in shown.rows()
    ]
    return [
        f'<h3 id="kind-{kind}">{kind} ({counted(count, "row")}{more})</h3>',
        html.table(("rollout", "step", "candidate", "target", "what"), lines),
    ]


def _pictures(
    reader: RolloutZarrStoreReader, rollouts: Sequence[Sequence[int | None]], pictures: StoredPictures, folder: Path
) -> tuple[dict[int, Path], list[str]]:
    """3-D pages of some rollouts per kind, the first of every kind before the second of any, and what to say of it."""
    in_turn = chain.from_iterable(zip_longest(*rollouts))
    named = list(dict.fromkeys(rollout for rollout in in_turn if rollout is not None))
    place = shlex.quote(reader.location)
    if not named:
        return {}, []
    if pictures.problem is not None:
        why = html.text(f"No rollout is shown in 3-D: {pictures.problem}. With a source, every row links to its own:")
        return {}, [why, html.command(f"rollout-assets report {place} -o FILE.html --campaign CAMPAIGN")]
    pages = pictures.write_pages(named[:MAX_PICTURES], folder)
    if len(named) <= MAX_PICTURES:
        return pages, [html.text(f"Every row links to its rollout in 3-D; the pages are in {folder.name}/.")]
    words = html.text(
        f"Rows link to their rollouts in 3-D; the pages are in {folder.name}/. {len(named) - MAX_PICTURES} of "
        f"{len(named)} rollouts are left out, because at most {MAX_PICTURES} pages are written. For any other:"
    )
    return pages, [words, html.command(f"rollout-assets report {place} -o FILE.html --campaign CAMPAIGN --rollout N")]


def _steps(objectives: pl.DataFrame, rows: list[int]) -> str:
    chosen = objectives.filter(pl.col("step_row_id").is_in(rows))
    columns = {
        "step_row_id": "step row",
        "rollout_id": "rollout",
        "step_index": "step",
        "target_id": "target",
        "num_valid_candidates": "valid",
        "num_candidates": "views",
        "selected_position": "taken from",
        "marginal_target_root_gain": "gain",
        "best_root_gain": "best",
        "cumulative_target_root_gain": "total",
    }
    lines = chosen.select(*columns).rows()
    return html.table(list(columns.values()), lines, ids=[f"step-{line[0]}" for line in lines])
