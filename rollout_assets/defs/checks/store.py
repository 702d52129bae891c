"""Checks of the promoted store: valid, without leaks, complete, and with labels that can be confirmed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import dagster as dg
import polars as pl

from rollout_assets.campaigns.check_names import NO_LEAKAGE, ROWS_ADD_UP, SECOND_OPINION, STORES_VALID
from rollout_assets.campaigns.columns.survey import CampaignSurvey
from rollout_assets.campaigns.derived import DerivedFiles, derived_record, inputs_digest
from rollout_assets.campaigns.guards.leakage import leaks_among
from rollout_assets.campaigns.inventory import check_version, last_full_read, written_files
from rollout_assets.campaigns.layout import CampaignLayout
from rollout_assets.campaigns.merging.row_counts import table_rows
from rollout_assets.campaigns.merging.sample import ReadSample
from rollout_assets.campaigns.objects.publishing import publish_folder
from rollout_assets.campaigns.objects.working_copy import fetch_folder
from rollout_assets.campaigns.plan_entry import shard_id_of
from rollout_assets.campaigns.versions import PromotedVersion, current_version
from rollout_assets.config import CampaignConfig
from rollout_assets.defs.checks.verdict import verdict
from rollout_assets.defs.keys import STORE_CHECKS as STORE_CHECKS_JOB
from rollout_assets.defs.metadata import evidence, frame_table, table
from rollout_assets.defs.step import CampaignStep
from rollout_assets.errors import StoreDamaged
from rollout_assets.inspection.second_opinion import SecondOpinion, second_opinion
from rollout_assets.inspection.stored_opinion import publish_opinion, read_opinion
from rollout_assets.locations.url import Location
from rollout_assets.rollouts.zarr_store.reader import RolloutZarrStoreReader
from rollout_assets.rollouts.zarr_store.validation import validate_rollout_zarr_store

SECONDS_PER_SPLIT = 60.0
"""Time after which no further label of a split is measured again; the result says how many were left out."""


HEALS = "'rollout-assets campaign promote', or the job that promotes, builds it again from its shards"
"""The way out of a damaged version."""


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


@contextmanager
def _naming(version: PromotedVersion, split: str) -> Iterator[None]:
    """Let damage that is met on the way name the version and the split that it is in, and the way out."""
    try:
        yield
    except StoreDamaged as error:
        raise StoreDamaged(f"{version.name} {split} {error.where}", f"{error.problem}; {HEALS}") from error


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
    with _naming(version, ", ".join(children)):
        rows = [vars(counted) for counted in table_rows(CampaignLayout.of(config), version.record, children)]
    wrong = [row for row in rows if row["shards"] != row["promoted"]]
    return verdict(ROWS_ADD_UP, not wrong, {"rows": table(rows), **evidence(table(wrong))})


def measured_again(step: CampaignStep) -> Iterator[dg.AssetCheckResult]:
    """Measure labels drawn at random a second time, by other means; every promoted version draws others.

    What was measured is kept beside the reports, for the pages that are written after this check. While store,
    campaign, source and code are unchanged it is not measured again: the result says when it was measured.
    """
    version = current_version(step.config)
    opinions, measured_at, kept = {}, {}, []
    for child in version.children:
        with _naming(version, child.name):
            opinions[child.name], measured_at[child.name], is_kept = _opinion(step, child, version.number)
        kept += [child.name] if is_kept else []
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


def _opinion(step: CampaignStep, child: Location, seed: int) -> tuple[SecondOpinion, str, bool]:
    """The opinion on one split, when it was measured, and whether that was before this check."""
    config, reader = step.config, RolloutZarrStoreReader(child)
    count, layout = config.quality.second_opinions_per_split, CampaignLayout.of(config)
    fetch_folder(layout, layout.reports)
    path, record = layout.second_opinion(child.name), derived_record(layout, f"{child.name}_second_opinion")
    inputs = inputs_digest(config, reader, seed=seed)
    found = None if step.measures_anew else DerivedFiles.find(record, inputs)
    if found is not None and (kept := read_opinion(path, reader)) is not None and kept.candidates == kept.asked:
        return kept, found.made_at, True
    opinion = second_opinion(reader, 1.0, seed, config, source=step.source, limit=count, budget_s=SECONDS_PER_SPLIT)
    publish_opinion(path, opinion, reader)
    made = DerivedFiles.publish(record, inputs, [path])
    publish_folder(layout, layout.reports)
    return opinion, made.made_at, False


def _by_split(opinions: Mapping[str, SecondOpinion], frame: str) -> pl.DataFrame:
    """One frame of every split's opinion, below each other."""
    return pl.concat(
        [getattr(opinion, frame).select(pl.lit(split).alias("split"), pl.all()) for split, opinion in opinions.items()]
    )
