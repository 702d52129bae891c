"""The three assets of one shard: its source rows, its rollouts, and the validated shard."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import dagster as dg

from rollout_assets.campaigns.guards.inputs import refuse_missing_inputs
from rollout_assets.campaigns.integrity import examine_shard, open_shard
from rollout_assets.campaigns.layout import CampaignLayout
from rollout_assets.campaigns.markers import SourceState, observe_source, validated_version
from rollout_assets.campaigns.plan import planned_rows
from rollout_assets.campaigns.shard import run_rollout_shard
from rollout_assets.config import CampaignConfig
from rollout_assets.defs.metadata import (
    data_version,
    entry_hashes,
    page,
    shard_metadata,
    shard_verdict,
    store_metadata,
    table,
)
from rollout_assets.defs.step import CampaignStep, LogProgress
from rollout_assets.errors import StoreError, counted
from rollout_assets.rollouts.policy_registry import require_policies
from rollout_assets.sources.layout import IndexRow

if TYPE_CHECKING:
    from rollout_assets.campaigns.dataset_writer import RolloutDatasetWriter

SHOWN_FINDINGS = 5
"""Findings that the message about a refused shard lists; the checks show more."""


def vin_source_rows(step: CampaignStep) -> dg.MaterializeResult[None]:
    """Compare the campaign and the source rows of one shard with the plan, before any view is scored."""
    rows = planned_rows(step.entry, step.config, step.source)
    if not step.allow_fewer:
        refuse_missing_inputs(CampaignLayout.of(step.config), step.entry, step.source)
    require_policies(step.config.recipes)
    state = observe_source(step.entry, step.source)
    seals = {name: seal.sha256 for name, seal in state.source_shards.items()}
    keys = [row.sample_key for row in rows]
    shown = [
        {
            "sample": row.sample_key,
            "scene": row.scene_id,
            "snippet": row.snippet_id,
            "source_shard": row.shard_id,
            "mesh": (state.mesh_versions[row.scene_id] or "none")[:12],
        }
        for row in rows
    ]
    return dg.MaterializeResult(
        metadata=page(
            {
                "verdict": f"all {len(rows)} source rows are as planned{_without_mesh(state, rows)}",
                "split": step.entry.split,
                "dagster/row_count": len(rows),
                "source_rows": table(shown),
                **entry_hashes(step.config, step.entry),
            }
        ),
        data_version=dg.DataVersion(data_version({"rows": keys, "meshes": dict(state.mesh_versions), "files": seals})),
    )


def _without_mesh(state: SourceState, rows: Sequence[IndexRow]) -> str:
    count = sum(state.mesh_versions[row.scene_id] is None for row in rows)
    return f"; {counted(count, 'row')} without a usable mesh" if count else ""


def rollout_shards(step: CampaignStep) -> dg.MaterializeResult[None]:
    """Build one shard, or keep it if it is finished and current."""
    result = run_rollout_shard(
        step.config,
        step.entry,
        source=step.source,
        writer=lambda: _shared_writer(step.keys.campaign, step.source.source_manifest_hash, step.config),
        invocation=step.invocation(),
        allow_fewer=step.allow_fewer,
        progress=LogProgress(step.log),
    )
    for moved in result.set_aside:
        step.log.warning(f"set aside {moved.name}: {moved.reason}; now at {moved.path}")
    reader = open_shard(step.config, step.shard_id)
    metadata = {
        "verdict": shard_verdict(result.outcome, result.owner),
        **({"fewer_records": result.fewer} if result.fewer else {}),
        **({} if reader is None else store_metadata([reader])),
        **shard_metadata(step.config, step.entry, result.owner, result.store_dir),
    }
    return dg.MaterializeResult(
        metadata=page(metadata),
        data_version=dg.DataVersion(
            data_version({"entry": step.entry.sha256, "writer": step.config.writer_config_hash})
        ),
    )


def validated_shards(step: CampaignStep) -> dg.MaterializeResult[None]:
    """Refuse a shard with any finding."""
    integrity = examine_shard(step.config, step.entry, anew=step.measures_anew, allow_fewer=step.allow_fewer)
    if findings := integrity.all_findings():
        listed = "".join(f"\n  - {finding}" for finding in findings[:SHOWN_FINDINGS])
        raise StoreError(
            f"{step.shard_id}: {len(findings)} finding(s){listed}\nMaterialize rollout_shards of this partition again: "
            f"the damaged shard is set aside and a new one is built."
        )
    owner = integrity.owner
    assert owner is not None  # markers that cannot be read are a finding
    return dg.MaterializeResult(
        metadata=page(
            {
                "verdict": "may be promoted: every byte was read, and nothing was found",
                "examined_at": integrity.examined_at,
                "dagster/row_count": integrity.num_candidates,
                "records": owner.records,
                "bytes": 0 if owner.store is None else owner.store.bytes,
                **entry_hashes(step.config, step.entry),
                "content_sha256": owner.content_sha256 or "",
            }
        ),
        data_version=dg.DataVersion(validated_version(step.entry.sha256, owner.content_sha256)),
    )


@lru_cache(maxsize=1)
def _shared_writer(_campaign: str, _source: str, config: CampaignConfig) -> RolloutDatasetWriter:
    """One writer per process, so that meshes and kernels stay loaded from shard to shard of one campaign and source."""
    # Not at the top: it loads Warp, which a finished shard does not need.
    from rollout_assets.campaigns.dataset_writer import RolloutDatasetWriter

    return RolloutDatasetWriter(config)
