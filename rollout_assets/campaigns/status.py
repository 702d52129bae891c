"""How a campaign stands: every planned shard with its state and the reason for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args, overload

import numpy as np
from numpy.typing import NDArray

from rollout_assets.campaigns.columns.marker_columns import built_numbers
from rollout_assets.campaigns.columns.survey import CampaignSurvey
from rollout_assets.campaigns.guards.plans import cut_plan
from rollout_assets.campaigns.layout import CampaignLayout
from rollout_assets.campaigns.markers import last_failure, owner_if_finished, skipped_in_words
from rollout_assets.campaigns.objects.working_copy import refresh_shards, refresh_versions
from rollout_assets.campaigns.pin import Pin, read_pin
from rollout_assets.campaigns.plan import read_rollout_shard_manifest
from rollout_assets.campaigns.plan_entry import PlannedShards, RolloutShardEntry, shard_id_of
from rollout_assets.campaigns.shard import shard_problems
from rollout_assets.campaigns.versions import (
    PromotedShard,
    PromotedVersion,
    UnreadableVersion,
    current_name,
    current_version,
    version_problems,
    versions_on_disk,
)
from rollout_assets.config import CampaignConfig
from rollout_assets.errors import CampaignError, RolloutAssetsError
from rollout_assets.files import is_locked
from rollout_assets.sources.vin_store import VinOfflineStore

ShardState = Literal["succeeded", "running", "failed", "incomplete", "missing"]
"""``incomplete``: something lies at the shard's place, or was being built, that is not the finished, current shard."""

SHARD_STATES: tuple[ShardState, ...] = get_args(ShardState)


@dataclass(frozen=True, eq=False)
class RolloutShardStatus:
    """Status for one planned rollout shard in a generation campaign."""

    shard_id: str
    split: str
    rows: int
    state: ShardState
    reason: str
    hint: str
    records: int | None
    rows_skipped: int | None
    store_bytes: int | None
    seconds: float | None


class ShardStatuses(Sequence[RolloutShardStatus]):
    """The statuses of some shards, each made when it is asked for; what is only counted is counted by columns.

    ``states``: (shards,) places in ``SHARD_STATES``. ``records``: (shards,) records, -1 where they are not known.
    """

    def __init__(
        self, states: NDArray[np.int8], records: NDArray[np.int64], status: Callable[[int], RolloutShardStatus]
    ) -> None:
        self.states = states
        self.records = records
        self._status = status

    @classmethod
    def of(cls, statuses: Sequence[RolloutShardStatus]) -> ShardStatuses:
        """Those that somebody has made already."""
        states = np.array([SHARD_STATES.index(status.state) for status in statuses], np.int8)
        records = np.array([-1 if status.records is None else status.records for status in statuses], np.int64)
        return cls(states, records, statuses.__getitem__)

    def __len__(self) -> int:
        return len(self.states)

    @overload
    def __getitem__(self, place: int) -> RolloutShardStatus: ...
    @overload
    def __getitem__(self, place: slice) -> ShardStatuses: ...
    def __getitem__(self, place: int | slice) -> RolloutShardStatus | ShardStatuses:
        numbers = range(len(self))[place]
        return self._status(numbers) if isinstance(numbers, int) else self._only(np.array(numbers, np.int64))

    def in_state(self, state: ShardState) -> ShardStatuses:
        """Those in one state."""
        return self._only(np.flatnonzero(self.states == SHARD_STATES.index(state)))

    def without_records(self) -> ShardStatuses:
        """Finished ones that have no record."""
        return self._only(np.flatnonzero(self.records == 0))

    def _only(self, numbers: NDArray[np.int64]) -> ShardStatuses:
        return ShardStatuses(
            self.states[numbers], self.records[numbers], lambda place: self._status(int(numbers[place]))
        )


@dataclass(frozen=True)
class PromotedVersionStatus:
    """A promoted version: what of it is not as it was published, and what to do about it."""

    name: str
    is_current: bool
    problems: tuple[str, ...]
    hint: str


