"""A campaign of two shards with everything around it: its source, its file, its folder, and a Dagster instance.

Its rows are made up, and every store of rows is written once and then linked, so that a step takes milliseconds. Plan,
markers, checks, promotion, cleaning, sensors and jobs are the real ones. A world is made once, and copied by links.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any
from unittest.mock import patch

import dagster as dg
from dagster._core.instance.types import CachingDynamicPartitionsLoader

from rollout_assets.campaigns import dataset_writer
from rollout_assets.campaigns import run as campaign_run
from rollout_assets.campaigns.check_names import INTEGRITY_CHECKS
from rollout_assets.campaigns.dataset_writer import RolloutDatasetWriter, WrittenShard
from rollout_assets.campaigns.layout import CampaignLayout
from rollout_assets.campaigns.markers import mesh_versions
from rollout_assets.campaigns.plan_entry import RolloutShardEntry
from rollout_assets.config import CampaignConfig, load_campaign
from rollout_assets.defs import assets as asset_definitions
from rollout_assets.defs import checks as check_definitions
from rollout_assets.defs import keys as names
from rollout_assets.defs import retries
from rollout_assets.defs.assets import shards as shard_assets
from rollout_assets.defs.code_location import build_definitions
from rollout_assets.defs.failures import first_failure
from rollout_assets.defs.headless import QUIET
from rollout_assets.defs.keys import CampaignKeys
from rollout_assets.defs.shards import chain
from rollout_assets.files import link_tree
from rollout_assets.overlap import Pausing
from rollout_assets.rollouts.generator import RolloutDatasetWriterStats
from rollout_assets.rollouts.trace import RolloutZarrRecord
from rollout_assets.sources.layout import INDEX_FILE, MANIFEST_FILE, SPLITS_DIR, IndexRow
from rollout_assets.testing.fake_records import SyntheticRecords
from rollout_assets.testing.many_shards import build_large_source

SEEDS = ("seed = 5", "seed = 6")
"""The campaign as it is made, and as it may be edited."""

CAMPAIGN = f"""
name = "tiny"
{SEEDS[0]}
source.store_dir = "source"
targets.top_k = 1
oracle = {{ width_px = 8, height_px = 8, device = "cpu" }}
selected_depth = {{ width_px = 8, height_px = 8, chunk_steps = 2 }}
shards = {{ rows_per_shard = 2, output_dir = "tiny" }}
retention = {{ set_aside_days = 0, staging_days = 0, replaced_plans = 1, versions = 2 }}
candidates.mixture = [{{ position = "forward_local", count = 4 }}]
recipes = [{{ name = "greedy", policy = "oracle_greedy", horizon = 1 }}]
"""

ROWS = (4, 5, 6)
"""Rows of the source: as it is made, and after one and two snippets were appended. Each row is a scene of its own."""


class MadeUpRows:
    """Records of the rows whose scene has a mesh; the others are skipped, as the oracle skips them."""

    def __init__(self, config: CampaignConfig, source: Any, entry: RolloutShardEntry) -> None:
        self._config, self._source, self._entry = config, source, entry
        self.stats = RolloutDatasetWriterStats()

    def records(self, rows: Sequence[IndexRow], _progress: object) -> Iterator[RolloutZarrRecord]:
        meshes = mesh_versions(self._entry, self._source)
        for row in rows:
            self.stats.rows += 1
            if meshes[row.scene_id] is None:
                self.stats.skipped_rows[row.sample_key] = self.stats.skip_reasons[row.sample_key] = "MESH_MISSING"
            else:
                yield from self._records_of(row, meshes[row.scene_id])

    def _records_of(self, row: IndexRow, mesh_version: str | None) -> Iterator[RolloutZarrRecord]:
        config, entry = self._config, self._entry
        named = {
            "scene_id": row.scene_id,
            "snippet_id": row.snippet_id,
            "source_sample_key": row.sample_key,
            "mesh_version": mesh_version,
            "candidate_config_hash": config.candidate_config_hash,
            "oracle_config_hash": config.oracle_config_hash,
            "rollout_config_hash": config.rollout_config_hash,
            "source_offline_store_manifest_hash": entry.source_manifest_hash,
            "split_manifest_hash": entry.split_manifest_hash,
            "source_cache_version": entry.source_cache_version,
        }
        made_up = SyntheticRecords(
            sources=1,
            targets=1,
            recipes=("greedy",),
            chains=1,
            horizon=1,
            shell=(4, 4),
            depth_hw=(8, 8),
            dead_ends=False,
            first_sample=row.sample_index,
            split=row.split,
            seed=config.seed,
        )
        for record in made_up:
            lineage = record.lineage
            for name in ("target_id", "matched_gt_target_id"):
                if (target := getattr(lineage, name)) is not None:
                    named[name] = ":".join([row.scene_id, row.snippet_id, *target.split(":")[2:]])
            yield replace(record, lineage=replace(lineage, **named))


class WriterOfMadeUpRows(RolloutDatasetWriter):
    """Writes, validates and seals a store as its base does; the same one again is linked from ``KEPT``."""

    KEPT: dict[tuple[object, ...], tuple[Path | None, WrittenShard]] = {}  # noqa: RUF012 - one for all writers
    FOLDER: Path

    def writing(self, entry: RolloutShardEntry, store_dir: Path, **how: Any) -> Pausing[WrittenShard]:
        key = (entry.sha256, *mesh_versions(entry, self.source).items())
        if key in self.KEPT:
            kept, written = self.KEPT[key]
            if kept is not None:
                link_tree(kept, store_dir)
            yield
            return written
        # no campaign is named: none made these records, and validation would hold them against it
        context = replace(how.pop("context"), writer_config=None)
        written = yield from super().writing(entry, store_dir, context=context, **how)
        kept = self.FOLDER / f"{len(self.KEPT)}" if written.store is not None else None
        if kept is not None:
            link_tree(store_dir, kept)
        self.KEPT[key] = (kept, written)
        return written

    def generator(self, entry: RolloutShardEntry) -> Any:
        return MadeUpRows(self.config, self.source, entry)


@contextmanager
def made_up_rows(folder: Path) -> Iterator[None]:
    """Every build makes rows up, and nothing waits before it is tried again."""
    folder.mkdir()
    with ExitStack() as patched:
        patched.enter_context(patch.object(dataset_writer, "RolloutDatasetWriter", WriterOfMadeUpRows))
        for module in (chain, asset_definitions, check_definitions):
            patched.enter_context(patch.object(module, "RETRIES", dg.RetryPolicy(max_retries=1, delay=0)))
        patched.enter_context(patch.object(retries, "RETRY_AFTER_S", (0.0,)))
        patched.enter_context(patch.object(campaign_run, "RETRY_AFTER_S", (0.0,)))
        patched.enter_context(patch.object(WriterOfMadeUpRows, "FOLDER", folder, create=True))
        patched.enter_context(patch.dict(WriterOfMadeUpRows.KEPT, clear=True))
        yield


@dataclass(frozen=True)
class RunEnd:
    """How a run ended, with the message of its first failed step."""

    job: str
    partition: str | None
    ok: bool
    error: str


@dataclass
class SmallWorld:
    """The campaign in ``folder/world``; what it is made from and copied from lies beside it."""

    folder: Path
    instance: dg.DagsterInstance = field(default_factory=dg.DagsterInstance.ephemeral)
    cursors: dict[str, str | None] = field(default_factory=dict)
    run_keys: set[str] = field(default_factory=set)

    @property
    def root(self) -> Path:
        return self.folder / "world"

    @property
    def file(self) -> Path:
        return self.root / "tiny.toml"

    @property
    def source(self) -> Path:
        return self.root / "source"

    @property
    def config(self) -> CampaignConfig:
        return load_campaign(self.file)

    @property
    def layout(self) -> CampaignLayout:
        return CampaignLayout(self.root / "tiny")

    @cached_property
    def keys(self) -> CampaignKeys:
        return CampaignKeys.of(self.file)

    @cached_property
    def definitions(self) -> dg.Definitions:
        return build_definitions([self.file])

    @cached_property
    def _jobs(self) -> dict[str, dg.JobDefinition]:
        """All jobs, but of a shard's and a promotion's only what can move rows: no quality, report, or metrics."""
        shard, store = self.keys.key(names.ROLLOUT_SHARDS), self.keys.key(names.ROLLOUTS_ZARR)
        pieces = {
            names.SHARD: ({self.keys.key(asset) for asset in names.SHARD_CHAIN}, (shard, INTEGRITY_CHECKS)),
            names.PROMOTE: ({store}, (store, {})),
        }
        whole = {job: self.definitions.resolve_job_def(self.keys.job(job)) for job in (names.PLAN, *pieces)}
        return whole | {
            job: whole[job].get_subset(
                asset_selection=assets, asset_check_selection={dg.AssetCheckKey(key, check) for check in checks}
            )
            for job, (assets, (key, checks)) in pieces.items()
        }

    def make(self) -> None:
        """Write the sources of all sizes and the campaign's file."""
        for rows in ROWS:
            build_large_source(self.folder / f"source-{rows}", rows, rows_per_scene=1, rows_per_shard=1, val_every=2)
        self.root.mkdir()
        shutil.copytree(self.folder / f"source-{ROWS[0]}", self.source)
        self.file.write_text(CAMPAIGN)

    def keep(self, name: str) -> None:
        """Keep the world as it is now under a name."""
        link_world(self.root, self.folder / name)
        _copy_instance(self.instance, kept := dg.DagsterInstance.ephemeral())
        self._kept[name] = kept

    def copy_of(self, name: str) -> SmallWorld:
        """A world as it was kept, in place of this one."""
        shutil.rmtree(self.root)
        link_world(self.folder / name, self.root)
        world = replace(self, instance=dg.DagsterInstance.ephemeral(), cursors={}, run_keys=set())
        world.__dict__ |= {"_kept": self._kept, "definitions": self.definitions, "_jobs": self._jobs}
        _copy_instance(self._kept[name], world.instance)
        shard_assets._shared_writer.cache_clear()
        return world

    @cached_property
    def _kept(self) -> dict[str, dg.DagsterInstance]:
        return {}

    def append_snippet(self) -> bool:
        """Let the recording team append a row, if there is one more; the manifest comes last."""
        rows = len((self.source / INDEX_FILE).read_bytes().splitlines())
        before, larger = self.folder / f"source-{rows}", self.folder / f"source-{rows + 1}"
        if not larger.exists():
            return False
        found = [path.relative_to(larger) for path in larger.rglob("*") if path.is_file()]
        metadata = [
            path for path in found if path.name in (INDEX_FILE, MANIFEST_FILE) or path.parent.name == SPLITS_DIR
        ]
        new = [path for path in found if not (before / path).exists()]
        for path in (*new, *sorted(metadata, key=lambda path: path.name == MANIFEST_FILE)):
            (self.source / path).parent.mkdir(parents=True, exist_ok=True)
            replace_file(self.source / path, (larger / path).read_bytes())
        return True

    def edit(self, old: str, new: str) -> None:
        self.file.write_text(self.file.read_text().replace(old, new))

    def run(
        self, job: str, partition: str | None = None, tags: dict[str, str] | None = None, *, allow_fewer: bool = False
    ) -> RunEnd:
        """Run a job in this process, as the daemon would start it."""
        step = {names.SHARD: "shards", names.PROMOTE: names.ROLLOUTS_ZARR}.get(job)
        allowed = {"ops": {f"{self.keys.name}__{step}": {"config": {names.ALLOW_FEWER: True}}}} if allow_fewer else {}
        result = self._jobs[job].execute_in_process(
            instance=self.instance,
            partition_key=partition,
            run_config=QUIET | allowed,
            tags=tags or {},
            raise_on_error=False,
        )
        return RunEnd(job, partition, result.success, first_failure(result.all_events) or "")

    def tick(self, sensor: str) -> tuple[list[RunEnd], str]:
        """Evaluate a sensor and do what it asks for, as the daemon does; returns its runs, or else its reason."""
        repository = self.definitions.get_repository_def()
        cursor = self.cursors.get(sensor)
        with dg.build_sensor_context(instance=self.instance, cursor=cursor, repository_def=repository) as context:
            # the daemon's context has this too, because its instance is on a disk
            vars(context)["caching_dynamic_partitions_loader"] = CachingDynamicPartitionsLoader(self.instance)
            result = repository.get_sensor_def(f"{self.keys.name}_{sensor}").evaluate_tick(context)
        self.cursors[sensor] = result.cursor
        for event in result.asset_events:
            self.instance.report_runless_asset_event(event)
        for request in result.dynamic_partitions_requests or ():
            self.instance.add_dynamic_partitions(request.partitions_def_name, request.partition_keys)
        ends = []
        for request in result.run_requests or ():
            if request.run_key not in self.run_keys:
                self.run_keys.add(str(request.run_key))
                job = str(request.job_name or names.PROMOTE).removeprefix(f"{self.keys.name}_")
                if job not in self._jobs:
                    continue  # it describes the store, and moves nothing
                tags = {**request.tags, names.RUN_KEY_TAG: str(request.run_key)}
                ends.append(self.run(job, request.partition_key, tags))
        return ends, result.skip_message or ""


def link_world(folder: Path, copy: Path) -> None:
    """Copy a world: stores and source by links, since every writer replaces their files, and all else as it is."""
    linked = {"source", "shards", "versions"}

    def copy_file(source: str, target: str) -> None:
        if linked & set(Path(source).relative_to(folder).parts):
            os.link(source, target)
        else:
            shutil.copy2(source, target)

    shutil.copytree(folder, copy, symlinks=True, copy_function=copy_file)


def replace_file(path: Path, content: bytes) -> None:
    """Replace a file, so that its links elsewhere keep what they have."""
    scratch = path.with_name(f".{path.name}.new")
    scratch.write_bytes(content)
    scratch.replace(path)


def _copy_instance(instance: dg.DagsterInstance, copy: dg.DagsterInstance) -> None:
    """Copy the databases of an instance that lives in memory, which is far cheaper than running its jobs again."""
    for storage in ("run_storage", "event_log_storage"):
        pair = (getattr(found, storage)._held_conn.connection.dbapi_connection for found in (instance, copy))
        source, target = pair
        source.backup(target)
