"""Checks of the promoted store: valid, without leaks, complete, and with labels that can be confirmed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

import dagster as dg
import polars as pl

from rollout_assets.campaigns.check_names import NO_LEAKAGE, ROWS_ADD_UP, SECOND_OPINION, STORES_VALID
from rollout_assets.campaigns.columns.survey import CampaignSurvey
from rollout_assets.campaigns.integrity import open_shard
from rollout_assets.campaigns.layout import CampaignLayout
from rollout_assets.campaigns.leakage import leaks_among
from rollout_assets.campaigns.objects.publishing import publish_folder
from rollout_assets.campaigns.plan_entry import shard_id_of
from rollout_assets.campaigns.versions import PromotedShard, PromotedVersion, current_version
from rollout_assets.config import CampaignConfig
from rollout_assets.defs.checks.verdict import verdict
from rollout_assets.defs.metadata import COUNTED_TABLES, evidence, findings_table, frame_table, table
from rollout_assets.defs.step import CampaignStep
from rollout_assets.inspection.second_opinion import SecondOpinion, second_opinion
from rollout_assets.inspection.stored_opinion import publish_opinion
from rollout_assets.locations.url import Location
from rollout_assets.rollouts.zarr_store.reader import RolloutZarrStoreReader
from rollout_assets.rollouts.zarr_store.validation import validate_rollout_zarr_store

SECONDS_PER_SPLIT = 60.0
"""Time after which no further label of a split is measured again; the result says how many were left out."""


def promoted_store(step: CampaignStep) -> Iterator[dg.AssetCheckResult]:
    """All checks but the slow second opinion, and whether anything is stale."""
    version = current_version(step.config)
    yield _stores_valid(version)
    yield _no_leakage(step.config, version)
    yield _rows_add_up(step.config, version)


def _stores_valid(version: PromotedVersion) -> dg.AssetCheckResult:
    results = {child.name: validate_rollout_zarr_store(child, deep=True, profile="own") for child in version.children}
    findings = [finding for result in results.values() for finding in result.findings]
    splits = table([{"split": name, "findings": len(result.findings)} for name, result in results.items()])
    metadata = {"version": version.name, "splits": splits, **evidence(findings_table(findings))}
    return verdict(STORES_VALID, not findings, metadata)


def _no_leakage(config: CampaignConfig, version: PromotedVersion) -> dg.AssetCheckResult:
    layout = CampaignLayout.of(config)
    survey, promoted = CampaignSurvey.of(config), set(version.shard_ids)
    numbers = [number for number in range(len(survey.planned)) if shard_id_of(number) in promoted]
    leaks = list(leaks_among(layout, survey, numbers))
    metadata = {
        "leaks": len(leaks),
        **evidence(table([{"leak": leak.text, "to go on": leak.way_out} for leak in leaks])),
    }
    return verdict(NO_LEAKAGE, not leaks, metadata)


def _rows_add_up(config: CampaignConfig, version: PromotedVersion) -> dg.AssetCheckResult:
    rows = []
    children = {child.name: child for child in version.children}
    for split, shards in version.record.splits.items():
        expected = _rows_of_shards(config, shards)
        promoted = RolloutZarrStoreReader(children[split]) if split in children else None
        for name in COUNTED_TABLES:
            count = promoted.num_rows(name) if promoted is not None else 0
            rows.append({"split": split, "table": name, "shards": expected[name], "promoted": count})
    wrong = [row for row in rows if row["shards"] != row["promoted"]]
    return verdict(ROWS_ADD_UP, not wrong, {"rows": table(rows), **evidence(table(wrong))})


def _rows_of_shards(config: CampaignConfig, shards: tuple[PromotedShard, ...]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for shard in shards:
        reader = open_shard(config, shard.shard_id)
        if reader is not None:
            counts.update({name: reader.num_rows(name) for name in COUNTED_TABLES})
    return counts


def measured_again(step: CampaignStep) -> Iterator[dg.AssetCheckResult]:
    """Measure labels drawn at random a second time, by other means; every promoted version draws others.

    What was measured is kept beside the reports, for the pages that are written after this check.
    """
    version = current_version(step.config)
    opinions = {child.name: _opinion(step, child, version.number) for child in version.children}
    wrong = _by_split(opinions, "findings")
    metadata = {
        "candidates": sum(opinion.candidates for opinion in opinions.values()),
        "asked": sum(opinion.asked for opinion in opinions.values()),
        "labelled": sum(opinion.labelled for opinion in opinions.values()),
        "scope": table([{"split": split, "scope": opinion.scope} for split, opinion in opinions.items()]),
        "agreement": frame_table(_by_split(opinions, "summary")),
        "worst": frame_table(_by_split(opinions, "worst")),
        **evidence(frame_table(wrong)),
    }
    yield verdict(SECOND_OPINION, wrong.is_empty(), metadata)


def _opinion(step: CampaignStep, child: Location, seed: int) -> SecondOpinion:
    config, reader = step.config, RolloutZarrStoreReader(child)
    count = config.quality.second_opinions_per_split
    opinion = second_opinion(reader, 1.0, seed, config, source=step.source, limit=count, budget_s=SECONDS_PER_SPLIT)
    layout = CampaignLayout.of(config)
    publish_opinion(layout.second_opinion(child.name), opinion, reader)
    publish_folder(layout, layout.reports)
    return opinion


def _by_split(opinions: Mapping[str, SecondOpinion], frame: str) -> pl.DataFrame:
    """One frame of every split's opinion, below each other."""
    return pl.concat(
        [getattr(opinion, frame).select(pl.lit(split).alias("split"), pl.all()) for split, opinion in opinions.items()]
    )
