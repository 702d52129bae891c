"""A finished shard that is planned again under another number: its files are taken over, and nothing is scored again.

A changed ``[split]`` or an edited campaign that is changed back plans rows that were built before. Replaced plans say
under which numbers the very same entry stood; the shard may still lie there, or have been set aside since. It is taken
only if all its bytes are those of its seal and if it is current for the present source. Its files are linked, and only
the manifest, which names the plan's entry, and the root, which names the manifest, are written anew. Arrays, groups and
attributes are those that a build would write; what is recorded of the run is that of the run which made the rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from rollout_assets.campaigns import markers
from rollout_assets.campaigns.layout import STORE_NAME, CampaignLayout
from rollout_assets.campaigns.plan_entry import RolloutShardEntry
from rollout_assets.config import canonical_json
from rollout_assets.errors import StoreDamaged, StoreError
from rollout_assets.files import link_tree, remove_path
from rollout_assets.rollouts.zarr_store.publishing import record_shard
from rollout_assets.sources.vin_store import VinOfflineStore


@dataclass(frozen=True, eq=False)
class FormerShard:
    """A finished shard with the rows and hashes of an entry, under another number or set aside."""

    folder: Path
    owner: markers.ShardOwner

    def take_over(self, entry: RolloutShardEntry, staged: Path) -> markers.SealedStore | None:
        """Make its store that of ``entry`` below ``staged``, validated and sealed; None if no row gave a record."""
        if self.owner.store is None:
            return None
        store_dir = staged / STORE_NAME
        link_tree(self.folder / STORE_NAME, store_dir)
        record_shard(store_dir, entry.model_dump(mode="json"))
        sealed = markers.validate_and_seal(store_dir)
        if sealed.content_sha256 != self.owner.store.content_sha256:
            raise StoreDamaged(entry.shard_id, f"the content of {self.folder.name} changed while it was taken over")
        return sealed


def take_over_former(
    layout: CampaignLayout, entry: RolloutShardEntry, source: VinOfflineStore, staged: Path
) -> markers.ShardOwner | None:
    """The owner of a former shard whose store now lies below ``staged``, or None if there is none that can be used.

    A shard that another process moves away meanwhile, or that is not valid by today's rules, is passed over.
    """
    for former in former_shards(layout, entry, source):
        with suppress(OSError, StoreError):
            store = former.take_over(entry, staged)
            return former.owner.model_copy(update={"store": store, "reused_from": former.folder.name})
        remove_path(staged / STORE_NAME)
    return None


def former_shards(layout: CampaignLayout, entry: RolloutShardEntry, source: VinOfflineStore) -> Iterator[FormerShard]:
    """Finished shards with the very rows and hashes of an entry, every byte of them checked, that are still current."""
    for former in _former_entries(layout, entry):
        folders = [layout.shard(former.shard_id)] if former.shard_id != entry.shard_id else []
        for folder in (*folders, *layout.set_aside_shards(former.shard_id)):
            owner = _sound_owner(folder, former, source)
            if owner is not None:
                yield FormerShard(folder, owner)


def _former_entries(layout: CampaignLayout, entry: RolloutShardEntry) -> list[RolloutShardEntry]:
    """The entry as replaced plans have it, each number once, the newest plan first."""
    rows = canonical_json(entry.model_dump(mode="json")["rows"])
    former: dict[str, RolloutShardEntry] = {}
    for plan in sorted(layout.replaced_plans.glob("plan.*.jsonl"), reverse=True):
        for line in plan.read_bytes().splitlines():
            if rows not in line:
                continue
            with suppress(ValidationError):
                candidate = RolloutShardEntry.model_validate_json(line)
                if candidate.model_copy(update={"shard_id": entry.shard_id}) == entry:
                    former.setdefault(candidate.shard_id, candidate)
    return list(former.values())


def _sound_owner(folder: Path, former: RolloutShardEntry, source: VinOfflineStore) -> markers.ShardOwner | None:
    try:
        owner = markers.read_owner(folder, former.shard_id)
        problems = [*markers.damage(folder, owner, deep=True), *markers.staleness(owner, former, source)]
    except (StoreDamaged, OSError):
        return None
    return None if problems else owner
