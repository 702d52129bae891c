"""Rollouts, lineage and sources against the campaign that the manifest says made them.

The manifest of a store that this package wrote holds the whole campaign and, in a shard, the planned rows. Every check
here is skipped in a store that names no campaign, as those of other writers do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollout_assets.config import CampaignConfig, RolloutRecipeConfig
from rollout_assets.geometry import poses
from rollout_assets.rollouts.recipes import branch_schedule_id, largest_branch
from rollout_assets.rollouts.trace import rollout_id_prefix
from rollout_assets.rollouts.zarr_store.attributes import RolloutZarrStoreConfig
from rollout_assets.rollouts.zarr_store.checks.store_under_check import StoreUnderCheck
from rollout_assets.rollouts.zarr_store.chunks.tables import Table
from rollout_assets.rollouts.zarr_store.findings import Findings, bad_rows, problem
from rollout_assets.rollouts.zarr_store.manifest import ROLLOUT_MANIFEST_FILENAME, SOURCE_SPLITS
from rollout_assets.rollouts.zarr_store.schema import (
    ABSENT,
    LINEAGE,
    ROLLOUTS,
    SELECTED_DEPTH,
    SOURCES,
    STEPS,
    TARGETS,
)

_SAME_PER_SOURCE = ("root_pose_world", "root_time_ns", "root_trajectory_index", "root_frame_index")
_POSE_TOLERANCE = 1e-4

_BY_RECIPE: Mapping[str, Callable[[RolloutRecipeConfig], float]] = {
    "horizon": lambda recipe: recipe.horizon,
    "branch_factor": largest_branch,
    "beam_width": lambda recipe: ABSENT if recipe.beam_width is None else recipe.beam_width,
    "temperature": lambda recipe: recipe.temperature,
}
"""Numbers of a rollout -> what its recipe says."""

_HASHES: Mapping[str, Callable[[CampaignConfig], str]] = {
    "candidate_config_id": lambda config: config.candidate_config_hash,
    "oracle_config_id": lambda config: config.oracle_config_hash,
    "rollout_config_id": lambda config: config.rollout_config_hash,
    "target_crop_policy_id": lambda config: config.oracle.crop_policy_name,
}
"""Strings of a lineage -> what the campaign makes them."""

_RECIPE_STRINGS: Mapping[str, Callable[[RolloutRecipeConfig], str]] = {
    "branch_schedule_id": branch_schedule_id,
    "model_checkpoint_id": lambda recipe: recipe.checkpoint_sha256 or "",
}
"""Strings of a lineage -> what its recipe makes them; a policy without a checkpoint has none."""

_PLANNED_SOURCES: Mapping[str, str] = {
    "source_cache_version_id": "source_cache_version",
    "source_offline_store_manifest_hash_id": "source_manifest_hash",
    "split_manifest_hash_id": "split_manifest_hash",
    "split_id": "split",
}
"""Strings of every source row -> what the shard's entry in the plan calls them."""

_PLANNED_ROWS: Mapping[str, str] = {
    "sample_index": "sample_index",
    "scene_id": "scene_id",
    "snippet_id": "snippet_id",
    "split_id": "split",
    "source_shard_id": "source_shard_id",
    "source_shard_row": "source_shard_row",
}
"""Columns of a source row -> what its row in the plan calls them."""


def campaign_readable(store: StoreUnderCheck) -> Findings:
    """A campaign recorded by this version of the package is one that it understands."""
    if store.campaign is None and store.campaign_problem:
        yield problem(f"{ROLLOUT_MANIFEST_FILENAME} generation.writer_config", store.campaign_problem)


def settings_follow_campaign(store: StoreUnderCheck) -> Findings:
    """Discount, protocol, depth images and view are those that the campaign asks for."""
    if store.campaign is None:
        return
    config = RolloutZarrStoreConfig.from_campaign(store.campaign)
    depth = config.selected_depth
    for name, expected in (
        ("discount_gamma", config.discount_gamma),
        ("target_protocol_version", config.target_protocol_version),
        ("q_h_chunk_states", config.chunk_states),
        ("dead_ends_in_training_view", config.dead_ends_in_training_view),
        *((f"selected_depth_{field}", value) for field, value in depth.model_dump().items()),
        ("selected_depth_znear_m", config.depth_znear_m),
        ("selected_depth_zfar_m", config.depth_zfar_m),
    ):
        stored = store.attributes.get(name)
        if stored != expected:
            yield problem(f"attribute {name}", f"must be the campaign's {expected!r}", repr(stored))


