"""Which shards are asked for: those that are planned and not validated; and planning, when the source has changed.

Planning is a run of its own, because a look writes nothing. The look after it sees the new shards.
"""

from __future__ import annotations

from dataclasses import replace

import dagster as dg

from rollout_assets.campaigns.columns.survey import CampaignSurvey
from rollout_assets.campaigns.plan_entry import PlannedShards, shard_id_of
from rollout_assets.campaigns.status import unplanned_rows
from rollout_assets.config import canonical_hash
from rollout_assets.defs import records
from rollout_assets.defs.assets.source import source_data_version
from rollout_assets.defs.automation.answer import Answer
from rollout_assets.defs.automation.attempts import ask_for, how_it_ended
from rollout_assets.defs.automation.planned import edited_since_planned, planned_shards, unvalidated
from rollout_assets.defs.keys import NIGHT_TAG, PARTITION_TAG, PLAN, SHARD
from rollout_assets.defs.step import CampaignStep

LOOKED_UP_AT_ONCE = 500
"""Run keys that one query looks up."""

_REMEDY = "to try at once, re-execute that run or materialize rollout_shard_plan"


def request_new_shards(step: CampaignStep) -> Answer:
    """Ask for planning if the plan is behind the source, and for planned shards that were never asked for."""
    planned = planned_shards(step)
    if (edited := edited_since_planned(step, planned)) is not None:
        return Answer(reason=edited)
    recorded = records.planned_source(step.instance, step.keys)
    planning = _planning(step, planned, recorded)
    if planned is None or recorded is None:  # a shard's lineage begins with the recorded plan
        return planning
    return planning.and_also(_shards(step, planned, "shard"))


def request_night(step: CampaignStep) -> Answer:
    """Ask for planning in the name of this night, if anything is to be planned or built; its shards follow the plan."""
    planned = planned_shards(step)
    if (edited := edited_since_planned(step, planned)) is not None:
        return Answer(reason=edited)
    recorded = records.planned_source(step.instance, step.keys)
    nothing_to_plan = planned is not None and not _behind(step, planned, recorded, source_data_version(step))
    if planned is not None and nothing_to_plan and not _waiting(step, CampaignSurvey.of(step.config, planned)):
        return Answer(reason=_all_done(planned))
    return Answer((dg.RunRequest(tags={NIGHT_TAG: "nightly"}),))


def request_nights_shards(step: CampaignStep) -> Answer:
    """Ask for the shards that are not validated, each once per night; failed ones are tried again every night.

    Once somebody plans again, the night is over: an edited campaign is not rebuilt in the name of an earlier night.
    """
    night = records.run_of_plan(step.instance, step.keys)
    if night is None or NIGHT_TAG not in night.tags:
        return Answer(reason="the last plan was not made by the nightly schedule; this sensor runs the shards of those")
    planned = planned_shards(step)
    if (edited := edited_since_planned(step, planned)) is not None:
        return Answer(reason=edited)
    return Answer(reason="nothing is planned yet") if planned is None else _shards(step, planned, night.run_id[:8])


def _planning(step: CampaignStep, planned: PlannedShards | None, recorded: str | None) -> Answer:
    source = source_data_version(step)
    if planned is not None and not _behind(step, planned, recorded, source):
        return Answer()
    content = canonical_hash([source, step.config.writer_config_hash, recorded])[:16]
    return ask_for(step, PLAN, content, _REMEDY)


def _behind(step: CampaignStep, planned: PlannedShards, recorded: str | None, source: str) -> bool:
    """Whether the plan lacks rows of the source, or was recorded for another state of it."""
    return recorded != source or bool(unplanned_rows(step.config, planned, step.source))


def _waiting(step: CampaignStep, survey: CampaignSurvey) -> list[int]:
    """Numbers of the shards that are neither validated nor in progress."""
    busy = records.shards_in_progress(step.instance, step.keys)
    return [number for number in unvalidated(step, survey) if shard_id_of(number) not in busy]


def _shards(step: CampaignStep, planned: PlannedShards, occasion: str) -> Answer:
    """Ask for shards that wait and were not asked for on this occasion, as many as one look may start."""
    waiting = _waiting(step, CampaignSurvey.of(step.config, planned))
    if not waiting:
        return Answer(reason=_all_done(planned))
    most = step.config.automation.shards_per_tick
    new: list[dg.RunRequest] = []
    ran: dict[str, dg.DagsterRun] = {}
    for start in range(0, len(waiting), LOOKED_UP_AT_ONCE):
        numbers = waiting[start : start + LOOKED_UP_AT_ONCE]
        requests = {str(request.run_key): request for request in _shard_requests(step, planned, occasion, numbers)}
        ran |= (known := records.runs_by_key(step.instance, list(requests)))
        new += [request for key, request in requests.items() if key not in known]
        if len(new) >= most:
            break
    asked = tuple(new[:most])
    return _with_partitions(step, Answer(asked)) if asked else Answer(reason=_asked_before(step, planned, ran))


def _shard_requests(
    step: CampaignStep, planned: PlannedShards, occasion: str, numbers: list[int]
) -> list[dg.RunRequest]:
    name, job, sha256 = step.keys.name, step.keys.job(SHARD), planned.columns.sha256
    return [
        dg.RunRequest(
            f"{occasion}:{name}:{shard_id_of(number)}:{sha256[number][:16]}",
            job_name=job,
            partition_key=shard_id_of(number),
        )
        for number in numbers
    ]


def _with_partitions(step: CampaignStep, answer: Answer) -> Answer:
    """Ask for the partitions too that Dagster does not have: somebody deleted them, or planned without Dagster."""
    known = set(step.instance.get_dynamic_partitions(step.keys.partitions_name))
    missing = [key for request in answer.requests if (key := request.partition_key) and key not in known]
    return replace(answer, new_partitions=(step.keys.partitions.build_add_request(missing),)) if missing else answer


def _asked_before(step: CampaignStep, planned: PlannedShards, ran: dict[str, dg.DagsterRun]) -> str:
    first = next(iter(ran.values()))
    ended = how_it_ended(step.instance, first) if first.is_finished else "its run has just begun"
    return (
        f"{len(ran)} of {len(planned)} shards are not validated, and each was asked for already; the first is "
        f"{first.tags.get(PARTITION_TAG, '')}: {ended}; to try again, re-execute that run or materialize the partition"
    )


def _all_done(planned: PlannedShards) -> str:
    return f"all {len(planned)} shards are validated or in progress"
