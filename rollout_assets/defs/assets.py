"""The assets of a campaign. Each calls one function of the rooms below and reports what came of it.

Assets hand each other nothing but files: a result is metadata and a data version, never a pickled value.
"""

from collections.abc import Callable
from functools import lru_cache
from inspect import cleandoc
from time import monotonic
from typing import TYPE_CHECKING, Any

import dagster as dg

from rollout_assets.config import CampaignConfig, canonical_hash
from rollout_assets.defs.campaign import (
    ROLLOUT_SHARD_PLAN,
    ROLLOUT_SHARDS,
    ROLLOUTS_ZARR,
    VALIDATED_SHARDS,
    VIN_OFFLINE_STORE,
    VIN_SOURCE_ROWS,
    CampaignKeys,
    CampaignStep,
)
from rollout_assets.defs.faults import RETRIES, failures_for_dagster
from rollout_assets.defs.metadata import config_hashes, entry_hashes, shard_metadata, store_metadata, table
from rollout_assets.defs.readings import rollout_metrics, rollout_report
from rollout_assets.errors import StoreError
from rollout_assets.files import tree_sizes
from rollout_assets.progress import ProgressEvent

if TYPE_CHECKING:
    from rollout_assets.campaigns.dataset_writer import RolloutDatasetWriter

OWNERS = ("team:rollout-data",)

GPU_POOL = "gpu"
"""Pool of the steps that score views; its limit is in ``dagster_home/dagster.yaml``."""

LOG_EVERY_S = 10.0
"""How often a long step writes its progress to the run's log."""

SHOWN_FINDINGS = 5


def campaign_assets(place: CampaignKeys) -> list[dg.AssetsDefinition]:
    """The chain of a campaign, from its observed source to the promoted store, and what is read off that."""
    planned = {"partitions_def": place.partitions}
    return [
        _observed_source(place),
        _asset(place, rollout_shard_plan, VIN_OFFLINE_STORE, {"json"}, code_version=place.config.writer_config_hash),
        _asset(place, vin_source_rows, ROLLOUT_SHARD_PLAN, {"zarr"}, code_version="1", **planned),
        _asset(
            place,
            rollout_shards,
            VIN_SOURCE_ROWS,
            {"zarr", "warp"},
            code_version=place.config.writer_config_hash,
            pool=GPU_POOL,
            **planned,
        ),
        _asset(place, validated_shards, ROLLOUT_SHARDS, {"zarr"}, code_version="1", **planned),
        _asset(place, rollouts_zarr, VALIDATED_SHARDS, {"zarr"}, code_version="1"),
        _asset(place, rollout_report, ROLLOUTS_ZARR, {"html"}, code_version="1"),
        _asset(place, rollout_metrics, ROLLOUTS_ZARR, {"table"}, code_version="1"),
    ]


def _asset(
    place: CampaignKeys,
    compute: Callable[[CampaignStep], dg.MaterializeResult[None]],
    upstream: str,
    kinds: set[str],
    **more: Any,
) -> dg.AssetsDefinition:
    """An asset named and described after the function that computes it."""

    @dg.asset(  # type: ignore[untyped-decorator]
        key=place.key(compute.__name__),
        deps=[place.key(upstream)],
        description=cleandoc(compute.__doc__ or ""),
        group_name=place.name,
        kinds=kinds,
        owners=OWNERS,
        required_resource_keys={place.resource_key},
        retry_policy=RETRIES,
        metadata={"campaign": place.config.name},
        **more,
    )
    def asset(context: dg.AssetExecutionContext) -> dg.MaterializeResult[None]:
        with failures_for_dagster():
            return compute(CampaignStep.of(place, context))

    return asset


def _observed_source(place: CampaignKeys) -> dg.AssetsDefinition:
    spec = dg.AssetSpec(
        place.key(VIN_OFFLINE_STORE),
        description=(
            "Recorded indoor snippets, one row each: trajectory, camera, points, detected boxes, and the true mesh. "
            "Somebody else writes them; we only look. Observe it to see whether snippets were added."
        ),
        group_name=place.name,
        kinds={"zarr"},
        owners=list(OWNERS),
        metadata={"campaign": place.config.name},
    )

    @dg.multi_observable_source_asset(  # type: ignore[untyped-decorator]
        specs=[spec], name=f"{place.name}__{VIN_OFFLINE_STORE}", required_resource_keys={place.resource_key}
    )
    def observe(context: dg.AssetExecutionContext) -> dg.ObserveResult:
        with failures_for_dagster():
            step = CampaignStep.of(place, context)
            return dg.ObserveResult(
                asset_key=spec.key,
                data_version=dg.DataVersion(source_data_version(step)),
                metadata=source_metadata(step),
            )

    return observe


