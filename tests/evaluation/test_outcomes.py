"""Outcomes are what the chains of a store say, one by one: also of chains that ended early, and of refused targets."""

from collections import defaultdict
from itertools import accumulate

import numpy as np
import polars as pl
import pytest

from rollout_assets.config import SelectedDepthRetentionConfig
from rollout_assets.errors import EvaluationError
from rollout_assets.evaluation.config import EvaluationConfig
from rollout_assets.evaluation.outcomes import count_targets, gain_columns, read_outcomes
from rollout_assets.evaluation.roster import roster
from rollout_assets.rollouts.trace import NOT_SELECTED, RolloutChain
from rollout_assets.rollouts.zarr_store import RolloutZarrStoreConfig, RolloutZarrStoreReader, write_rollout_zarr_store
from rollout_assets.testing.fake_records import SyntheticRecords
from tests.evaluation.handmade_outcomes import handmade_outcomes, paired
from tests.support.refusals import refused

HORIZON = 3
CONTESTANTS = roster(
    EvaluationConfig(campaign="demo", policies=["farthest_from_history"], output_dir="out", random_repeats=2)
)
RECIPES = tuple(recipe.name for contestant in CONTESTANTS for recipe in contestant.recipes)


@pytest.fixture(scope="module")
def records():
    """Chains that end early among others; of targets with a record without chains only the first is kept: refused."""
    by_target = defaultdict(list)
    for record in SyntheticRecords(sources=8, recipes=RECIPES, horizon=HORIZON, shell=(6, 9)):
        by_target[record.lineage.target_id].append(record)
    kept = [own if all(record.chains for record in own) else own[:1] for own in by_target.values()]
    return [record for own in kept for record in own]


@pytest.fixture(scope="module")
def reader(records, tmp_path_factory) -> RolloutZarrStoreReader:
    path = tmp_path_factory.mktemp("outcomes") / "store"
    depth = SelectedDepthRetentionConfig(enabled=False)
    write_rollout_zarr_store(path, records, RolloutZarrStoreConfig(selected_depth=depth))
    return RolloutZarrStoreReader(path)


def gains_of(chain: RolloutChain) -> list[float]:
    """Gain after each view, the last one repeated where the chain ended."""
    taken = [step for step in chain.steps if step.selection.selected_shell_index != NOT_SELECTED]
    marginal = [float(step.labels.target_root_gain[step.selection.selected_shell_index]) for step in taken]
    gains = list(accumulate(marginal)) or [0.0]
    return gains + gains[-1:] * (HORIZON - len(gains))


def test_every_rollout_has_the_gains_of_its_best_chain(reader, records):
    outcomes = read_outcomes(reader, 5, CONTESTANTS, HORIZON)
    names = {recipe.name: c.name for c in CONTESTANTS for recipe in c.recipes}
    draws = {recipe.name: draw for c in CONTESTANTS for draw, recipe in enumerate(c.recipes)}
    complete = [r for r in records if sum(o.lineage.target_id == r.lineage.target_id for o in records) > 1]
    assert outcomes.height == len(complete) > 50
    assert outcomes["seed"].unique().to_list() == [5]
    ended = 0
    for record in complete:
        recipe = next(name for name in RECIPES if record.rollout_id_prefix.endswith(name))
        row = outcomes.row(
            by_predicate=(pl.col("policy") == names[recipe])
            & (pl.col("draw") == draws[recipe])
            & (pl.col("target_id") == record.lineage.target_id),
            named=True,
        )
        chain = max(record.chains, key=lambda chain: gains_of(chain)[-1])
        best = gains_of(chain)
        assert [row[name] for name in gain_columns(HORIZON)] == pytest.approx(best, abs=1e-6)
        assert row["gain"] == pytest.approx(best[-1], abs=1e-6)
        assert (row["scene"], row["sample_key"]) == (record.lineage.scene_id, record.lineage.source_sample_key)
        ended += row["ended_early"]
        root = chain.steps[0]
        labelled = root.labels.target_root_gain[root.oracle_label_mask].astype(np.float64)
        if len(labelled):
            assert row["root_headroom"] == pytest.approx(labelled.max() - labelled.mean(), abs=1e-6)
    assert ended > 3


def test_refused_targets_are_counted(reader, records):
    counts = count_targets(reader)
    targets = {record.lineage.target_id for record in records}
    refused = {t for t in targets if sum(record.lineage.target_id == t for record in records) == 1}
    assert counts.targets == len(targets)
    assert sum(counts.refused.values()) == len(refused) > 0
    assert counts.evaluated == read_outcomes(reader, 0, CONTESTANTS, HORIZON)["target_id"].n_unique()


def test_a_root_without_one_of_the_policies_is_refused():
    lacking = handmade_outcomes().filter((pl.col("policy") != "mine") | (pl.col("scene") != "scene-3"))
    with refused(EvaluationError, "mine", 4, 24, "0, snippet-3, target-3-0"):
        _ = paired(lacking).roots
