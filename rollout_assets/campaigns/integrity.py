"""Everything that must hold for a shard before it may be promoted, as findings by the check that they fail.

The asset checks report the findings, and ``validated_shards`` refuses a shard with any finding. Within one process the
bytes of a shard are read again only after its files have changed size or time; every other process reads them all.

A shard without findings is not validated again while every byte of it is the very same: the bytes are read and compared
with the seal, and what was found of exactly these bytes is found again, with the time at which they were examined.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from rollout_assets.campaigns import check_names
from rollout_assets.campaigns.derived import ShardResult
from rollout_assets.campaigns.guards.inputs import ALLOW_FEWER
from rollout_assets.campaigns.layout import STORE_NAME, CampaignLayout
from rollout_assets.campaigns.markers import ShardOwner, damage, read_owner
from rollout_assets.campaigns.objects.working_copy import fetch_planned_shard, fetch_shard
from rollout_assets.campaigns.plan_entry import RolloutShardEntry
from rollout_assets.campaigns.versions import current_version
from rollout_assets.config import CampaignConfig
from rollout_assets.errors import CampaignError, StoreDamaged
from rollout_assets.files import now_utc, stamp_tree
from rollout_assets.rollouts.zarr_store.findings import Finding
from rollout_assets.rollouts.zarr_store.reader import RolloutZarrStoreReader
from rollout_assets.rollouts.zarr_store.validation import validate_rollout_zarr_store

REMEMBERED_SHARDS = 100_000
"""Shards whose bytes a process remembers to have read: a short text each."""


@dataclass(frozen=True)
class ShardIntegrity:
    """All findings of a shard by check; ``owner`` is None when its markers cannot be read.

    ``kept`` says that these very bytes were examined at ``examined_at``, and only compared since.
    """

    owner: ShardOwner | None
    num_candidates: int
    findings: dict[str, tuple[Finding, ...]]
    examined_at: str
    kept: bool = False

    def all_findings(self) -> tuple[Finding, ...]:
        """Every finding, in the order of the checks."""
        return tuple(finding for findings in self.findings.values() for finding in findings)


def examine_shard(
    config: CampaignConfig, entry: RolloutShardEntry, *, anew: bool = True, allow_fewer: bool = False
) -> ShardIntegrity:
    """Read every byte of a shard and compare it with its markers, the plan, the campaign and what readers have of it.

    Unless ``anew``, bytes that were examined before and had no finding are compared with their seal only. That readers
    have more of its rows is a finding, unless ``allow_fewer``.
    """
    layout = CampaignLayout.of(config)
    fetch_shard(layout, entry.shard_id, entry.sha256)
    shard_dir = layout.shard(entry.shard_id)
    found = _examined(config, entry, shard_dir, anew)
    lost = () if found.owner is None or allow_fewer else tuple(_guarded(_fewer_than_promoted(config, found.owner)))
    check = check_names.ROWS_ACCOUNTED_FOR
    return replace(found, findings=found.findings | {check: (*found.findings[check], *lost)}) if lost else found


def _examined(config: CampaignConfig, entry: RolloutShardEntry, shard_dir: Path, anew: bool) -> ShardIntegrity:
    before = shard_result(config, entry, "integrity")
    if before is not None and not anew and (found := before.find()) is not None:
        no_findings: dict[str, tuple[Finding, ...]] = dict.fromkeys(check_names.INTEGRITY_CHECKS, ())
        return ShardIntegrity(read_owner(shard_dir), int(found[0]), no_findings, found[1], kept=True)
    integrity = _examine(config, entry, shard_dir, stamp_tree(shard_dir) if shard_dir.is_dir() else "")
    if before is not None and not integrity.all_findings() and shard_result(config, entry, "integrity") == before:
        before.publish(str(integrity.num_candidates).encode())
    return integrity


def shard_result(config: CampaignConfig, entry: RolloutShardEntry, name: str, **inputs: Any) -> ShardResult | None:
    """A result derived from the present bytes of a shard; None unless they are finished and as they were sealed."""
    shard_dir = CampaignLayout.of(config).shard(entry.shard_id)
    try:
        owner = read_owner(shard_dir)
    except StoreDamaged:
        return None
    if shard_damage(shard_dir):
        return None
    return ShardResult.of(
        config, entry.shard_id, name, entry=entry.sha256, owner=owner.model_dump(mode="json"), **inputs
    )


def shard_damage(shard_dir: Path) -> tuple[str, ...]:
    """What is wrong with the bytes of a finished shard, by reading every one of them; empty if nothing is."""
    try:
        return _damage(shard_dir, stamp_tree(shard_dir))
    except StoreDamaged as error:
        return (error.problem,)


@lru_cache(maxsize=REMEMBERED_SHARDS)
def _damage(shard_dir: Path, _stamp: str) -> tuple[str, ...]:
    return tuple(damage(shard_dir, read_owner(shard_dir), deep=True))


@lru_cache(maxsize=2)
def _examine(config: CampaignConfig, entry: RolloutShardEntry, shard_dir: Path, stamp: str) -> ShardIntegrity:
    """The checks of a shard and its validation follow each other in a run, so the last results are enough."""
    try:
        owner = read_owner(shard_dir)
    except StoreDamaged as error:
        problem = "not built yet" if not shard_dir.exists() else error.problem
        finding = Finding("finished", entry.shard_id, problem)
        return ShardIntegrity(None, 0, dict.fromkeys(check_names.INTEGRITY_CHECKS, (finding,)), now_utc())
    store_dir = shard_dir / STORE_NAME
    findings: tuple[Finding, ...] = ()
    candidates = 0
    if owner.store is not None and store_dir.is_dir():
        result = validate_rollout_zarr_store(store_dir, deep=True, profile="own")
        findings, candidates = result.findings, result.num_candidates
    digests = [finding for finding in findings if finding.check == check_names.CONTENT_DIGESTS]
    digests += [Finding("bytes", entry.shard_id, problem) for problem in _damage(shard_dir, stamp)]
    return ShardIntegrity(
        owner,
        candidates,
        {
            check_names.SCHEMA_AND_LINKAGE: tuple(
                finding for finding in findings if finding.check != check_names.CONTENT_DIGESTS
            ),
            check_names.CONTENT_DIGESTS: tuple(digests),
            check_names.LINEAGE_HASHES: tuple(_guarded(_lineage(config, entry, owner))),
            check_names.ROWS_ACCOUNTED_FOR: tuple(_guarded(_rows(config, entry, owner))),
        },
        now_utc(),
    )


def open_shard(config: CampaignConfig, shard_id: str) -> RolloutZarrStoreReader | None:
    """The store of a shard; None when all its rows were skipped."""
    layout = CampaignLayout.of(config)
    store_dir = layout.shard(shard_id) / STORE_NAME
    fetch_planned_shard(layout, shard_id)
    return _opened(store_dir, stamp_tree(store_dir)) if store_dir.is_dir() else None


@lru_cache(maxsize=2)
def _opened(store_dir: Path, _stamp: str) -> RolloutZarrStoreReader:
    """Opening a tiny shard costs more than reading it, and a shard's checks follow each other in a run."""
    return RolloutZarrStoreReader(store_dir)


