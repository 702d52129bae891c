"""The plan as an asset: written by planning, with one partition per planned shard."""

from __future__ import annotations

import dagster as dg

from rollout_assets.campaigns.plan import ShardPlan, write_rollout_shard_manifest_from_config
from rollout_assets.campaigns.plan_entry import shard_id_of
from rollout_assets.config import CampaignConfig
from rollout_assets.defs.metadata import Metadata, config_hashes, data_version, page, table
from rollout_assets.defs.step import CampaignStep

SHOWN_SCENES = 100
"""Scenes without a mesh that the page of the plan lists."""

PARTITIONS_AT_ONCE = 10_000
"""Partitions that are added by one statement; some builds of SQLite take no more than 32,766 values in one."""


def rollout_shard_plan(step: CampaignStep) -> dg.MaterializeResult[None]:
    """Plan shards for all rows of the source."""
    return dg.MaterializeResult(metadata=write_plan(step), data_version=dg.DataVersion(plan_data_version(step.config)))


def plan_data_version(config: CampaignConfig) -> str:
    """The version of the planning and not of the rows, because new shards must not make old ones stale."""
    return data_version({"campaign": config.name, "splits": sorted(config.source.splits)})


def write_plan(step: CampaignStep) -> Metadata:
    """Write the plan, make the partitions those of the plan, and return what it holds."""
    plan = write_rollout_shard_manifest_from_config(step.config, store=step.source)
    _match_partitions(step, [shard_id_of(number) for number in range(len(plan.entries))])
    return page(
        {
            "verdict": f"{len(plan.entries)} rollout shards, {plan.new} of them new, for {plan.num_rows} source rows",
            "dagster/row_count": plan.num_rows,
            "source_rows_without_mesh": plan.rows_without_mesh,
            "scenes_without_mesh": table(
                [
                    {"scene": scene, "had one when planned": scene in plan.scenes_that_had_mesh}
                    for scene in plan.scenes_without_mesh[:SHOWN_SCENES]
                ]
            ),
            "shards": len(plan.entries),
            "new_shards": plan.new,
            "shards_by_split": table([_split_row(step, plan, split) for split in step.config.source.splits]),
            "path": dg.MetadataValue.path(str(plan.path)),
            "replaced_plan": "" if plan.replaced is None else str(plan.replaced),
            **config_hashes(step.config),
            "source_manifest_hash": step.source.source_manifest_hash,
        }
    )


def _match_partitions(step: CampaignStep, planned: list[str]) -> None:
    name = step.keys.partitions_name
    existing = step.instance.get_dynamic_partitions(name)
    known = set(existing)
    new = [shard_id for shard_id in planned if shard_id not in known]
    for start in range(0, len(new), PARTITIONS_AT_ONCE):
        step.instance.add_dynamic_partitions(name, new[start : start + PARTITIONS_AT_ONCE])
    for shard_id in sorted(known - set(planned)):
        step.instance.delete_dynamic_partition(name, shard_id)


def _split_row(step: CampaignStep, plan: ShardPlan, split: str) -> Metadata:
    columns = plan.entries.columns
    return {
        "split": split,
        "shards": columns.splits.count(split),
        "source_rows": columns.rows_by_split().get(split, 0),
        "split_manifest_hash": step.source.split_manifest_hash(split),
    }
