"""The funnel of a campaign: how many of each thing there are on the way from source rows to trainable views."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from rollout_assets.campaigns.layout import CampaignLayout
from rollout_assets.campaigns.markers import read_owner
from rollout_assets.campaigns.versions import current_version
from rollout_assets.candidates.reasons import InvalidReason
from rollout_assets.config import CampaignConfig
from rollout_assets.rollouts.zarr_store.reader import RolloutZarrStoreReader
from rollout_assets.rollouts.zarr_store.schema import CANDIDATES

_BLOCK_ROWS = 1 << 20


@dataclass(frozen=True)
class FunnelStage:
    """``count`` units of one kind; ``lost`` of them, by reason, do not reach the next stage."""

    name: str
    count: int
    lost: dict[str, int]


def campaign_funnel(config: CampaignConfig) -> tuple[FunnelStage, ...]:
    """Rows, targets, rollouts, steps, candidates, actor-valid, labelled, trainable of the promoted store."""
    layout = CampaignLayout(config.shards.output_dir)
    version = current_version(config)
    children = [RolloutZarrStoreReader(path) for path in version.children]
    rows = 0
    skipped: Counter[str] = Counter()
    refused: Counter[str] = Counter()
    stuck: Counter[str] = Counter()
    for shard_id in version.shard_ids:
        owner = read_owner(layout.shard(shard_id))
        rows += len(owner.rows)
        skipped.update(owner.stats["rows_skipped"])
        refused.update(owner.stats["targets_refused"])
        stuck.update(owner.stats["recipes_stuck"])
    counts = {
        name: sum(int(child.attributes[f"num_{name}"]) for child in children)
        for name in ("targets", "rollouts", "steps", "candidates")
    }
    masks = _masks(children)
    untrained = masks.labelled - masks.trainable
    return (
        FunnelStage("rows", rows, dict(skipped)),
        FunnelStage("targets", counts["targets"], dict(refused)),
        FunnelStage("rollouts", counts["rollouts"], dict(stuck)),
        FunnelStage("steps", counts["steps"], {}),
        FunnelStage("candidates", counts["candidates"], dict(masks.refused)),
        FunnelStage("actor-valid", masks.valid, _some("NO_FINITE_LABEL", masks.valid - masks.labelled)),
        FunnelStage("labelled", masks.labelled, _some("TARGET_NOT_TRAINABLE", untrained)),
        FunnelStage("trainable", masks.trainable, {}),
    )


@dataclass
class _Masks:
    valid: int
    labelled: int
    trainable: int
    refused: Counter[str]


def _masks(children: list[RolloutZarrStoreReader]) -> _Masks:
    counts = _Masks(0, 0, 0, Counter())
    names = ("actor_action_mask", "oracle_label_mask", "q_train_mask", "primary_invalid_reason")
    for child in children:
        rows = child.num_rows(CANDIDATES.name)
        for start in range(0, rows, _BLOCK_ROWS):
            columns = child.columns(CANDIDATES, names, start, start + _BLOCK_ROWS)
            valid, labelled, trainable, reason = (columns[name] for name in names)
            counts.valid += int(valid.sum())
            counts.labelled += int(labelled.sum())
            counts.trainable += int(trainable.sum())
            values, times = np.unique(reason[~valid], return_counts=True)
            counts.refused.update(
                {InvalidReason(int(value)).name: int(count) for value, count in zip(values, times, strict=True)}
            )
    return counts


def _some(reason: str, count: int) -> dict[str, int]:
    return {reason: count} if count else {}
