"""Every value of a VIN store looked at once: what `rollout-assets source check` reports."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rollout_assets.errors import SourceDamaged, SourceVersionUnknown, is_fault
from rollout_assets.geometry.boxes import PROBABILITY
from rollout_assets.locations.url import Location
from rollout_assets.progress import SILENT, ProgressEvent, ProgressSink
from rollout_assets.sources import layout
from rollout_assets.sources.folder import SourceFolder
from rollout_assets.sources.layout import IndexRow
from rollout_assets.sources.meshes import MeshLibrary
from rollout_assets.sources.oddities import RowOddities, store_oddities, unknown_parts
from rollout_assets.sources.sample import VinSample
from rollout_assets.sources.snapshot import examine
from rollout_assets.sources.vin_store import VinOfflineStore


@dataclass(frozen=True)
class StoreAudit:
    """What a look at every value found, in sentences.

    ``broken`` makes the store unusable as it is. ``unusual`` works, but is worth knowing: it may cost rows or labels.
    ``unknown`` is there, but no format version that can be read about has it, so it is ignored.
    """

    root: Path
    format_version: int | None
    num_rows: int
    broken: tuple[str, ...] = ()
    unusual: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether the store can be used."""
        return not self.broken


def audit_store(path: str | Path, mesh_dirs: Sequence[Location] = (), progress: ProgressSink = SILENT) -> StoreAudit:
    """Check metadata and, where it can be read, every row; all findings are collected, none stops the audit."""
    folder = SourceFolder.at(path)
    root = folder.whole()
    try:
        snapshot, problems = examine(root)
    except SourceVersionUnknown as error:
        return StoreAudit(root, None, 0, (str(error).removeprefix(f"{root}: "),))
    if snapshot is None:
        return StoreAudit(root, None, 0, tuple(problems))
    store = VinOfflineStore(folder, snapshot, MeshLibrary(tuple(mesh_dirs) or (root / layout.MESHES_DIR,)))
    metadata_problems = " ".join(problems)
    rows = RowOddities()
    for done, row in enumerate(store.rows(), start=1):
        own = [problem for problem in _row_problems(store, row, rows) if not _follows_from(problem, metadata_problems)]
        problems.extend(own)
        progress(ProgressEvent("checking rows", done, len(store), note=row.sample_key, unit="rows"))
    unusual = (*store_oddities(store), *rows.findings())
    return StoreAudit(root, store.version, len(store), tuple(problems), unusual, tuple(unknown_parts(store)))


def _row_problems(store: VinOfflineStore, row: IndexRow, oddities: RowOddities) -> Iterator[str]:
    try:
        sample = store.sample(row)
        oddities.add(store, row, sample)
    except SourceDamaged as error:
        yield from error.problems
        return
    except Exception as error:  # metadata already reported as wrong can make anything fail
        if is_fault(error):
            raise
        yield f"{row.shard_id}: row {row.row} ({row.sample_key}): cannot be read: {error}"
        return
    for problem in _value_problems(sample):
        yield f"{row.shard_id}: {problem.replace(' ', f' row {row.row} ({row.sample_key}): ', 1)}"


def _value_problems(sample: VinSample) -> Iterator[str]:
    """Each begins with the block's name and a space."""
    actor = sample.actor
    if actor.time_ns is not None and (np.diff(actor.time_ns) < 0).any():
        yield f"{layout.TIME_NS} time runs backwards"
    if actor.gravity_in_world is not None and not np.isfinite(actor.gravity_in_world).all():
        yield f"{layout.GRAVITY_IN_WORLD} is {actor.gravity_in_world.tolist()}, must be finite"
    if actor.evidence is not None and not np.isfinite(actor.evidence.points_world).all():
        yield f"{layout.EVIDENCE_POINTS} has points that are not finite"
    for name, boxes in ((layout.GT_OBBS, sample.truth.gt_boxes), (layout.DETECTED_OBBS, actor.detected)):
        if boxes is None:
            continue
        confidence = boxes.packed[:, PROBABILITY]
        wrong = np.flatnonzero((confidence < 0) | (confidence > 1))
        if len(wrong):
            slot = int(boxes.source_index[wrong[0]])
            yield f"{name} box {slot} has probability {float(confidence[wrong[0]])}, must be 0 to 1"


def _follows_from(problem: str, metadata_problems: str) -> bool:
    """Whether a row's failure only repeats what the metadata of the same shard and block already showed."""
    shard, _, rest = problem.partition(": ")
    block = rest.split(" ", 1)[0]
    return (
        f"{shard}: {block}:" in metadata_problems
        or f"{shard}: directory" in metadata_problems
        or f"{shard}: block {block}" in metadata_problems
    )
