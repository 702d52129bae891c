"""Everything that must hold for a shard before it may be promoted, as findings under the name of the check they fail.

Knows nothing of Dagster: the asset checks report it, and ``validated_shards`` refuses a shard with any finding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from rollout_assets.campaigns.check_names import (
    CONTENT_DIGESTS,
    INTEGRITY_CHECKS,
    LINEAGE_HASHES,
    ROWS_ACCOUNTED_FOR,
    SCHEMA_AND_LINKAGE,
)
from rollout_assets.campaigns.layout import STORE_NAME, CampaignLayout
from rollout_assets.campaigns.markers import ShardOwner, damage, read_owner
from rollout_assets.campaigns.plan import RolloutShardEntry
from rollout_assets.config import CampaignConfig
from rollout_assets.errors import StoreDamaged
from rollout_assets.files import stamp_tree
from rollout_assets.rollouts.zarr_store.findings import Finding
from rollout_assets.rollouts.zarr_store.reader import RolloutZarrStoreReader
from rollout_assets.rollouts.zarr_store.validation import validate_rollout_zarr_store


@dataclass(frozen=True)
class ShardIntegrity:
    """All findings of a shard by check; ``owner`` is None when its markers cannot be read."""

    shard_id: str
    owner: ShardOwner | None
    num_candidates: int
    findings: dict[str, tuple[Finding, ...]]

    @property
    def ok(self) -> bool:
        """Whether nothing was found."""
        return not any(self.findings.values())

    def all_findings(self) -> tuple[Finding, ...]:
        """Every finding, in the order of the checks."""
        return tuple(finding for found in self.findings.values() for finding in found)


def examine_shard(config: CampaignConfig, entry: RolloutShardEntry) -> ShardIntegrity:
    """Read every byte of a shard and hold it against its markers, the plan and the campaign.

    Within one process a shard whose files have kept size and time is not read again: its checks and its validation are
    neighbours in a run. Every other process reads it all.
    """
    shard_dir = CampaignLayout(config.shards.output_dir).shard(entry.shard_id)
    return _examine(config, entry, shard_dir, stamp_tree(shard_dir) if shard_dir.is_dir() else "")


@lru_cache(maxsize=2)
def _examine(config: CampaignConfig, entry: RolloutShardEntry, shard_dir: Path, _stamp: str) -> ShardIntegrity:
    try:
        owner = read_owner(shard_dir)
    except StoreDamaged as error:
        missing = "not built yet" if not shard_dir.exists() else error.problem
        finding = Finding("finished", entry.shard_id, missing)
        return ShardIntegrity(entry.shard_id, None, 0, dict.fromkeys(INTEGRITY_CHECKS, (finding,)))
    store_dir = shard_dir / STORE_NAME
    found: tuple[Finding, ...] = ()
    candidates = 0
    if owner.store is not None and store_dir.is_dir():
        result = validate_rollout_zarr_store(store_dir, deep=True)
        found, candidates = result.findings, result.num_candidates
    digests = [finding for finding in found if finding.check == CONTENT_DIGESTS]
    digests += [Finding("bytes", entry.shard_id, problem) for problem in damage(shard_dir, owner, deep=True)]
    return ShardIntegrity(
        entry.shard_id,
        owner,
        candidates,
        {
            SCHEMA_AND_LINKAGE: tuple(finding for finding in found if finding.check != CONTENT_DIGESTS),
            CONTENT_DIGESTS: tuple(digests),
            LINEAGE_HASHES: tuple(_guarded(_lineage(config, entry, owner))),
            ROWS_ACCOUNTED_FOR: tuple(_guarded(_rows(config, entry, owner))),
        },
    )


def open_shard(config: CampaignConfig, shard_id: str) -> RolloutZarrStoreReader | None:
    """The store of a shard; None when all its rows were skipped."""
    store_dir = CampaignLayout(config.shards.output_dir).shard(shard_id) / STORE_NAME
    return _opened(store_dir, stamp_tree(store_dir)) if store_dir.is_dir() else None


@lru_cache(maxsize=2)
def _opened(store_dir: Path, _stamp: str) -> RolloutZarrStoreReader:
    """Opening costs more than reading a tiny shard, and a shard's checks are neighbours in a run."""
    return RolloutZarrStoreReader(store_dir)


def _guarded(findings: Iterator[Finding]) -> Sequence[Finding]:
    """What could be found before a damaged store ended the search, and that it did."""
    found: list[Finding] = []
    try:
        found.extend(findings)
    except StoreDamaged as error:
        found.append(Finding("readable", error.where, error.problem))
    return found


def _lineage(config: CampaignConfig, entry: RolloutShardEntry, owner: ShardOwner) -> Iterator[Finding]:
    for where, had in (("_owner.json", owner.writer_config_hash), ("plan.jsonl", entry.writer_config_hash)):
        if had != config.writer_config_hash:
            yield _differs(f"{where} writer_config_hash", None, config.writer_config_hash, had)
    if owner.entry_sha256 != entry.sha256:
        yield _differs("_owner.json entry_sha256", None, entry.sha256, owner.entry_sha256)
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
    for path, wanted in expected.items():
        table, column = path.split("/")
        values = reader.table(table, columns=(column,), decode=True)[column].to_list()
        wrong = [row for row, value in enumerate(values) if value != wanted]
        if wrong:
            yield Finding("hash", path, f"must be {wanted[:16]}", wrong[0], len(wrong), str(values[wrong[0]])[:16])


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


def _differs(where: str, row: int | None, wanted: str, had: str) -> Finding:
    return Finding("hash", where, f"must be {wanted[:16]}", row, 1, had[:16])
