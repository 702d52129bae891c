"""Why a chain ended: what a record may say, and what the validator does not believe."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from rollout_assets.config import SelectedDepthRetentionConfig
from rollout_assets.rollouts.trace import RolloutChain, TerminationReason
from rollout_assets.rollouts.zarr_store import (
    RolloutZarrStoreConfig,
    RolloutZarrStoreReader,
    validate_rollout_zarr_store,
    write_rollout_zarr_store,
)
from rollout_assets.testing.fake_records import SyntheticRecords


def written(path: Path, chain_of: dict[str, RolloutChain], horizon: int = 2) -> list[str]:
    """Write one record per chain and say what the validator finds."""
    record = next(iter(SyntheticRecords(sources=1, targets=1, recipes=("greedy",))))
    records = [
        replace(record, rollout_id_prefix=f"00000000-target-00-{name}", horizon=horizon, chains=(chain,))
        for name, chain in chain_of.items()
    ]
    depth = SelectedDepthRetentionConfig(enabled=False)
    write_rollout_zarr_store(path, records, RolloutZarrStoreConfig(selected_depth=depth))
    return [str(finding) for finding in validate_rollout_zarr_store(path, deep=True).findings]


def full_chain() -> RolloutChain:
    records = SyntheticRecords(sources=1, targets=1, recipes=("greedy",), horizon=2, dead_ends=False)
    return replace(next(iter(records)).chains[0], chain_id=0)


def test_a_chain_that_was_cut_short_after_a_view_is_incomplete(tmp_path: Path) -> None:
    cut = replace(full_chain(), steps=full_chain().steps[:1], termination_reason="incomplete_rollout")
    assert written(tmp_path / "store.zarr", {"cut": cut}) == []
    assert RolloutZarrStoreReader(tmp_path / "store.zarr").rollout(0).chain.termination_reason == "incomplete_rollout"


@pytest.mark.parametrize("reason", ["incomplete_rollout", "terminated_early"])
def test_a_chain_with_a_view_at_every_step_reached_its_horizon(reason: TerminationReason, tmp_path: Path) -> None:
    (finding,) = written(tmp_path / "store.zarr", {"full": replace(full_chain(), termination_reason=reason)})
    assert "fixed_horizon" in finding and reason in finding


def test_a_dead_end_is_not_incomplete(tmp_path: Path) -> None:
    records = SyntheticRecords(sources=12, targets=1, recipes=("greedy",), chains=1, horizon=2)
    ended = next(chain for record in records for chain in record.chains if chain.termination_reason != "fixed_horizon")
    assert written(tmp_path / "true.zarr", {"ended": replace(ended, chain_id=0)}) == []
    false = replace(ended, chain_id=0, termination_reason="incomplete_rollout")
    (finding,) = written(tmp_path / "false.zarr", {"ended": false})
    assert "terminated_early" in finding
