"""The plan of a campaign: which source rows each shard is built from, one JSON line per shard.

A plan only grows. Planning again after new snippets appends shards for source rows that are in none yet; lines that are
there stay as they are, byte for byte, also a last shard that is shorter than the others. Each line carries the config
and source hashes as they were when it was planned; a shard's lineage comes from there, so that new snippets do not
change the rows of old shards. A changed config replaces the plan by one with the same rows and new hashes.

A changed ``[split]`` moves scenes. Shards without a moved scene stay as they are; the rows of the others are planned
again, in shards that take the free numbers first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from rollout_assets.campaigns.claim import claim_output_dir, refuse_other_campaign
from rollout_assets.campaigns.columns.kept import content_stamp, keep_columns, kept_columns, read_stamped
from rollout_assets.campaigns.columns.plan_columns import (
    LineWriter,
    PlanColumns,
    PlanGrowth,
    drifted,
    read_columns,
)
from rollout_assets.campaigns.guards.inputs import planned_meshes, record_meshes
from rollout_assets.campaigns.layout import CampaignLayout
from rollout_assets.campaigns.objects.publishing import publish_plan
from rollout_assets.campaigns.objects.working_copy import refresh_plan
from rollout_assets.campaigns.plan_entry import PlannedShards, RolloutShardEntry, RolloutShardRow, shard_id_of
from rollout_assets.campaigns.requested_targets import targets_without_row
from rollout_assets.config import CampaignConfig
from rollout_assets.config.problems import problems_text
from rollout_assets.errors import CampaignError, ShardBusy, ShardDrift
from rollout_assets.files import file_lock, publish_bytes, time_name
from rollout_assets.sources.layout import IndexRow
from rollout_assets.sources.mesh_digests import MeshDigests
from rollout_assets.sources.vin_store import VinOfflineStore

PLAN_PATIENCE_S = 30.0
"""How long planning waits for another planner, which takes moments."""


_TRIES = 10
"""Attempts at planning while other machines replace the plan."""

_SHOWN = 3


@dataclass(frozen=True)
class ShardPlan:
    """A plan as it stands after planning: all entries, how many are new, and what it replaced, if anything.

    ``targets_without_row`` are the campaign's explicit targets that name no row of its source. ``scenes_without_mesh``
    have no mesh file, and of those ``scenes_that_had_mesh`` had one when they were planned.
    """

    path: Path
    entries: PlannedShards
    new: int
    replaced: Path | None
    targets_without_row: tuple[str, ...] = ()
    scenes_without_mesh: tuple[str, ...] = ()
    scenes_that_had_mesh: tuple[str, ...] = ()

    @property
    def num_rows(self) -> int:
        """Source rows in all shards."""
        return self.entries.columns.num_rows

    @property
    def rows_without_mesh(self) -> int:
        """Source rows whose scene has no mesh file."""
        columns, scenes = self.entries.columns, set(self.scenes_without_mesh)
        without = [name in scenes for name in columns.names["scenes"]]
        return int(np.array(without, np.bool_)[columns.scene].sum())


def plan_rollout_shards(
    config: CampaignConfig, existing: Sequence[RolloutShardEntry] = (), *, store: VinOfflineStore | None = None
) -> tuple[RolloutShardEntry, ...]:
    """Plan deterministic source-row rollout shard entries from a writer config.

    Returns ``existing`` as they are, followed by shards for rows that are in none of them: per split in index order,
    ``rows_per_shard`` each. The rows of existing shards with a scene that has changed its split are planned again.
    """
    store = store or open_source(config)
    refuse_source_drift(existing, store)
    places = [None if entry.split_change(config) else entry for entry in existing]
    planned = {row.sample_index for entry in places if entry is not None for row in entry.rows}
    entries = _numbered(places, _new_entries(config, store, planned))
    if any(entry.split_change(config) for entry in entries):
        raise CampaignError(
            f"{store.location}: was opened with other splits than the campaign's; use open_source(config)"
        )
    return entries


def _new_entries(config: CampaignConfig, store: VinOfflineStore, planned: set[int]) -> Iterator[RolloutShardEntry]:
    """Shards of the rows that are not planned yet, without numbers of their own."""
    for split in dict.fromkeys(config.source.splits):
        rows = [row for row in store.rows(split) if row.sample_index not in planned]
        origin = _origin(config, store, split)
        for start in range(0, len(rows), config.shards.rows_per_shard):
            part = rows[start : start + config.shards.rows_per_shard]
            yield RolloutShardEntry(
                shard_id=shard_id_of(0),
                split=split,
                rows=tuple(RolloutShardRow.of(order, row) for order, row in enumerate(part)),
                source_cache_version=str(store.version),
                **origin,
            )


def _numbered(
    places: Sequence[RolloutShardEntry | None], new: Iterable[RolloutShardEntry]
) -> tuple[RolloutShardEntry, ...]:
    """New shards at the free places, then at the end; a place that is still free goes to the last shard."""
    waiting = deque(new)
    filled = [waiting.popleft() if entry is None and waiting else entry for entry in places]
    filled += waiting
    while None in filled:
        last = filled.pop()
        if last is not None:
            filled[filled.index(None)] = last
    entries = (entry for entry in filled if entry is not None)
    return tuple(entry.model_copy(update={"shard_id": shard_id_of(number)}) for number, entry in enumerate(entries))


def write_rollout_shard_manifest_from_config(
    config: CampaignConfig, *, store: VinOfflineStore | None = None, anew: bool = False
) -> ShardPlan:
    """Plan and write a rollout shard JSONL manifest.

    A plan of the same config grows; one of another config is replaced by the same rows under the new hashes; with
    ``anew`` nothing of the old plan is kept but a copy. Nothing is written when nothing changed. The first planning
    claims the output folder for the campaign; a folder that belongs to another campaign is a ``CampaignError``.
    """
    layout = CampaignLayout.of(config)
    store = store or open_source(config)
    without_row = targets_without_row(config, store)
    for _ in range(_TRIES):
        if (plan := _plan_once(config, layout, store, anew)) is not None:
            return replace(plan, targets_without_row=without_row)
    raise ShardBusy(f"{layout.plan}: another machine replaced it {_TRIES} times meanwhile; plan again when it is done")


def _plan_once(config: CampaignConfig, layout: CampaignLayout, store: VinOfflineStore, anew: bool) -> ShardPlan | None:
    """Plan and write; None if the plan in object storage is no longer the one that was read."""
    with file_lock(layout.lock("plan"), str(layout.plan), patience_s=PLAN_PATIENCE_S):
        refresh_plan(layout)
        refuse_other_campaign(config)
        before = layout.plan.read_bytes() if layout.plan.exists() else None
        found = None if anew else _read_plan(layout)
        existing = None if found is None else found[1]
        planned = _plan(config, existing, store)
        if not planned:
            raise CampaignError(
                f"{store.location}: no source rows in split {', '.join(config.source.splits)}; nothing to plan"
            )
        after = b"".join(line + b"\n" for line in planned.lines)
        claim_output_dir(config)
        scenes, with_mesh = planned.columns.names["scenes"], store.meshes.scenes()
        record_meshes(layout, scenes, with_mesh, anew=anew)
        replaced = None
        if before is not None and not after.startswith(before):
            layout.replaced_plans.mkdir(parents=True, exist_ok=True)
            replaced = layout.replaced_plans / f"plan.{time_name()}.jsonl"
            publish_bytes(replaced, before)
        if after != before:
            if not publish_plan(layout, before, after, replaced):
                return None
            publish_bytes(layout.plan, after)
            keep_columns(layout.plan_columns, content_stamp(layout.plan), planned.columns.to_columns())
    old = (before or b"").splitlines()
    new = len(planned) - len(old) if replaced is None else len(set(planned.lines) - set(old))
    without_mesh = tuple(scene for scene in scenes if scene not in with_mesh)
    had_mesh = planned_meshes(layout).intersection(without_mesh) if without_mesh else ()
    return ShardPlan(
        layout.plan,
        planned,
        new,
        replaced,
        scenes_without_mesh=without_mesh,
        scenes_that_had_mesh=tuple(scene for scene in without_mesh if scene in had_mesh),
    )


def _plan(config: CampaignConfig, existing: PlannedShards | None, store: VinOfflineStore) -> PlannedShards:
    """What ``plan_rollout_shards`` plans, without a model per row where the plan only grows."""
    if existing is None or _only_grows(config, existing.columns):
        return _grown(config, existing, store)
    entries = plan_rollout_shards(config, _of_config(tuple(existing), config, store), store=store)
    return _of_lines(CampaignLayout.of(config).plan, [entry.to_json()[:-1] for entry in entries])


def _only_grows(config: CampaignConfig, columns: PlanColumns) -> bool:
    """Whether a plan is of this very config, without a scene that has changed its split."""
    same = set(columns.names["configs"]) <= {config.writer_config_hash}
    return same and columns.canonical and not columns.moved_rows(config.split).any()


def _grown(config: CampaignConfig, existing: PlannedShards | None, store: VinOfflineStore) -> PlannedShards:
    """A plan with the rows that are in none of its shards at its end, line by line."""
    rows = store.rows()
    planned = np.zeros(len(rows), np.bool_)
    if existing is not None:
        suspects = drifted(existing.columns, existing.lines, rows)
        refuse_source_drift((existing[number] for number in suspects), store)
        planned[existing.columns.sample] = True
    growth = PlanGrowth((), None) if existing is None else PlanGrowth(existing.lines, existing.columns)
    for split in dict.fromkeys(config.source.splits):
        new = [row for row in store.rows(split) if not planned[row.sample_index]]
        writer = LineWriter(split, str(store.version), _origin(config, store, split))
        growth.add(new, config.shards.rows_per_shard, writer)
    lines, columns = growth.finish()
    if columns.moved_rows(config.split).any():
        raise CampaignError(
            f"{store.location}: was opened with other splits than the campaign's; use open_source(config)"
        )
    return PlannedShards(lines, columns)


def read_rollout_shard_manifest(config: CampaignConfig) -> PlannedShards:
    """The entries of a campaign's plan; a missing or broken plan is a ``CampaignError``."""
    layout = CampaignLayout.of(config)
    refresh_plan(layout)
    refuse_other_campaign(config)
    plan = _read_plan(layout)
    if plan is None:
        raise CampaignError(f"{layout.plan}: no plan yet; 'rollout-assets campaign plan' makes one")
    return plan[1]


