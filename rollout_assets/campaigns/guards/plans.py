"""A plan that lost lines at its end: finished shards behind it that no replaced plan explains.

A plan becomes shorter only when it is replaced, and a replaced plan is kept. So a finished shard whose number the plan
does not reach, and whose line no replaced plan has, stood in lines that are lost.
"""

from __future__ import annotations

import hashlib
from itertools import islice

from rollout_assets.campaigns.columns.marker_columns import built_numbers
from rollout_assets.campaigns.columns.survey import CampaignSurvey
from rollout_assets.campaigns.layout import CampaignLayout
from rollout_assets.campaigns.markers import owner_if_finished
from rollout_assets.campaigns.objects.storage import storage_at
from rollout_assets.campaigns.objects.working_copy import fetch_folder
from rollout_assets.campaigns.plan_entry import shard_id_of
from rollout_assets.errors import counted


def cut_plan(layout: CampaignLayout, survey: CampaignSurvey) -> str:
    """Which finished shards a plan has lost, and the way out; empty for a whole plan."""
    length = len(survey.planned)
    behind = _finished_behind(layout, survey, length)
    if behind:
        fetch_folder(layout, layout.replaced_plans)
    lost = [number for number, entry in sorted(behind.items()) if not _was_replaced(layout, number, entry)]
    if not lost:
        return ""
    return (
        f"{layout.plan}: ends at {shard_id_of(length - 1)}, and {counted(len(lost), 'finished shard')} from "
        f"{shard_id_of(lost[0])} on stood in lines that are lost; 'rollout-assets campaign plan' plans their rows again"
    )


def _finished_behind(layout: CampaignLayout, survey: CampaignSurvey, length: int) -> dict[int, str]:
    """Finished shards behind the end of a plan: number -> the beginning of their entry's digest, or all of it."""
    if layout.url is not None:
        keys = {key.shard_id: key.entry for key in storage_at(layout.url).marker_keys()}
        return {number: keys[shard_id_of(number)] for number in built_numbers(keys) if number >= length}
    numbers = [number for number in built_numbers(survey.folders.built) if number >= length]
    owners = {number: owner_if_finished(layout.shard(shard_id_of(number))) for number in numbers}
    return {number: owner.entry_sha256 for number, owner in owners.items() if owner is not None}


def _was_replaced(layout: CampaignLayout, number: int, entry: str) -> bool:
    """Whether a replaced plan has the entry of a shard; its line stands where its number says."""
    for plan in layout.replaced_plans.glob("plan.*.jsonl"):
        with plan.open("rb") as lines:
            line = next(islice(lines, number, None), b"")
        if hashlib.sha256(line).hexdigest().startswith(entry):
            return True
    return False
