"""Sources in which some or all rows have no true boxes run under every policy, with those rows kept, unlabelled."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

from rollout_assets.campaigns.plan import write_rollout_shard_manifest_from_config
from rollout_assets.campaigns.run import run_campaign
from rollout_assets.rollouts.policies import POLICY_RULES
from rollout_assets.rollouts.zarr_store import RolloutZarrStoreReader
from tests.sources.foreign_writer import Variant, write_foreign_store
from tests.sources.test_foreign_stores import PLAIN, campaign_of, promoted

EVERY_POLICY = [{"name": policy, "policy": policy, "horizon": 1} for policy in POLICY_RULES]


def stores_of(tmp_path: Path, variant: Variant, recipes: list[dict[str, object]]) -> list[RolloutZarrStoreReader]:
    config = campaign_of(write_foreign_store(tmp_path / "source", variant), tmp_path / "out", recipes=recipes)
    write_rollout_shard_manifest_from_config(config)
    run = run_campaign(config)
    assert [(shard.outcome, shard.reason, shard.retried) for shard in run.shards] == [("built", "", ())] * run.planned
    stores = sorted((tmp_path / "out" / "shards").glob("*/rollouts.zarr"))
    assert len(stores) == run.planned
    return [RolloutZarrStoreReader(store) for store in stores]


@pytest.mark.parametrize("first", ["farthest_from_reference", "random_valid", "temperature_softmax"])
def test_a_source_without_true_boxes_runs_under_every_policy(tmp_path, first):
    recipes = sorted(EVERY_POLICY, key=lambda recipe: recipe["name"] != first)
    for store in stores_of(tmp_path, replace(PLAIN, without_truth="all"), recipes):
        assert len(store.table("candidates")) and not store.table("candidates")["q_train_mask"].any()


def test_rows_without_true_boxes_are_promoted_beside_labelled_ones(tmp_path):
    recipes = sorted(EVERY_POLICY, key=lambda recipe: recipe["name"] != "random_valid")
    source = write_foreign_store(tmp_path / "source", replace(PLAIN, without_truth=(1,)))
    made = promoted(source, tmp_path / "out", recipes=recipes)
    assert sorted(made.targets["gt_match_status_id"]) == ["matched"] * 6 + ["unmatched_gt"] * 2
    lost = made.targets.filter(pl.col("gt_match_status_id") == "unmatched_gt")["target_id"]
    views = made.candidates.group_by(pl.col("target_id").is_in(lost.implode())).agg(pl.col("q_train_mask").any())
    assert dict(views.iter_rows()) == {True: False, False: True}
    assert made.suspicious.filter(pl.col("severity") == "error").is_empty()
