"""Evaluating states: offer views, judge them, score them. What is asked for together goes to the device together."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import groupby
from time import perf_counter
from typing import TypeVar

import numpy as np
from cachetools import LRUCache

from rollout_assets.candidates.mixture import CandidateRequest, generate_candidates
from rollout_assets.candidates.rules import with_no_hit
from rollout_assets.candidates.shell import CandidateShell
from rollout_assets.config import CampaignConfig
from rollout_assets.geometry.poses import Float32
from rollout_assets.oracle.raycast import render_depth
from rollout_assets.oracle.scorer import CandidateLabels, OracleScorer, OracleState, ScoreRequest
from rollout_assets.rollouts.engine import Chain, EvaluatedState
from rollout_assets.rollouts.keys import RolloutKey, ShellPath
from rollout_assets.rollouts.roots import TargetedRoot
from rollout_assets.rollouts.trace import NOT_SELECTED, SelectedDepth, StepLabels

KEPT_STATES = 512
"""Evaluated states kept for recipes and rollouts that reach them again; a forgotten one is evaluated anew."""

DEPTH_VIEWS_PER_LAUNCH = 256
"""Selected views rendered together."""

SelectedDepths = dict[tuple[ShellPath, int], SelectedDepth]
"""Depth of selected views by the path of their state and their place in its shell."""

R = TypeVar("R")


@dataclass(frozen=True, eq=False)
class StateRequest:
    """A state of a root under a seed: the one reached by ``path``."""

    root: TargetedRoot
    seed: int
    path: ShellPath

    @property
    def key(self) -> RolloutKey:
        """What the state's randomness derives from."""
        return RolloutKey(self.seed, self.root.actor.identity.sample_key, self.root.match.target.target_id)


@dataclass(frozen=True, eq=False)
class _Node:
    state: EvaluatedState
    oracle_state: OracleState