def entry_of(config: CampaignConfig, shard_id: str) -> RolloutShardEntry:
    """One entry of a campaign's plan by shard id; of the plan no other line is parsed."""
    layout = CampaignLayout.of(config)
    refresh_plan(layout)
    refuse_other_campaign(config)
    path = layout.plan
    number = shard_id.removeprefix("shard-")
    if number.isdecimal() and path.exists():
        line = next(islice(path.open("rb"), int(number), None), b"")
        with suppress(ValidationError):
            entry = RolloutShardEntry.model_validate_json(line)
            if entry.shard_id == shard_id:
                return entry
    entries = read_rollout_shard_manifest(config)
    refuse_unplanned([shard_id], [shard_id_of(place) for place in range(len(entries))])
    return entries[int(number)]


def refuse_unplanned(shard_ids: Sequence[str], planned: Sequence[str]) -> None:
    """Raise ``CampaignError`` if one of some shards is not among the planned ones."""
    unplanned = [shard_id for shard_id in shard_ids if shard_id not in planned]
    if unplanned:
        raise CampaignError(f"no {', '.join(unplanned)} in the plan; it has {planned[0]} to {planned[-1]}")


def open_source(config: CampaignConfig) -> VinOfflineStore:
    """The campaign's source store, its rows in the campaign's splits."""
    digests = MeshDigests(CampaignLayout.of(config).mesh_digests)
    return VinOfflineStore.open(
        config.source.store_dir,
        config.source.mesh_dirs,
        digests,
        splits=config.split,
        simplify=config.oracle.simplify,
    )


