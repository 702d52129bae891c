"""Is this store what it says? Every check runs, every problem is reported, and nothing found makes it crash.

Without ``deep`` every file is accounted for and matches its checksums, every table is decoded and held against the
rules and the other tables, and the chunks are those that the manifest says were written. With ``deep`` depth rasters
are decoded too, the content of every array is hashed and compared, and views are drawn again from the seed.

A store whose manifest records the campaign that made it is held against that campaign too: recipes, mixture, limits,
hashes, scores, logits and probabilities must follow from it, so that a value cannot be changed together with all
digests. What no table repeats only the source can tell, and ``inspect replay`` finds it: distances to the mesh, errors
of views in a state of one chain, pixels of a view of one chain, the size and class of a box, the IoU of a match, the
mesh of a whole scene. A store that names no campaign, as those of other writers, is held to the schema alone.

The profile says which layout a store must have. ``own`` is this package's, byte for byte. ``foreign`` is any: codecs,
chunks, documents, digests and columns of ours that another writer's store does not have are counted by kind in
``layout``, and what contradicts the schema or the tables is a finding as ever.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import get_args

import numpy as np

from rollout_assets.errors import ConfigError, StoreDamaged, StoreError, is_fault
from rollout_assets.rollouts.zarr_store.checks.block import blocks_of
from rollout_assets.rollouts.zarr_store.checks.campaign import CAMPAIGN_CHECKS
from rollout_assets.rollouts.zarr_store.checks.candidates import BLOCK_CHECKS
from rollout_assets.rollouts.zarr_store.checks.chains import CHAIN_CHECKS, STEP_CHECKS, SelectedLabels
from rollout_assets.rollouts.zarr_store.checks.draws import DRAW_CHECKS
from rollout_assets.rollouts.zarr_store.checks.foreign_layout import (
    FOREIGN_STRUCTURE_CHECKS,
    LayoutNote,
    layout_notes,
)
from rollout_assets.rollouts.zarr_store.checks.owners import OWNER_CHECKS
from rollout_assets.rollouts.zarr_store.checks.rasters import RASTER_CHECKS
from rollout_assets.rollouts.zarr_store.checks.shells import SHELL_CHECKS, shells_as_offered
from rollout_assets.rollouts.zarr_store.checks.store_under_check import StoreUnderCheck
from rollout_assets.rollouts.zarr_store.checks.structure import STRUCTURE_CHECKS, schema_version
from rollout_assets.rollouts.zarr_store.checks.targets import TARGET_CHECKS
from rollout_assets.rollouts.zarr_store.chunks.files import StoreFiles
from rollout_assets.rollouts.zarr_store.chunks.tables import Table
from rollout_assets.rollouts.zarr_store.findings import Finding, Findings, merge_findings
from rollout_assets.rollouts.zarr_store.foreign.origin import Profile
from rollout_assets.rollouts.zarr_store.open_store import StoreLocation, open_files
from rollout_assets.rollouts.zarr_store.schema import CANDIDATES, ROLLOUTS, STEPS

_TABLE_CHECKS = (
    *OWNER_CHECKS,
    *RASTER_CHECKS,
    *STEP_CHECKS,
    *CAMPAIGN_CHECKS,
    *TARGET_CHECKS,
    shells_as_offered,
)
STORE_CHECKS = (*STRUCTURE_CHECKS, *_TABLE_CHECKS)
"""Checks that look at the store as a whole."""

FOREIGN_STORE_CHECKS = (*FOREIGN_STRUCTURE_CHECKS, *_TABLE_CHECKS)
"""Checks that look at a store of another layout as a whole."""

ROW_CHECKS = (*BLOCK_CHECKS, *SHELL_CHECKS, *DRAW_CHECKS)
"""Checks that look at one block of candidates after another."""

_READABLE = "readable"
"""What a finding is filed under that says why an array cannot be read."""

_DAMAGE = {_READABLE, *(check.__name__ for check in STRUCTURE_CHECKS)}

CHECKS = tuple(check.__name__ for check in (*STORE_CHECKS, *ROW_CHECKS, *CHAIN_CHECKS))
"""Names of all checks, in the order in which they run."""


@dataclass(frozen=True)
class RolloutZarrValidationResult:
    """Validation summary for a rollout Zarr store: ``findings`` is everything found wrong, grouped and counted.

    ``layout`` says in which ways the layout of a store held to the profile ``foreign`` is not ours; that is not wrong.
    """

    store_dir: str
    deep: bool
    num_rollouts: int
    num_steps: int
    num_candidates: int
    findings: tuple[Finding, ...]
    profile: Profile = "own"
    layout: tuple[LayoutNote, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether nothing was found wrong."""
        return not self.findings

    @property
    def is_damaged(self) -> bool:
        """Whether files or documents are not as they were written, or cannot be read."""
        return any(finding.check in _DAMAGE for finding in self.findings)

    @property
    def errors(self) -> list[str]:
        """Every finding as one line."""
        return [str(finding) for finding in self.findings]

    def counts(self) -> dict[str, int]:
        """Findings per check."""
        return dict(Counter(finding.check for finding in self.findings))

    def raise_if_wrong(self) -> None:
        """Raise ``StoreError`` with all findings, if any."""
        if not self.ok:
            listed = "".join(f"\n  - {line}" for line in self.errors)
            raise StoreError(f"{self.store_dir}: {len(self.findings)} finding(s){listed}")


