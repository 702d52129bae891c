"""Scenes are held out by hash, and equal states count once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rollout_assets.learning.state_filter import (
    StateFilter,
    by_hash,
    divide_scenes,
    first_of_equal_states,
    scenes_of_states,
)
from rollout_assets.rollouts.zarr_store import RolloutZarrStoreReader
from rollout_assets.rollouts.zarr_store.schema import CANDIDATES, Q_H, STEPS

SCENES = [f"home-{number:03d}" for number in range(40)]


def test_a_share_of_the_scenes_is_held_out() -> None:
    train, held_out = divide_scenes(SCENES, 0.15, seed=0)
    assert sorted(train + held_out) == SCENES
    assert len(held_out) == 6
    assert divide_scenes(list(reversed(SCENES)), 0.15, seed=0) == (train, held_out)
    assert divide_scenes(SCENES, 0.15, seed=1)[1] != held_out


@pytest.mark.parametrize("share", [0.01, 0.5, 0.99])
def test_each_side_gets_at_least_one(share: float) -> None:
    train, held_out = divide_scenes(["a", "b"], share, seed=0)
    assert len(train) == len(held_out) == 1


def test_a_new_scene_changes_no_other_scenes_order() -> None:
    order = by_hash(SCENES, 3)
    assert [scene for scene in by_hash([*SCENES, "another"], 3) if scene != "another"] == order


def test_states_of_some_scenes(observed_store: Path) -> None:
    reader = RolloutZarrStoreReader(observed_store)
    scenes = scenes_of_states(reader)
    some = str(scenes[0])
    assert StateFilter(frozenset([some])).mask(reader).sum() == (scenes == some).sum() > 0
    assert StateFilter(frozenset(["nowhere"])).mask(reader).sum() == 0
    assert StateFilter().mask(reader).all()


def test_equal_states_are_those_with_one_target_and_the_same_views(observed_store: Path) -> None:
    reader = RolloutZarrStoreReader(observed_store)
    poses, owner = reader.array(CANDIDATES.path("pose_world_cam")), reader.array(CANDIDATES.path("step_row_id"))
    steps, targets = reader.array(Q_H.path("state_step_row_id")), reader.array(Q_H.path("target_row_id"))
    seen, naive = set(), []
    for step, target in zip(steps, targets, strict=True):
        key = (int(target), poses[owner == step].tobytes())
        naive.append(key not in seen)
        seen.add(key)
    first = first_of_equal_states(reader)
    assert first.tolist() == naive
    assert 0 < first.sum() < len(first), "recipes begin at the same roots"
    depth = reader.array(STEPS.path("step_index"))[steps]
    assert first[depth == 0].sum() == len(np.unique(targets[depth == 0]))
    assert replace(StateFilter(), distinct=True).mask(reader).tolist() == naive