@dataclass(frozen=True, eq=False)
class RolloutShardCampaignStatus:
    """Status summary for all shards planned by one rollout manifest.

    ``unplanned_rows`` are keys of source rows that are in no shard yet; ``behind`` says what the promoted store lacks;
    ``pin`` says which version a rollback keeps readers at; ``cut_plan`` which finished shards the plan has lost.
    """

    campaign: str
    output_dir: str
    shards: ShardStatuses
    unplanned_rows: tuple[str, ...] = ()
    behind: str = ""
    versions: tuple[PromotedVersionStatus, ...] = ()
    pin: Pin | None = None
    cut_plan: str = ""

    def counts(self) -> dict[ShardState, int]:
        """Shards by state, all states named."""
        counts = np.bincount(self.shards.states, minlength=len(SHARD_STATES)).tolist()
        return dict(zip(SHARD_STATES, counts, strict=True))

    @property
    def complete(self) -> bool:
        """Whether every planned shard is finished and current, and the plan has lost none."""
        return self.counts()["succeeded"] == len(self.shards) and not self.cut_plan

    @property
    def barren(self) -> bool:
        """Whether every shard is finished and not one has a record."""
        return self.complete and not (self.shards.records > 0).any()

    @property
    def damaged_versions(self) -> tuple[PromotedVersionStatus, ...]:
        """The promoted versions that are not as they were published."""
        return tuple(version for version in self.versions if version.problems)

    def of(self, state: ShardState) -> ShardStatuses:
        """The shards in one state."""
        return self.shards.in_state(state)


def summarize_rollout_shard_campaign(
    config: CampaignConfig,
    entries: Sequence[RolloutShardEntry] | None = None,
    *,
    source: VinOfflineStore | None = None,
    deep: bool = False,
) -> RolloutShardCampaignStatus:
    """Summarize completion state for a rollout shard campaign.

    Markers and manifests are always held against the plan and the config, and promoted versions against their
    inventories by size and time; with a ``source`` also against the present source; with ``deep`` every byte of every
    finished shard and of every promoted version is read.
    """
    entries = read_rollout_shard_manifest(config) if entries is None else entries
    layout = CampaignLayout.of(config)
    if isinstance(entries, PlannedShards):
        survey = CampaignSurvey.of(config, entries)
    else:
        survey = None
        refresh_shards(layout)
    refresh_versions(layout)
    if survey is None or deep:
        shards = ShardStatuses.of([shard_status(config, layout, entry, source, deep) for entry in entries])
    else:
        shards = _surveyed(config, layout, survey, source)
    new = () if source is None else unplanned_rows(config, entries, source)
    behind = promoted_behind(config, entries, survey, refresh=False)
    versions, pin = version_statuses(config, deep), read_pin(layout)
    cut = "" if survey is None else cut_plan(layout, survey)
    return RolloutShardCampaignStatus(config.name, layout.place, shards, new, behind, versions, pin, cut)


def unplanned_rows(
    config: CampaignConfig, entries: Sequence[RolloutShardEntry], source: VinOfflineStore
) -> tuple[str, ...]:
    """Keys of the source rows that are in no shard of their split: added since the last planning, or moved to it."""
    rows = [row for split in dict.fromkeys(config.source.splits) for row in source.rows(split)]
    if isinstance(entries, PlannedShards):
        columns = entries.columns
        splits = np.array([*columns.names["splits"], ""], object)
        planned_in = np.full(max(columns.sample.max(initial=-1) + 1, len(source.rows())), "", object)
        planned_in[columns.sample] = splits[columns.row_split]
        return tuple(row.sample_key for row in rows if planned_in[row.sample_index] != row.split)
    planned = {(row.sample_index, row.split) for entry in entries for row in entry.rows}
    return tuple(row.sample_key for row in rows if (row.sample_index, row.split) not in planned)


