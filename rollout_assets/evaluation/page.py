"""The page of an evaluation: the verdict first, then the figures, where policies fail, and where it all comes from."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import polars as pl

from rollout_assets.errors import counted
from rollout_assets.evaluation.bootstrap import LEAST_SCENES
from rollout_assets.evaluation.failures import BEHIND_GREEDY, BELOW_RANDOM
from rollout_assets.evaluation.result import OUTCOMES_FILE, RESULT_FILE, PolicyEvaluation, PolicyVerdict
from rollout_assets.evaluation.roster import GREEDY, LOOKAHEAD, RANDOM
from rollout_assets.evaluation.tables import DIFFICULTIES, spread_texts
from rollout_assets.reports import evaluation_figures as figures
from rollout_assets.reports import page as html

FEW_SCENES = 10
"""Scenes below which intervals are called narrow."""

_HASH = 16


def write_evaluation_page(evaluation: PolicyEvaluation) -> Path:
    """Write the page as one self-contained HTML file; only links to 3-D pages need the folder beside it."""
    facts = evaluation.facts
    title = f"Evaluation of {', '.join(facts.named)}"
    ground = f"{counted(len(facts.scenes), 'scene')} of split {facts.split}, {counted(facts.horizon, 'view')} a rollout"
    page = html.Page(title, f"campaign {facts.campaign}, {ground}")
    report = _Report(page, evaluation)
    for part in _PARTS:
        part(report)
    return page.write(evaluation.page)


@dataclass(frozen=True, eq=False)
class _Report:
    """A page in the making, and what it is about."""

    page: html.Page
    evaluation: PolicyEvaluation

    @cached_property
    def colours(self) -> dict[str, str]:
        return figures.policy_colours(self.evaluation.policies)

    @property
    def confidence(self) -> str:
        return f"{100 * self.evaluation.facts.bootstrap.confidence:g} %"


def _verdicts(report: _Report) -> None:
    evaluation = report.evaluation
    parts = []
    for policy in evaluation.facts.named:
        verdict = evaluation.verdict(policy)
        parts.append(f"<p>{html.tagged(_kind(verdict), verdict.sentence).html}</p>")
        parts += [f"<p>{html.tagged('bad', warning).html}</p>" for warning in _warnings(verdict)]
    parts += [html.text(note, soft=True) for note in _notes(report)]
    report.page.section("verdict", "Verdict", *parts)


def _kind(verdict: PolicyVerdict) -> str:
    return "good" if verdict.beats_random else "bad" if RANDOM in verdict.loses_to else "careful"


def _warnings(verdict: PolicyVerdict) -> Iterator[str]:
    if verdict.seen_scenes:
        yield (
            f"{verdict.policy} was trained on {counted(len(verdict.seen_scenes), 'scene')} of this evaluation, so it "
            f"says nothing about new scenes: {', '.join(verdict.seen_scenes)}"
        )


def _notes(report: _Report) -> Iterator[str]:
    facts = report.evaluation.facts
    yield (
        f"Gain is root gain: the share of the target's error at the root that the views take away. All policies start "
        f"from the same roots with the same views on offer and are compared root by root. Intervals hold "
        f"{report.confidence} of {facts.bootstrap.samples:,} draws of whole scenes with replacement, "
        f"the same draws for every policy; better and worse mean that the whole interval of the difference is on one "
        f"side of zero."
    )
    scenes = int(report.evaluation.policies["scenes"][0])
    if scenes < LEAST_SCENES:
        yield f"With {counted(scenes, 'scene')} there are no intervals; take at least {FEW_SCENES} scenes."
    elif scenes < FEW_SCENES:
        yield f"With {counted(scenes, 'scene')} such intervals are too narrow; take at least {FEW_SCENES} scenes."


def _policies(report: _Report) -> None:
    evaluation, page = report.evaluation, report.page
    rows = [_policy_row(row) for row in evaluation.policies.sort("gain", descending=True).iter_rows(named=True)]
    columns = (
        "policy", "final gain", "gain per view", f"headroom to {GREEDY}", f"headroom to {LOOKAHEAD}",
        "headroom, first view", f"regret to {GREEDY}", f"worse than {RANDOM} on",
    )  # fmt: skip
    page.section(
        "policies",
        "Policies",
        html.table(columns, rows),
        html.text(
            f"Headroom is what {GREEDY} or {LOOKAHEAD} gains more than {RANDOM}, summed over all roots.", soft=True
        ),
        page.figure(
            figures.headroom_figure(evaluation.policies, report.colours, evaluation.facts.bootstrap.confidence)
        ),
    )
    page.section(
        "views",
        "Gain per view",
        html.text(
            "Most of an interval here is that some scenes are easier than others, for all policies alike. Whether two "
            "policies differ is said below, by the interval of their difference.",
            soft=True,
        ),
        page.figure(figures.gain_curves(evaluation.views, evaluation.policies, report.colours)),
        html.folded(
            "As a table", html.table(("policy", "views", "gain so far", "added by the last"), _view_rows(report))
        ),
    )


def _policy_row(row: dict[str, Any]) -> tuple[Any, ...]:
    return (
        html.tagged("policy" if row["role"] == "policy" else "info", row["policy"]),
        _spread(row, "gain"),
        row["gain_per_view"],
        _spread(row, "headroom", percent=True),
        _spread(row, "headroom_lookahead", percent=True),
        _spread(row, "first_headroom", percent=True),
        _spread(row, "regret"),
        "–" if row["policy"] == RANDOM else f"{100 * row['below_random']:.0f} % of roots",
    )


def _view_rows(report: _Report) -> list[tuple[Any, ...]]:
    rows = report.evaluation.views.sort("policy", "view").iter_rows(named=True)
    return [(row["policy"], row["view"], _spread(row, "gain"), row["added"]) for row in rows]


def _comparisons(report: _Report) -> None:
    kinds = {"better": "good", "worse": "bad", "undecided": "careful"}
    rows = [
        (
            row["policy"],
            row["against"],
            _spread(row, "difference"),
            "–" if row["chance_better"] is None else f"{100 * row['chance_better']:.1f} %",
            html.tagged(kinds[row["verdict"]], row["verdict"]),
        )
        for row in report.evaluation.comparisons.iter_rows(named=True)
    ]
    table = html.table(("policy", "against", "difference of final gains", "draws in which it is better", ""), rows)
    report.page.section("comparisons", "Against each other", table)


def _groups(report: _Report) -> None:
    facts, groups = report.evaluation.facts, report.evaluation.groups
    parts = []
    for by in ("class", *DIFFICULTIES, "scene"):
        of_kind = groups.filter(pl.col("by") == by)
        figure = report.page.figure(figures.group_figure(of_kind, facts.named, report.colours))
        rows = [
            (
                row["group"],
                row["policy"],
                row["roots"],
                row["scenes"],
                _spread(row, "gain"),
                _spread(row, "headroom", percent=True),
            )
            for row in of_kind.filter(pl.col("policy").is_in([*facts.named, RANDOM, GREEDY])).iter_rows(named=True)
        ]
        table = html.table(("group", "policy", "roots", "scenes", "final gain", "headroom"), rows)
        parts += [f"<h3>By {by}</h3>", figure, html.folded("As a table", table)]
    words = "Difficulty is cut at the thirds of all roots. A group of one scene has no interval."
    report.page.section("groups", "By class, difficulty and scene", html.text(words, soft=True), *parts)


def _failures(report: _Report) -> None:
    failures = report.evaluation.failures
    parts = []
    for policy in report.evaluation.facts.named:
        for kind, reference in ((BEHIND_GREEDY, GREEDY), (BELOW_RANDOM, RANDOM)):
            own = failures.filter((pl.col("policy") == policy) & (pl.col("kind") == kind))
            parts.append(f"<h3>{policy}, {kind}</h3>")
            columns = ("loss", "its gain", f"{reference}'s gain", "scene", "class", "seed", "target", "in 3-D")
            rows = [_failure_row(row) for row in own.iter_rows(named=True)]
            parts.append(html.table(columns, rows) if rows else html.text("None."))
    if failures["page"].drop_nulls().len():
        parts.append(
            html.text("The 3-D pages are in evaluation_rollouts/ beside this page; pass it on with it.", soft=True)
        )
    report.page.section("failures", "Where policies fail", *parts)


def _failure_row(row: dict[str, Any]) -> tuple[Any, ...]:
    pages = (("page", row["policy"]), ("greedy_page", GREEDY))
    links = [html.file_link(row[key], label).html for key, label in pages if row[key] is not None]
    about = (_unbroken(row["scene"]), _unbroken(row["target_class"]), row["seed"], row["target_id"])
    return (row["loss"], row["gain"], row["reference_gain"], *about, html.Markup(" · ".join(links) or "–"))


def _unbroken(text: str) -> html.Markup:
    """A name on one line."""
    return html.Markup(f"<span>{html.cell(text)}</span>")


def _counts(report: _Report) -> None:
    facts, policies = report.evaluation.facts, report.evaluation.policies
    rows = [
        (
            seed.seed,
            seed.source_rows,
            len(seed.skipped_rows),
            seed.targets,
            ", ".join(f"{count} {name.lower()}" for name, count in seed.refused_targets.items()) or "none",
        )
        for seed in facts.seeds
    ]
    columns = ["policy", "rollouts", "views", "ended_early", "without_view", "lost_ground"]
    without = sorted(set(facts.scenes) - set(report.evaluation.outcomes["scene"]))
    skipped = [(seed.seed, line) for seed in facts.seeds for line in seed.skipped_rows]
    parts = [html.folded("Source rows without a rollout", html.table(("seed", "why"), skipped))] if skipped else []
    if without:
        parts.append(html.text(f"{counted(len(without), 'scene')} without any root: {', '.join(without)}."))
    report.page.section(
        "counts",
        "What was counted",
        html.text(
            "A target without a label has no roots here. A chain that ended early, because no view could be taken, "
            "counts with the gain it had; one without any view counts as zero. Lost ground is a final gain below zero.",
            soft=True,
        ),
        html.table(("seed", "source rows", "without a rollout", "targets", "refused a label"), rows),
        html.frame(policies.select(columns)),
        *parts,
    )


def _provenance(report: _Report) -> None:
    evaluation, facts = report.evaluation, report.evaluation.facts
    policies = [
        (
            policy.name,
            policy.policy,
            policy.draws,
            "–" if policy.checkpoint is None else Path(policy.checkpoint).name,
            html.code((policy.checkpoint_sha256 or "–")[:_HASH]),
            policy.trained_on,
        )
        for policy in facts.policies
    ]
    campaigns = [
        (seed.seed, seed.folder, html.code(seed.writer_config_hash[:_HASH]), html.code(seed.store_sha256[:_HASH]))
        for seed in facts.seeds
    ]
    hashes = {
        "campaign": facts.campaign,
        "candidates": html.code(facts.candidate_config_hash[:_HASH]),
        "oracle": html.code(facts.oracle_config_hash[:_HASH]),
        "targets": html.code(facts.target_config_hash[:_HASH]),
        "source": html.code(facts.source_manifest_hash[:_HASH]),
        "rollout_assets": facts.package_version,
        "tables": f"{RESULT_FILE}, {OUTCOMES_FILE}",
    }
    store = f"{shlex.quote(str(evaluation.folder / facts.seeds[0].folder))}/rollouts.zarr/{facts.split}"
    report.page.section(
        "provenance",
        "Where this comes from",
        html.table(("policy", "as in recipes", "draws a root", "checkpoint", "sha256", "scenes trained on"), policies),
        html.records(hashes),
        html.table(("seed", "campaign", "writer config", "content"), campaigns),
        html.folded(f"The {counted(len(facts.scenes), 'scene')}", html.text(", ".join(facts.scenes))),
        html.text("Its stores are ordinary ones:", soft=True),
        html.command(f"rollout-assets inspect waterfall {store}", f"rollout-assets inspect replay {store} 0"),
    )


def _spread(row: Mapping[str, Any], name: str, *, percent: bool = False) -> html.Markup:
    """A figure with its interval below it."""
    value, interval = spread_texts(row, name, percent=percent)
    below = f"<br><span class=soft>{interval}</span>" if interval else ""
    return html.Markup(f"<span>{value}</span>{below}")


_PARTS = (_verdicts, _policies, _comparisons, _groups, _failures, _counts, _provenance)
