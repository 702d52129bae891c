"""Checks of the promoted store: valid, without leaks, complete, and with labels that can be confirmed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import dagster as dg
import polars as pl

from rollout_assets.campaigns.check_names import NO_LEAKAGE, ROWS_ADD_UP, SECOND_OPINION, STORES_VALID
from rollout_assets.campaigns.columns.survey import CampaignSurvey
from rollout_assets.campaigns.guards.leakage import leaks_among
from rollout_assets.campaigns.inventory import check_version, last_full_read, written_files
from rollout_assets.campaigns.layout import CampaignLayout
from rollout_assets.campaigns.merging.row_counts import table_rows
from rollout_assets.campaigns.merging.sample import ReadSample
from rollout_assets.campaigns.plan_entry import shard_id_of
from rollout_assets.campaigns.versions import PromotedVersion, current_version
from rollout_assets.config import CampaignConfig
from rollout_assets.defs.checks.verdict import verdict
from rollout_assets.defs.keys import STORE_CHECKS as STORE_CHECKS_JOB
from rollout_assets.defs.metadata import evidence, frame_table, table
from rollout_assets.defs.splits import HEALS, PromotedSplit, naming, side_by_side
from rollout_assets.defs.step import CampaignStep
from rollout_assets.inspection.stored_opinion import SecondOpinion
from rollout_assets.rollouts.zarr_store.validation import validate_rollout_zarr_store


def promoted_store(step: CampaignStep) -> Iterator[dg.AssetCheckResult]:
    """All checks but the slow second opinion, and whether anything is stale."""
    version = current_version(step.config)
    yield stores_valid(step.config, version, deep=step.job == step.keys.job(STORE_CHECKS_JOB))
    yield no_leakage(step.config, version)
    yield rows_add_up(step.config, version)


def stores_valid(config: CampaignConfig, version: PromotedVersion, *, deep: bool) -> dg.AssetCheckResult:
    """Compare a version with its inventory; if ``deep``, read every byte and let the validator look at every store.

    The inventory was taken of the very bytes that the validator read before they were published.
    """
    layout, sample = CampaignLayout.of(config), ReadSample.new()
    check = check_version(
        layout, version.name, deep=deep, sample=sample, written=() if deep else written_files(layout, version.name)
    )
    damage = [{"version": version.name, **vars(file), "to go on": HEALS} for file in check.damage]
    if not check.comparable:
        damage.append({"version": version.name, "problem": check.problems[0], "to go on": HEALS})
    findings = list(_findings(version)) if deep else []
    full_read = last_full_read(layout, version.name) or "never: the job of the store's checks does it"
    metadata = {
        "version": version.name,
        "bytes_read": check.bytes_read,
        "bytes": check.bytes_published,
        "sample_seed": sample.seed,
        "last_full_read": full_read,
        **evidence(table(damage or findings)),
    }
    return verdict(STORES_VALID, not damage and not findings, metadata)


def _findings(version: PromotedVersion) -> Iterator[dict[str, Any]]:
    """What the deep validator finds in any child."""
    for child in version.children:
        for finding in validate_rollout_zarr_store(child, deep=True, profile="own").findings:
            yield {"version": version.name, "split": child.name, **vars(finding), "to go on": HEALS}


def no_leakage(config: CampaignConfig, version: PromotedVersion) -> dg.AssetCheckResult:
    """Look for scenes and meshes in more than one split, by the columns of plan and markers."""
    layout = CampaignLayout.of(config)
    survey, promoted = CampaignSurvey.of(config), set(version.shard_ids)
    numbers = [number for number in range(len(survey.planned)) if shard_id_of(number) in promoted]
    leaks = list(leaks_among(layout, survey, numbers))
    metadata = {
        "leaks": len(leaks),
        **evidence(table([{"leak": leak.text, "to go on": leak.way_out} for leak in leaks])),
    }
    return verdict(NO_LEAKAGE, not leaks, metadata)


def rows_add_up(config: CampaignConfig, version: PromotedVersion) -> dg.AssetCheckResult:
    """Compare the rows of a version with those of its shards, which are kept in columns."""
    children = {child.name: child for child in version.children}
    with naming(version.name, ", ".join(children)):
        rows = [vars(counted) for counted in table_rows(CampaignLayout.of(config), version.record, children)]
    wrong = [row for row in rows if row["shards"] != row["promoted"]]
    return verdict(ROWS_ADD_UP, not wrong, {"rows": table(rows), **evidence(table(wrong))})


def measured_again(step: CampaignStep) -> Iterator[dg.AssetCheckResult]:
    """Measure labels drawn at random a second time, by other means; every promoted version draws others.

    What was measured is kept beside the reports, for the pages that are written after this check. While store,
    campaign, source and code are unchanged it is not measured again: the result says when it was measured.
    """
    splits = PromotedSplit.of_version(step.config, current_version(step.config))
    kept = {split.name for split in splits if not step.measures_anew and _is_complete(split.known_opinion())}
    missing = {split: split.opinion_inputs() for split in splits if split.name not in kept}
    side_by_side(PromotedSplit.measure_opinion, missing)
    known = {split.name: split.known_opinion() for split in splits}
    opinions = {split: found[0] for split, found in known.items() if found is not None}
    measured_at = {split: found[1] for split, found in known.items() if found is not None}
    measured = min(measured_at.values(), default="")
    wrong = _by_split(opinions, "findings")
    metadata = {
        "measured_at": measured,
        "candidates": sum(opinion.candidates for opinion in opinions.values()),
        "asked": sum(opinion.asked for opinion in opinions.values()),
        "labelled": sum(opinion.labelled for opinion in opinions.values()),
        "scope": table(
            [
                {"split": split, "measured_at": measured_at[split], "scope": opinion.scope}
                for split, opinion in opinions.items()
            ]
        ),
        "agreement": frame_table(_by_split(opinions, "summary")),
        "worst": frame_table(_by_split(opinions, "worst")),
        **evidence(frame_table(wrong)),
    }
    unchanged = f"measured at {measured}; store, campaign, source and code are unchanged since" if kept else None
    yield verdict(SECOND_OPINION, wrong.is_empty(), metadata, description=unchanged)


def _is_complete(known: tuple[SecondOpinion, str] | None) -> bool:
    """Whether there is an opinion that judged every candidate drawn, not only those that the time allowed."""
    return known is not None and known[0].candidates == known[0].asked


def _by_split(opinions: Mapping[str, SecondOpinion], frame: str) -> pl.DataFrame:
    """One frame of every split's opinion, below each other."""
    return pl.concat(
        [getattr(opinion, frame).select(pl.lit(split).alias("split"), pl.all()) for split, opinion in opinions.items()]
    )