def rollouts_follow_recipes(store: StoreUnderCheck) -> Findings:
    """Each rollout is named after its row, target, recipe and chain, and has its recipe's policy and numbers."""
    if store.campaign is None:
        return
    recipes, recipe = store.campaign.recipes, store.recipe_of_rollout
    unknown = recipe < 0
    text = f"must name a recipe of the campaign ({', '.join(each.name for each in recipes)})"
    ids = np.array(store.decoded(ROLLOUTS, "rollout_id"))
    yield from bad_rows(ROLLOUTS.path("rollout_id"), unknown, text, ids)
    names = np.array([each.name for each in recipes])[recipe]
    wrong = ~unknown & (ids != np.array(list(_rollout_ids(store, names.tolist()))))
    text = "must be made of its sample index, target rank, recipe and chain"
    yield from bad_rows(ROLLOUTS.path("rollout_id"), wrong, text, ids)
    yield from _strings(store, ROLLOUTS, "policy_id", [recipes[index].policy for index in recipe], ~unknown)
    for name, value_of in _BY_RECIPE.items():
        expected = np.array([value_of(each) for each in recipes], ROLLOUTS[name].numpy_dtype)[recipe]
        wrong = ~unknown & (store.column(ROLLOUTS, name) != expected)
        yield from store.bad_rows(ROLLOUTS, name, wrong, "must be that of the campaign's recipe")
    wrong = store.column(ROLLOUTS, "random_seed") != store.campaign.seed
    yield from store.bad_rows(ROLLOUTS, "random_seed", wrong, f"must be the campaign's {store.campaign.seed}")
    beam, chain = store.column(ROLLOUTS, "beam_width"), store.column(ROLLOUTS, "chain_id")
    yield from store.bad_rows(ROLLOUTS, "chain_id", (beam > 0) & (chain >= beam), "must be below the beam's width")


def lineage_follows_campaign(store: StoreUnderCheck) -> Findings:
    """Config hashes are those of the recorded campaign, and draws are keyed by what the tables say."""
    if store.campaign is None:
        return
    recipes, recipe = store.campaign.recipes, store.recipe_of_rollout
    everywhere = np.ones(len(recipe), np.bool_)
    for name, value_of in _HASHES.items():
        yield from _strings(store, LINEAGE, name, [value_of(store.campaign)] * len(recipe), everywhere)
    for name, text_of in _RECIPE_STRINGS.items():
        yield from _strings(store, LINEAGE, name, [text_of(recipes[index]) for index in recipe], recipe >= 0)
    digests = [
        key.selection_digest(recipes[index], path)
        for key, index, path in zip(store.rollout_keys, recipe, store.rollout_paths, strict=True)
    ]
    yield from _strings(store, LINEAGE, "selection_rng_state_hash_id", digests, recipe >= 0)


def one_mesh_per_scene(store: StoreUnderCheck) -> Findings:
    """All rollouts of a scene were measured against the same mesh, named by its SHA-256."""
    if store.campaign is None:
        return
    versions, scene = np.array(store.decoded(LINEAGE, "mesh_version_id")), store.column(ROLLOUTS, "scene_id")
    digest = np.array([len(text) == 64 and set(text) <= set("0123456789abcdef") for text in versions], np.bool_)
    yield from bad_rows(LINEAGE.path("mesh_version_id"), ~digest, "must be a SHA-256 in hex", versions)
    first = _first_of(scene)
    text = "must be the same for all rollouts of a scene"
    yield from bad_rows(LINEAGE.path("mesh_version_id"), versions != versions[first], text, versions)


def roots_follow_sources(store: StoreUnderCheck) -> Findings:
    """All rollouts of a source row start at the same pose and frame; depth images of a source row share a camera."""
    if store.campaign is None:
        return
    source = store.column(ROLLOUTS, "source_row_id")
    first = _first_of(source)
    for name in _SAME_PER_SOURCE:
        values = store.column(ROLLOUTS, name)
        wrong = values != values[first]
        yield from store.bad_rows(ROLLOUTS, name, wrong, "must be the same for all rollouts of a source row")
    frame, last = store.column(ROLLOUTS, "root_frame_index"), store.column(ROLLOUTS, "root_trajectory_index")
    yield from store.bad_rows(ROLLOUTS, "root_frame_index", frame != last, "must be root_trajectory_index")
    if store.rows(SELECTED_DEPTH):
        of_step = source[np.clip(store.column(STEPS, "rollout_row_id"), 0, max(len(source) - 1, 0))]
        seen = np.flatnonzero(store.column(STEPS, "selected_candidate_row_id") >= 0)
        for name in ("focal_px", "principal_point_px"):
            values = store.column(SELECTED_DEPTH, name)
            wrong = np.zeros(len(values), np.bool_)
            wrong[seen] = (values[seen] != values[seen][_first_of(of_step[seen])]).any(axis=1)
            yield from store.bad_rows(SELECTED_DEPTH, name, wrong, "must be the same for all views of a source row")


