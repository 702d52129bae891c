"""Observations of live states: what a store would tell of them, to the bit, and nothing of the truth."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rollout_assets.config import CampaignConfig
from rollout_assets.config.observation import ObservationConfig
from rollout_assets.learning.observed_states import ObservedStates
from rollout_assets.observations.assemble import ObservedState, ObservedTarget, observe
from rollout_assets.observations.cloud import TakenView, TargetCloud
from rollout_assets.observations.observation import MOTION_COLUMNS, Arrays, Observations
from rollout_assets.oracle.scorer import OracleScorer
from rollout_assets.rollouts.engine import EvaluatedState
from rollout_assets.rollouts.evaluation import StateEvaluator, StateRequest
from rollout_assets.rollouts.generator import RolloutGenerator
from rollout_assets.rollouts.observing import StateObserver
from rollout_assets.rollouts.roots import TargetedRoot
from rollout_assets.rollouts.trace import StepLabels
from rollout_assets.rollouts.zarr_store import (
    RolloutZarrStoreConfig,
    RolloutZarrStoreReader,
    schema,
    write_rollout_zarr_store,
)
from rollout_assets.rollouts.zarr_store.open_store import OpenStore
from rollout_assets.sources.vin_store import VinOfflineStore

WHAT = ObservationConfig(points=256, history=2, depth_px=16)

CAMPAIGN = CampaignConfig.model_validate(
    {
        "name": "observed",
        "seed": 5,
        "oracle": {"width_px": 12, "height_px": 12, "device": "cpu"},
        "selected_depth": {"width_px": 40, "height_px": 24},
        "recipes": [
            {"name": "lookahead", "policy": "oracle_greedy", "horizon": 3, "branch": [2, 1], "beam_width": 2},
            {"name": "random", "policy": "random_valid", "horizon": 3},
        ],
    }
)


@pytest.fixture(scope="module")
def source(small_store: Path) -> VinOfflineStore:
    return VinOfflineStore.open(small_store)


@pytest.fixture(scope="module")
def roots(source: VinOfflineStore) -> dict[tuple[str, str], TargetedRoot]:
    """Targets of the training rows by sample key and target id."""
    generator = RolloutGenerator(CAMPAIGN, source)
    prepared = [generator.prepare(row) for row in source.rows("train")]
    return {(r.actor.identity.sample_key, r.match.target.target_id): r for p in prepared for r in p.roots}


@pytest.fixture(scope="module")
def stored(source: VinOfflineStore, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("observed") / "store"
    records = RolloutGenerator(CAMPAIGN, source).records(source.rows("train"))
    write_rollout_zarr_store(path, records, RolloutZarrStoreConfig.from_campaign(CAMPAIGN))
    return path


def evaluator_of(config: CampaignConfig = CAMPAIGN) -> StateEvaluator:
    return StateEvaluator(config, OracleScorer(config.oracle))


def equal(a: Observations[Arrays], b: Observations[Arrays]) -> list[str]:
    """Names of arrays that differ in a bit, a shape or a type."""
    return [
        name
        for name, values in a.arrays().items()
        if values.dtype != b.arrays()[name].dtype or not np.array_equal(values, b.arrays()[name])
    ]


class StoredChains:
    """The slow, obvious reading of a store: whole tables in memory, one state after the other."""

    def __init__(self, path: Path, source: VinOfflineStore) -> None:
        store = OpenStore(path)
        self.source = source
        self.tables = {name: store.columns(table, table.names) for name, table in schema.TABLES.items()}
        self.words = {name: store.strings(name) for name in ("class_name", "source_key", "target")}

    def states(self) -> list[tuple[str, str, tuple[int, ...], ObservedState]]:
        """Sample key, target id, path and state of every step."""
        rollouts = self.tables["rollouts"]
        return [state for row in range(len(rollouts["rollout_row_id"])) for state in self._chain(row)]

    def _chain(self, rollout: int) -> list[tuple[str, str, tuple[int, ...], ObservedState]]:
        rollouts, steps, depths = (self.tables[name] for name in ("rollouts", "steps", "selected_depth"))
        target_row = rollouts["target_row_id"][rollout]
        target = self._target(target_row)
        key_id = self.tables["sources"]["sample_key_id"][rollouts["source_row_id"][rollout]]
        sample_key = self.words["source_key"][key_id]
        actor = self.source.sample(self.source.row(sample_key)).actor
        taken = [rollouts["root_pose_world"][rollout]]
        cloud = TargetCloud.of(actor.points_world, target.pose_world_object, target.extents_m, WHAT)
        path: tuple[int, ...] = ()
        result = []
        for step in np.flatnonzero(steps["rollout_row_id"] == rollout):
            rows = np.flatnonzero(self.tables["candidates"]["step_row_id"] == step)
            candidates = {name: values[rows] for name, values in self.tables["candidates"].items()}
            diagnostics = {name: values[rows] for name, values in self.tables["candidate_diagnostics"].items()}
            state = ObservedState(
                target=target,
                camera=actor.camera,
                cloud=cloud,
                poses_world_camera=candidates["pose_world_cam"],
                position_id=candidates["position_id"],
                motion=np.stack([diagnostics[name] for name in MOTION_COLUMNS], axis=1),
                takeable=candidates["actor_action_mask"],
                taken_world_camera=np.stack(taken),
                steps_left=int(rollouts["horizon"][rollout]) - len(path),
            )
            result.append((sample_key, self.words["target"][self._target_column("target_id", target_row)], path, state))
            chosen = int(steps["selected_shell_index"][step])
            if chosen < 0:
                break
            taken.append(candidates["pose_world_cam"][chosen])
            path = (*path, chosen)
            columns = ("depth_m", "valid_mask", "focal_px", "principal_point_px")
            cloud = cloud.after([TakenView.of(taken[-1], *(depths[name][step] for name in columns))])
        return result

    def _target(self, row: int) -> ObservedTarget:
        counts = ("semidense_support_count", "evl_support_count", "effective_support_count")
        return ObservedTarget(
            pose_world_object=self._target_column("target_pose_world_object", row),
            extents_m=self._target_column("target_extents", row),
            class_name=self.words["class_name"][self._target_column("target_class_name_id", row)],
            confidence=float(self._target_column("target_confidence", row)),
            support=tuple(float(self._target_column(f"target_{name}", row)) for name in counts),
        )

    def _target_column(self, name: str, row: int) -> Any:
        return self.tables["targets"][name][row]


def live_requests(
    states: Sequence[tuple[str, str, tuple[int, ...], ObservedState]], roots: dict[tuple[str, str], TargetedRoot]
) -> list[StateRequest]:
    return [StateRequest(roots[key, target], CAMPAIGN.seed, path) for key, target, path, _ in states]


def test_live_observations_equal_those_of_the_store_to_the_bit(stored, source, roots):
    states = StoredChains(stored, source).states()
    assert len(states) > 20 and max(len(path) for _, _, path, _ in states) == 2
    expected = observe([state for *_, state in states], WHAT, CAMPAIGN.candidates.num_candidates)
    observer = StateObserver(evaluator_of(), WHAT)
    live = observer.observe(live_requests(states, roots), [state.steps_left for *_, state in states])
    assert equal(live, expected) == []
    assert live.point_mask.any() and (live.point_age[live.point_mask] > 0).any()


def test_observation_is_independent_of_batch_and_cache(stored, source, roots):
    states = StoredChains(stored, source).states()[::-3]
    requests, left = live_requests(states, roots), [state.steps_left for *_, state in states]
    together = StateObserver(evaluator_of(), WHAT).observe(requests, left)
    forgetful = StateObserver(StateEvaluator(CAMPAIGN, OracleScorer(CAMPAIGN.oracle), kept_states=1), WHAT, 1)
    for row, (request, steps) in enumerate(zip(requests, left, strict=True)):
        alone = forgetful.observe([request], [steps])
        assert equal(alone, together.mapped(lambda values, row=row: values[row : row + 1])) == []


def test_no_view_is_rendered_twice(roots, monkeypatch):
    evaluator = evaluator_of()
    rendered: list[bytes] = []
    render = evaluator._render

    def counting(views):
        rendered.extend(pose.tobytes() for _, pose in views)
        return render(views)

    monkeypatch.setattr(evaluator, "_render", counting)
    root = next(iter(roots.values()))
    first = int(np.flatnonzero(evaluator.evaluate([StateRequest(root, 5, ())])[0].shell.actor_action_mask)[0])
    observer = StateObserver(evaluator, WHAT)
    for _ in range(2):
        observer.observe([StateRequest(root, 5, ()), StateRequest(root, 5, (first,))], [2, 1])
    pose = evaluator.evaluate([StateRequest(root, 5, ())])[0].shell.pose_world_camera[first]
    evaluator.depths_of([(root, pose)])
    assert rendered == [pose.tobytes()]


def test_a_campaign_without_stored_depth_observes_the_same(roots):
    without = CAMPAIGN.model_copy(
        update={"selected_depth": CAMPAIGN.selected_depth.model_copy(update={"enabled": False})}
    )
    root = next(iter(roots.values()))
    one = evaluator_of()
    first = int(np.flatnonzero(one.evaluate([StateRequest(root, 5, ())])[0].shell.actor_action_mask)[0])
    request = [StateRequest(root, 5, (first,))]
    with_depth = StateObserver(one, WHAT).observe(request, [1])
    assert equal(StateObserver(evaluator_of(without), WHAT).observe(request, [1]), with_depth) == []


PRIVILEGED = (
    *("mesh", "clearance", "collision", "gt", "matched", "truth"),
    *("label", "gain", "rri", "error", "oracle", "pm", "reward"),
)
"""Words of columns that only the oracle, the simulator or the labels know."""


def test_nothing_of_the_type_is_a_privileged_column():
    """An observation is made of these fields alone; none of them is a label, a distance to the mesh or a true box."""
    told = [*Observations.__dataclass_fields__, *ObservedState.__dataclass_fields__, *MOTION_COLUMNS]
    told += [*ObservedTarget.__dataclass_fields__, *TakenView.__dataclass_fields__, *TargetCloud.__dataclass_fields__]
    assert not {word for name in told for word in name.split("_")} & set(PRIVILEGED)
    secret = {name for name in schema.array_paths() if set(name.split("/")[-1].split("_")) & set(PRIVILEGED)}
    secret |= {schema.CANDIDATES.path(name) for name in schema.LABEL_COLUMNS}
    assert {"candidate_diagnostics/mesh_distance_m", "targets/gt_match_iou", "q_h/td_reward"} <= secret
    shown = {path for path in schema.array_paths() if path.split("/")[-1] in told}
    assert not shown & secret


def test_what_only_the_truth_knows_changes_nothing(roots):
    """Labels, distances to the mesh and the match to a true box are altered behind an observation; the mesh itself
    shows only in the views taken and in which views can be taken, as it does to whoever walks there."""
    root = next(iter(roots.values()))
    evaluator = evaluator_of()
    first = int(np.flatnonzero(evaluator.evaluate([StateRequest(root, 5, ())])[0].shell.actor_action_mask)[0])
    requests = [StateRequest(root, 5, path) for path in ((), (first,))]
    before = StateObserver(evaluator, WHAT).observe(requests, [2, 1])

    noise = np.random.default_rng(0)
    secrets = ("mesh_distance_m", "path_min_clearance_m", "free_space_margin_m")

    def altered(state: EvaluatedState) -> EvaluatedState:
        measured = {name: noise.random(len(state.shell), np.float32) for name in secrets}
        shell = replace(state.shell, diagnostics=replace(state.shell.diagnostics, **measured))
        labels = {name: noise.random(len(shell), np.float32) for name in schema.LABEL_COLUMNS}
        return replace(state, shell=shell, labels=StepLabels(**labels), target_points_after=noise.random(len(shell)))

    match = replace(root.match, status="ambiguous_gt", iou=0.5, score=0.1, best_row=None, matched_gt_target_id="other")
    lied_to = [replace(request, root=replace(root, match=match)) for request in requests]
    states = [altered(state) for state in evaluator.evaluate(requests)]
    assert equal(StateObserver(evaluator, WHAT).observe(lied_to, [2, 1], states), before) == []


def test_a_root_is_observed_without_its_mesh(roots, monkeypatch):
    """Before any view is taken the observation is made of the recording alone: no ray is cast for it."""
    root = next(iter(roots.values()))
    evaluator = evaluator_of()
    states = evaluator.evaluate([StateRequest(root, 5, ())])
    nothing = replace(root, oracle_state=None)
    monkeypatch.setattr(evaluator, "_render", lambda views: [] if not views else pytest.fail("a view was rendered"))
    blind = StateObserver(evaluator, WHAT).observe([StateRequest(nothing, 5, ())], [2], states)
    assert equal(blind, StateObserver(evaluator_of(), WHAT).observe([StateRequest(root, 5, ())], [2])) == []


def test_the_loader_of_stored_states_says_the_same(stored, source, roots):
    states = StoredChains(stored, source).states()
    observer = StateObserver(evaluator_of(), WHAT)
    live = observer.observe(live_requests(states, roots), [state.steps_left for *_, state in states])
    loader = ObservedStates(RolloutZarrStoreReader(stored), source, WHAT)
    assert equal(loader.observations(range(len(states))), live) == []


def test_state_without_steps_left_is_not_evaluated(roots):
    evaluator = evaluator_of()
    root = next(iter(roots.values()))
    start = StateRequest(root, 5, ())
    first = int(np.flatnonzero(evaluator.evaluate([start])[0].shell.actor_action_mask)[0])
    scored, end = evaluator.views_scored, StateRequest(root, 5, (first,))
    ended, begun = StateObserver(evaluator, WHAT).observe([end, start], [0, 2]), evaluator.views_scored
    assert begun == scored
    assert ended.candidate_mask.any(axis=1).tolist() == [False, True]
    last = StateObserver(evaluator, WHAT).observe([end], [1])
    shown = [name for name in last.arrays() if not name.startswith("candidate") and name != "steps_left"]
    assert [name for name in shown if not np.array_equal(getattr(ended, name)[:1], getattr(last, name))] == []
