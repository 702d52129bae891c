"""Evaluating states: offer views, judge them, score them. What is asked for together goes to the device together."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass
from itertools import groupby
from time import perf_counter
from typing import TypeVar

import numpy as np
from cachetools import LRUCache

from rollout_assets.candidates.mixture import CandidateRequest, generate_candidates
from rollout_assets.candidates.rules import with_no_hit
from rollout_assets.candidates.shell import CandidateShell
from rollout_assets.config import CampaignConfig, RolloutRecipeConfig
from rollout_assets.geometry.cameras import PinholeCamera
from rollout_assets.geometry.poses import Float32
from rollout_assets.oracle.raycast import depth_on_host
from rollout_assets.oracle.scorer import CandidateLabels, OracleScorer, OracleState, ScoreRequest
from rollout_assets.rollouts.engine import Chain, EvaluatedState
from rollout_assets.rollouts.keys import RolloutKey, ShellPath
from rollout_assets.rollouts.roots import TargetedRoot
from rollout_assets.rollouts.trace import NOT_SELECTED, SelectedDepth, StepLabels

KEPT_STATES = 512
"""Evaluated states kept for recipes and rollouts that reach them again; a forgotten one is evaluated anew."""

KEPT_STATE_BYTES = 256 << 20
"""Memory of evaluated states on host and device; the states used longest ago are forgotten first."""

KEPT_DEPTH_BYTES = 256 << 20
"""Depth images of views taken that are kept for whoever asks for them again; a forgotten one is rendered anew."""

_OBJECT_BYTES = 8 << 10
"""What a state takes beside the content of its arrays: about sixty small arrays and objects, and room between them."""

DEPTH_VIEWS_PER_LAUNCH = 256
"""Selected views rendered together."""

SelectedDepths = dict[tuple[ShellPath, int], SelectedDepth]
"""Depth of selected views by the path of their state and their place in its shell."""

StateName = tuple[RolloutKey, ShellPath]
"""What tells states apart."""


QuestionName = tuple[str, str | None, int]
"""What tells questions to policies apart: policy, content of its checkpoint, steps left."""


@dataclass(frozen=True, eq=False)
class PolicyQuestion:
    """What is asked of the policy that a recipe brings: its scores of a state with so many views to go."""

    recipe: RolloutRecipeConfig
    steps_left: int

    @property
    def name(self) -> QuestionName:
        """What decides the answer at a state; recipes that share a policy share its answers."""
        return self.recipe.policy, self.recipe.checkpoint_sha256, self.steps_left


@dataclass(frozen=True, eq=False)
class StateRequest:
    """A state of a root under a seed: the one reached by ``path``.

    ``question`` asks for a policy's scores as well; an evaluator alone does not answer it, ``StateProposer`` does.
    """

    root: TargetedRoot
    seed: int
    path: ShellPath
    question: PolicyQuestion | None = None

    @classmethod
    def of(cls, root: TargetedRoot, seed: int, path: ShellPath, recipe: RolloutRecipeConfig) -> StateRequest:
        """A state as a recipe needs it, with its policy's scores if it brings one."""
        asks = recipe.brings_policy
        return cls(root, seed, path, PolicyQuestion(recipe, recipe.horizon - len(path)) if asks else None)

    @property
    def key(self) -> RolloutKey:
        """What the state's randomness derives from."""
        return RolloutKey(self.seed, self.root.actor.identity.sample_key, self.root.match.target.target_id)


@dataclass(frozen=True, eq=False)
class _Offer:
    """A state before it is scored: where the actor stands, what the oracle knows there, and the views offered."""

    pose_world_camera: Float32
    oracle_state: OracleState
    shell: CandidateShell

    @property
    def own_bytes(self) -> int:
        return _OBJECT_BYTES + self.oracle_state.own_bytes + _array_bytes(self.shell)

    @property
    def views_to_score(self) -> int:
        return int(self.shell.actor_action_mask.sum())


