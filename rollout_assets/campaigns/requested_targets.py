"""The explicit targets of a campaign, held against its source before any work."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping

from rollout_assets.config import CampaignConfig, TargetConfig
from rollout_assets.errors import CampaignError, SourceError, counted
from rollout_assets.sources.layout import IndexRow
from rollout_assets.sources.vin_store import VinOfflineStore
from rollout_assets.targets.selection import describe_sample
from rollout_assets.targets.table import row_prefix

_SHOWN = 3


def targets_without_row(config: CampaignConfig, store: VinOfflineStore) -> tuple[str, ...]:
    """Explicit targets that name no row of the campaign's splits; ``CampaignError`` if not one of all is in the source.

    Only the index is read, and the boxes of named rows up to the first one that has a target. A row that lacks one of
    its targets counts it when it is built.
    """
    if config.targets.policy != "explicit":
        return ()
    rows = {row_prefix(row): row for split in config.source.splits for row in store.rows(split)}
    rows_of = {name: rows.get(_prefix(name)) for name in config.targets.target_ids}
    if not _any_is_there(rows_of, config.targets, store):
        names = list(rows_of)
        listed = ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
        example = next(iter(rows), "SCENE:SNIPPET:")
        raise CampaignError(
            f"{store.location}: {counted(len(names), 'explicit target')}, and none is in a row of split "
            f"{', '.join(config.source.splits)}: {listed}; ids begin with scene and snippet, such as {example}, and "
            f"targets.protocol is {config.targets.protocol}"
        )
    return tuple(name for name, row in rows_of.items() if row is None)


def _prefix(target_id: str) -> str:
    """Scene and snippet of an id: all but its last four parts."""
    return "".join(f"{part}:" for part in target_id.split(":")[:-4])


def _any_is_there(rows_of: Mapping[str, IndexRow | None], config: TargetConfig, store: VinOfflineStore) -> bool:
    rows = {row.sample_index: row for row in rows_of.values() if row is not None}
    return any(not rows_of.keys().isdisjoint(_ids(row, config, store)) for row in rows.values())


def _ids(row: IndexRow, config: TargetConfig, store: VinOfflineStore) -> Iterable[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the run itself warns
        try:
            return describe_sample(store.sample(row), config).target_id
        except SourceError:
            return ()  # a row that cannot be read is refused when its shard is built