def promoted_behind(
    config: CampaignConfig,
    entries: Sequence[RolloutShardEntry],
    survey: CampaignSurvey | None = None,
    *,
    refresh: bool = True,
) -> str:
    """What the promoted store lacks of the plan, in words; empty when it has every shard as planned now.

    A ``survey`` of these very entries saves reading the markers again.
    """
    layout = CampaignLayout.of(config)
    if refresh:
        refresh_versions(layout)
    try:
        if current_name(layout) is None:
            return "nothing is promoted yet"
        version = current_version(config, refresh=False)
    except RolloutAssetsError as error:
        return str(error)
    promoted = {shard.shard_id: shard for shards in version.record.splits.values() for shard in shards}
    if survey is None:
        lacking = [entry.shard_id for entry in entries if not _is_promoted(layout, entry, promoted.get(entry.shard_id))]
    else:
        lacking = list(_lacking(layout, survey, promoted))
    return f"{version.name} lacks {len(lacking)} shard(s) as planned now, from {lacking[0]} on" if lacking else ""


def _lacking(layout: CampaignLayout, survey: CampaignSurvey, promoted: Mapping[str, PromotedShard]) -> Iterator[str]:
    """The shards that ``_is_promoted`` says no to."""
    for number, sha256 in enumerate(survey.planned.columns.sha256):
        shard_id = shard_id_of(number)
        shard = promoted.get(shard_id)
        if shard is None or shard.entry_sha256 != sha256:
            yield shard_id
        elif number in survey.finished:
            if survey.content(number) != shard.content_sha256:
                yield shard_id
        elif shard_id in survey.folders.built and not _is_promoted(layout, survey.planned[number], shard):
            yield shard_id


def _is_promoted(layout: CampaignLayout, entry: RolloutShardEntry, promoted: PromotedShard | None) -> bool:
    """Whether a version has a shard as it is planned and, where it was built again since, as it is now."""
    if promoted is None or promoted.entry_sha256 != entry.sha256:
        return False
    owner = owner_if_finished(layout.shard(entry.shard_id))
    return owner is None or owner.content_sha256 == promoted.content_sha256


def version_statuses(config: CampaignConfig, deep: bool = False) -> tuple[PromotedVersionStatus, ...]:
    """Every promoted version, oldest first, compared with its inventory."""
    layout = CampaignLayout.of(config)
    pinned = read_pin(layout) is not None
    try:
        versions = versions_on_disk(config)
    except CampaignError:  # something else lies at the link's place; promoted_behind says so
        return ()
    return tuple(_version_status(layout, version, pinned, deep) for version in versions)


def _version_status(
    layout: CampaignLayout, version: PromotedVersion | UnreadableVersion, pinned: bool, deep: bool
) -> PromotedVersionStatus:
    looked_at = layout.url is None or version.is_current or deep  # elsewhere a look is a listing of all its files
    problems = version_problems(layout, version, deep) if looked_at else ()
    hint = _CURRENT_HINTS[pinned] if version.is_current else "campaign clean removes it"
    return PromotedVersionStatus(version.name, version.is_current, problems, hint if problems else "")


_CURRENT_HINTS = {
    False: "campaign promote builds it again from its shards",
    True: "campaign rollback --to another version, or campaign unpin and campaign promote",
}


def _surveyed(
    config: CampaignConfig, layout: CampaignLayout, survey: CampaignSurvey, source: VinOfflineStore | None
) -> ShardStatuses:
    """What ``shard_status`` says of every shard; only those that are neither finished nor missing are looked at."""
    folders, finished = survey.folders, survey.finished
    looked_at = np.zeros(len(survey.planned), np.bool_)
    looked_at[_numbers(folders.running | folders.built | folders.failed | folders.attempted, survey)] = True
    succeeded = survey.current(source)
    succeeded[[*survey.planned.config_changes(config)]] = False
    succeeded[_numbers(folders.running, survey)] = False
    looked_at &= ~succeeded
    others = {
        number: shard_status(config, layout, survey.planned[number], source)
        for number in np.flatnonzero(looked_at).tolist()
    }
    states = np.full(len(survey.planned), SHARD_STATES.index("missing"), np.int8)
    states[succeeded] = SHARD_STATES.index("succeeded")
    records = np.full(len(survey.planned), -1, np.int64)
    records[succeeded] = finished.columns["records"][finished.place[succeeded]]
    for number, status in others.items():
        states[number] = SHARD_STATES.index(status.state)
        records[number] = -1 if status.records is None else status.records
    return ShardStatuses(states, records, _Surveyed(survey, succeeded, others).status)


