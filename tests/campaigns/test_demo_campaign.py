"""Promises that are made about the demo campaign as a whole: its scenes, its recipes, all of its rows."""

import shutil
from collections import defaultdict

import numpy as np
import pytest

from rollout_assets.config import CampaignConfig, load_campaign
from rollout_assets.config.observation import ObservationConfig
from rollout_assets.learning.observed_states import ObservedStates
from rollout_assets.rollouts.evaluation import StateEvaluator, StateRequest
from rollout_assets.rollouts.generator import RolloutGenerator
from rollout_assets.rollouts.observing import StateObserver
from rollout_assets.rollouts.trace import NOT_SELECTED, RolloutChain, RolloutZarrRecord
from rollout_assets.rollouts.zarr_store import RolloutZarrStoreConfig, RolloutZarrStoreReader, write_rollout_zarr_store
from rollout_assets.sources.vin_store import VinOfflineStore
from rollout_assets.synthetic.config import SyntheticConfig
from rollout_assets.synthetic.store import build_synthetic_store
from tests.rollouts.zarr_store.test_store_round_trip import assert_same_chain, assert_same_lineage
from tests.support.digests import record_digests

pytestmark = pytest.mark.ci  # a minute

TINY_DEPTH = {"width_px": 16, "height_px": 16}


def demo(**oracle) -> CampaignConfig:
    """The demo campaign, with small depth images to save time."""
    config = load_campaign("demo")
    changes = {"selected_depth": config.selected_depth.model_copy(update=TINY_DEPTH)}
    return config.model_copy(update=changes | {"oracle": config.oracle.model_copy(update=oracle)})


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> VinOfflineStore:
    path = tmp_path_factory.mktemp("demo") / "source"
    build_synthetic_store(path, SyntheticConfig(scenes=8, snippets_per_scene=2, seed=demo().seed, workers=2))
    return VinOfflineStore.open(path)


@pytest.fixture(scope="module")
def records(store) -> list[RolloutZarrRecord]:
    return list(RolloutGenerator(demo(), store).records(store.rows()))


def selected(chain: RolloutChain, column: str) -> list[float]:
    return [
        float(getattr(step.labels, column)[step.selection.selected_shell_index])
        for step in chain.steps
        if step.selection.selected_shell_index != NOT_SELECTED
    ]


def test_root_gains_telescope_on_every_chain(records):
    chains = [chain for record in records for chain in record.chains if selected(chain, "target_rri")]
    assert len(chains) > 150
    for chain in chains:
        before, after = selected(chain, "target_pm_dist_before"), selected(chain, "target_pm_dist_after")
        assert after[:-1] == pytest.approx(before[1:], rel=1e-5)
        cumulative = sum(selected(chain, "target_root_gain"))
        assert cumulative == pytest.approx((before[0] - after[-1]) / max(before[0], 1e-12), rel=1e-5, abs=1e-6)


def test_greedy_beats_random_and_lookahead_is_not_below_greedy(records, capsys):
    final = defaultdict(list)
    for record in records:
        if record.chains:
            final[record.rollout_id_prefix.split("-", 3)[3]].append(
                max(sum(selected(chain, "target_root_gain")) for chain in record.chains)
            )
    means = {recipe: float(np.mean(values)) for recipe, values in final.items()}
    with capsys.disabled():
        print("\nmean final root gain:", ", ".join(f"{name} {value:.3f}" for name, value in means.items()))  # noqa: T201
    assert means["oracle_greedy"] > means["random_valid"] + 0.03
    assert means["oracle_greedy"] > 1.1 * means["random_valid"]
    assert means["oracle_lookahead"] >= means["oracle_greedy"]


def test_a_root_gives_the_same_bits_alone_and_among_fifty_others(records, store):
    assert len({(r.lineage.source_sample_index, r.lineage.target_id) for r in records}) >= 40
    for index in (0, 7, 15):
        alone = list(RolloutGenerator(demo(), store).records([store.row(index)]))
        assert record_digests(alone) == record_digests([r for r in records if r.lineage.source_sample_index == index])


def test_batches_of_one_view_and_of_all_views_give_the_same_bits(store):
    """At 128 x 128 pixels a view needs more than the smallest budget, so each goes alone."""
    row = [store.row(4)]
    one = list(RolloutGenerator(demo(width_px=128, height_px=128, batch_mib=1), store).records(row))
    every = list(RolloutGenerator(demo(width_px=128, height_px=128, batch_mib=2_048), store).records(row))
    assert record_digests(one) == record_digests(every) and any(record.chains for record in one)


def test_most_rows_give_trainable_rollouts(records):
    labelled = [record for record in records if record.chains]
    assert len({record.lineage.source_sample_index for record in labelled}) >= 14
    valid = np.mean([step.shell.actor_action_mask.mean() for r in labelled for c in r.chains for step in c.steps])
    assert valid > 0.2


@pytest.mark.parametrize("split", ["train", "val"])
def test_what_the_engine_made_comes_back_from_the_store_field_by_field(records, tmp_path, split):
    made = [record for record in records if record.lineage.split == split]
    path = tmp_path / "rollouts.zarr"
    write_rollout_zarr_store(path, made, RolloutZarrStoreConfig.from_campaign(demo()))
    reader = RolloutZarrStoreReader(path)
    assert reader.validate(deep=True).errors == []
    row = 0
    for record in made:
        for chain in record.chains:
            stored = reader.rollout(row)
            assert_same_lineage(stored.lineage, record.lineage_for_chain(chain))
            assert_same_chain(stored.chain, chain)
            row += 1
    assert row == reader.num_rows("rollouts") > 20


def test_what_the_actor_knew_is_the_same_from_the_store_and_live(store, records, tmp_path):
    """Every state of every chain of the demo's training rows, to the bit, also from a source without its meshes."""
    config, what = demo(), ObservationConfig()
    made = [record for record in records if record.lineage.split == "train"]
    write_rollout_zarr_store(tmp_path / "train", made, RolloutZarrStoreConfig.from_campaign(config))
    reader = RolloutZarrStoreReader(tmp_path / "train")
    generator = RolloutGenerator(config, store)
    roots = {
        (root.actor.identity.sample_key, root.match.target.target_id): root
        for row in store.rows("train")
        for root in generator.prepare(row).roots
    }
    requests, steps_left = [], []
    for record in made:
        for chain in record.chains:
            path: tuple[int, ...] = ()
            for depth, step in enumerate(chain.steps):
                root = roots[record.lineage.source_sample_key, record.lineage.target_id]
                requests.append(StateRequest(root, config.seed, path))
                steps_left.append(record.horizon - depth)
                path = (*path, step.selection.selected_shell_index)
    live = StateObserver(StateEvaluator(config, generator.scorer), what).observe(requests, steps_left)
    shutil.copytree(store.root, tmp_path / "blind", ignore=shutil.ignore_patterns("meshes"))
    blind = VinOfflineStore.open(tmp_path / "blind")
    stored = ObservedStates(reader, blind, what).observations(range(reader.num_rows("steps")))
    assert len(stored) == len(requests) > 300
    assert [name for name, values in stored.arrays().items() if values.tobytes() != live.arrays()[name].tobytes()] == []
