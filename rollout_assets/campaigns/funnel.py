"""The funnel of a campaign: how many of each thing there are on the way from source rows to trainable views."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from rollout_assets.campaigns.layout import CampaignLayout
from rollout_assets.campaigns.markers import read_owner
from rollout_assets.campaigns.objects.working_copy import refresh_shards
from rollout_assets.campaigns.versions import current_version
from rollout_assets.config import CampaignConfig
from rollout_assets.rollouts.zarr_store.reader import RolloutZarrStoreReader
from rollout_assets.rollouts.zarr_store.summary import count_candidates


@dataclass(frozen=True)
class FunnelStage:
    """``count`` units of one kind; ``lost`` of them, by reason, do not reach the next stage."""

    name: str
    count: int
    lost: dict[str, int]


def campaign_funnel(config: CampaignConfig) -> tuple[FunnelStage, ...]:
    """Rows, targets, rollouts, steps, candidates, actor-valid, labelled, trainable of the promoted store."""
    layout = CampaignLayout.of(config)
    version = current_version(config)
    refresh_shards(layout)
    children = [RolloutZarrStoreReader(path) for path in version.children]
    owners = [read_owner(layout.shard(shard_id)) for shard_id in version.shard_ids]
    skipped, refused, stuck = (
        dict(sum((Counter(owner.stats[group]) for owner in owners), Counter()))
        for group in ("rows_skipped", "targets_refused", "recipes_stuck")
    )
    counts = {
        name: sum(int(child.attributes[f"num_{name}"]) for child in children)
        for name in ("targets", "rollouts", "steps", "candidates")
    }
    candidates = count_candidates(children)
    valid, labelled, trainable = (candidates.stages[stage] for stage in ("actor_valid", "oracle_label", "q_train"))
    return (
        FunnelStage("rows", sum(len(owner.rows) for owner in owners), skipped),
        FunnelStage("targets", counts["targets"], refused),
        FunnelStage("rollouts", counts["rollouts"], stuck),
        FunnelStage("steps", counts["steps"], {}),
        FunnelStage("candidates", counts["candidates"], candidates.refused),
        FunnelStage("actor-valid", valid, _some("NO_FINITE_LABEL", valid - labelled)),
        FunnelStage("labelled", labelled, _some("TARGET_NOT_TRAINABLE", labelled - trainable)),
        FunnelStage("trainable", trainable, {}),
    )


def _some(reason: str, count: int) -> dict[str, int]:
    return {reason: count} if count else {}
