"""The plan of a campaign: which source rows each shard is built from, one JSON line per shard.

A plan only grows. Planning again after new snippets appends shards for source rows that are in none yet; lines that are
there stay as they are, byte for byte, also a last shard that is shorter than the others. Each line carries the config
and source hashes as they were when it was planned; a shard's lineage comes from there, so that new snippets do not
change the rows of old shards. A changed config replaces the plan by one with the same rows and new hashes.

A changed ``[split]`` moves scenes. Shards without a moved scene stay as they are; the rows of the others are planned
again, in shards that take the free numbers first.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from rollout_assets.campaigns.claim import claim_output_dir, refuse_other_campaign
from rollout_assets.campaigns.layout import CampaignLayout, StoredModel
from rollout_assets.campaigns.requested_targets import targets_without_row
from rollout_assets.config import CampaignConfig, Natural, Split, canonical_json
from rollout_assets.config.problems import problems_text
from rollout_assets.errors import CampaignError, ShardDrift
from rollout_assets.files import file_lock, publish_bytes, time_name
from rollout_assets.sources.layout import IndexRow
from rollout_assets.sources.mesh_digests import MeshDigests
from rollout_assets.sources.scene_splits import scene_splits
from rollout_assets.sources.vin_store import VinOfflineStore

ROLLOUT_SHARD_MANIFEST_VERSION: Literal["rollout-shard-manifest-v2"] = "rollout-shard-manifest-v2"
"""Version label for rollout generation JSONL shard manifests."""

PLAN_PATIENCE_S = 30.0
"""How long planning waits for another planner, which takes moments."""


_SHOWN = 3


class RolloutShardRow(StoredModel):
    """One VIN offline source row that a rollout shard is built from."""

    order: Natural
    sample_index: Natural
    sample_key: str
    scene_id: str
    snippet_id: str
    split: Split
    source_shard_id: str
    source_shard_row: Natural
    source_split: Split | None = Field(default=None, exclude_if=lambda split: split is None)
    """The source's own split, where the campaign's is another one."""

    @property
    def own_split(self) -> Split:
        """The split that the source itself gives the row."""
        return self.source_split or self.split

    @classmethod
    def of(cls, order: int, row: IndexRow) -> RolloutShardRow:
        """The row of a source index, at its place in a shard."""
        same = row.model_dump(exclude={"shard_id", "row"})
        return cls(order=order, **same, source_shard_id=row.shard_id, source_shard_row=row.row)

    def is_row(self, row: IndexRow) -> bool:
        """Whether a source row is still the one that was planned, whatever split a campaign puts it into."""
        return self == RolloutShardRow.of(self.order, row.in_split(self.split))


class RolloutShardEntry(StoredModel):
    """One deterministic rollout generation shard entry."""

    manifest_version: Literal["rollout-shard-manifest-v2"] = ROLLOUT_SHARD_MANIFEST_VERSION
    shard_id: Annotated[str, Field(pattern=r"^shard-\d{6,}$")]
    split: Split
    rows: tuple[RolloutShardRow, ...] = Field(min_length=1)
    writer_config_hash: str
    source_manifest_hash: str
    source_cache_version: str
    split_manifest_hash: str
    source_store_dir: str

    def to_json(self) -> bytes:
        """One line of the plan, newline included."""
        return canonical_json(self.model_dump(mode="json")) + b"\n"

    @property
    def sha256(self) -> str:
        """Digest of the line: what a finished shard was built for."""
        return hashlib.sha256(self.to_json()).hexdigest()

    def config_change(self, config: CampaignConfig) -> str | None:
        """How the campaign was edited since this shard was planned; None if in no way that changes a stored byte."""
        if self.writer_config_hash == config.writer_config_hash:
            return self.split_change(config)
        planned, present = self.writer_config_hash[:12], config.writer_config_hash[:12]
        return f"planned for writer config {planned}, the campaign now has {present}"

    def split_change(self, config: CampaignConfig) -> str | None:
        """A scene of this shard that the campaign's ``[split]`` puts elsewhere, in words; None if there is none."""
        splits = scene_splits(config.split)
        for row in self.rows:
            split = splits.split_of(row.scene_id, row.own_split)
            if split != row.split:
                now = "not listed" if split is None else f"in {split}"
                return f"planned with scene {row.scene_id} in {row.split}; by the campaign's [split] it is now {now}"
        return None