def _numbers(names: Iterable[str], survey: CampaignSurvey) -> list[int]:
    return [number for number in built_numbers(names) if number < len(survey.planned)]


@dataclass(frozen=True, eq=False)
class _Surveyed:
    """Makes statuses from columns; ``succeeded``: (shards,), ``others``: those that somebody looked at, by number."""

    survey: CampaignSurvey
    succeeded: NDArray[np.bool_]
    others: Mapping[int, RolloutShardStatus]

    def status(self, number: int) -> RolloutShardStatus:
        """The status of one shard."""
        if number in self.others:
            return self.others[number]
        plan, finished, shard_id = self.survey.planned.columns, self.survey.finished, shard_id_of(number)
        split, rows = plan.names["splits"][plan.split[number]], int(plan.rows_per_shard[number])
        if not self.succeeded[number]:
            hint = _HINTS["missing"]
            return RolloutShardStatus(shard_id, split, rows, "missing", _NOT_BUILT, hint, None, None, None, None)
        place, columns = finished.place[number], finished.columns
        reason = finished.texts["skips"][columns["skips"][place]]
        records, skipped, stored = (int(columns[name][place]) for name in ("records", "skipped", "bytes"))
        seconds = float(columns["seconds"][place])
        return RolloutShardStatus(shard_id, split, rows, "succeeded", reason, "", records, skipped, stored, seconds)


def shard_status(
    config: CampaignConfig,
    layout: CampaignLayout,
    entry: RolloutShardEntry,
    source: VinOfflineStore | None = None,
    deep: bool = False,
) -> RolloutShardStatus:
    """The status of one shard."""
    state, reason = _state(config, layout, entry, source, deep)
    owner = owner_if_finished(layout.shard(entry.shard_id)) if state == "succeeded" else None
    return RolloutShardStatus(
        shard_id=entry.shard_id,
        split=entry.split,
        rows=len(entry.rows),
        state=state,
        reason=reason or (skipped_in_words(owner) if owner is not None else ""),
        hint=_HINTS[state].format(shard=entry.shard_id),
        records=None if owner is None else owner.records,
        rows_skipped=None if owner is None else sum(row.skipped is not None for row in owner.rows),
        store_bytes=None if owner is None else (owner.store.bytes if owner.store is not None else 0),
        seconds=None if owner is None else owner.seconds,
    )


_NOT_BUILT = "not built yet"

_HINTS: dict[ShardState, str] = {
    "succeeded": "",
    "running": "wait",
    "failed": "fix the reason, then campaign run --shard {shard}",
    "incomplete": "campaign run --shard {shard}",
    "missing": "campaign run",
}


def _state(
    config: CampaignConfig, layout: CampaignLayout, entry: RolloutShardEntry, source: VinOfflineStore | None, deep: bool
) -> tuple[ShardState, str]:
    if is_locked(layout.lock(entry.shard_id)):
        return "running", "a live process holds it"
    final = layout.shard(entry.shard_id)
    if final.exists():
        problems = list(shard_problems(final, entry, source, deep=deep))
        change = entry.config_change(config)
        if change is not None:
            problems.insert(0, change)
        return ("incomplete", "; ".join(problems)) if problems else ("succeeded", "")
    failure = last_failure(layout, entry)
    if failure is not None:
        return "failed", failure
    if layout.attempts(entry.shard_id):
        return "incomplete", "an attempt died before it was finished"
    return "missing", _NOT_BUILT
