"""Files derived from a store or a shard. They are used again while everything that they depend on is the same."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

import rollout_assets
from rollout_assets.campaigns.layout import CampaignLayout
from rollout_assets.campaigns.plan import open_source
from rollout_assets.config import CampaignConfig, canonical_hash
from rollout_assets.files import file_sha256, publish_bytes, publish_json, stamp_tree
from rollout_assets.rollouts.zarr_store.reader import RolloutZarrStoreReader


class DerivedFiles(BaseModel):
    """Record of derived files: digest of their inputs, their own digests by path, and when they were made."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    inputs: str
    made_at: str
    outputs: dict[str, str]

    @classmethod
    def find(cls, record: Path, inputs: str) -> DerivedFiles | None:
        """Return the record if it is of these inputs and every file of it is as it was written."""
        try:
            found = cls.model_validate_json(record.read_bytes())
            current = {name: file_sha256(record.parent / name) for name in found.outputs}
        except (OSError, ValidationError):
            return None
        return found if found.inputs == inputs and found.outputs == current else None

    @classmethod
    def publish(cls, record: Path, inputs: str, outputs: list[Path]) -> DerivedFiles:
        """Write the record of files that lie below its folder."""
        digests = {path.relative_to(record.parent).as_posix(): file_sha256(path) for path in outputs}
        made = cls(inputs=inputs, made_at=datetime.now(UTC).isoformat(timespec="seconds"), outputs=digests)
        publish_json(record, made.model_dump(mode="json"))
        return made


@dataclass(frozen=True)
class ShardResult:
    """A result derived from one shard, in a file beside the shards; ``inputs`` is a digest of all it depends on."""

    path: Path
    inputs: str

    @classmethod
    def of(cls, config: CampaignConfig, shard_id: str, name: str, **inputs: Any) -> ShardResult:
        """The result of a name; campaign and code of this package count as inputs, and whatever else is given."""
        digest = canonical_hash({"campaign": config.model_dump(mode="json"), "code": _code_digest(), **inputs})
        return cls(CampaignLayout.of(config).shard_results / f"{shard_id}.{name}.json", digest)

    def find(self) -> tuple[bytes, str] | None:
        """Return the result and when it was made; None unless it is of these very inputs."""
        found = DerivedFiles.find(self._record, self.inputs)
        return None if found is None else (self.path.read_bytes(), found.made_at)

    def publish(self, result: bytes) -> None:
        """Keep a result that was made of these inputs just now."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        publish_bytes(self.path, result)
        DerivedFiles.publish(self._record, self.inputs, [self.path])

    @property
    def _record(self) -> Path:
        return self.path.with_suffix(".derived.json")


def derived_record(layout: CampaignLayout, name: str) -> Path:
    """Path of the record of derived files, beside the reports."""
    return layout.reports / f"{name}.derived.json"


def inputs_digest(config: CampaignConfig, reader: RolloutZarrStoreReader, **more: Any) -> str:
    """Return a digest of a promoted store, its campaign, its source and the code of this package.

    The files of a store on a disk count with their sizes and times, so that a changed byte is an other input.
    """
    folder = Path(reader.location)
    return canonical_hash(
        {
            "store": reader.attributes.get("manifest_sha256"),
            "place": reader.location,
            "files": stamp_tree(folder) if folder.is_dir() else None,
            "campaign": config.model_dump(mode="json"),
            "source": open_source(config).source_manifest_hash,
            "code": _code_digest(),
            **more,
        }
    )


@cache
def _code_digest() -> str:
    """Digest of this package's source files and its version."""
    code = sha256(rollout_assets.__version__.encode())
    package = Path(rollout_assets.__file__).parent
    for path in sorted(package.rglob("*.py")):
        code.update(f"{path.relative_to(package)}\0".encode())
        code.update(path.read_bytes())
    return code.hexdigest()