@dataclass(frozen=True, eq=False)
class _Node:
    state: EvaluatedState
    oracle_state: OracleState

    @property
    def own_bytes(self) -> int:
        return _OBJECT_BYTES + self.oracle_state.own_bytes + _array_bytes(self.state)


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

    def __init__(
        self,
        config: CampaignConfig,
        scorer: OracleScorer,
        kept_states: int = KEPT_STATES,
        kept_bytes: int = KEPT_STATE_BYTES,
    ) -> None:
        self.config = config
        self.scorer = scorer
        self.times = StageTimes()
        self.views_scored = 0
        share = kept_bytes / kept_states  # what each state counts at least, so that both limits hold
        self._nodes: LRUCache[StateName, _Node] = LRUCache(kept_bytes, lambda node: max(node.own_bytes, share))
        self._offers: LRUCache[StateName, _Offer] = LRUCache(kept_bytes, lambda offer: max(offer.own_bytes, share))
        self._depths: LRUCache[_ViewName, SelectedDepth] = LRUCache(KEPT_DEPTH_BYTES, _depth_bytes)
        self._lock = threading.Lock()

    def evaluate(self, requests: Sequence[StateRequest]) -> list[EvaluatedState]:
        """The states of all requests, in order."""
        return [node.state for node in self._nodes_of(requests)]

    def views_to_score(self, requests: Sequence[StateRequest]) -> int:
        """Views that a rollout has scored when it evaluates these states, known before they are scored.

        A state that is evaluated already counts all the same. What was offered is kept until the state is evaluated.
        """
        names = [(r.key, r.path) for r in requests]
        with self._lock:
            counts = {name: self._nodes[name].state.views_scored for name in names if name in self._nodes}
        missing = [request for request, name in zip(requests, names, strict=True) if name not in counts]
        offers = {(r.key, r.path): offer for r, offer in zip(missing, self._offered(missing), strict=True)}
        with self._lock:
            _keep(self._offers, offers)
        return sum(counts[name] if name in counts else offers[name].views_to_score for name in names)

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
        views = [(root, shell[index]) for (root, _, index), shell in poses.items()]
        depths: dict[TargetedRoot, SelectedDepths] = defaultdict(dict)
        for (root, path, index), image in zip(poses, self._rendered(views, keep=False), strict=True):
            depths[root][path, index] = image
        return depths

    def depths_of(self, views: Sequence[tuple[TargetedRoot, Float32]]) -> list[SelectedDepth]:
        """Depth of views (root, pose (12,)) at the size of selected ones, in order, kept for ``selected_depths``."""
        return self._rendered(views, keep=True)

    def _rendered(self, views: Sequence[tuple[TargetedRoot, Float32]], keep: bool) -> list[SelectedDepth]:
        names = [_view_name(root, pose) for root, pose in views]
        with self._lock:
            images = {name: self._depths[name] for name in names if name in self._depths}
        missing = {name: view for name, view in zip(names, views, strict=True) if name not in images}
        fresh = dict(zip(missing, self._render(list(missing.values())), strict=True))
        with self._lock:
            for name, image in fresh.items() if keep else ():
                if _depth_bytes(image) <= self._depths.maxsize:
                    self._depths[name] = image
        images |= fresh
        return [images[name] for name in names]

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
                images = depth_on_host(scene.bvh, poses, camera, oracle.znear_m, oracle.zfar_m)
                focal, principal = (camera.fx_px, camera.fy_px), (camera.cx_px, camera.cy_px)
                depths.extend(SelectedDepth(depth, depth > 0, focal, principal) for depth in images)
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
                _keep(self._nodes, fresh)
            nodes |= fresh
        return [nodes[r.key, r.path] for r in requests]

    def _evaluate(self, requests: Sequence[StateRequest]) -> list[_Node]:
        """Evaluate states that are not in the cache; their parents come first."""
        offers = self._offered(requests)
        began = perf_counter()
        asked = [
            ScoreRequest(offer.oracle_state, offer.shell.pose_world_camera, offer.shell.actor_action_mask)
            for offer in offers
        ]
        scored = self.scorer.score(asked)
        self.times.add("score", began)
        with self._lock:
            self.views_scored += sum(offer.views_to_score for offer in offers)
        return [
            _Node(_judged(request.path, offer, scores), offer.oracle_state)
            for request, offer, scores in zip(requests, offers, scored, strict=True)
        ]

    def _offered(self, requests: Sequence[StateRequest]) -> list[_Offer]:
        """What is offered at each state, in order; what was kept is taken, and made only once."""
        with self._lock:
            kept = {(r.key, r.path): self._offers.pop((r.key, r.path), None) for r in requests}
        missing = [r for r in requests if kept[r.key, r.path] is None]
        made = iter(self._offer(missing) if missing else ())
        return [kept[r.key, r.path] or next(made) for r in requests]

    def _offer(self, requests: Sequence[StateRequest]) -> list[_Offer]:
        parents = self._nodes_of([StateRequest(r.root, r.seed, r.path[:-1]) for r in requests if r.path])
        began = perf_counter()
        places = self._places(requests, parents)
        began = self.times.add("advance", began)
        shells = self._shells(requests, [pose for pose, _ in places])
        self.times.add("candidates", began)
        return [_Offer(pose, state, shell) for (pose, state), shell in zip(places, shells, strict=True)]

    def _places(self, requests: Sequence[StateRequest], parents: Sequence[_Node]) -> list[tuple[Float32, OracleState]]:
        """Where the actor stands in each state and what the oracle knows there; ``parents`` of all but the roots."""
        moved = [request for request in requests if request.path]
        poses = [
            parent.state.shell.pose_world_camera[request.path[-1]]
            for request, parent in zip(moved, parents, strict=True)
        ]
        states = [parent.oracle_state for parent in parents]
        after = iter(zip(poses, self.scorer.advance_all(states, np.stack(poses)) if poses else (), strict=True))
        return [
            next(after) if request.path else (request.root.actor.reference_pose_world_camera, request.root.oracle_state)
            for request in requests
        ]

    def _shells(self, requests: Sequence[StateRequest], poses: Sequence[Float32]) -> list[CandidateShell]:
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