def validate_rollout_zarr_store(
    store_dir: StoreLocation, *, deep: bool = False, profile: Profile | None = None, deep_from_step: int = 0
) -> RolloutZarrValidationResult:
    """Validate a standalone rollout replay store and return all discovered errors.

    A store that is damaged, even beyond opening, is reported; only a location that does not exist is a ``StoreError``.
    One of another schema or version has that one finding. ``profile`` is by default that of who wrote the store.
    A store that was extended may be held deeply from its first new step on, ``deep_from_step``; content digests, which
    are over all rows, are then left to whoever extended it.
    """
    return validate_files(open_files(store_dir)[0], str(store_dir), deep, profile, deep_from_step)


def validate_files(
    files: StoreFiles, location: str, deep: bool, profile: Profile | None = None, deep_from_step: int = 0
) -> RolloutZarrValidationResult:
    """Validate a store that is already open."""
    if profile is not None and profile not in get_args(Profile):
        raise ConfigError(f"profile must be {' or '.join(get_args(Profile))}, got {profile!r}")
    store = StoreUnderCheck(files, deep, profile, deep_from_step)
    findings = _other_schema(store)
    is_read = not findings
    if is_read:
        for check in STORE_CHECKS if store.profile == "own" else FOREIGN_STORE_CHECKS:
            findings += _run(check.__name__, lambda check=check: check(store))  # type: ignore[misc]
        findings += _candidate_findings(store)
    return RolloutZarrValidationResult(
        store_dir=location,
        deep=deep,
        num_rollouts=_rows(store, ROLLOUTS) if is_read else 0,
        num_steps=_rows(store, STEPS) if is_read else 0,
        num_candidates=_rows(store, CANDIDATES) if is_read else 0,
        findings=merge_findings(_once_per_damage(findings)),
        profile=store.profile,
        layout=layout_notes(store) if is_read and store.profile == "foreign" else (),
    )


def _other_schema(store: StoreUnderCheck) -> list[Finding]:
    """That a store has another schema or version, in which case nothing else about it can be said."""
    try:
        return [replace(finding, check=schema_version.__name__) for finding in schema_version(store)]
    except StoreDamaged:
        return []  # every check that needs the root says so


def _candidate_findings(store: StoreUnderCheck) -> Iterator[Finding]:
    try:
        covered = int(store.states.shell_sizes.sum()) == store.rows(CANDIDATES)
    except StoreDamaged as error:
        yield Finding(_READABLE, error.where, error.problem)
        return
    if not covered:
        return  # reported by shells_cover_candidates; which rows belong to which step is unknown
    labels = SelectedLabels()
    for block in blocks_of(store):
        for check in (*ROW_CHECKS, labels.gather):
            yield from _run(check.__name__, lambda check=check, block=block: check(block))  # type: ignore[misc]
    for chain_check in CHAIN_CHECKS:
        yield from _run(chain_check.__name__, lambda check=chain_check: check(store, labels))  # type: ignore[misc]


def _run(name: str, check: Callable[[], Findings]) -> Iterable[Finding]:
    findings: list[Finding] = []
    try:
        with np.errstate(all="ignore"):  # damaged numbers overflow; the finding says so, not a warning
            for finding in check():
                findings.append(replace(finding, check=name))
    except StoreDamaged as error:
        findings.append(Finding(_READABLE, error.where, error.problem))
    except Exception as error:  # a check must never end a validation
        check_name = _READABLE if is_fault(error) else name
        findings.append(Finding(check_name, "store", f"could not be checked: {type(error).__name__}: {error}"))
    return findings


def _once_per_damage(findings: list[Finding]) -> list[Finding]:
    """Leave out that an array cannot be read where another finding already says why."""
    explained = {finding.where for finding in findings if finding.check != _READABLE}
    return [finding for finding in findings if finding.check != _READABLE or finding.where not in explained]


def _rows(store: StoreUnderCheck, table: Table) -> int:
    try:
        return store.rows(table)
    except StoreDamaged:
        return 0