def targets_placed_from_root(store: StoreUnderCheck) -> Findings:
    """A target's pose relative to the reference is its pose in the world as seen from its source row's root."""
    if store.campaign is None:
        return
    source, row = np.unique(store.column(ROLLOUTS, "source_row_id"), return_index=True)
    owner = store.column(TARGETS, "source_row_id")
    target = np.flatnonzero(np.isin(owner, source))
    root = store.column(ROLLOUTS, "root_pose_world")[row[np.searchsorted(source, owner[target])]]
    expected = poses.compose(poses.inverse(root), store.column(TARGETS, "target_pose_world_object")[target])
    stored = store.column(TARGETS, "target_relative_pose_reference_object")
    wrong = np.zeros(len(stored), np.bool_)
    wrong[target] = (np.abs(stored[target] - expected) > _POSE_TOLERANCE).any(axis=1)
    text = "must be the target's pose as seen from the root"
    yield from store.bad_rows(TARGETS, "target_relative_pose_reference_object", wrong, text)


def sources_as_planned(store: StoreUnderCheck) -> Findings:
    """In a shard, source rows are rows of its entry in the plan, from the source that was planned for."""
    entry = store.generation.get("shard")
    if store.campaign is None or not isinstance(entry, dict) or not isinstance(entry.get("rows"), list):
        return
    count = store.rows(SOURCES)
    for name, key in _PLANNED_SOURCES.items():
        yield from _strings(store, SOURCES, name, [str(entry.get(key))] * count, np.ones(count, np.bool_))
    planned = {row.get("sample_key"): row for row in entry["rows"] if isinstance(row, dict)}
    keys = store.decoded(SOURCES, "sample_key_id")
    outside = np.array([key not in planned for key in keys], np.bool_)
    yield from bad_rows(SOURCES.path("sample_key_id"), outside, "must be a row of the shard's plan", np.array(keys))
    rows = [planned.get(key, {}) for key in keys]
    moved = {key: row["source_split"] for key, row in zip(keys, rows, strict=True) if row.get("source_split")}
    if store.manifest.get(SOURCE_SPLITS, {}) != moved:
        yield problem(f"{ROLLOUT_MANIFEST_FILENAME} {SOURCE_SPLITS}", "must be the source's own splits in the plan")
    for name, key in _PLANNED_ROWS.items():
        expected = [row.get(key) for row in rows]
        if SOURCES[name].dictionary is not None:
            yield from _strings(store, SOURCES, name, [str(value) for value in expected], ~outside)
        else:
            values = store.column(SOURCES, name)
            wrong = ~outside & np.array([value != own for value, own in zip(values, expected, strict=True)], np.bool_)
            yield from store.bad_rows(SOURCES, name, wrong, "must be that of its row in the shard's plan")


CAMPAIGN_CHECKS: tuple[Callable[[StoreUnderCheck], Findings], ...] = (
    campaign_readable,
    settings_follow_campaign,
    rollouts_follow_recipes,
    lineage_follows_campaign,
    one_mesh_per_scene,
    roots_follow_sources,
    targets_placed_from_root,
    sources_as_planned,
)
"""Checks of the small tables against the campaign."""


def _rollout_ids(store: StoreUnderCheck, recipe_names: Sequence[str]) -> Iterator[str]:
    sample = store.of_source("sample_index")
    rank = store.of_target("target_selection_rank")
    chain = store.column(ROLLOUTS, "chain_id").tolist()
    for index, place, name, number in zip(sample.tolist(), rank.tolist(), recipe_names, chain, strict=True):
        yield f"{rollout_id_prefix(index, place, name)}-{number:06d}"


def _strings(
    store: StoreUnderCheck, table: Table, name: str, expected: Sequence[str], where: NDArray[np.bool_]
) -> Findings:
    stored = store.decoded(table, name)
    wrong = where & np.array([text != own for text, own in zip(stored, expected, strict=True)], np.bool_)
    row = int(np.argmax(wrong)) if wrong.any() else 0
    text = f"must be {expected[row]!r}, as the campaign makes it" if wrong.any() else ""
    yield from bad_rows(table.path(name), wrong, text, np.array(stored))


def _first_of(keys: NDArray[Any]) -> NDArray[np.int64]:
    """(n,) keys -> (n,) the first row that has the same key."""
    _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    return first[inverse]
