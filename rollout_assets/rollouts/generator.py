"""From source rows to a stream of rollout records. Everything that was left out is counted by reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from rollout_assets.config import CampaignConfig, RolloutRecipeConfig
from rollout_assets.errors import DataError, ReadingsDiffer
from rollout_assets.oracle.scorer import OracleScorer
from rollout_assets.overlap import made_ahead
from rollout_assets.progress import SILENT, ProgressEvent, ProgressSink
from rollout_assets.rollouts.driving import RolloutStart, drive
from rollout_assets.rollouts.engine import Chain
from rollout_assets.rollouts.evaluation import SelectedDepths, StateEvaluator
from rollout_assets.rollouts.policy_registry import require_policies
from rollout_assets.rollouts.records import SourceProvenance, refused_record, rollout_record
from rollout_assets.rollouts.roots import (
    PreparedSample,
    RefusedTarget,
    SceneLoader,
    TargetedRoot,
    prepare_sample,
)
from rollout_assets.rollouts.target_sources import RolloutTargetSource
from rollout_assets.rollouts.trace import RolloutZarrRecord
from rollout_assets.sources.layout import IndexRow
from rollout_assets.sources.vin_store import VinOfflineStore

DEAD_RECIPE = "NO_VALID_FIRST_VIEW"
"""A recipe that could not take a single view; its record keeps the dead end."""


@dataclass
class RolloutDatasetWriterStats:
    """Counters of one run. Nothing is left out without a count here."""

    rows: int = 0
    rows_skipped: Counter[str] = field(default_factory=Counter)
    targets: int = 0
    targets_refused: Counter[str] = field(default_factory=Counter)
    boxes_ineligible: Counter[str] = field(default_factory=Counter)
    targets_passed_over: Counter[str] = field(default_factory=Counter)
    """Eligible boxes that were not considered: SCORE_ZERO, TOO_FAR_TO_SEE, or OUT_OF_REACH of the motion limits."""
    targets_absent: dict[str, str] = field(default_factory=dict)
    """Explicit target that its row does not have -> the row's sample key."""
    rollouts: int = 0
    recipes_stuck: Counter[str] = field(default_factory=Counter)
    steps: int = 0
    """Views taken, over all kept chains."""
    dead_ends: int = 0
    """Chains that ended in a state without a takeable view."""
    candidates: int = 0
    views_scored: int = 0
    seconds: float = 0.0
    seconds_per_stage: dict[str, float] = field(default_factory=dict)
    skipped_rows: dict[str, str] = field(default_factory=dict)
    """Sample key -> why it gave nothing, in words."""
    skip_reasons: dict[str, str] = field(default_factory=dict)
    """Sample key -> the reason's name, as counted in ``rows_skipped``."""
    device: str = ""
    """Where the rows were scored, such as cuda:1; empty while none was."""

    @property
    def views_per_second(self) -> float:
        """Views scored per second of wall time."""
        return self.views_scored / self.seconds if self.seconds else 0.0

    def seconds_left(self, rows: int) -> float:
        """Time for the rest of ``rows`` rows, at the pace so far."""
        return (rows - self.rows) * self.seconds / self.rows if self.rows else 0.0

    def note(self, rows: int) -> str:
        """What has come of the rows so far, in one line, for whoever watches."""
        left = round(self.seconds_left(rows))
        parts = [
            f"{self.targets:,} targets",
            f"{self.rollouts:,} rollouts",
            f"{self.views_scored:,} views",
            f"{self.views_per_second:,.0f} views/s",
            f"{left // 60}:{left % 60:02d} left",
        ]
        parts += [f"skipped {count} {reason}" for reason, count in sorted(self.rows_skipped.items())]
        return ", ".join(parts)

    def to_jsonable(self) -> dict[str, Any]:
        """Plain JSON values of all counters."""
        return {name: dict(value) if isinstance(value, dict) else value for name, value in vars(self).items()}


