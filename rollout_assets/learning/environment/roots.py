"""Roots in the order in which episodes begin with them: every root once per epoch, shuffled by a seed.

Which targets a row has is known only when the row is prepared, and that costs more than a step. So rows are shuffled
first, some neighbours are prepared at a time, and the roots of these are shuffled among each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from cachetools import LRUCache

from rollout_assets.config import CampaignConfig
from rollout_assets.errors import DataError, RowRefused, SourceError
from rollout_assets.learning.environment.options import EnvironmentConfig
from rollout_assets.rollouts.generator import RolloutGenerator
from rollout_assets.rollouts.roots import PreparedSample, TargetedRoot
from rollout_assets.sources.layout import IndexRow
from rollout_assets.sources.vin_store import VinOfflineStore

RootName = tuple[int | str, int | str]
"""A root: sample index or sample key, and target rank or target id."""


class RootLoader:
    """The roots of a campaign's rows, prepared when they are needed; the most recently used rows are kept.

    ``skipped`` says, by sample key, why rows that were looked at have no root.
    """

    def __init__(self, campaign: CampaignConfig, config: EnvironmentConfig) -> None:
        source = campaign.source
        self.store = VinOfflineStore.open(
            source.store_dir, source.mesh_dirs, splits=campaign.split, simplify=campaign.oracle.simplify
        )
        self.rows = _chosen_rows(self.store, campaign, config)
        self.skipped: dict[str, str] = {}
        self.generator = RolloutGenerator(campaign, self.store)
        self._prepared: LRUCache[int, tuple[TargetedRoot, ...]] = LRUCache(config.kept_rows)

    def roots(self, row: IndexRow) -> tuple[TargetedRoot, ...]:
        """The roots of a row, by target rank; none if the row is skipped."""
        roots = self._prepared.get(row.sample_index)
        if roots is None:
            roots = self._prepared[row.sample_index] = self._prepare(row)
        return roots

    def named(self, name: RootName) -> TargetedRoot:
        """The root of a name; ``RowRefused`` says what the row has instead."""
        row, target = self.store.row(name[0]), name[1]
        roots = self.roots(row)
        for root in roots:
            if target in (root.match.target.draw.rank, root.match.target.target_id):
                return root
        has = ", ".join(f"{root.match.target.draw.rank} ({root.match.target.target_id})" for root in roots)
        why = f"it has {has}" if roots else self.skipped.get(row.sample_key, "it has none")
        raise RowRefused("root", f"{row.sample_key} has no target {target!r} that can be rolled out: {why}")

    def _prepare(self, row: IndexRow) -> tuple[TargetedRoot, ...]:
        try:
            prepared = self.generator.prepare(row)
        except DataError as error:
            self.skipped[row.sample_key] = str(error)
            return ()
        if not prepared.roots:
            self.skipped[row.sample_key] = _why_none(prepared)
        return prepared.roots


def shuffled_roots(loader: RootLoader, rows_per_window: int, rng: np.random.Generator) -> Iterator[TargetedRoot]:
    """Roots without end, each once per epoch, in an order that only ``rng`` decides."""
    while True:
        order = rng.permutation(len(loader.rows))
        dealt = 0
        for start in range(0, len(order), rows_per_window):
            window = [root for at in order[start : start + rows_per_window] for root in loader.roots(loader.rows[at])]
            dealt += len(window)
            yield from (window[at] for at in rng.permutation(len(window)))
        if not dealt:
            reasons = sorted(set(loader.skipped.values()))
            raise SourceError(
                f"{loader.store.location}: no row has a target that can be rolled out: {'; '.join(reasons)}"
            )


def _chosen_rows(store: VinOfflineStore, campaign: CampaignConfig, config: EnvironmentConfig) -> Sequence[IndexRow]:
    splits = campaign.source.splits if config.split is None else (config.split,)
    rows = [row for split in splits for row in store.rows(split)]
    if config.rows is not None:
        chosen = {store.row(name).sample_index for name in config.rows}
        rows = [row for row in rows if row.sample_index in chosen]
    if not rows:
        raise SourceError(
            f"{store.location}: no row to play in {', '.join(splits)}; 'source info --rows' lists all rows"
        )
    return rows


def _why_none(prepared: PreparedSample) -> str:
    if prepared.skip_reason is not None:
        return prepared.skip_reason
    return ", ".join(sorted({target.reason for target in prepared.targets if not isinstance(target, TargetedRoot)}))
