"""Observations of live states: what the actor of a running rollout knows, to the bit what a store would tell of it."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
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
from rollout_assets.rollouts.engine import EvaluatedState
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

    def observe(
        self,
        requests: Sequence[StateRequest],
        steps_left: Sequence[int],
        states: Sequence[EvaluatedState | None] | None = None,
    ) -> Observations[Arrays]:
        """Observations of all requests, in order, as wide as the campaign's shells; steps_left: one for each.

        ``states`` are those of the requests, if the caller has them. With no steps left no view is offered any more,
        so such a state is not evaluated here, and is None among ``states``.
        """
        known = self._open_states(requests, steps_left) if states is None else states
        memories = self._memories_of(requests, known)
        began = perf_counter()
        observed = [
            _observed(request.root, state, memory, left)
            for request, state, memory, left in zip(requests, known, memories, steps_left, strict=True)
        ]
        observations = observe(observed, self.config, self._evaluator.config.candidates.num_candidates)
        self._evaluator.times.add("observe", began)
        return observations

    def _open_states(self, requests: Sequence[StateRequest], steps_left: Sequence[int]) -> list[EvaluatedState | None]:
        """The states at which a view may be taken; None for the others."""
        states = iter(self._evaluator.evaluate([r for r, left in zip(requests, steps_left, strict=True) if left]))
        return [next(states) if left else None for left in steps_left]

    def _memories_of(self, requests: Sequence[StateRequest], states: Sequence[EvaluatedState | None]) -> list[_Memory]:
        """What is remembered at each state; views that nobody has looked at yet are rendered together."""
        with self._lock:
            memories = {name: self._memories[name] for name in _names_on_the_way(requests) if name in self._memories}
        missing = _missing(requests, memories)
        poses = {(r.key, r.path): state.pose_world_camera for r, state in zip(requests, states, strict=True) if state}
        shown = self._views_shown([request for request in missing.values() if request.path], poses)
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

    def _views_shown(
        self, requests: Sequence[StateRequest], poses: dict[StateName, Float32]
    ) -> dict[StateName, TakenView]:
        """By state, the last view on the way to it: the one at which the actor stands there, by ``poses`` if known."""
        further = [request for request in requests if (request.key, request.path) not in poses]
        parents = self._evaluator.evaluate([StateRequest(r.root, r.seed, r.path[:-1]) for r in further])
        for request, parent in zip(further, parents, strict=True):
            poses[request.key, request.path] = parent.shell.pose_world_camera[request.path[-1]]
        images = self._evaluator.depths_of([(r.root, poses[r.key, r.path]) for r in requests])
        return {
            (r.key, r.path): _taken_view(poses[r.key, r.path], image) for r, image in zip(requests, images, strict=True)
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


def _observed(root: TargetedRoot, state: EvaluatedState | None, memory: _Memory, steps_left: int) -> ObservedState:
    shell = None if state is None else state.shell
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