class RolloutGenerator:
    """Generates the records of source rows, one row at a time, all its targets and recipes together.

    The same row gives the same records whatever else is generated before, after or beside it. Policies that recipes
    bring are loaded first; one that cannot be used is ``PolicyRefused`` before any work.
    """

    def __init__(
        self,
        config: CampaignConfig,
        store: VinOfflineStore,
        target_source: RolloutTargetSource | None = None,
        *,
        provenance: SourceProvenance | None = None,
        scenes: SceneLoader | None = None,
    ) -> None:
        require_policies(config.recipes)
        self.config = config
        self.store = store
        self.scorer = OracleScorer(config.oracle)
        self.scenes = scenes or SceneLoader(store.meshes, config.oracle)
        self.stats = RolloutDatasetWriterStats()
        self._target_source = target_source
        self.provenance = provenance or SourceProvenance(
            cache_version=str(store.version),
            manifest_hash=store.source_manifest_hash,
            split_hashes={split: store.split_manifest_hash(split) for split in config.source.splits},
        )

    def records(self, rows: Sequence[IndexRow], progress: ProgressSink = SILENT) -> Iterator[RolloutZarrRecord]:
        """Records in order of row, target rank and recipe, all of a row or none.

        A row is skipped and counted for what its own data says, twice; any other error ends the generation. The next
        row is read, matched and started while this one is scored.
        """
        began = perf_counter()
        for done, (row, prepared) in enumerate(made_ahead(self.prepare, rows), start=1):
            try:
                records = self._row_records(row, prepared.result())
            except DataError as error:
                records = ()
                self._skip(row, error.skip_reason, str(error))
            yield from records
            self.stats.rows += 1
            self.stats.seconds = perf_counter() - began
            progress(ProgressEvent("generating", done, len(rows), note=self.stats.note(len(rows)), unit="rows"))

    def prepare(self, row: IndexRow) -> PreparedSample:
        """A row with its targets, before any rollout.

        A row that cannot be used, because of a ``DataError`` or for want of a target, is read a second time, from where
        the source lies: two readings that disagree are a ``ReadingsDiffer``, so that neither a passing fault nor a
        damaged copy is taken for what the data says.
        """
        first = self._reading(row)
        if isinstance(first, PreparedSample) and first.skip_reason is None:
            return first
        self.store.copy_anew(row)
        second = self._reading(row)
        if _verdict(first) != _verdict(second):
            raise ReadingsDiffer(
                f"{row.sample_key}: read twice with different results, first: {_verdict(first)}, then: "
                f"{_verdict(second)}; check the disk and the memory of this machine, then run it again"
            )
        if isinstance(second, DataError):
            raise second
        return second

    def records_of(self, prepared: PreparedSample) -> Iterator[RolloutZarrRecord]:
        """Records of a prepared row's targets and all recipes."""
        evaluator = StateEvaluator(self.config, self.scorer)
        chains = self._expand(prepared.roots, evaluator)
        depths = evaluator.selected_depths((root, kept) for (root, _), kept in chains.items())
        self._count_stages(evaluator)
        for target in prepared.targets:
            yield from self._target_records(prepared, target, chains, depths)

    def _reading(self, row: IndexRow) -> PreparedSample | DataError:
        try:
            return prepare_sample(self.store.sample(row), self.config, self.scorer, self.scenes, self._target_source)
        except DataError as error:
            return error

    def _row_records(self, row: IndexRow, prepared: PreparedSample) -> Sequence[RolloutZarrRecord]:
        self.stats.boxes_ineligible.update(
            {name: count for name, count in prepared.box_reasons.items() if name != "VALID"}
        )
        self.stats.targets_passed_over.update(prepared.passed_over)
        self.stats.targets_absent.update(dict.fromkeys(prepared.absent, row.sample_key))
        if prepared.skip_reason is not None:
            self._skip(row, prepared.skip_reason, prepared.skip_reason)
            return ()
        if prepared.roots:
            self.stats.device = prepared.roots[0].oracle_state.scene.device
        return tuple(self.records_of(prepared))

    def _expand(
        self, roots: Sequence[TargetedRoot], evaluator: StateEvaluator
    ) -> dict[tuple[TargetedRoot, str], tuple[Chain, ...]]:
        """Kept chains of every target and recipe of one row, grown together."""
        starts = [RolloutStart(root, self.config.seed, recipe) for root in roots for recipe in self.config.recipes]
        names = [(start.root, start.recipe.name) for start in starts]
        return dict(zip(names, drive(starts, evaluator), strict=True))

    def _target_records(
        self,
        prepared: PreparedSample,
        target: TargetedRoot | RefusedTarget,
        chains: dict[tuple[TargetedRoot, str], tuple[Chain, ...]],
        depths: dict[TargetedRoot, SelectedDepths],
    ) -> Iterator[RolloutZarrRecord]:
        self.stats.targets += 1
        if isinstance(target, RefusedTarget):
            self.stats.targets_refused[target.reason] += 1
            yield self._refused_record(prepared, target)
            return
        for recipe in self.config.recipes:
            kept = chains[target, recipe.name]
            if not any(chain.path for chain in kept):
                self.stats.recipes_stuck[DEAD_RECIPE] += 1
            self.stats.rollouts += len(kept)
            self.stats.steps += sum(len(chain.path) for chain in kept)
            self.stats.dead_ends += sum(chain.dead_end for chain in kept)
            self.stats.candidates += sum(len(step.state.shell) for chain in kept for step in chain.steps)
            yield self._record(prepared, target, recipe, kept, depths.get(target, {}))

    def _refused_record(self, prepared: PreparedSample, target: RefusedTarget) -> RolloutZarrRecord:
        self.stats.candidates += 0 if target.shell is None else len(target.shell)
        mesh_version = prepared.mesh_version or ""
        return refused_record(prepared.actor, target.match, target.shell, self.config, self.provenance, mesh_version)

    def _record(
        self,
        prepared: PreparedSample,
        target: TargetedRoot,
        recipe: RolloutRecipeConfig,
        chains: Sequence[Chain],
        depths: SelectedDepths,
    ) -> RolloutZarrRecord:
        mesh_version = prepared.mesh_version or ""
        return rollout_record(
            prepared.actor, target.match, recipe, self.config, self.provenance, mesh_version, chains, depths
        )

    def _skip(self, row: IndexRow, reason: str, detail: str) -> None:
        self.stats.rows_skipped[reason] += 1
        self.stats.skipped_rows[row.sample_key] = detail
        self.stats.skip_reasons[row.sample_key] = reason

    def _count_stages(self, evaluator: StateEvaluator) -> None:
        self.stats.views_scored += evaluator.views_scored
        for stage, seconds in evaluator.times.seconds().items():
            self.stats.seconds_per_stage[stage] = self.stats.seconds_per_stage.get(stage, 0.0) + seconds


def _verdict(reading: PreparedSample | DataError) -> str:
    """What a reading of a row says about its use, in words; equal for readings of equal bytes."""
    if isinstance(reading, DataError):
        return f"{reading.skip_reason}, {reading}"
    return reading.skip_reason or "usable"
