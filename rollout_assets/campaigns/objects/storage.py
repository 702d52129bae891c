"""What of a campaign lies in object storage, under which key, and the few objects that change.

    campaign.json                              the campaign that writes here; created once
    plan.jsonl                                 the plan; replaced only by whoever has read it as it is
    inputs.json                                which scenes had a mesh when their rows were planned
    plans/plan.<time>.jsonl                    plans that were replaced
    packs/shard-000003/<attempt>.zip           everything of one build of a shard; nobody else writes this key
    markers/shard-000003.<entry>.json          created last: which pack is the shard for this entry of the plan
    failures/_FAILED.shard-000003.<time>.json  notes that failed builds leave
    reservations/v000002.json                  created first: the number belongs to one promotion
    versions/v000002/…                         a promoted store, openable by any Zarr reader; its root's zarr.json last
    inventories/v000002.json                   every file of that version
    rollouts.zarr                              the pointer: which version readers get, and the pin of a rollback
    reports/, policies/, evaluation/, accepted/   what else a campaign makes
    policy.json                                which training is the latest that is finished

Packs, versions and markers never change. Two builders of one shard write two packs, and the one that creates the marker
first has built it; the other removes its own. A build that goes on after its run was given up can do no harm.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, Literal, TypeVar

from pydantic import ValidationError

from rollout_assets.campaigns.layout import STORE_NAME, StoredModel
from rollout_assets.errors import CampaignError
from rollout_assets.locations.conditions import require_conditional_writes
from rollout_assets.locations.objects import ObjectFolder, TaggedBytes
from rollout_assets.locations.url import ObjectUrl

POINTER = STORE_NAME
PLAN = "plan.jsonl"
INPUTS = "inputs.json"
CLAIM = "campaign.json"
POLICY = "policy.json"
ENTRY_DIGITS = 16

Model = TypeVar("Model", "ShardMarker", "VersionPointer")


class ShardPack(StoredModel):
    """One object with every file of a finished shard."""

    key: str
    bytes: int
    sha256: str


class ShardMarker(StoredModel):
    """Says which pack is the finished shard for an entry of the plan; ``owner`` and ``success`` are its two files."""

    remedy: ClassVar = "'rollout-assets campaign run' builds the shard again"

    marker_version: Literal["rollout-shard-marker-v1"] = "rollout-shard-marker-v1"
    shard_id: str
    entry_sha256: str
    content_sha256: str | None
    pack: ShardPack
    owner: str
    success: str


class VersionPointer(StoredModel):
    """``rollouts.zarr``: the version that readers get, and the pin of a rollback.

    ``generation`` counts moves and ``moved_by`` names each of them, so that no two contents are equal.
    """

    remedy: ClassVar = "'rollout-assets campaign promote' lets readers have the newest version"

    pointer_version: Literal["rollout-pointer-v1"] = "rollout-pointer-v1"
    version: str
    generation: int
    pin: dict[str, Any] | None
    moved_at_utc: str
    moved_by: str


@dataclass(frozen=True)
class TaggedPointer:
    """A pointer as it was read, to be replaced by whoever has read it."""

    pointer: VersionPointer
    stored: TaggedBytes


@dataclass(frozen=True)
class MarkerKey:
    """A marker as a listing shows it."""

    key: str
    etag: str
    shard_id: str
    entry: str

    def is_of(self, shard_id: str, entry_sha256: str) -> bool:
        """Whether it marks the shard of this very entry."""
        return self.shard_id == shard_id and entry_sha256.startswith(self.entry)


class CampaignStorage:
    """The objects of one campaign."""

    def __init__(self, url: ObjectUrl) -> None:
        self.url = url
        self.objects = ObjectFolder(url)

    def require_conditions(self) -> None:
        """Raise ``ObjectStorageError`` if two writers could overwrite each other here; call it before any write."""
        require_conditional_writes(self.objects)

    def marker_keys(self) -> Iterator[MarkerKey]:
        """Every marker: one request per thousand of them."""
        for fact in self.objects.listing("markers"):
            shard_id, _, entry = fact.key.removeprefix("markers/").removesuffix(".json").partition(".")
            yield MarkerKey(fact.key, fact.etag, shard_id, entry)

    def read_pointer(self) -> TaggedPointer | None:
        """The pointer; None before the first promotion."""
        try:
            tagged = self.objects.read_tagged(POINTER)
        except FileNotFoundError:
            return None
        return TaggedPointer(parse_stored(VersionPointer, tagged.data, f"{self.url}/{POINTER}"), tagged)

    def version_names(self) -> list[str]:
        """Names below ``versions/``, complete or not: one request."""
        return self.objects.folder_names("versions")


@lru_cache(maxsize=64)
def storage_at(url: ObjectUrl) -> CampaignStorage:
    """The objects of the campaign at a URL, with one client per process."""
    return CampaignStorage(url)


def marker_key(shard_id: str, entry_sha256: str) -> str:
    """The key of the marker of one entry of the plan."""
    return f"markers/{shard_id}.{entry_sha256[:ENTRY_DIGITS]}.json"


def stored_bytes(model: StoredModel) -> bytes:
    """A model as it is stored."""
    return json.dumps(model.model_dump(mode="json"), indent=1, sort_keys=True).encode() + b"\n"


def parse_stored(model: type[Model], data: bytes, where: str) -> Model:
    """A stored model again; anything else is a ``CampaignError`` that says how to do without the object."""
    try:
        return model.model_validate_json(data)
    except ValidationError:
        raise CampaignError(
            f"{where}: is not what this version writes; remove the object, then {model.remedy}"
        ) from None