def source_data_version(step: CampaignStep) -> str:
    """Changes with every row that is added, removed or altered in the source's manifest or index."""
    rows = [row.model_dump(mode="json") for row in step.source.rows()]
    return canonical_hash({"manifest": step.source.source_manifest_hash, "index": rows})[:16]


def source_metadata(step: CampaignStep) -> dict[str, Any]:
    """What the source holds."""
    rows = step.source.rows()
    return {
        "dagster/row_count": len(rows),
        "rows_train": len(step.source.rows("train")),
        "rows_val": len(step.source.rows("val")),
        "scenes": len({row.scene_id for row in rows}),
        "source_manifest_hash": step.source.source_manifest_hash,
        "path": dg.MetadataValue.path(str(step.source.root)),
    }


def rollout_shard_plan(step: CampaignStep) -> dg.MaterializeResult[None]:
    """Which source rows each shard owns: one line per shard, and one partition per line.

    Planning again after new snippets only appends; shards that are there stay as they are. After an edited campaign
    the same rows are planned under the new hashes: materialize this first, then the shards.
    """
    return dg.MaterializeResult(metadata=write_plan(step), data_version=dg.DataVersion(plan_data_version(step.config)))


def plan_data_version(config: CampaignConfig) -> str:
    """Of the planning itself and not of the rows, for new shards must not make old ones stale."""
    return canonical_hash({"campaign": config.name, "splits": sorted(config.source.splits)})[:16]


def write_plan(step: CampaignStep) -> dict[str, Any]:
    """Write the plan, make the partitions those of the plan, and say what it holds."""
    from rollout_assets.campaigns.plan import write_rollout_shard_manifest_from_config

    plan = write_rollout_shard_manifest_from_config(step.config, store=step.source)
    planned = [entry.shard_id for entry in plan.entries]
    name = step.place.partitions_name
    known = step.instance.get_dynamic_partitions(name)
    step.instance.add_dynamic_partitions(name, planned)
    for gone in sorted(set(known) - set(planned)):
        step.instance.delete_dynamic_partition(name, gone)
    return {
        **config_hashes(step.config),
        "source_manifest_hash": step.source.source_manifest_hash,
        "dagster/row_count": plan.num_rows,
        "shards": len(planned),
        "new_shards": plan.new,
        "shards_by_split": table(
            [
                {
                    "split": split,
                    "shards": sum(entry.split == split for entry in plan.entries),
                    "rows": sum(len(entry.rows) for entry in plan.entries if entry.split == split),
                    "split_manifest_hash": step.source.split_manifest_hash(split),
                }
                for split in step.config.source.splits
            ]
        ),
        "replaced_plan": "" if plan.replaced is None else str(plan.replaced),
        "path": dg.MetadataValue.path(str(plan.path)),
    }


def vin_source_rows(step: CampaignStep) -> dg.MaterializeResult[None]:
    """The source rows of one shard, held against the plan: the same samples, still readable, with their meshes.

    A row that is gone or another one now is refused here, before any view is scored.
    """
    from rollout_assets.campaigns.markers import observe_source
    from rollout_assets.campaigns.plan import planned_rows

    rows = planned_rows(step.entry, step.config, step.source)
    state = observe_source(step.entry, step.source)
    seals = {name: seal.sha256 for name, seal in state.source_shards.items()}
    keys = [row.sample_key for row in rows]
    version = canonical_hash({"rows": keys, "meshes": dict(state.mesh_versions), "files": seals})[:16]
    return dg.MaterializeResult(
        metadata={
            **entry_hashes(step.config, step.entry),
            "dagster/row_count": len(rows),
            "split": step.entry.split,
            "rows": table(
                [
                    {
                        "sample": row.sample_key,
                        "scene": row.scene_id,
                        "snippet": row.snippet_id,
                        "source_shard": row.shard_id,
                        "mesh": (state.mesh_versions[row.scene_id] or "none")[:12],
                    }
                    for row in rows
                ]
            ),
        },
        data_version=dg.DataVersion(version),
    )


def rollout_shards(step: CampaignStep) -> dg.MaterializeResult[None]:
    """Rollouts of one shard's rows: targets, candidate views, oracle scores and chosen paths, as one Zarr store.

    Everything is generated and scored here, on the GPU if there is one. A shard that is finished and current is only
    read and checked; whatever else lies at its place is set aside, and the shard is built again.
    """
    from rollout_assets.campaigns.integrity import open_shard
    from rollout_assets.campaigns.shard import run_rollout_shard

    done = run_rollout_shard(
        step.config,
        step.entry,
        source=step.source,
        writer=lambda: _shared_writer(step.resource.campaign, step.source.source_manifest_hash, step.config),
        invocation=step.resource.invocation(),
        progress=_LogSink(step.log),
    )
    for moved in done.set_aside:
        step.log.warning(f"set aside {moved.name}: {moved.reason}; now at {moved.path}")
    metadata = shard_metadata(step.config, step.entry, done.owner, done.store_dir)
    reader = open_shard(step.config, step.shard_id)
    if reader is not None:
        metadata |= store_metadata([reader])
    return dg.MaterializeResult(
        metadata=metadata | {"outcome": done.outcome},
        data_version=dg.DataVersion(
            canonical_hash({"entry": step.entry.sha256, "writer": step.config.writer_config_hash})[:16]
        ),
    )