def planned_rows(entry: RolloutShardEntry, config: CampaignConfig, store: VinOfflineStore) -> tuple[IndexRow, ...]:
    """The source rows of an entry; ``ShardDrift`` if campaign or rows are not those that it was planned for.

    A campaign that may not write into the output folder is refused here too, before a shard is touched.
    """
    refuse_other_campaign(config)
    refuse_config_drift(entry, config)
    refuse_source_drift((entry,), store)
    return tuple(store.row(row.sample_index).in_split(row.split) for row in entry.rows)


def refuse_config_drift(entry: RolloutShardEntry, config: CampaignConfig) -> None:
    """Raise ``ShardDrift`` if an entry was planned for another writer config."""
    change = entry.config_change(config)
    if change is not None:
        raise ShardDrift(f"{entry.shard_id}: {change}; 'rollout-assets campaign plan' plans its rows for it")


def refuse_source_drift(entries: Iterable[RolloutShardEntry], store: VinOfflineStore) -> None:
    """Raise ``ShardDrift`` if a planned row is no longer the one in the source; new rows are no drift."""
    changed = list(_changed_rows(entries, store))
    if changed:
        listed = "; ".join(changed[:_SHOWN]) + (f"; and {len(changed) - _SHOWN} more" if len(changed) > _SHOWN else "")
        raise ShardDrift(
            f"{store.location}: {len(changed)} planned row(s) are not in the source as planned: {listed}; "
            f"'rollout-assets campaign plan --anew' starts a new plan"
        )


