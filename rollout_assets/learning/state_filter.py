"""Which states of a store a training takes: those of some scenes, and equal ones only once."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from rollout_assets.randomness import key_digest
from rollout_assets.rollouts.zarr_store.reader import RolloutZarrStoreReader
from rollout_assets.rollouts.zarr_store.schema import CANDIDATES, Q_H, SOURCES, STEPS

_BLOCK_STATES = 4_096


@dataclass(frozen=True)
class StateFilter:
    """``scenes``: only states of these; None means all. ``distinct``: of equal states only the first.

    States are equal when they have the same target and are offered the same views: recipes of a campaign begin at the
    same roots, and branches of a chain share its beginning.
    """

    scenes: frozenset[str] | None = None
    distinct: bool = False

    def mask(self, reader: RolloutZarrStoreReader) -> NDArray[np.bool_]:
        """(n,) which states of a store's training view are taken."""
        scenes = scenes_of_states(reader)
        mask = np.ones(len(scenes), np.bool_) if self.scenes is None else np.isin(scenes, sorted(self.scenes))
        return mask & first_of_equal_states(reader) if self.distinct else mask


def scenes_of_states(reader: RolloutZarrStoreReader) -> NDArray[np.str_]:
    """(n,) the scene of every state of the training view."""
    names = np.array(reader.strings(str(SOURCES["scene_id"].dictionary)), np.str_)
    of_source = reader.array(SOURCES.path("scene_id"))
    return names[of_source[reader.array(Q_H.path("source_row_id"))]]


def first_of_equal_states(reader: RolloutZarrStoreReader) -> NDArray[np.bool_]:
    """(n,) the states of the training view that no earlier state is equal to."""
    targets = reader.array(Q_H.path("target_row_id"))
    ends = np.cumsum(reader.array(STEPS.path("num_candidates")), dtype=np.int64)
    steps = reader.array(Q_H.path("state_step_row_id"))
    first = np.zeros(len(steps), np.bool_)
    seen: set[bytes] = set()
    for start in range(0, len(steps), _BLOCK_STATES):
        block = steps[start : start + _BLOCK_STATES]
        low, high = int(ends[block[0] - 1]) if block[0] else 0, int(ends[block[-1]])
        poses = reader.array(CANDIDATES.path("pose_world_cam"), low, high)
        for state, step in enumerate(block.tolist(), start=start):
            begin = int(ends[step - 1]) if step else 0
            key = _digest(int(targets[state]), poses[begin - low : int(ends[step]) - low])
            first[state] = key not in seen
            seen.add(key)
    return first


def _digest(target: int, poses: NDArray[np.float32]) -> bytes:
    return blake2b(np.ascontiguousarray(poses).data, digest_size=16, key=str(target).encode()).digest()


def divide_scenes(scenes: Collection[str], share: float, seed: int) -> tuple[list[str], list[str]]:
    """Scenes to train on, and those held out: a share of them by hash, at least one, and at least one is left.

    A scene's place depends on its name and the seed, so few change sides when scenes are added; the first n of those to
    train on are among the first n + 1.
    """
    ordered = by_hash(scenes, seed)
    held_out = min(max(round(share * len(ordered)), 1), len(ordered) - 1)
    return ordered[held_out:], ordered[:held_out]


def by_hash(scenes: Collection[str], seed: int) -> list[str]:
    """Scenes in an order that depends on their names and the seed alone."""
    return sorted(scenes, key=lambda scene: key_digest(seed, "held out", scene))


def scenes_in(readers: Sequence[RolloutZarrStoreReader]) -> list[str]:
    """Scenes that some stores have states of."""
    return sorted({str(scene) for reader in readers for scene in np.unique(scenes_of_states(reader))})