def _guarded(findings: Iterator[Finding]) -> Sequence[Finding]:
    """All findings up to the point where the store cannot be read, which is then the last one."""
    collected: list[Finding] = []
    try:
        collected.extend(findings)
    except StoreDamaged as error:
        collected.append(Finding("readable", error.where, error.problem))
    return collected


def _lineage(config: CampaignConfig, entry: RolloutShardEntry, owner: ShardOwner) -> Iterator[Finding]:
    for where, stored in (("_owner.json", owner.writer_config_hash), ("plan.jsonl", entry.writer_config_hash)):
        if stored != config.writer_config_hash:
            yield _differs(f"{where} writer_config_hash", config.writer_config_hash, stored)
    if owner.entry_sha256 != entry.sha256:
        yield _differs("_owner.json entry_sha256", entry.sha256, owner.entry_sha256)
    reader = open_shard(config, entry.shard_id)
    if owner.store is None or reader is None:
        return
    expected = {
        "lineage/candidate_config_id": config.candidate_config_hash,
        "lineage/oracle_config_id": config.oracle_config_hash,
        "lineage/rollout_config_id": config.rollout_config_hash,
        "sources/source_offline_store_manifest_hash_id": entry.source_manifest_hash,
        "sources/split_manifest_hash_id": entry.split_manifest_hash,
        "sources/source_cache_version_id": entry.source_cache_version,
    }
    for path, digest in expected.items():
        table, column = path.split("/")
        values = reader.table(table, columns=(column,), decode=True)[column].to_list()
        wrong = [row for row, value in enumerate(values) if value != digest]
        if wrong:
            yield Finding("hash", path, f"must be {digest[:16]}", wrong[0], len(wrong), str(values[wrong[0]])[:16])