def _changed_rows(entries: Iterable[RolloutShardEntry], store: VinOfflineStore) -> Iterator[str]:
    rows = store.rows()
    for entry in entries:
        for row in entry.rows:
            present = rows[row.sample_index] if row.sample_index < len(rows) else None
            if present is None:
                yield f"{entry.shard_id}: sample {row.sample_index} {row.sample_key!r} is gone"
            elif not row.is_row(present):
                yield f"{entry.shard_id}: sample {row.sample_index} was {row.sample_key!r}, is {present.sample_key!r}"


def _of_config(
    entries: tuple[RolloutShardEntry, ...], config: CampaignConfig, store: VinOfflineStore
) -> tuple[RolloutShardEntry, ...]:
    """The same shards under this config's hash; unchanged if they already are."""
    if all(entry.writer_config_hash == config.writer_config_hash for entry in entries):
        return entries
    origins = {split: _origin(config, store, split) for split in {entry.split for entry in entries}}
    return tuple(entry.model_copy(update=origins[entry.split]) for entry in entries)


def _origin(config: CampaignConfig, store: VinOfflineStore, split: str) -> dict[str, Any]:
    """What an entry says about the campaign and the source that it is planned for."""
    return {
        "writer_config_hash": config.writer_config_hash,
        "source_manifest_hash": store.source_manifest_hash,
        "split_manifest_hash": store.split_manifest_hash(split),
        "source_store_dir": str(store.location),
    }


def _read_plan(layout: CampaignLayout) -> tuple[bytes, PlannedShards] | None:
    """The plan's bytes and its entries; its columns are made again only when the file has changed."""
    try:
        data, stamp = read_stamped(layout.plan)
    except FileNotFoundError:
        return None
    lines, kept = data.splitlines(), kept_columns(layout.plan_columns, stamp)
    if not lines:
        raise CampaignError(
            f"{layout.plan}: is empty; restore it from {layout.replaced_plans.name}/ or a backup, or let "
            "'rollout-assets campaign plan --anew' divide all rows again"
        )
    if kept is not None:
        return data, PlannedShards(lines, PlanColumns.of_columns(kept))
    planned = _of_lines(layout.plan, lines)
    keep_columns(layout.plan_columns, stamp, planned.columns.to_columns())
    return data, planned


def _of_lines(path: Path, lines: Sequence[bytes]) -> PlannedShards:
    def parse(number: int, line: bytes) -> tuple[RolloutShardEntry, bytes]:
        try:
            entry = RolloutShardEntry.model_validate_json(line)
        except ValidationError as error:
            raise CampaignError(f"{path}:{number}: not a shard entry: {problems_text(error)}") from None
        if entry.shard_id != shard_id_of(number - 1):
            raise CampaignError(f"{path}: shard ids must count from shard-000000 on; restore the plan from plans/")
        return entry, entry.to_json()[:-1]

    return PlannedShards(lines, read_columns(lines, parse))
