"""Which code location a run belongs to: without it the UI lists a run on its page of runs and nowhere else.

Runs that the daemon or the UI launch have it from there. One that is executed in this process gets it here, so that
Overview, timeline and the pages of jobs show it too.
"""

from __future__ import annotations

import dagster as dg

# Dagster has no public name for the origin of a job. These are what `dagster run migrate-repository` gives to runs, by
# the same method of the storage; they are stored in every run, so that their form is kept from release to release.
from dagster._core.remote_origin import RegisteredCodeLocationOrigin, RemoteRepositoryOrigin

LOCATION = "rollout_assets.definitions"
"""The name of our code location in ``dagster dev``, ``dg dev``, ``rollout-assets ui`` and ``workspace.yaml``."""

_REPOSITORY = RemoteRepositoryOrigin(RegisteredCodeLocationOrigin(LOCATION), "__repository__")

LOCATION_TAGS = {".dagster/repository": _REPOSITORY.get_label(), "dagster/code_location": LOCATION}
"""Tags of a run that belongs to our code location, by which pages of jobs and filters find it."""


def assign_to_location(instance: dg.DagsterInstance, run_id: str) -> None:
    """Let a finished run, which was begun with ``LOCATION_TAGS``, be one of our code location."""
    run = instance.get_run_by_id(run_id)
    if run is not None:
        instance.run_storage.replace_job_origin(run, _REPOSITORY.get_job_origin(run.job_name))
