"""A rollout store from collected records: kept one file each until all are there, then streamed in input order.

A record is on disk before its result line is written, so whatever a kill leaves, every line has its record. The store
appears whole, under its own name, and only when no request is without a result; then the
files are removed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rollout_assets.collection.configs import RolloutCollectionConfig
from rollout_assets.collection.inputs import read_requests, request_key
from rollout_assets.collection.result_files import named
from rollout_assets.collection.resume import RunFacts, read_facts
from rollout_assets.config import CampaignConfig
from rollout_assets.errors import CollectionError, ConfigError, PayloadDamaged, StoreExists
from rollout_assets.files import publish_bytes, remove_path, rename_path, scratch_path, sync_path, sync_tree
from rollout_assets.metrics.columns import RolloutId
from rollout_assets.parsing import parse_json, read_regular
from rollout_assets.progress import ProgressEvent, ProgressSink
from rollout_assets.rollouts.remote.codec import from_text, unpack
from rollout_assets.rollouts.trace import RolloutZarrRecord
from rollout_assets.rollouts.zarr_store.attributes import RolloutZarrStoreConfig
from rollout_assets.rollouts.zarr_store.manifest import RolloutStoreInvocation, RolloutStoreManifestContext
from rollout_assets.rollouts.zarr_store.validation import validate_rollout_zarr_store
from rollout_assets.rollouts.zarr_store.writer import RolloutZarrStoreWriter

FILES_PER_FOLDER = 1_000


class CollectedStore:
    """The store of one collection, and the records that wait for it."""

    def __init__(self, config: RolloutCollectionConfig, campaign: CampaignConfig) -> None:
        assert config.store_dir is not None
        self._config, self._campaign = config, campaign
        self._records_dir = config.beside("_records")
        self.path = config.store_dir

    def refuse_existing(self) -> None:
        """Raise ``StoreExists`` if something lies where a new collection's store will be."""
        if self.path.exists():
            raise StoreExists(f"{self.path}: already exists; choose another destination or remove it first")

    def refuse_other_campaign(self, identity: Mapping[str, Any]) -> None:
        """Raise ``ConfigError`` if the agent runs another campaign than the one whose layout the store has."""
        for name, digest in self._campaign.hashes().items():
            theirs = identity["config_hashes"].get(name)
            if theirs != digest:
                raise ConfigError(
                    f"campaign {self._campaign.name}: {name} hash {digest[:12]}, but requests are run for "
                    f"{identity['campaign']} with {str(theirs)[:12]}; give the campaign that the servers run"
                )

    def keep(self, key: RolloutId, record: str) -> None:
        """Put one record on disk; it is there when this returns, or not at all."""
        path = self._file(key)
        if not path.parent.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            sync_path(path.parent.parent)
        publish_bytes(path, record.encode("ascii"))

    def is_published(self) -> bool:
        """Whether this collection's store is in place; another store there is ``StoreExists``."""
        recorded = read_facts(self._config.run_fpath).store_manifest
        if not self.path.exists():
            return False
        if recorded is None or recorded != _manifest_of(self.path):
            self.refuse_existing()
        remove_path(self._records_dir)
        return True

    def publish(self, facts: RunFacts, progress: ProgressSink) -> None:
        """Write, validate deeply and publish the store; then the waiting records are removed."""
        scratch = scratch_path(self.path)
        remove_path(scratch)
        layout = RolloutZarrStoreConfig.from_campaign(self._campaign)
        with RolloutZarrStoreWriter(scratch, layout, context=self._context()) as writer:
            for done, record in enumerate(self._records(), start=1):
                writer.append(record)
                progress(ProgressEvent("writing the store", done, facts.rows, unit="records"))
            written = writer.finish()
        validate_rollout_zarr_store(scratch, deep=True, profile="own").raise_if_wrong()
        sync_tree(scratch)
        facts.model_copy(update={"store_manifest": written.manifest_sha256}).publish(self._config.run_fpath)
        rename_path(scratch, self.path)
        remove_path(self._records_dir)

    def _context(self) -> RolloutStoreManifestContext:
        assert self._config.campaign is not None
        invocation = RolloutStoreInvocation.of_campaign(self._config.campaign)
        return RolloutStoreManifestContext.here(self._campaign, invocation)

    def _records(self) -> Iterator[RolloutZarrRecord]:
        for request in read_requests(self._config.materialized_jsonl_fpath):
            path = self._file(request_key(request))
            try:
                yield unpack(RolloutZarrRecord, from_text(path.read_text("ascii")))
            except (OSError, PayloadDamaged) as error:
                raise CollectionError(
                    f"{path}: the record of {named(request_key(request))} cannot be read: {error}; "
                    f"remove its line from {self._config.output_jsonl_fpath.name} and resume"
                ) from None

    def _file(self, key: RolloutId) -> Path:
        agent, task, rollout = key
        folder = self._records_dir / f"{task // FILES_PER_FOLDER:06d}"
        return folder / f"{task:08d}-{rollout:06d}-{agent}.record"


def _manifest_of(store: Path) -> str | None:
    try:
        return parse_json(read_regular(store / "zarr.json"))["attributes"]["manifest_sha256"]
    except (OSError, ValueError, KeyError):
        return None
