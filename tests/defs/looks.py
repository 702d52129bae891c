"""What a look of a sensor could have written, and what the catalog says about the version that readers get."""

import dagster as dg

from tests.defs.conftest import Desk


def written(desk: Desk, instance: dg.DagsterInstance) -> dict[str, object]:
    """All that a look might write: files of the campaign, partitions, events and runs."""
    root, caches = desk.layout.root, {"columns", "mesh_digests"}
    files = (path for path in root.rglob("*") if path.is_file() and not caches & set(path.relative_to(root).parts))
    return {
        "files": {str(path): path.stat().st_mtime_ns for path in files},
        "partitions": instance.get_dynamic_partitions("tiny_shards"),
        "events": instance.event_log_storage.get_maximum_record_id(),
        "runs": instance.get_runs_count(),
    }


def told(instance: dg.DagsterInstance) -> tuple[str, str]:
    """Version and pin by the latest event of the promoted store in the catalog."""
    key = dg.AssetKey(["tiny", "rollouts_zarr"])
    records = instance.fetch_observations(key, limit=1).records
    records = [*records, *instance.fetch_materializations(key, limit=1).records]
    last = max(records, key=lambda record: record.storage_id)
    metadata = (last.asset_observation or last.asset_materialization).metadata
    return metadata["version"].value, metadata["pin"].value if "pin" in metadata else ""
