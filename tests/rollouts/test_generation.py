"""The whole way from source rows to records, on real parts: a store, its meshes, the oracle."""

import shutil
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest

from rollout_assets.candidates.reasons import InvalidReason, bitset_is_consistent
from rollout_assets.config import CampaignConfig, CandidateConfig, CandidateRules, MixtureComponent
from rollout_assets.errors import ConfigError
from rollout_assets.oracle.raycast import RENDERER
from rollout_assets.rollouts.evaluation import StateEvaluator, StateRequest
from rollout_assets.rollouts.generator import RolloutGenerator
from rollout_assets.rollouts.roots import MIN_TAKEABLE_SHARE
from rollout_assets.rollouts.target_sources import AllEligibleTargets, ExplicitTargets
from rollout_assets.rollouts.trace import NOT_SELECTED, RolloutStep, RolloutZarrRecord
from rollout_assets.rollouts.zarr_store import RolloutZarrStoreConfig
from rollout_assets.sources import layout
from rollout_assets.sources.vin_store import VinOfflineStore
from tests.sources.test_vin_store import edit_array, put
from tests.support.digests import content_digest, record_digests
from tests.support.refusals import refused

FIRST_OF_PLACE = 27
"""Where a packed box has the first coordinate of its place."""


def campaign(**changes) -> CampaignConfig:
    return CampaignConfig(
        **({"name": "test", "seed": 5, "selected_depth": {"width_px": 24, "height_px": 24}} | changes)
    )


@pytest.fixture(scope="module")
def store(small_store) -> VinOfflineStore:
    return VinOfflineStore.open(small_store)


@pytest.fixture(scope="module")
def records(store) -> list[RolloutZarrRecord]:
    return list(RolloutGenerator(campaign(), store).records(store.rows()))


def all_steps(records: Sequence[RolloutZarrRecord]) -> list[RolloutStep]:
    return [step for record in records for chain in record.chains for step in chain.steps]


def test_every_row_target_and_recipe_gives_a_record_in_order(records, store):
    prefixes = [record.rollout_id_prefix for record in records]
    assert prefixes == sorted(prefixes, key=lambda p: p.split("-")[0])
    assert {record.lineage.source_sample_index for record in records} == {row.sample_index for row in store.rows()}
    assert {prefix.split("-", 3)[3] for prefix in prefixes} >= {"oracle_greedy", "random_valid"}


def test_every_candidate_is_valid_or_has_a_reason(records):
    for step in all_steps(records):
        shell = step.shell
        assert bitset_is_consistent(shell.invalid_reason_bitset, shell.actor_action_mask).all()
        primary = shell.primary_invalid_reason.astype(np.int64)
        assert ((primary == InvalidReason.VALID) == shell.actor_action_mask).all()
        assert ((shell.invalid_reason_bitset >> primary) & 1).all()
        assert (shell.diagnostics.path_collision_mask == ((shell.invalid_reason_bitset >> 6) & 1).astype(bool)).all()


def test_masks_are_nested_and_invalid_rows_have_no_label(records):
    for step in all_steps(records):
        assert (step.oracle_label_mask <= step.shell.actor_action_mask).all()
        assert (step.selected_mask <= step.shell.actor_action_mask).all()
        assert np.isnan(step.labels.target_root_gain[~step.shell.actor_action_mask]).all()
        assert np.isfinite(step.labels.target_root_gain[step.shell.actor_action_mask]).all()
        p = step.selection.probabilities
        assert (p[~step.shell.actor_action_mask] == 0).all()
        if step.selection.selected_shell_index != NOT_SELECTED:
            assert p.sum() == pytest.approx(1, abs=1e-5)


def test_root_gains_telescope_on_every_chain(records):
    chains = [chain for record in records for chain in record.chains]
    assert sum(len(chain.steps) > 1 for chain in chains) > 20
    for chain in chains:
        taken = [s for s in chain.steps if s.selection.selected_shell_index != NOT_SELECTED]
        if not taken:
            continue
        root_error = float(np.nanmax(taken[0].labels.target_pm_dist_before))
        error, gained = root_error, 0.0
        for step in taken:
            chosen = step.selection.selected_shell_index
            before = float(step.labels.target_pm_dist_before[chosen])
            assert before == pytest.approx(error, rel=1e-5)
            error = float(step.labels.target_pm_dist_after[chosen])
            gained += float(step.labels.target_root_gain[chosen])
        assert gained == pytest.approx((root_error - error) / root_error, rel=1e-5, abs=1e-6)


def test_greedy_takes_the_best_labelled_view(records):
    for record in records:
        if record.lineage.rollout_policy == "oracle_greedy" and record.branch_factor == 1:
            for step in all_steps([record]):
                if step.selection.selected_shell_index != NOT_SELECTED:
                    assert step.selection.selected_shell_index == np.nanargmax(step.labels.target_root_gain)


