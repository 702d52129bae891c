"""Requests for a whole split of a campaign: every source row, its targets by rank, every recipe.

The order and the number are those of the records that the shard path makes, so that a store written from the results
equals the shards'. Each request names its task, so that a file of requests can be collected in parts. Preparing means
opening every source row and its mesh, so requests can be kept and used again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from rollout_assets.campaigns.plan import open_source
from rollout_assets.collection.configs import CollectionSplit
from rollout_assets.collection.inputs import request_json
from rollout_assets.config import CampaignConfig, Split
from rollout_assets.errors import CollectionError, DataError
from rollout_assets.files import file_sha256, publish_json, publishing
from rollout_assets.progress import SILENT, ProgressEvent, ProgressSink
from rollout_assets.rollouts.generator import RolloutGenerator
from rollout_assets.rollouts.remote.messages import AgentRef, RolloutRequest
from rollout_assets.rollouts.roots import RefusedTarget
from rollout_assets.sources.layout import IndexRow


class PreparedInputs(BaseModel):
    """What a file of prepared requests was prepared for, and what was left out, by reason."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    prepared_for: dict[str, Any]
    rows_sha256: str
    rows: int
    source_rows: int
    targets_refused: int
    skipped: dict[str, int]


@dataclass(frozen=True)
class CampaignInputs:
    """Prepares the requests of one split of a campaign into a file."""

    config: CampaignConfig
    split: CollectionSplit
    path: Path

    @property
    def facts_path(self) -> Path:
        """Beside the requests: what they were prepared for."""
        return self.path.with_suffix(".json")

    def write(self, *, reuse: bool = False, progress: ProgressSink = SILENT) -> PreparedInputs:
        """Write the split's requests, whole or not at all; with ``reuse``, a file prepared for the same stays."""
        source = open_source(self.config)
        purpose = {
            "campaign": self.config.name,
            "config_hashes": self.config.hashes(),
            "source_manifest_hash": source.source_manifest_hash,
            "split": self.split,
            "split_manifest_hashes": {split: source.split_manifest_hash(split) for split in self.splits()},
        }
        if reuse and (existing := self._existing(purpose)):
            return existing
        source_rows = [row for split in self.splits() for row in source.rows(split)]
        tally = _Tally(RolloutGenerator(self.config, source))
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with publishing(self.path) as scratch, scratch.open("wb") as stream:
            for done, source_row in enumerate(source_rows, start=1):
                stream.writelines(map(request_json, tally.requests(source_row)))
                progress(ProgressEvent("preparing requests", done, len(source_rows), unit="source rows"))
            if not tally.written:
                reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(tally.skipped.items()))
                raise CollectionError(
                    f"{source.location}: split {self.split} gives no request: {reasons or 'it is empty'}"
                )
        facts = PreparedInputs(
            prepared_for=purpose,
            rows_sha256=file_sha256(self.path),
            rows=tally.written,
            source_rows=len(source_rows),
            targets_refused=tally.refused,
            skipped=dict(sorted(tally.skipped.items())),
        )
        publish_json(self.facts_path, facts.model_dump(mode="json"))
        return facts

    def splits(self) -> Sequence[Split]:
        """The campaign's splits that are meant; one that it does not have is a ``CollectionError``."""
        own = tuple(dict.fromkeys(self.config.source.splits))
        if self.split == "benchmark":
            return own
        asked: Split = "val" if self.split == "validation" else "train"
        if asked not in own:
            raise CollectionError(f"campaign {self.config.name} has split {', '.join(own)}, not {self.split}")
        return (asked,)

    def _existing(self, purpose: dict[str, Any]) -> PreparedInputs | None:
        """What was prepared before, if it was for the same and is as it was written."""
        try:
            existing = PreparedInputs.model_validate_json(self.facts_path.read_bytes())
            same = existing.prepared_for == purpose and existing.rows_sha256 == file_sha256(self.path)
        except (OSError, ValidationError):
            return None
        by_data = all(map(str.isupper, existing.skipped))  # an exception's name may stand for a fault of the machine
        return existing if same and by_data else None


class _Tally:
    """Counts requests as they are made."""

    def __init__(self, generator: RolloutGenerator) -> None:
        self._generator = generator
        self.written = self.refused = self._targets = 0
        self.skipped: Counter[str] = Counter()

    def requests(self, source_row: IndexRow) -> Iterator[RolloutRequest]:
        try:
            prepared = self._generator.prepare(source_row)
        except DataError as error:
            self.skipped[error.skip_reason] += 1
            return
        if prepared.skip_reason is not None:
            self.skipped[prepared.skip_reason] += 1
            return
        config = self._generator.config
        for task, target in enumerate(prepared.targets, start=self._targets):
            refused = isinstance(target, RefusedTarget)
            self.refused += refused
            for recipe in config.recipes[:1] if refused else config.recipes:
                self.written += 1
                yield RolloutRequest(
                    sample_key=source_row.sample_key,
                    target=target.match.target.target_id,
                    agent_ref=AgentRef(name=recipe.name),
                    seed=config.seed,
                    task_index=task,
                )
        self._targets += len(prepared.targets)
