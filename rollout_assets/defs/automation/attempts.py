"""Asking for a run once per content, and again some time after it failed.

Dagster never starts a second run under a run key. So every further attempt has a key of its own, which names the run
before it: a look that is repeated, because its daemon died or for any other reason, asks for the same attempt.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime

import dagster as dg

from rollout_assets.defs.automation.answer import Answer
from rollout_assets.defs.failures import why_failed
from rollout_assets.defs.keys import ASKED_FOR_TAG
from rollout_assets.defs.step import CampaignStep


def ask_for(step: CampaignStep, job: str, content: str, remedy: str) -> Answer:
    """Ask for a run of a job for some content, unless one runs, or ended not long ago without the wanted effect.

    ``remedy`` says what somebody can do who does not want to wait.
    """
    name, asked_for = step.keys.job(job), f"{job}:{step.keys.name}:{content}"
    tried = step.instance.get_run_records(dg.RunsFilter(tags={ASKED_FOR_TAG: asked_for}), limit=1)
    if not tried:
        return Answer((_request(name, asked_for, "first"),))
    run = tried[0].dagster_run
    if not run.is_finished:
        return Answer(reason=f"run {short(run)} of {name} is in progress")
    again_s = _ended_s(tried[0]) + 60.0 * step.config.automation.retry_after_minutes
    if time.time() >= again_s:
        return Answer((_request(name, asked_for, f"after-{short(run)}"),))
    told = f"{how_it_ended(step.instance, run)}; the sensor tries again after {_clock(again_s)}; {remedy}"
    return Answer(reason=told, good_until_s=again_s)


def _request(job: str, asked_for: str, attempt: str) -> dg.RunRequest:
    return dg.RunRequest(f"{asked_for}:{attempt}", job_name=job, tags={ASKED_FOR_TAG: asked_for})


def how_it_ended(instance: dg.DagsterInstance, run: dg.DagsterRun) -> str:
    """What became of a finished run that did not have the effect it was asked for."""
    if run.is_success:
        return f"run {short(run)} of {run.job_name} succeeded, and what it made is gone or was changed since"
    if run.status is dg.DagsterRunStatus.CANCELED:
        return f"run {short(run)} of {run.job_name} was cancelled"
    return f"run {short(run)} of {run.job_name} failed: {why_failed(instance, run.run_id)}"


def short(run: dg.DagsterRun) -> str:
    """The beginning of a run's id, as the UI shows it."""
    return run.run_id[:8]


def _ended_s(record: dg.RunRecord) -> float:
    return record.end_time or record.update_timestamp.timestamp()


def _clock(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M} UTC"
