"""Inputs that a shard was planned or built with: one that is missing is a fault of the machine, and no smaller input.

Planning records which scenes have a mesh, and the owner file of a finished shard says which meshes it was built with. A
finished shard says it better than the plan: what it was built without, on the operator's word, is not missing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from pydantic import ValidationError

from rollout_assets.campaigns import markers
from rollout_assets.campaigns.layout import CampaignLayout, StoredModel
from rollout_assets.campaigns.objects.publishing import publish_inputs
from rollout_assets.campaigns.objects.working_copy import refresh_inputs
from rollout_assets.campaigns.plan_entry import RolloutShardEntry
from rollout_assets.errors import CampaignError, InputMissing
from rollout_assets.files import publish_bytes
from rollout_assets.sources.vin_store import VinOfflineStore

ALLOW_FEWER = "--allow-fewer (in run config: allow_fewer: true)"
"""How the operator says that something may become smaller."""


class PlannedInputs(StoredModel):
    """``inputs.json``: the scenes that had a mesh when rows of theirs were planned."""

    inputs_version: Literal["rollout-planned-inputs-v1"] = "rollout-planned-inputs-v1"
    meshes: tuple[str, ...]


def planned_meshes(layout: CampaignLayout) -> frozenset[str]:
    """The scenes that had a mesh when they were planned."""
    refresh_inputs(layout)
    try:
        return frozenset(PlannedInputs.model_validate_json(layout.planned_inputs.read_bytes()).meshes)
    except FileNotFoundError:
        return frozenset()
    except ValidationError:
        raise CampaignError(
            f"{layout.planned_inputs}: cannot be understood; remove it, and 'rollout-assets campaign plan' writes it "
            "again from the meshes that are there"
        ) from None


def record_meshes(layout: CampaignLayout, planned: Iterable[str], present: frozenset[str], *, anew: bool) -> None:
    """Record which of the planned scenes have a mesh; those that had one stay recorded, unless planned ``anew``."""
    known = planned_meshes(layout)
    meshes = present.intersection(planned) | (frozenset() if anew else known)
    if meshes != known:
        layout.root.mkdir(parents=True, exist_ok=True)
        publish_bytes(layout.planned_inputs, PlannedInputs(meshes=tuple(sorted(meshes))).model_dump_json().encode())
        publish_inputs(layout)


def refuse_missing_inputs(layout: CampaignLayout, entry: RolloutShardEntry, store: VinOfflineStore) -> None:
    """Raise ``InputMissing`` if a mesh is missing that the shard was built with or, before that, planned with."""
    scenes = dict.fromkeys(row.scene_id for row in entry.rows)
    missing = [scene for scene in scenes if store.meshes.find(scene) is None]
    if not missing:
        return
    owner = markers.owner_if_finished(layout.shard(entry.shard_id))
    if owner is not None and owner.entry_sha256 == entry.sha256:
        known = frozenset(scene for scene, version in owner.mesh_versions.items() if version is not None)
    else:
        known = planned_meshes(layout)
    lost = [scene for scene in missing if scene in known]
    if lost:
        folders = ", ".join(map(str, store.meshes.mesh_dirs))
        raise InputMissing(
            f"{entry.shard_id}: the mesh of scene {', '.join(lost)} is missing in {folders}, and was there when the "
            f"shard was planned or built; mount or restore it, or build without it by {ALLOW_FEWER}"
        )
