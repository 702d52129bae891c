"""Records of any number for measuring stores: a few templates under many identities."""

from __future__ import annotations

import shutil
from dataclasses import replace
from functools import cache
from pathlib import Path

from rollout_assets.benchmarks.measure import peak_memory_mib
from rollout_assets.config import SelectedDepthRetentionConfig
from rollout_assets.rollouts.trace import RolloutLineage, RolloutZarrRecord
from rollout_assets.rollouts.zarr_store.attributes import RolloutZarrStoreConfig
from rollout_assets.rollouts.zarr_store.publishing import write_rollout_zarr_store
from rollout_assets.testing.fake_records import SyntheticRecords

CHAINS, HORIZON, SHELL = 4, 2, 60
ROWS_PER_RECORD = CHAINS * HORIZON * SHELL
WITHOUT_DEPTH = RolloutZarrStoreConfig(selected_depth=SelectedDepthRetentionConfig(enabled=False))
_TEMPLATES = 48


def bench_records(rows: int, depth_hw: tuple[int, int] | None = None) -> list[RolloutZarrRecord]:
    """About ``rows`` candidate rows: 4 chains, 2 steps, 60 candidates a record; arrays repeat, identities do not."""
    campaign = SyntheticRecords(
        sources=_TEMPLATES // 6,
        targets=2,
        chains=CHAINS,
        horizon=HORIZON,
        shell=(SHELL, SHELL),
        depth_hw=depth_hw,
        dead_ends=False,
    )
    templates = list(campaign)
    return [renamed(templates[index % len(templates)], index) for index in range(records_of(rows))]


def records_of(rows: int) -> int:
    """How many records hold at least ``rows`` candidates."""
    return -(-rows // ROWS_PER_RECORD)


def peak_of_writing(path: Path, rows: int) -> float:
    """Peak memory in MB of a process that writes a store from records made one by one."""
    campaign = SyntheticRecords(sources=1, targets=1, recipes=("a",), chains=CHAINS, dead_ends=False)
    template = next(iter(campaign))
    write_rollout_zarr_store(path, (renamed(template, index) for index in range(records_of(rows))), WITHOUT_DEPTH)
    shutil.rmtree(path)
    return peak_memory_mib()


@cache
def _lineage(source: int, target: int) -> RolloutLineage:
    return SyntheticRecords().lineage(source, target)


def renamed(record: RolloutZarrRecord, index: int) -> RolloutZarrRecord:
    """The same chains under another identity: 3 targets a source, 4 recipes a target, like the default campaign."""
    source, target, recipe = index // 12, index // 4 % 3, index % 4
    prefix = f"{source:08d}-target-{target:02d}-bench{recipe}"
    return replace(record, lineage=_lineage(source, target), rollout_id_prefix=prefix)
