"""Whether the promoted store is worth training on: the verdict of the report, with its measures as numbers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

import dagster as dg

from rollout_assets.campaigns.check_names import READINESS
from rollout_assets.campaigns.versions import current_version
from rollout_assets.defs.checks.verdict import verdict
from rollout_assets.defs.metadata import Metadata, evidence, page, table
from rollout_assets.defs.step import CampaignStep
from rollout_assets.inspection.readiness import TrainingReadiness, training_readiness
from rollout_assets.rollouts.zarr_store.reader import RolloutZarrStoreReader


def ready_for_training(step: CampaignStep) -> Iterator[dg.AssetCheckResult]:
    """Measure every split as its report does. A warning only: the store is in order, however little it teaches."""
    version = current_version(step.config)
    found = {child.name: training_readiness(RolloutZarrStoreReader(child)) for child in version.children}
    wanting = [
        {"split": split, **asdict(measure)}
        for split, readiness in found.items()
        for measure in readiness.measures
        if measure.status != "good"
    ]
    metadata: Metadata = {
        "version": version.name,
        **{f"verdict_{split}": readiness.verdict for split, readiness in found.items()},
        **evidence(table(wanting)),
        **{name: value for split, readiness in found.items() for name, value in _measures(split, readiness).items()},
    }
    description = "; ".join(f"{split}: {readiness.verdict}" for split, readiness in found.items())
    yield verdict(READINESS, not wanting, page(metadata), warns=True, description=description)


def _measures(split: str, readiness: TrainingReadiness) -> Metadata:
    """Every measure as a number of its own, so that it can be plotted over versions."""
    return {f"{measure.name} ({split})": float(measure.value) for measure in readiness.measures}
