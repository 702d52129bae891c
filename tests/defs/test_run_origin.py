"""What was run headless is where a person looks for it: on the pages of jobs, in the overview and on the timeline."""

import json
import os
import urllib.request
from pathlib import Path

import pytest

from rollout_assets.defs.run_origin import LOCATION
from tests.defs.browser import browsing, find_browser, running_ui
from tests.defs.conftest import REPOSITORY
from tests.support.waiting import PATIENCE_S

PICTURES = Path(os.environ.get("ROLLOUT_ASSETS_PICTURES", REPOSITORY / "dagster_home" / "screenshots"))
JOBS = {"tiny_observe": 1, "tiny_plan": 1, "tiny_shard": 2, "tiny_promote": 1}
QUERY = """{
  runsOrError(limit: 20) { ... on Runs { results { repositoryOrigin { repositoryLocationName } } } }
  repositoryOrError(repositorySelector: {repositoryLocationName: "%s", repositoryName: "__repository__"}) {
    ... on Repository { jobs { name runs(limit: 5) { status } } }
  }
}"""


def test_a_headless_run_is_stored_with_its_code_location(finished_desk):
    desk, _ = finished_desk
    with desk.runner().instance as instance:
        for run in instance.get_runs():
            origin = run.remote_job_origin
            assert origin is not None and origin.job_name == run.job_name and origin.location_name == LOCATION
            assert run.tags[".dagster/repository"] == f"__repository__@{LOCATION}" and run.is_success
        assert instance.get_runs_count() == sum(JOBS.values())


@pytest.mark.slow
@pytest.mark.skipif(find_browser() is None, reason="no browser here: install chromium and chromedriver")
def test_the_ui_shows_headless_runs_on_jobs_and_timeline(made_desk, tmp_path):
    with running_ui(made_desk.home, made_desk.campaign) as url:
        request = urllib.request.Request(
            f"{url}/graphql", json.dumps({"query": QUERY % LOCATION}).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            data = json.load(answer)["data"]
        of_jobs = {job["name"]: len(job["runs"]) for job in data["repositoryOrError"]["jobs"]}
        assert {name: of_jobs[name] for name in JOBS} == JOBS
        origins = [run["repositoryOrigin"] for run in data["runsOrError"]["results"]]
        assert {origin["repositoryLocationName"] for origin in origins} == {LOCATION}
        with browsing(url, tmp_path / "profile", PICTURES) as page:
            page.open("/overview/activity/timeline")
            page.wait("tiny_shard", "tiny_promote", again="/overview/activity/timeline")
            page.picture("timeline_headless")
            page.open(f"/locations/{LOCATION}/jobs/tiny_shard/runs")
            page.wait("Success", "shard-000001")
            page.picture("job_headless")