def test_selected_depth_has_the_configured_size_and_mask(records):
    for step in all_steps(records):
        depth = step.selected_depth
        assert (depth is None) == (step.selection.selected_shell_index == NOT_SELECTED)
        if depth is None:
            continue
        assert depth.depth_m.shape == (24, 24)
        assert (depth.depth_m[~depth.valid_mask] == 0).all() and (depth.depth_m[depth.valid_mask] > 0).all()
        assert depth.valid_mask.any()


@pytest.mark.parametrize("rows", [[2], [3, 2, 2]])
def test_a_row_gives_the_same_bits_alone_and_among_others(records, store, rows):
    expected = {}
    for record in records:
        expected.setdefault(record.lineage.source_sample_index, []).append(content_digest(record))
    again = list(RolloutGenerator(campaign(), store).records([store.row(index) for index in rows]))
    assert record_digests(again) == [d for index in rows for d in expected[index]]


def test_the_batch_budget_changes_no_bit(records, store):
    tiny = campaign(oracle={"batch_mib": 1})
    again = list(RolloutGenerator(tiny, store).records(store.rows()[:1]))
    assert again and record_digests(again) == record_digests(records)[: len(again)]


def test_a_recipe_gives_the_same_bits_without_the_others(records, store):
    alone = campaign(recipes=[{"name": "oracle_lookahead", "policy": "oracle_greedy", "branch": 2, "beam_width": 2}])
    again = [record for record in RolloutGenerator(alone, store).records(store.rows()[:2]) if record.chains]
    same = [record for record in records if "oracle_lookahead" in record.rollout_id_prefix][: len(again)]
    assert again and [content_digest(r.chains) for r in again] == [content_digest(r.chains) for r in same]


def test_all_eligible_and_explicit_targets(store):
    row = store.row(0)
    every = RolloutGenerator(campaign(), store, AllEligibleTargets()).prepare(row)
    assert len(every.targets) >= 3
    wanted = every.targets[-1].match.target.target_id
    only = RolloutGenerator(campaign(), store, ExplicitTargets((wanted,))).prepare(row)
    assert [target.match.target.target_id for target in only.targets] == [wanted]
    with refused(ConfigError, "nothing", 7):
        RolloutGenerator(campaign(), store, ExplicitTargets(("nothing",))).prepare(row)


def test_a_row_without_a_mesh_is_counted_and_the_others_go_on(store_copy):
    store = VinOfflineStore.open(store_copy)
    next((store_copy / "meshes").glob(f"*{store.row(0).scene_id}.ply")).unlink()
    generator = RolloutGenerator(campaign(), store)
    made = list(generator.records(store.rows()))
    assert generator.stats.rows_skipped == {"MESH_REFERENCE_MISSING": 2} and generator.stats.rows == 4
    assert {record.lineage.source_sample_index for record in made} == {2, 3}


def test_a_row_without_boxes_is_counted(store_copy):
    edit_array(store_copy, layout.DETECTED_OBBS, put((0,), -1.0))
    store = VinOfflineStore.open(store_copy)
    generator = RolloutGenerator(campaign(), store)
    assert not list(generator.records([store.row(0)]))
    assert generator.stats.rows_skipped == {"NO_ACTOR_VISIBLE_SOURCE": 1}


def test_a_damaged_row_is_counted_with_its_problem(store_copy):
    edit_array(store_copy, layout.T_WORLD_RIG, put((0, 0, 0), np.nan))
    store = VinOfflineStore.open(store_copy)
    generator = RolloutGenerator(campaign(), store)
    assert list(generator.records(store.rows()[:2]))
    assert generator.stats.rows_skipped == {"SOURCE_DAMAGED": 1}
    assert "vin.t_world_rig" in generator.stats.skipped_rows[store.row(0).sample_key]


def test_an_unmatched_target_keeps_a_record_without_chains(store_copy):
    edit_array(store_copy, layout.GT_OBBS, put((0, ..., FIRST_OF_PLACE), 99.0))
    store = VinOfflineStore.open(store_copy)
    generator = RolloutGenerator(campaign(), store)
    made = list(generator.records([store.row(0)]))
    assert made and all(not record.chains and record.lineage.gt_match_status == "unmatched_gt" for record in made)
    assert generator.stats.targets_refused == {"TARGET_GT_UNMATCHED": len(made)}


def test_target_without_true_boxes_keeps_its_first_views(store_copy, store):
    rollouts = list(RolloutGenerator(campaign(), store).records([store.row(0)]))
    offered = {record.lineage.target_id: record.chains[0].steps[0].shell for record in rollouts if record.chains}
    edit_array(store_copy, layout.GT_OBBS, put((0,), -1.0))
    without = VinOfflineStore.open(store_copy)
    generator = RolloutGenerator(campaign(), without)
    made = list(generator.records([without.row(0)]))
    assert generator.stats.targets_refused == {"TARGET_GT_UNMATCHED": len(made)} and generator.stats.rollouts == 0
    assert offered and offered.keys() <= {record.lineage.target_id for record in made}
    for record in made:
        ((step,),) = [chain.steps for chain in record.chains]
        assert step.selection.selected_shell_index == NOT_SELECTED and not step.oracle_label_mask.any()
        if record.lineage.target_id in offered:
            same = offered[record.lineage.target_id]
            assert np.array_equal(step.shell.pose_world_camera, same.pose_world_camera)
            assert np.array_equal(step.shell.invalid_reason_bitset, same.invalid_reason_bitset)


