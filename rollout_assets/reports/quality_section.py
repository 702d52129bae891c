"""The report's section on quality: what ``quality`` and a second opinion found, held against the campaign's limits."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import polars as pl

from rollout_assets.config import CampaignConfig, QualityConfig
from rollout_assets.inspection.stored_opinion import SecondOpinion
from rollout_assets.reports import page as html
from rollout_assets.reports import quality
from rollout_assets.rollouts.zarr_store.reader import RolloutZarrStoreReader

GAIN = "target_root_gain"
"""The label whose moves under noise are judged: the reward of training."""

Cards = dict[str, int | float | html.Markup]


@dataclass(frozen=True, eq=False)
class QualityReport:
    """A store, what its steps gained, and, where they are at hand, its campaign and a second opinion."""

    reader: RolloutZarrStoreReader
    objectives: pl.DataFrame
    campaign: CampaignConfig | None
    opinion: SecondOpinion | None

    @cached_property
    def limits(self) -> QualityConfig:
        return quality.limits_for(self.reader, self.campaign)

    @cached_property
    def views(self) -> pl.DataFrame:
        return quality.labelled_views(self.reader)

    @cached_property
    def one_point_share(self) -> float:
        return float((self.views["gain_per_point"].to_numpy() > self.limits.one_point_gain).mean())

    @cached_property
    def agreement(self) -> quality.Agreement | None:
        return None if self.campaign is None else quality.weighting_agreement(self.reader, self.campaign)

    @cached_property
    def noise_moves(self) -> pl.Series:
        """How far noise moves each gain that was measured a second time."""
        if self.opinion is None:
            return pl.Series("moved", [], pl.Float64)
        return self.opinion.labels.filter(pl.col("label") == GAIN)["moved"].drop_nulls().drop_nans()


def quality_parts(page: html.Page, report: QualityReport) -> list[str]:
    """What the section shows, from the most important figures down."""
    if report.views.is_empty():
        return [html.text("No view of this store has a label.")]
    gains = report.views["target_root_gain"].to_numpy()
    causes, headroom = quality.causes(report.reader, report.views), quality.headroom_rows(report.objectives)
    return [
        html.cards(_cards(report)),
        "<h3>How the labels were defined</h3>",
        html.table(("definition", "value", "", "meaning"), quality.definitions(report.reader)),
        html.pair(page.figure(quality.gain_histogram(gains)), page.figure(quality.negative_bars(causes))),
        html.folded("Negative labels by cause, as numbers", html.frame(causes)),
        "<h3>Second opinion</h3>",
        *_second_opinion(report),
        "<h3>Stability under noise</h3>",
        *_stability(report),
        "<h3>Agreement of weightings</h3>",
        *_agreement(report.agreement),
        "<h3>Headroom by step</h3>",
        html.text(
            "How much more the best labelled view would have gained than the view that was taken. It is near zero for "
            "a greedy recipe. If it is near zero for a random one too, all views are worth the same: nothing to learn."
        ),
        html.pair(page.figure(quality.headroom_bars(headroom)), html.frame(headroom)),
    ]


def _cards(report: QualityReport) -> Cards:
    gains, limits, share = report.views["target_root_gain"].to_numpy(), report.limits, report.one_point_share
    negative = float((gains < 0).mean())
    cards: Cards = {
        "labels": len(gains),
        "median gain": float(np.median(gains)),
        "negative": html.tagged(quality.verdict(negative, limits.max_negative_share), f"{negative:.2%}"),
        "hang on single points": html.tagged(quality.verdict(share, limits.max_one_point_share), f"{share:.2%}"),
    }
    return cards | _opinion_cards(report) | _agreement_cards(report)


def _opinion_cards(report: QualityReport) -> Cards:
    opinion, cards = report.opinion, Cards()
    if opinion is not None and opinion.candidates:
        wrong = opinion.findings["candidate_row_id"].n_unique()
        confirmed = f"{opinion.candidates - wrong} of {opinion.candidates}"
        cards["views confirmed by a second opinion"] = html.tagged("bad" if wrong else "good", confirmed)
    if len(report.noise_moves):
        largest = float(report.noise_moves.to_numpy().max())
        status = "good" if largest <= report.limits.max_noise_move else "bad"
        cards["noise moves a gain by at most"] = html.tagged(status, f"{largest:.1e}")
    return cards


def _agreement_cards(report: QualityReport) -> Cards:
    agreement = report.agreement
    if agreement is None or agreement.spearman is None or agreement.same_best is None:
        return {}
    good, bad = report.limits.min_weighting_agreement
    status = quality.verdict(1.0 - agreement.spearman, (1.0 - good, 1.0 - bad))
    return {
        "rank correlation of weightings": html.tagged(status, f"{agreement.spearman:.2f}"),
        "same best view": html.tagged(status, f"{agreement.same_best:.0%}"),
    }


def _second_opinion(report: QualityReport) -> list[str]:
    opinion = report.opinion
    if opinion is None:
        place = shlex.quote(report.reader.location)
        return [
            html.text("None is at hand. It measures labels again by other means, and how noise moves them:", soft=True),
            html.command(f"rollout-assets inspect second-opinion {place}"),
        ]
    verdict = "confirms every label" if opinion.agrees else f"does not confirm {opinion.findings.height} label(s)"
    return [
        html.text(f"It {verdict}: {opinion.scope}. The gap is between the stored label and the one measured again."),
        html.frame(opinion.summary),
        html.folded("Rows with the largest gaps", html.frame(opinion.worst.drop("rollout_id"))),
    ]


def _stability(report: QualityReport) -> list[str]:
    limit, moved = report.limits.one_point_gain, report.noise_moves.to_numpy()
    words = (
        f"{report.one_point_share:.2%} of the labels hang on single points: few pixels of the view lie in the target's "
        f"region, and on average each stands for more than {limit:g} of root gain. This is an estimate from the store "
        "alone, and the share depends on the limit:"
    )
    estimate = html.table(("root gain per pixel above", "share of labels"), quality.one_point_rows(report.views))
    if not len(moved) or report.opinion is None:
        return [html.text(words), estimate]
    measured = (
        f"Measured by the second opinion: {report.opinion.noise_m:g} m of noise on the points of {len(moved):,} views "
        f"moves their gains by {np.median(moved):.2g} in the median and {moved.max():.2g} at most; "
        f"{report.limits.max_noise_move:g} is allowed."
    )
    return [html.text(measured), html.text(words), estimate]


def _agreement(agreement: quality.Agreement | None) -> list[str]:
    if agreement is None:
        return [html.text("Not measured: no source was given (rollout-assets report --campaign FILE).", soft=True)]
    if agreement.problem is not None:
        return [html.text(agreement.problem, soft=True)]
    words = (
        f"The root views of {agreement.targets.height} targets, measured again by area and with every face the same: "
        f"median rank correlation {agreement.spearman:.2f}, the same best view in {agreement.same_best:.0%} of states. "
        "Where they disagree, the label depends on how a mesh was tessellated or on what a weight is meant to reward."
    )
    return [html.text(words), html.folded("By target", html.frame(agreement.targets))]
