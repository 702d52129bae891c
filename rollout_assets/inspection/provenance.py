"""Which campaign made a store: the config in its manifest, and whether a given campaign is the same one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from rollout_assets.config import CampaignConfig
from rollout_assets.config.differences import changed_fields
from rollout_assets.errors import ReplayRefused, StoreDamaged
from rollout_assets.rollouts.trace import RolloutLineage
from rollout_assets.rollouts.zarr_store.reader import RolloutZarrStoreReader

SECTIONS: Mapping[str, tuple[str, ...]] = {
    "candidate": ("candidates",),
    "oracle": ("oracle",),
    "rollout": ("seed", "targets", "recipes"),
}
"""Hash -> the parts of a campaign that it covers."""


def generation(reader: RolloutZarrStoreReader) -> dict[str, Any]:
    """The manifest's ``generation`` section; empty when there is none."""
    try:
        section = reader.sidecar_manifest().get("generation")
    except StoreDamaged:
        return {}
    return section if isinstance(section, dict) else {}


def recorded_campaign(reader: RolloutZarrStoreReader) -> CampaignConfig | None:
    """The campaign that the manifest says made the store; None when it does not say, or not in a way we understand."""
    recorded = generation(reader).get("writer_config")
    if not isinstance(recorded, dict):
        return None
    try:
        return CampaignConfig.recorded(recorded)
    except ValidationError:
        return None


def differing_hashes(lineage: RolloutLineage, campaign: CampaignConfig) -> list[str]:
    """Names of the hashes that a lineage and a campaign do not share."""
    own = campaign.hashes()
    return [name for name in SECTIONS if getattr(lineage, f"{name}_config_hash") != own[name]]


def refuse_other_campaign(reader: RolloutZarrStoreReader, lineage: RolloutLineage, campaign: CampaignConfig) -> None:
    """Raise ``ReplayRefused`` unless this campaign made that rollout; names the sections and, if known, the keys."""
    wrong = differing_hashes(lineage, campaign)
    recorded = recorded_campaign(reader)
    problems = []
    for name in wrong:
        stored, own = getattr(lineage, f"{name}_config_hash"), campaign.hashes()[name]
        keys = [] if recorded is None else list(changed_fields(recorded, campaign, SECTIONS[name]))
        detail = "; ".join(keys) if keys else f"the store says {str(stored)[:12]}, the campaign has {own[:12]}"
        problems.append(f"{name} config ({', '.join(SECTIONS[name])}) differs: {detail}")
    if not wrong:
        for key in ("enabled", "width_px", "height_px"):
            stored, own = reader.attributes.get(f"selected_depth_{key}"), getattr(campaign.selected_depth, key)
            if stored != own and (key == "enabled" or campaign.selected_depth.enabled):
                problems.append(f"selected_depth.{key}: store {stored}, campaign {own}")
    if problems:
        raise ReplayRefused(f"campaign {campaign.name} did not make {lineage.rollout_id}: {'. '.join(problems)}")