_ViewName = tuple[str, PinholeCamera, bytes]
"""All that decides a depth image of a campaign: the mesh's content, the camera and the pose."""


def _view_name(root: TargetedRoot, pose_world_camera: Float32) -> _ViewName:
    return root.mesh_version, root.actor.camera, pose_world_camera.tobytes()


_Kept = TypeVar("_Kept")


def _keep(cache: LRUCache[StateName, _Kept], states: Mapping[StateName, _Kept]) -> None:
    """Put states into a cache, except for one that is larger than all of it."""
    for name, state in states.items():
        with suppress(ValueError):
            cache[name] = state


def _array_bytes(value: object) -> int:
    """Bytes of all arrays in a dataclass and the dataclasses in it."""
    if isinstance(value, np.ndarray):
        return value.nbytes
    if not is_dataclass(value):
        return 0
    return sum(_array_bytes(getattr(value, part.name)) for part in fields(value))


def _depth_bytes(image: SelectedDepth) -> int:
    return image.depth_m.nbytes + image.valid_mask.nbytes


_ERRORS = {"pm_dist_before": "before_m2", "pm_dist_after": "after_m2"}
"""Labels that ``RegionLabels`` calls by another name."""


def _judged(path: ShellPath, offer: _Offer, scores: CandidateLabels) -> EvaluatedState:
    """The state with its views' labels; a view that hits nothing is takeable no more."""
    shell = with_no_hit(offer.shell, scores.hit_pixels)
    after = scores.target.current_support + scores.target.new_support
    points_after = np.where(shell.actor_action_mask, after, np.nan).astype(np.float32)
    return EvaluatedState(path, offer.pose_world_camera, shell, _step_labels(scores, shell), points_after)


def _step_labels(scores: CandidateLabels, shell: CandidateShell) -> StepLabels:
    """The oracle's columns as stored: float32, NaN in every row that cannot be taken."""
    columns = {}
    for field in fields(StepLabels):
        what, label = field.name.split("_", 1)
        region = scores.target if what == "target" else scores.scene
        values = np.nan if region is None else getattr(region, _ERRORS.get(label, label))
        columns[field.name] = np.where(shell.actor_action_mask, values, np.nan).astype(np.float32)
    return StepLabels(**columns)
