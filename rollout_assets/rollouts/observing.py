"""Observations of live states: what the actor of a running rollout knows, to the bit what a store would tell of it."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter

import numpy as np
from cachetools import LRUCache

from rollout_assets.candidates.shell import CandidateShell
from rollout_assets.config.observation import ObservationConfig
from rollout_assets.geometry.poses import Float32
from rollout_assets.observations.assemble import ObservedState, ObservedTarget, observe
from rollout_assets.observations.cloud import TakenView, TargetCloud
from rollout_assets.observations.observation import MOTION_COLUMNS, Arrays, Observations
from rollout_assets.rollouts.evaluation import KEPT_STATES, StateEvaluator, StateName, StateRequest
from rollout_assets.rollouts.roots import TargetedRoot
from rollout_assets.rollouts.trace import SelectedDepth
from rollout_assets.targets.table import SelectedTarget


@dataclass(frozen=True, eq=False)
class _Memory:
    """What the actor remembers at a state: the points known there, and the poses (s, 12) from the root to it."""

    cloud: TargetCloud
    taken_world_camera: Float32


class StateObserver:
    """Observes states of an evaluator. What was seen on the way to a state is kept for those that follow it.

    Safe between threads. An observation depends on its root, seed, path and steps left only, to the bit.
    """

    def __init__(self, evaluator: StateEvaluator, config: ObservationConfig, kept_states: int = KEPT_STATES) -> None:
        self.config = config
        self._evaluator = evaluator
        self._memories: LRUCache[StateName, _Memory] = LRUCache(kept_states)
        self._root_clouds: LRUCache[tuple[str, str], TargetCloud] = LRUCache(kept_states)
        self._lock = threading.Lock()

    def observe(self, requests: Sequence[StateRequest], steps_left: Sequence[int]) -> Observations[Arrays]:
        """Observations of all requests, in order, as wide as the campaign's shells; steps_left: one for each.

        With no steps left no view is offered any more, so such a state is not evaluated.
        """
        shells = self._shells([r for r, left in zip(requests, steps_left, strict=True) if left])
        memories = self._memories_of(requests)
        began = perf_counter()
        observed = [
            _observed(request.root, next(shells) if left else None, memory, left)
            for request, memory, left in zip(requests, memories, steps_left, strict=True)
        ]
        observations = observe(observed, self.config, self._evaluator.config.candidates.num_candidates)
        self._evaluator.times.add("observe", began)
        return observations

    def _shells(self, requests: Sequence[StateRequest]) -> Iterator[CandidateShell]:
        return iter([state.shell for state in self._evaluator.evaluate(requests)])

    def _memories_of(self, requests: Sequence[StateRequest]) -> list[_Memory]:
        """What is remembered at each state; views that nobody has looked at yet are rendered together."""
        with self._lock:
            memories = {name: self._memories[name] for name in _names_on_the_way(requests) if name in self._memories}
        missing = _missing(requests, memories)
        shown = self._views_shown([request for request in missing.values() if request.path])
        began = perf_counter()
        for name, request in missing.items():
            parent = memories[request.key, request.path[:-1]] if request.path else None
            memories[name] = self._at_root(request.root) if parent is None else _after(parent, shown[name])
        with self._lock:
            self._memories.update({name: memories[name] for name in missing})
        self._evaluator.times.add("observe", began)
        return [memories[request.key, request.path] for request in requests]

    def _at_root(self, root: TargetedRoot) -> _Memory:
        """What is remembered before any view is taken; the same whatever the seed."""
        name = (root.actor.identity.sample_key, root.match.target.target_id)
        with self._lock:
            cloud = self._root_clouds.get(name)
        if cloud is None:
            box = root.match.target.box
            cloud = TargetCloud.of(root.actor.points_world, box.pose_world_object[0], box.extents_m[0], self.config)
            with self._lock:
                self._root_clouds[name] = cloud
        return _Memory(cloud, root.actor.reference_pose_world_camera[None])

    def _views_shown(self, requests: Sequence[StateRequest]) -> dict[StateName, TakenView]:
        """By state, the last view on the way to it: the one at which the actor stands there."""
        parents = self._shells([StateRequest(r.root, r.seed, r.path[:-1]) for r in requests])
        poses = [shell.pose_world_camera[r.path[-1]] for shell, r in zip(parents, requests, strict=True)]
        images = self._evaluator.depths_of([(r.root, pose) for r, pose in zip(requests, poses, strict=True)])
        return {
            (request.key, request.path): _taken_view(pose, image)
            for request, pose, image in zip(requests, poses, images, strict=True)
        }


def _names_on_the_way(requests: Iterable[StateRequest]) -> Iterable[StateName]:
    return {(request.key, request.path[:length]) for request in requests for length in range(len(request.path) + 1)}


def _missing(requests: Iterable[StateRequest], memories: dict[StateName, _Memory]) -> dict[StateName, StateRequest]:
    """States on the way to the requested ones that must be remembered first, parents before children."""
    missing: dict[StateName, StateRequest] = {}
    for request in requests:
        path = request.path
        while (request.key, path) not in memories and (request.key, path) not in missing:
            missing[request.key, path] = StateRequest(request.root, request.seed, path)
            if not path:
                break
            path = path[:-1]
    return dict(sorted(missing.items(), key=lambda entry: len(entry[1].path)))


def _after(parent: _Memory, view: TakenView) -> _Memory:
    taken = np.concatenate([parent.taken_world_camera, view.pose_world_camera[None]])
    return _Memory(parent.cloud.after([view]), taken)


def _taken_view(pose_world_camera: Float32, image: SelectedDepth) -> TakenView:
    return TakenView.of(pose_world_camera, image.depth_m, image.valid_mask, image.focal_px, image.principal_point_px)


def _observed(root: TargetedRoot, shell: CandidateShell | None, memory: _Memory, steps_left: int) -> ObservedState:
    return ObservedState(
        target=observed_target(root.match.target),
        camera=root.actor.camera,
        cloud=memory.cloud,
        poses_world_camera=np.zeros((0, 12), np.float32) if shell is None else shell.pose_world_camera,
        position_id=np.zeros(0, np.int32) if shell is None else shell.position_id,
        motion=np.zeros((0, len(MOTION_COLUMNS)), np.float32) if shell is None else motion_of(shell),
        takeable=np.zeros(0, np.bool_) if shell is None else shell.actor_action_mask,
        taken_world_camera=memory.taken_world_camera,
        steps_left=steps_left,
    )


def observed_target(target: SelectedTarget) -> ObservedTarget:
    """What the actor knows of a target, rounded as a store keeps it."""
    return ObservedTarget(
        pose_world_object=target.box.pose_world_object[0],
        extents_m=target.box.extents_m[0],
        class_name=target.class_name,
        confidence=float(np.float32(target.confidence)),
        support=(
            target.semidense_support_count,
            target.evl_support_count,
            float(np.float32(target.effective_support_count)),
        ),
    )


def motion_of(shell: CandidateShell) -> Float32:
    """(k, 4) the motion columns of a shell, in the order of ``MOTION_COLUMNS``."""
    return np.stack([getattr(shell.diagnostics, name) for name in MOTION_COLUMNS], axis=1)