def test_a_shell_without_a_valid_view_is_kept_as_a_dead_end(store):
    far = CandidateConfig(
        radius_min_m=30, radius_max_m=31, mixture=(MixtureComponent(position="forward_local", count=5),)
    )
    generator = RolloutGenerator(campaign(candidates=far, targets={"require_reachable": False}), store)
    made = list(generator.records([store.row(0)]))
    chains = [chain for record in made for chain in record.chains]
    assert chains and all(chain.termination_reason == "terminated_early" for chain in chains)
    assert all(len(step.shell) == 5 and not step.shell.actor_action_mask.any() for step in all_steps(made))
    assert generator.stats.recipes_stuck["NO_VALID_FIRST_VIEW"] == len([r for r in made if r.chains])


def test_every_chosen_view_can_be_weighted(records):
    steps = [step for step in all_steps(records) if step.selection.selected_shell_index != NOT_SELECTED]
    inclusion = np.array([step.selection.inclusion_probabilities[step.selected_mask][0] for step in steps])
    assert len(steps) > 50 and inclusion.min() >= 1e-9
    assert np.exp([step.selection.draw_log_probability for step in steps]).min() >= 1e-9
    drawn = [record for record in records if "softmax" in record.rollout_id_prefix]
    logits = np.concatenate([step.selection.logits for step in all_steps(drawn)])
    assert np.nanmax(np.abs(logits)) <= 7.0


def root_views(config: CampaignConfig, store: VinOfflineStore) -> tuple[np.ndarray, Counter[str]]:
    """Takeable views at the root of every labelled target, and what was passed over."""
    generator = RolloutGenerator(config, store)
    prepared = [generator.prepare(row) for row in store.rows()]
    requests = [StateRequest(root, config.seed, ()) for sample in prepared for root in sample.roots]
    states = StateEvaluator(config, generator.scorer).evaluate(requests)
    assert all(target.match.target.score > 0 for sample in prepared for target in sample.targets)
    passed_over = sum((sample.passed_over for sample in prepared), Counter())
    return np.array([state.shell.actor_action_mask.sum() for state in states]), passed_over


def test_selected_targets_have_takeable_views_at_the_root(store):
    config = campaign(targets={"top_k": 9})
    views, passed_over = root_views(config, store)
    before, without_reach = root_views(campaign(targets={"top_k": 9, "require_reachable": False}), store)
    assert (before == 0).mean() > 0.1, "the source must have targets beside and behind the actor"
    assert len(views) > 9 and (views == 0).mean() < 0.05
    assert passed_over["OUT_OF_REACH"] > 0 and "OUT_OF_REACH" not in without_reach
    enough = MIN_TAKEABLE_SHARE * config.candidates.num_candidates
    assert len(views) >= (before >= enough).sum(), "no target with enough takeable views is passed over"


def test_row_with_all_targets_out_of_reach_is_skipped(store):
    narrow = CandidateConfig(rules=CandidateRules(max_yaw_deg=0.01))
    generator = RolloutGenerator(campaign(candidates=narrow), store)
    assert list(generator.records([store.row(0)])) == []
    assert generator.stats.rows_skipped == {"OUT_OF_REACH": 1}
    assert generator.stats.targets_passed_over["OUT_OF_REACH"] > 0


def test_scene_labels_are_there_when_asked_for(store):
    made = list(RolloutGenerator(campaign(oracle={"scene_labels": True}), store).records([store.row(0)]))
    for step in all_steps(made):
        assert (np.isfinite(step.labels.scene_root_gain) == step.shell.actor_action_mask).all()


def test_ground_truth_protocol_labels_its_own_boxes(store):
    made = list(RolloutGenerator(campaign(targets={"protocol": "v0_gt_input"}), store).records([store.row(1)]))
    assert {record.lineage.gt_match_status for record in made} == {"v0_gt_input"}
    assert {record.lineage.target_source for record in made} == {"gt_obbs_oracle"}


def test_meshes_may_lie_elsewhere(store_copy, tmp_path):
    shutil.move(store_copy / "meshes", tmp_path / "elsewhere")
    store = VinOfflineStore.open(store_copy, [tmp_path / "elsewhere"])
    assert RolloutGenerator(campaign(), store).prepare(store.row(0)).roots


def test_store_of_a_campaign_names_its_depth_renderer():
    assert RolloutZarrStoreConfig.from_campaign(campaign()).depth_renderer == RENDERER
