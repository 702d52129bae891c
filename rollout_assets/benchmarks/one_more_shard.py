"""What one more tiny shard among very many costs until it is promoted and checked, beside what all of them cost.

The stages are those of the asset and its checks in Dagster: the gate that reads shards, the promotion, and the checks
of the promoted store. Each measurement is a process of its own, because a process remembers what it has read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from rollout_assets.benchmarks.measure import Seconds, timed
from rollout_assets.benchmarks.results import Figure
from rollout_assets.campaigns.columns.survey import CampaignSurvey
from rollout_assets.campaigns.plan_entry import shard_id_of
from rollout_assets.campaigns.promotion import promote_rollout_campaign
from rollout_assets.campaigns.promotion_gate import refuse_unvalidated, versions_on_disk
from rollout_assets.campaigns.versions import current_version
from rollout_assets.config import CampaignConfig, SelectedDepthRetentionConfig, ShardConfig
from rollout_assets.defs.checks.store import no_leakage, rows_add_up, stores_valid
from rollout_assets.progress import ProgressEvent, ProgressSink
from rollout_assets.testing.fake_shards import FakeCampaign
from rollout_assets.workers import run_in_new_process

DEPTH_PX = 8


@dataclass(frozen=True)
class Stage:
    """One stage with all shards new, and with one."""

    what: Annotated[str, Figure("stage")]
    all_wall_s: Annotated[float, Figure("all new, wall", "{:.2f} s")]
    all_cpu_s: Annotated[float, Figure("all new, processor", "{:.2f} s")]
    one_wall_s: Annotated[float, Figure("one new, wall", "{:.2f} s")]
    one_cpu_s: Annotated[float, Figure("one new, processor", "{:.2f} s")]


def measure_one_more(folder: Path, shards: int, progress: ProgressSink) -> tuple[Stage, ...]:
    """Build ``shards`` shards of one row, promote and check them from nothing, then the same with one more."""
    config = CampaignConfig(
        name="one-more-benchmark",
        selected_depth=SelectedDepthRetentionConfig(width_px=DEPTH_PX, height_px=DEPTH_PX),
        shards=ShardConfig(rows_per_shard=1, output_dir=folder),
    )
    built = 0

    def grow(count: int) -> None:
        nonlocal built
        campaign = FakeCampaign.of(config, [("train", count)], targets=2, chains=2, shell=(12, 12))
        for entry in campaign.plan().entries[built:]:
            campaign.run(entry)
            built += 1
            progress(ProgressEvent("build tiny shards", built, shards + 1, unit="shards"))

    grow(shards)
    everything = run_in_new_process(_stages, config)
    grow(shards + 1)
    one_more = run_in_new_process(_stages, config)
    return tuple(Stage(what, *seconds, *one_more[what]) for what, seconds in everything.items())


def _stages(config: CampaignConfig) -> dict[str, Seconds]:
    """Promote and check a campaign as it is, every shard of which counts as validated."""
    versions = versions_on_disk(CampaignSurvey.of(config))
    validated = {shard_id_of(number): version for number, version in enumerate(versions) if version is not None}
    stages: dict[str, Callable[[], Any]] = {
        "gate": lambda: refuse_unvalidated(config, validated),
        "promotion": lambda: promote_rollout_campaign(config),
        "checks": lambda: _check(config),
    }
    return {what: timed(work) for what, work in stages.items()}


def _check(config: CampaignConfig) -> None:
    version = current_version(config)
    results = (stores_valid(config, version, deep=False), no_leakage(config, version), rows_add_up(config, version))
    assert all(result.passed for result in results), results