@dataclass(frozen=True)
class ShardPlan:
    """A plan as it stands after planning: all entries, how many are new, and what it replaced, if anything.

    ``targets_without_row`` are the campaign's explicit targets that name no row of its source.
    """

    path: Path
    entries: tuple[RolloutShardEntry, ...]
    new: int
    replaced: Path | None
    targets_without_row: tuple[str, ...] = ()

    @property
    def num_rows(self) -> int:
        """Source rows in all shards."""
        return sum(len(entry.rows) for entry in self.entries)


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
        raise CampaignError(f"{store.root}: was opened with other splits than the campaign's; use open_source(config)")
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
    layout = CampaignLayout(config.shards.output_dir)
    store = store or open_source(config)
    without_row = targets_without_row(config, store)
    with file_lock(layout.lock("plan"), str(layout.plan), patience_s=PLAN_PATIENCE_S):
        refuse_other_campaign(config)
        before = layout.plan.read_bytes() if layout.plan.exists() else b""
        existing = () if anew else _of_config(_parse(layout.plan, before), config, store)
        entries = plan_rollout_shards(config, existing, store=store)
        if not entries:
            raise CampaignError(
                f"{store.root}: no source rows in split {', '.join(config.source.splits)}; nothing to plan"
            )
        after = b"".join(entry.to_json() for entry in entries)
        claim_output_dir(config)
        replaced = None
        if not after.startswith(before):
            layout.replaced_plans.mkdir(parents=True, exist_ok=True)
            replaced = layout.replaced_plans / f"plan.{time_name()}.jsonl"
            publish_bytes(replaced, before)
        if after != before:
            publish_bytes(layout.plan, after)
    new = len(set(after.splitlines()) - set(before.splitlines()))
    return ShardPlan(layout.plan, entries, new, replaced, without_row)


def read_rollout_shard_manifest(config: CampaignConfig) -> tuple[RolloutShardEntry, ...]:
    """The entries of a campaign's plan; a missing or broken plan is a ``CampaignError``."""
    refuse_other_campaign(config)
    path = CampaignLayout(config.shards.output_dir).plan
    try:
        return _parse(path, path.read_bytes())
    except FileNotFoundError:
        raise CampaignError(f"{path}: no plan yet; 'rollout-assets campaign plan' makes one") from None


def shard_id_of(number: int) -> str:
    """``shard-000003``."""
    return f"shard-{number:06d}"


def entry_of(config: CampaignConfig, shard_id: str) -> RolloutShardEntry:
    """One entry of a campaign's plan by shard id."""
    entries = {entry.shard_id: entry for entry in read_rollout_shard_manifest(config)}
    refuse_unplanned([shard_id], list(entries))
    return entries[shard_id]


def refuse_unplanned(shard_ids: Sequence[str], planned: Sequence[str]) -> None:
    """Raise ``CampaignError`` if one of some shards is not among the planned ones."""
    unplanned = [shard_id for shard_id in shard_ids if shard_id not in planned]
    if unplanned:
        raise CampaignError(f"no {', '.join(unplanned)} in the plan; it has {planned[0]} to {planned[-1]}")


def open_source(config: CampaignConfig) -> VinOfflineStore:
    """The campaign's source store, its rows in the campaign's splits."""
    digests = MeshDigests(CampaignLayout(config.shards.output_dir).mesh_digests)
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
            f"{store.root}: {len(changed)} planned row(s) are not in the source as planned: {listed}; "
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
        "source_store_dir": str(store.root),
    }


def _parse(path: Path, data: bytes) -> tuple[RolloutShardEntry, ...]:
    entries = []
    for number, line in enumerate(data.splitlines(), start=1):
        try:
            entries.append(RolloutShardEntry.model_validate_json(line))
        except ValidationError as error:
            raise CampaignError(f"{path}:{number}: not a shard entry: {problems_text(error)}") from None
    if [entry.shard_id for entry in entries] != [shard_id_of(number) for number in range(len(entries))]:
        raise CampaignError(f"{path}: shard ids must count from shard-000000 on; restore the plan from plans/")
    return tuple(entries)