def _rows(config: CampaignConfig, entry: RolloutShardEntry, owner: ShardOwner) -> Iterator[Finding]:
    planned = {row.sample_key: row.order for row in entry.rows}
    for row in owner.rows:
        order = planned.pop(row.sample_key, None)
        if order is None:
            yield Finding("rows", "_owner.json rows", "a row that was not planned", row.sample_index, 1, row.sample_key)
        elif not row.records and not row.skipped:
            yield Finding("rows", "_owner.json rows", "no records and no reason", order, 1, row.sample_key)
    for key, order in planned.items():
        yield Finding("rows", "_owner.json rows", "a planned row is not accounted for", order, 1, key)
    reader = open_shard(config, entry.shard_id)
    if reader is None:
        return
    stored = set(reader.table("sources", columns=("sample_key_id",), decode=True)["sample_key_id"].to_list())
    for row in owner.rows:
        if row.records and row.sample_key not in stored:
            yield Finding(
                "rows", "sources/sample_key_id", "a row with records is not in the store", None, 1, row.sample_key
            )


def _fewer_than_promoted(config: CampaignConfig, owner: ShardOwner) -> Iterator[Finding]:
    """Source rows of which readers have more rollouts, from this very entry of the plan."""
    try:
        version = current_version(config, refresh=False)
    except (CampaignError, StoreDamaged):  # the next promotion heals a damaged version, and compares the rows itself
        return
    promoted = {shard.shard_id: shard for shard in version.record.splits.get(owner.split, ())}.get(owner.shard_id)
    if promoted is None or promoted.entry_sha256 != owner.entry_sha256:
        return
    child = next((child for child in version.children if child.name == owner.split), None)
    if child is None or promoted.content_sha256 == owner.content_sha256:
        return
    reader = open_shard(config, owner.shard_id)
    had, has = _rollouts_by_sample(RolloutZarrStoreReader(child)), {} if reader is None else _rollouts_by_sample(reader)
    for row in owner.rows:
        before, now = had.get(row.sample_key, 0), has.get(row.sample_key, 0)
        if now < before:
            where = f"{version.name} {owner.split} rollouts"
            why = f" ({row.why_skipped})" if row.skipped else ""
            problem = f"readers have {before} of {row.sample_key}, the shard has {now}{why}; {ALLOW_FEWER} accepts it"
            yield Finding("rows", where, problem, row.sample_index, before - now)


def _rollouts_by_sample(reader: RolloutZarrStoreReader) -> Counter[str]:
    sources = reader.table("sources", columns=("source_row_id", "sample_key_id"), decode=True)
    keys = dict(zip(sources["source_row_id"].to_list(), sources["sample_key_id"].to_list(), strict=True))
    rows = reader.table("rollouts", columns=("source_row_id",))["source_row_id"].to_list()
    return Counter(keys[row] for row in rows)


def _differs(where: str, expected: str, stored: str) -> Finding:
    return Finding("hash", where, f"must be {expected[:16]}", None, 1, stored[:16])