class StageTimes:
    """Seconds spent per stage, summed over threads."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._lock = threading.Lock()

    def add(self, stage: str, since: float) -> float:
        """Count the time since ``since`` (``perf_counter``) for ``stage``; returns now."""
        now = perf_counter()
        with self._lock:
            self._seconds[stage] = self._seconds.get(stage, 0.0) + now - since
        return now

    def seconds(self) -> dict[str, float]:
        """A copy of the sums."""
        with self._lock:
            return dict(self._seconds)


class StateEvaluator:
    """Evaluates states for any number of rollouts; a state asked for twice is evaluated once. Safe between threads.

    A state depends on its root, seed and path only, to the bit, not on what it was evaluated with.
    """

    def __init__(self, config: CampaignConfig, scorer: OracleScorer, kept_states: int = KEPT_STATES) -> None:
        self.config = config
        self.scorer = scorer
        self.times = StageTimes()
        self.views_scored = 0
        self._nodes: LRUCache[tuple[RolloutKey, ShellPath], _Node] = LRUCache(kept_states)
        self._lock = threading.Lock()

    def evaluate(self, requests: Sequence[StateRequest]) -> list[EvaluatedState]:
        """The states of all requests, in order."""
        return [node.state for node in self._nodes_of(requests)]

    def selected_depths(
        self, chains: Iterable[tuple[TargetedRoot, Iterable[Chain]]]
    ) -> dict[TargetedRoot, SelectedDepths]:
        """By root, the depth of every selected view of its chains, rendered once however many chains selected it.

        Nothing is rendered when the campaign keeps no selected depth.
        """
        poses = {
            (root, step.state.path, step.selected_shell_index): step.state.shell.pose_world_camera
            for root, kept in chains
            for chain in kept
            for step in chain.steps
            if step.selected_shell_index != NOT_SELECTED and self.config.selected_depth.enabled
        }
        images = self._render([(root, shell[index]) for (root, _, index), shell in poses.items()])
        depths: dict[TargetedRoot, SelectedDepths] = defaultdict(dict)
        for (root, path, index), image in zip(poses, images, strict=True):
            depths[root][path, index] = image
        return depths

    def _render(self, views: Sequence[tuple[TargetedRoot, Float32]]) -> list[SelectedDepth]:
        """Depth of views (root, pose (12,)) at the configured size, in order."""
        began = perf_counter()
        size, oracle = self.config.selected_depth, self.config.oracle
        depths: list[SelectedDepth] = []
        for _, run in groupby(views, key=lambda view: (id(view[0].oracle_state.scene), view[0].actor.camera)):
            shared = list(run)
            scene = shared[0][0].oracle_state.scene
            camera = shared[0][0].actor.camera.resized(size.height_px, size.width_px)
            for start in range(0, len(shared), DEPTH_VIEWS_PER_LAUNCH):
                poses = np.stack([pose for _, pose in shared[start : start + DEPTH_VIEWS_PER_LAUNCH]])
                images = render_depth(scene.bvh, poses, camera, oracle.znear_m, oracle.zfar_m)
                focal, principal = (camera.fx_px, camera.fy_px), (camera.cx_px, camera.cy_px)
                depths.extend(
                    SelectedDepth(depth, valid, focal, principal)
                    for depth, valid in zip(images.depth_m.cpu().numpy(), images.valid.cpu().numpy(), strict=True)
                )
        self.times.add("depth", began)
        return depths

    def _nodes_of(self, requests: Sequence[StateRequest]) -> list[_Node]:
        requested = {(r.key, r.path): r for r in requests}
        with self._lock:
            nodes = {name: self._nodes[name] for name in requested if name in self._nodes}
        missing = {name: request for name, request in requested.items() if name not in nodes}
        if missing:
            fresh = dict(zip(missing, self._evaluate(list(missing.values())), strict=True))
            with self._lock:
                self._nodes.update(fresh)
            nodes |= fresh
        return [nodes[r.key, r.path] for r in requests]

    def _evaluate(self, requests: Sequence[StateRequest]) -> list[_Node]:
        """Evaluate states that are not in the cache; their parents come first."""
        parents = iter(self._nodes_of([StateRequest(r.root, r.seed, r.path[:-1]) for r in requests if r.path]))
        began = perf_counter()
        places = [self._place(r, next(parents) if r.path else None) for r in requests]
        began = self.times.add("advance", began)
        shells = self._offer(requests, [pose for pose, _ in places])
        began = self.times.add("candidates", began)
        asked = [
            ScoreRequest(state, shell.pose_world_camera, shell.actor_action_mask)
            for (_, state), shell in zip(places, shells, strict=True)
        ]
        scored = self.scorer.score(asked)
        self.times.add("score", began)
        with self._lock:
            self.views_scored += sum(int(request.valid.sum()) for request in asked)
        nodes = []
        for request, (pose, state), shell, scores in zip(requests, places, shells, scored, strict=True):
            judged = with_no_hit(shell, scores.hit_pixels)
            labels = _step_labels(scores, judged)
            nodes.append(_Node(EvaluatedState(request.path, pose, judged, labels), state))
        return nodes

    def _place(self, request: StateRequest, parent: _Node | None) -> tuple[Float32, OracleState]:
        """Where the actor stands in this state, and what the oracle knows there."""
        if parent is None:
            return request.root.actor.reference_pose_world_camera, request.root.oracle_state
        pose = parent.state.shell.pose_world_camera[request.path[-1]]
        return pose, self.scorer.advance(parent.oracle_state, pose)

    def _offer(self, requests: Sequence[StateRequest], poses: Sequence[Float32]) -> list[CandidateShell]:
        """Shells of all states; those of one scene in one call."""
        shells: dict[int, CandidateShell] = {}
        by_scene: defaultdict[int, list[int]] = defaultdict(list)
        for index, request in enumerate(requests):
            by_scene[id(request.root.oracle_state.scene)].append(index)
        for indices in by_scene.values():
            asked = [
                CandidateRequest(
                    reference_pose_world_camera=poses[index],
                    target_center_world=np.array(requests[index].root.match.target.center_world, np.float32),
                    extent=requests[index].root.extent,
                    rng=requests[index].key.candidates_rng(requests[index].path),
                )
                for index in indices
            ]
            world = requests[indices[0]].root.oracle_state.scene
            shells |= dict(zip(indices, generate_candidates(asked, self.config.candidates, world), strict=True))
        return [shells[index] for index in range(len(requests))]


def drive(
    rollouts: Sequence[
        tuple[TargetedRoot, int, Generator[tuple[ShellPath, ...], Mapping[ShellPath, EvaluatedState], R]]
    ],
    evaluator: StateEvaluator,
) -> list[R]:
    """Run expansions (root, seed, generator) in lockstep, all states of a depth evaluated together, in order."""
    results: dict[int, R] = {}
    needed = {index: next(rollout) for index, (_, _, rollout) in enumerate(rollouts)}
    while needed:
        requests = [
            StateRequest(rollouts[index][0], rollouts[index][1], path)
            for index, paths in needed.items()
            for path in paths
        ]
        states = iter(evaluator.evaluate(requests))
        answers = {index: {path: next(states) for path in paths} for index, paths in needed.items()}
        needed = {}
        for index, answer in answers.items():
            try:
                needed[index] = rollouts[index][2].send(answer)
            except StopIteration as stop:
                results[index] = stop.value
    return [results[index] for index in range(len(rollouts))]


_ERRORS = {"pm_dist_before": "before_m2", "pm_dist_after": "after_m2"}
"""Labels that ``RegionLabels`` calls by another name."""


def _step_labels(scores: CandidateLabels, shell: CandidateShell) -> StepLabels:
    """The oracle's columns as stored: float32, NaN in every row that cannot be taken."""
    columns = {}
    for field in fields(StepLabels):
        what, label = field.name.split("_", 1)
        region = scores.target if what == "target" else scores.scene
        values = np.nan if region is None else getattr(region, _ERRORS.get(label, label))
        columns[field.name] = np.where(shell.actor_action_mask, values, np.nan).astype(np.float32)
    return StepLabels(**columns)