def validated_shards(step: CampaignStep) -> dg.MaterializeResult[None]:
    """A shard that may be promoted: every byte read, the validator run, hashes and rows held against the plan.

    The examination is made here again, and not only in the checks before it, so that a damaged shard cannot pass in a
    later run either.
    """
    from rollout_assets.campaigns.integrity import examine_shard

    found = examine_shard(step.config, step.entry)
    problems = found.all_findings()
    if problems:
        first = "".join(f"\n  - {finding}" for finding in problems[:SHOWN_FINDINGS])
        raise StoreError(
            f"{step.shard_id}: {len(problems)} finding(s){first}\nMaterialize rollout_shards of this partition again: "
            f"the damaged shard is set aside and built anew."
        )
    assert found.owner is not None
    content = None if found.owner.store is None else found.owner.store.content_sha256
    return dg.MaterializeResult(
        metadata={
            **entry_hashes(step.config, step.entry),
            "dagster/row_count": found.num_candidates,
            "records": found.owner.records,
            "bytes": 0 if found.owner.store is None else found.owner.store.bytes,
            "content_sha256": content or "",
        },
        data_version=dg.DataVersion(validated_data_version(step.entry.sha256, content)),
    )


def validated_data_version(entry_sha256: str, content_sha256: str | None) -> str:
    """What was validated: the shard as planned, with this content."""
    return canonical_hash({"entry": entry_sha256, "content": content_sha256})[:16]


def rollouts_zarr(step: CampaignStep) -> dg.MaterializeResult[None]:
    """The promoted store that training reads: all validated shards, one child store per split, behind one link.

    Refused while a planned shard is not validated, or is not what was validated; readers keep the version they have.
    """
    from rollout_assets.campaigns.promotion import promote_rollout_campaign
    from rollout_assets.defs.promotion_gate import refuse_unvalidated
    from rollout_assets.rollouts.zarr_store.reader import RolloutZarrStoreReader

    refuse_unvalidated(step)
    result = promote_rollout_campaign(step.config, invocation=step.resource.invocation(), progress=_LogSink(step.log))
    record = result.version.record
    readers = [RolloutZarrStoreReader(path) for path in result.version.children]
    counts = [
        {"split": reader.location.rsplit("/", 1)[-1]}
        | {name: reader.num_rows(name) for name in ("sources", "targets", "rollouts", "steps", "candidates")}
        for reader in readers
    ]
    made = [{"split": part.split, "made": part.how, "new_shards": part.new_shards} for part in result.splits]
    return dg.MaterializeResult(
        metadata={
            "path": dg.MetadataValue.path(str(result.store_dir)),
            "version": result.version.name,
            "version_path": dg.MetadataValue.path(str(result.version.path)),
            **config_hashes(step.config),
            "source_manifest_hash": step.source.source_manifest_hash,
            **{f"split_manifest_hash_{name}": step.source.split_manifest_hash(name) for name in record.splits},
            "dagster/row_count": sum(reader.num_rows("candidates") for reader in readers),
            "shards": len(result.version.shard_ids),
            "rows_by_split": table(counts),
            "made": table(made or [{"split": name, "made": "was there", "new_shards": 0} for name in record.splits]),
            "seconds": round(result.seconds, 3),
            "bytes": sum(size for child in result.version.children for size in tree_sizes(child).values()),
            **store_metadata(readers),
        },
        data_version=dg.DataVersion(canonical_hash(record.model_dump(mode="json"))[:16]),
    )


@lru_cache(maxsize=1)
def _shared_writer(_campaign: str, _source: str, config: CampaignConfig) -> "RolloutDatasetWriter":
    """One writer per process, so that meshes and kernels stay loaded from shard to shard of one campaign and source."""
    from rollout_assets.campaigns.dataset_writer import RolloutDatasetWriter

    return RolloutDatasetWriter(config)


class _LogSink:
    """Progress as lines in the run's log, now and then: every line is a row in Dagster's database."""

    def __init__(self, log: dg.DagsterLogManager) -> None:
        self._log = log
        self._last = monotonic()

    def __call__(self, event: ProgressEvent, /) -> None:
        if monotonic() - self._last >= LOG_EVERY_S:
            self._last = monotonic()
            self._log.info(f"{event.task}: {event.done} of {event.total or '?'} {event.unit} {event.note}")
