"""Fake rollout records that obey every rule of the store, for its benchmark and its tests.

Errors follow one sequence per chain, so gains telescope; shells vary in size and validity; some targets have no usable
ground truth, and some chains end where no candidate can be selected. No oracle measured them, but to the store they
look like real ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from rollout_assets.candidates.reasons import VALID_BITSET, InvalidReason
from rollout_assets.candidates.shell import CandidateDiagnostics, CandidateShell
from rollout_assets.config import OracleConfig
from rollout_assets.geometry.poses import Float32, look_along, normalise, translation
from rollout_assets.randomness import rng_for
from rollout_assets.rollouts import trace
from rollout_assets.rollouts.zarr_store.schema import TARGET_SOURCES
from rollout_assets.targets.reasons import TARGET_INVALID_REASON_VERSION, TargetInvalidReason

_REASONS = (
    InvalidReason.POSE_OUT_OF_EXTENT,
    InvalidReason.CLEARANCE_TOO_SMALL,
    InvalidReason.PATH_SEGMENT_COLLISION,
    InvalidReason.DEPTH_NO_HIT,
    InvalidReason.SAMPLER_RULE_REJECTED,
)

_SCENE_ERROR = np.float32(2.0)


@dataclass(frozen=True)
class SyntheticRecords:
    """A reproducible stream of records: sources x targets x recipes, ``chains`` each."""

    sources: int = 4
    targets: int = 3
    recipes: tuple[str, ...] = ("random_valid", "oracle_greedy", "oracle_lookahead")
    chains: int = 2
    horizon: int = 2
    shell: tuple[int, int] = (60, 60)
    valid_fraction: float = 0.6
    depth_hw: tuple[int, int] | None = None
    scene_labels: bool = False
    dead_ends: bool = True
    first_sample: int = 0
    split: str = "train"
    source_split: str | None = None
    protocol: str = "v1_observed"
    seed: int = 0

    def __iter__(self) -> Iterator[trace.RolloutZarrRecord]:
        for source in range(self.first_sample, self.first_sample + self.sources):
            for rank in range(self.targets):
                lineage = self.lineage(source, rank)
                for recipe in self.recipes:
                    yield self.record(lineage, source, rank, recipe)

    def lineage(self, source: int, rank: int) -> trace.RolloutLineage:
        """Who a record is about: every third target has no single ground-truth match."""
        scene, snippet = f"room-{source // 2:03d}", f"snippet-{source:05d}"
        matched = (source + rank) % 3 != 2
        broken = (source + rank) % 7 == 5
        target_source = TARGET_SOURCES[self.protocol]
        status = ("v0_gt_input" if self.protocol == "v0_gt_input" else "matched") if matched else "ambiguous_gt"
        rng = rng_for(self.seed, "target", source, rank)
        bitset = 1 << int(TargetInvalidReason.CONFIDENCE_TOO_LOW) if broken else VALID_BITSET
        center = rng.normal(size=3)
        return trace.RolloutLineage(
            scene_id=scene,
            snippet_id=snippet,
            mesh_version=f"mesh-{scene}",
            candidate_config_hash="c" * 64,
            oracle_config_hash="0" * 64,
            random_seed=self.seed,
            source_cache_version="7",
            split=self.split,
            source_split=self.source_split,
            source_offline_store_manifest_hash="5" * 16,
            source_sample_index=source,
            source_sample_key=f"{scene}/{snippet}",
            split_manifest_hash="6" * 16,
            source_shard_id=f"shard-{source // 4:06d}",
            source_shard_row=source % 4,
            rollout_config_hash="1" * 64,
            target_id=f"{scene}:{snippet}:{target_source}:sem=3:inst={rank}:idx={rank}",
            target_protocol_version=self.protocol,
            target_crop_policy=OracleConfig().crop_policy_name,
            target_selection_policy="greedy_top_k",
            target_selection_rank=rank,
            target_selection_score=float(rng.random()),
            target_selection_probability=1.0,
            target_source=target_source,
            target_source_index=rank,
            target_sem_id=3,
            target_inst_id=rank,
            target_class_name="chair",
            target_confidence=float(rng.random()),
            target_projected_area_pixels=float(rng.random() * 1000),
            target_projected_area_fraction=float(rng.random()),
            target_semidense_support_count=int(rng.integers(0, 100)),
            target_evl_support_count=int(rng.integers(0, 100)),
            target_effective_support_count=float(rng.integers(0, 200)),
            target_visibility_score=float(rng.random()),
            target_support_score=1.0,
            target_deficit_score=float(rng.random()),
            target_center_world=tuple(center.tolist()),
            target_extents=(0.5, 0.6, 0.7),
            target_pose_world_object=tuple(look_along(center, [1.0, 0.0, 0.0]).tolist()),
            target_relative_pose_reference_object=tuple(look_along(center, [0.0, 1.0, 0.0]).tolist()),
            target_invalid_reason_bitset=bitset,
            target_primary_invalid_reason=int(TargetInvalidReason.CONFIDENCE_TOO_LOW) if broken else 0,
            target_reason_code_version=TARGET_INVALID_REASON_VERSION,
            matched_gt_target_row_id=rank if matched else None,
            matched_gt_target_id=f"{scene}:{snippet}:gt:{rank}" if matched else None,
            gt_match_iou=float(rng.random()),
            gt_match_score=float(rng.random()),
            gt_match_status=status,
        )

    def record(self, lineage: trace.RolloutLineage, source: int, rank: int, recipe: str) -> trace.RolloutZarrRecord:
        """All chains of one root, target and recipe; every eleventh record has none."""
        rng = rng_for(self.seed, "record", source, rank, recipe)
        index = (source * self.targets + rank) * len(self.recipes) + self.recipes.index(recipe)
        pose = look_along(rng.normal(size=3), normalise([rng.normal(), rng.normal(), 0.1]))
        count = 0 if self.dead_ends and index % 11 == 7 else self.chains
        first = _Shells(self, pose, np.float32(0.01 + rng.random())) if count else None
        return trace.RolloutZarrRecord(
            lineage=replace(lineage, rollout_policy=recipe, branch_schedule_id=f"constant-{self.chains}"),
            rollout_id_prefix=trace.rollout_id_prefix(source, rank, recipe),
            root=trace.RolloutRoot(pose, 1_000_000_007 * (source + 1), 10 + source, 20 + source),
            horizon=self.horizon,
            branch_factor=self.chains,
            beam_width=self.chains if self.chains > 1 else None,
            temperature=0.5,
            chains=tuple(self._chain(rng, first, chain, index) for chain in range(count) if first is not None),
        )

    def _chain(self, rng: np.random.Generator, root: _Shells, chain: int, index: int) -> trace.RolloutChain:
        ends_at = int(rng.integers(1, self.horizon + 1)) if self.dead_ends and (index + chain) % 5 == 4 else None
        steps: list[trace.RolloutStep] = []
        at = root
        termination: trace.TerminationReason = "fixed_horizon"
        for depth in range(self.horizon):
            stuck = ends_at is not None and depth == ends_at - 1
            step = at.step(rng, take=not stuck, blocked=stuck and chain % 2 == 0)
            steps.append(step)
            if stuck:
                termination = "terminated_early"
                break
            at = at.after(step)
        hashed = f"{rng.integers(0, 2**63):016x}"
        return trace.RolloutChain(chain, tuple(steps), termination, hashed)


@dataclass(frozen=True, eq=False)
class _Shells:
    """A state: where the camera is, the error so far, and the error at the root."""

    campaign: SyntheticRecords
    pose: Float32
    error: np.float32
    root_error: np.float32 | None = None
    scene_error: np.float32 = _SCENE_ERROR

    def after(self, step: trace.RolloutStep) -> _Shells:
        """The state after a step's selected view."""
        selected = step.selection.selected_shell_index
        scene = step.labels.scene_pm_dist_after[selected]
        return replace(
            self,
            pose=step.shell.pose_world_camera[selected],
            error=step.labels.target_pm_dist_after[selected],
            root_error=self.error if self.root_error is None else self.root_error,
            scene_error=scene if np.isfinite(scene) else self.scene_error,
        )

    def step(self, rng: np.random.Generator, take: bool, blocked: bool) -> trace.RolloutStep:
        """One decision; ``blocked`` leaves no valid candidate, ``take=False`` selects none."""
        low, high = self.campaign.shell
        size = int(rng.integers(low, high + 1))
        valid = rng.random(size) < self.campaign.valid_fraction
        valid[int(rng.integers(size))] = True
        if blocked:
            valid[:] = False
        shell = self._shell(rng, valid)
        labels = self._labels(rng, valid)
        score = np.where(valid, labels.target_root_gain, -np.inf)
        selected = int(rng.choice(np.flatnonzero(valid))) if take else trace.NOT_SELECTED
        exponent = np.where(valid, np.exp(score - score[valid].max(initial=0.0)), 0.0)
        total = exponent.sum()
        probability = (exponent / total if total > 0 else exponent).astype(np.float32)
        with np.errstate(divide="ignore"):
            log_probability = np.log(probability)
        selection = trace.CandidateSelection(
            logits=np.where(valid, score, np.nan).astype(np.float32),
            probabilities=probability,
            log_probabilities=log_probability,
            inclusion_probabilities=probability,
            drawn_mask=np.arange(size) == selected,
            selected_shell_index=selected,
            draw_log_probability=float(log_probability[selected]) if take else None,
            score_source="target_root_gain" if size % 2 else "random",
        )
        return trace.RolloutStep(shell, labels, selection, self._depth(rng) if take else None)

    def _shell(self, rng: np.random.Generator, valid: NDArray[np.bool_]) -> CandidateShell:
        size = len(valid)
        centers = translation(self.pose) + rng.normal(scale=0.5, size=(size, 3))
        forward = rng.normal(size=(size, 3)) + np.array([2.0, 0.0, 0.0])
        reason = np.array(_REASONS, np.uint16)[rng.integers(0, len(_REASONS), size)]
        second = np.array(_REASONS, np.uint16)[rng.integers(0, len(_REASONS), size)]
        bits = (np.uint32(1) << reason.astype(np.uint32)) | (np.uint32(1) << second.astype(np.uint32))
        bitset = np.where(valid, np.uint32(VALID_BITSET), bits)
        collides = ~valid & ((bitset >> int(InvalidReason.PATH_SEGMENT_COLLISION)) & 1).astype(bool)
        measured = rng.random((9, size)).astype(np.float32)
        measured[1, rng.random(size) < 0.1] = np.nan
        names = [name for name in CandidateDiagnostics.__dataclass_fields__ if name != "path_collision_mask"]
        return CandidateShell(
            pose_world_camera=look_along(centers, forward),
            position_id=(1 + np.arange(size) * 3 // max(size, 1)).astype(np.int32),
            strategy_id=np.full(size, 3, np.int32),
            mixture_id=(np.arange(size) * 3 // max(size, 1)).astype(np.int32),
            sampler_probability=np.full(size, 1 / size, np.float32),
            actor_action_mask=valid,
            invalid_reason_bitset=bitset,
            primary_invalid_reason=np.where(valid, np.uint16(0), np.minimum(reason, second)),
            diagnostics=CandidateDiagnostics(path_collision_mask=collides, **dict(zip(names, measured, strict=True))),
        )

    def _labels(self, rng: np.random.Generator, valid: NDArray[np.bool_]) -> trace.StepLabels:
        size = len(valid)
        root = self.error if self.root_error is None else self.root_error
        target = _gains(self.error, root, rng.uniform(-0.1, 0.4, size))
        scene = _gains(self.scene_error, _SCENE_ERROR, rng.uniform(0.0, 0.1, size))
        columns = {f"target_{name}": np.where(valid, value, np.nan) for name, value in target.items()}
        shown = valid & self.campaign.scene_labels
        columns |= {f"scene_{name}": np.where(shown, value, np.nan) for name, value in scene.items()}
        columns["target_current_support"] = np.where(valid, 100.0, np.nan)
        columns["target_candidate_support"] = np.where(valid, 100.0 + np.arange(size), np.nan)
        return trace.StepLabels(**{name: value.astype(np.float32) for name, value in columns.items()})

    def _depth(self, rng: np.random.Generator) -> trace.SelectedDepth | None:
        if self.campaign.depth_hw is None:
            return None
        height, width = self.campaign.depth_hw
        slope = np.linspace(0.5, 3.0, width, dtype=np.float32)[None, :] + rng.random((height, 1), np.float32) * 0.05
        valid = np.ones((height, width), np.bool_)
        valid[: height // 5] = False
        valid[:, int(rng.integers(width))] = False
        focal = (float(width), float(height))
        return trace.SelectedDepth(np.where(valid, slope, np.float32(0.0)), valid, focal, (width / 2, height / 2))


def _gains(before: np.float32, root: np.float32, shrink: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
    after = (before * (1.0 - shrink)).astype(np.float32).astype(np.float64)
    now, first = float(before), float(root)
    return {
        "rri": (now - after) / max(now, 1e-12),
        "root_gain": (now - after) / max(first, 1e-12),
        "log_error_gain": np.log(max(now, 1e-12)) - np.log(np.maximum(after, 1e-12)),
        "pm_dist_before": np.full(len(after), now),
        "pm_dist_after": after,
    }
