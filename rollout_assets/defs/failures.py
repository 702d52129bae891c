"""Why a run failed, in the words of its first failed step."""

from __future__ import annotations

from collections.abc import Iterable

import dagster as dg

SHOWN_CHARACTERS = 400
"""How much of a message the reason of a skipped tick repeats; the run has all of it."""

BEFORE_ITS_FIRST_STEP = "the run failed before its first step"


def first_failure(events: Iterable[dg.DagsterEvent]) -> str | None:
    """The message of the first failed step among the events of a run; None if no step failed."""
    for event in events:
        if event.is_step_failure:
            data = event.step_failure_data
            if data.user_failure_data is not None:
                return data.user_failure_data.description or data.user_failure_data.label
            error = data.error
            while error is not None and error.cause is not None:
                error = error.cause
            return "" if error is None else error.message.strip()
    return None


def why_failed(instance: dg.DagsterInstance, run_id: str) -> str:
    """Why a recorded run failed: by its first failed step, or else by what ended the run; on one line, shortened."""
    kinds = {dg.DagsterEventType.STEP_FAILURE, dg.DagsterEventType.RUN_FAILURE}
    entries = [record.event_log_entry for record in instance.get_records_for_run(run_id, of_type=kinds).records]
    events = [entry.dagster_event for entry in entries if entry.dagster_event is not None]
    ended = next((event.message for event in reversed(events) if event.message), None)
    text = " ".join((first_failure(events) or ended or BEFORE_ITS_FIRST_STEP).split())
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]} …"
