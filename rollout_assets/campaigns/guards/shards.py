"""A finished shard stays at its place until the one that replaces it is finished, and has no fewer records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rollout_assets.campaigns import markers
from rollout_assets.campaigns.guards.inputs import ALLOW_FEWER
from rollout_assets.campaigns.layout import CampaignLayout, SetAside
from rollout_assets.campaigns.plan_entry import RolloutShardEntry
from rollout_assets.errors import FewerRecords, counted


@dataclass(frozen=True, eq=False)
class FinishedBefore:
    """A finished, undamaged shard of the very entry that is built again, and why it is; ``moved`` is where it went."""

    folder: Path
    owner: markers.ShardOwner
    problems: Sequence[str]
    moved: list[SetAside] = field(default_factory=list)

    @classmethod
    def find(cls, folder: Path, entry: RolloutShardEntry, problems: Sequence[str]) -> FinishedBefore | None:
        """The shard in a folder; None if there is none, or it is damaged or planned otherwise."""
        owner = markers.owner_if_finished(folder)
        if owner is None or owner.entry_sha256 != entry.sha256 or any(markers.damage(folder, owner, deep=False)):
            return None
        return cls(folder, owner, problems)

    def fewer_in(self, new: markers.ShardOwner) -> str:
        """Which rows have fewer records in a new shard, and why; empty if the new shard has as many in all."""
        if new.records >= self.owner.records:
            return ""
        records = {row.sample_key: row.records for row in self.owner.rows}
        lost = [
            f"{row.sample_key} {records.get(row.sample_key, 0)}, now {row.records}"
            + (f" ({row.why_skipped})" if row.skipped else "")
            for row in new.rows
            if row.records < records.get(row.sample_key, 0)
        ]
        return (
            f"{new.shard_id}: {counted(new.records, 'record')}, and the finished shard has {self.owner.records} "
            f"({'; '.join(self.problems)}): {'; '.join(lost)}"
        )

    def refuse_fewer(self, new: markers.ShardOwner, *, allow: bool) -> None:
        """Raise ``FewerRecords`` if a new shard has fewer records, unless that is allowed."""
        fewer = self.fewer_in(new)
        if fewer and not allow:
            raise FewerRecords(f"{fewer}; the finished shard stays; restore its inputs, or allow it by {ALLOW_FEWER}")

    def move_aside(self, layout: CampaignLayout) -> None:
        """Move the shard out of the way, unless another builder has put a new one there."""
        if markers.owner_if_finished(self.folder) == self.owner:
            self.moved.append(layout.move_aside(self.folder, "; ".join(self.problems)))
