"""The newcomer's walk in a real browser: see the chain, backfill all shards, read checks and hashes, find the store."""

import os
from pathlib import Path

import dagster as dg
import pytest

from rollout_assets.campaigns.versions import current_name
from rollout_assets.defs.records import unfinished_backfills, unfinished_runs
from tests.defs.browser import browsing, find_browser, running_ui, started_ui
from tests.defs.campaigns import edit
from tests.defs.conftest import REPOSITORY, Desk
from tests.support.waiting import wait_until

PICTURES = Path(os.environ.get("ROLLOUT_ASSETS_PICTURES", REPOSITORY / "dagster_home" / "screenshots"))
"""Where the pictures go: an artifact of the tests, or the README's when ``infra/screenshots`` asks for them."""

LINEAGE = "/locations/rollout_assets.definitions/asset-groups/tiny/lineage"
CHAIN = ("vin_offline_store", "rollout_shard_plan", "vin_source_rows", "rollout_shards", "validated_shards")

PLACE = {"repositoryLocationName": "rollout_assets.definitions", "repositoryName": "__repository__"}
SENSOR = {**PLACE, "sensorName": "tiny_new_snippets"}
START_SENSOR = "mutation($of: SensorSelector!) { startSensor(sensorSelector: $of) { ... on Sensor { name } } }"

pytestmark = [
    pytest.mark.ci,  # two minutes
    pytest.mark.skipif(
        find_browser() is None, reason="no browser here: install chromium and chromedriver to walk through the UI"
    ),
]


def test_a_newcomer_backfills_a_campaign_and_finds_the_promoted_store(desk: Desk, tmp_path):
    runner = desk.runner()
    with runner.instance:
        assert runner.run("observe").ok and runner.run("plan").ok
    with running_ui(desk.home, desk.campaign) as url, browsing(url, tmp_path / "profile", PICTURES) as page:
        page.open(LINEAGE)
        page.wait(*CHAIN, "rollouts_zarr", "rollout_report", "rollout_metrics", "Materialize all")

        page.click("Materialize all")
        page.wait("Launch runs to materialize 7 assets")
        page.click("All")
        page.wait("2 partitions")
        page.picture("backfill")
        page.click("Launch backfill")

        shards = "/assets/tiny/validated_shards?view=partitions"
        page.open(shards)
        page.wait(r"Materialized \(2\)", again=shards)
        one = "/assets/tiny/rollout_shards?view=partitions&partition=shard-000001"
        page.open(one)
        page.wait(
            "shard-000001", "Materialized", "verdict", desk.config.oracle_config_hash, desk.config.writer_config_hash
        )
        page.picture("partition")
        page.open("/assets/tiny/rollout_shards?view=checks")
        page.wait(r"Checks \(4\)", *(rf"{name}\nSucceeded" for name in ("content_digests", "schema_and_linkage")))
        page.picture("checks")

        promoted = "/assets/tiny/rollouts_zarr"
        page.open(promoted)
        page.wait(str(desk.layout.promoted), "v000001", again=promoted)
        page.click("Columns")  # folds the columns of the table, for a picture of what lies below them
        page.picture("promoted")
        metrics = "/assets/tiny/rollout_metrics"
        page.open(metrics)
        page.wait("per_recipe", "v000001", again=metrics)
        page.picture("metrics")
        checks = "/assets/tiny/rollouts_zarr?view=checks&checkDetail=up_to_date"
        page.open(checks)
        page.wait("up_to_date", "Execute")
        page.click("Execute")
        page.wait("Launched run|In progress|Succeeded")
        readiness = "/assets/tiny/rollout_report?view=checks"
        page.open(readiness)
        page.wait("readiness", "trainable states", again=readiness)
        page.picture("readiness")
        page.open(LINEAGE)
        page.wait(*CHAIN)
        page.picture("lineage")

        edit(desk.campaign, "[oracle]\nwidth_px = 16", "[oracle]\nwidth_px = 18")
        page.click("Reload definitions")
        page.wait("reloaded|Loaded|Unsynced")
        page.open(one)
        page.wait("Unsynced|Outdated", again=one)
        page.picture("stale")
        overview = "/assets/tiny/rollout_shards"
        page.open(overview)
        page.wait("edited_fields", r"oracle\.width_px: store 16, campaign 18", again=overview)


def test_a_missing_mesh_loses_nothing_in_the_ui(made_desk: Desk, tmp_path):
    edit(made_desk.campaign, "[shards]", "[automation]\nlook_every_s = 5\n\n[shards]")
    (mesh, *_) = sorted((made_desk.source / "meshes").glob("*.ply"))
    before = made_desk.content()
    with started_ui(made_desk.home, made_desk.campaign) as ui, browsing(ui.url, tmp_path / "profile", PICTURES) as page:
        ui.ask(START_SENSOR, of=SENSOR)
        mesh.rename(made_desk.folder / "unmounted.ply")
        page.open(LINEAGE)
        page.wait(*CHAIN, "Materialize all")
        page.click("Materialize all")
        page.wait("Launch runs to materialize 7 assets")
        page.click("All")
        page.wait("2 partitions")
        page.click("Launch backfill")
        with made_desk.runner().instance as instance:
            failures = dg.RunsFilter(statuses=[dg.DagsterRunStatus.FAILURE])
            wait_until(lambda: instance.get_runs(failures), "a failed run")
            wait_until(lambda: not unfinished_backfills(instance) and not unfinished_runs(instance), "the backfill")
            (failed,) = instance.get_runs(failures)
            assert instance.get_runs_count(dg.RunsFilter(job_name="tiny_promote")) == 1
        page.open(f"/runs/{failed.run_id}")
        page.wait("InputMissing", "shard-000000")
        page.picture("missing_mesh_run")
        rows = "/assets/tiny/vin_source_rows?view=partitions&partition=shard-000000"
        page.open(rows)
        page.wait("shard-000000")
        page.picture("missing_mesh_rows")
        page.open("/assets/tiny/rollouts_zarr?view=overview")
        page.wait("Latest materialization", "v000001", "rows_by_split")
        page.picture("missing_mesh_promoted")
        page.open("/assets/tiny/rollouts_zarr?view=checks")
        page.wait("stores_valid")
        page.picture("missing_mesh_checks")
        page.open("/locations/rollout_assets.definitions/sensors/tiny_promotion")
        page.wait("tiny_promotion", "0 runs requested", "all 2 shards are promoted")
        page.picture("missing_mesh_sensor")
        assert made_desk.content() == before and current_name(made_desk.layout) == "v000001"
        assert [path.name for path in made_desk.layout.versions.iterdir()] == ["v000001"]
