"""What a campaign will take, said before any work: shards, rows and targets; from finished shards, hours and bytes."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rollout_assets.campaigns.columns.kept import Columns
from rollout_assets.campaigns.columns.survey import CampaignSurvey
from rollout_assets.campaigns.plan import ShardPlan
from rollout_assets.config import CampaignConfig
from rollout_assets.errors import SourceError
from rollout_assets.randomness import rng_for
from rollout_assets.rollouts.target_sources import target_source_of
from rollout_assets.sources.vin_store import VinOfflineStore
from rollout_assets.targets.selection import describe_sample

PROBED_ROWS = 32
"""Rows whose targets are selected for a forecast, spread evenly over the plan."""


@dataclass(frozen=True)
class CampaignForecast:
    """What is planned, and what is left of it. Times are of one process; None without a finished shard to go by."""

    shards: int
    rows: int
    rows_per_split: dict[str, int]
    finished_shards: int
    rows_left: int
    targets_expected: int
    views_per_step: int
    hours_left: float | None
    gigabytes_left: float | None
    gigabytes_total: float | None


def forecast_campaign(config: CampaignConfig, plan: ShardPlan, source: VinOfflineStore) -> CampaignForecast:
    """Targets by looking at some rows; hours and gigabytes from the shards that are finished."""
    finished = _finished(config, plan)
    done, stored = int(finished["rows"].sum()), int(finished["bytes"].sum())
    left, seconds = plan.num_rows - done, float(finished["seconds"].sum())
    return CampaignForecast(
        shards=len(plan.entries),
        rows=plan.num_rows,
        rows_per_split=plan.entries.columns.rows_by_split(),
        finished_shards=len(finished["rows"]),
        rows_left=left,
        targets_expected=round(_targets_per_row(config, plan.entries.columns.sample, source) * plan.num_rows),
        views_per_step=config.candidates.num_candidates,
        hours_left=seconds / done * left / 3600 if done else None,
        gigabytes_left=stored / done * left / 1e9 if done else None,
        gigabytes_total=stored / done * plan.num_rows / 1e9 if done else None,
    )


def _finished(config: CampaignConfig, plan: ShardPlan) -> Columns:
    """The columns of the shards that are finished as they are planned."""
    survey = CampaignSurvey.of(config, plan.entries)
    rows = survey.finished.place[survey.current()]
    return {name: values[rows] for name, values in survey.finished.columns.items()}


def _targets_per_row(config: CampaignConfig, samples: NDArray[np.int64], source: VinOfflineStore) -> float:
    """Targets of some rows; ``samples``: (rows,) sample index of every planned row."""
    probed = samples[:: max(len(samples) // PROBED_ROWS, 1)].tolist()
    targets = 0
    for row in map(source.row, probed):
        try:
            sample = source.sample(row)
        except SourceError:
            continue  # a row that cannot be read will have no target
        rng = rng_for(config.seed, row.sample_key, "targets")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the run itself warns
            table = describe_sample(sample, config.targets)
        targets += len(target_source_of(config.targets).choose(table, config, rng))
    return targets / len(probed)
