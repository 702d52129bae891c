"""Sensors and the schedule with a real daemon, web server and browser: what an operator sees, and what a kill costs."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from rollout_assets.campaigns.versions import current_version
from rollout_assets.synthetic.store import append_synthetic_snippets
from tests.defs.browser import Ui, browsing, find_browser, started_ui
from tests.defs.campaigns import edit
from tests.defs.conftest import Desk
from tests.defs.looks import told, written
from tests.defs.test_ui import PICTURES, PLACE, SENSOR, START_SENSOR

pytestmark = pytest.mark.slow  # minutes each, because the daemon, its code server and each run are processes

Start = Callable[[], AbstractContextManager[Ui]]
"""Starts the UI, its daemon and a server of definitions, which end with the block."""

SCHEDULE = {**PLACE, "scheduleName": "tiny_nightly"}
EVALUATION = "{ ... on DryRunInstigationTick { evaluationResult { error { message } runRequests { runKey } } } } }"
TEST_SENSOR = f"mutation($of: SensorSelector!) {{ sensorDryRun(selectorData: $of, cursor: null) {EVALUATION}"
TEST_SCHEDULE = (
    "mutation($of: ScheduleSelector!, $at: Float) { scheduleDryRun(selectorData: $of, timestamp: $at) " + EVALUATION
)
START_SCHEDULE = (
    "mutation($of: ScheduleSelector!) { startSchedule(scheduleSelector: $of) { "
    "... on ScheduleStateResult { scheduleState { status } } } }"
)
RELOAD = "mutation { reloadWorkspace { ... on Workspace { locationEntries { name } } } }"
TICKS = (
    "query($of: SensorSelector!) { sensorOrError(sensorSelector: $of) { ... on Sensor { "
    "sensorState { ticks(limit: 1) { tickId status skipReason } } } } }"
)
STALE = (
    '{ assetNodes(assetKeys: [{path: ["tiny", "rollout_shard_plan"]}]) '
    "{ staleStatus staleCauses { reason } assetMaterializations(limit: 1) { tags { key } } } }"
)


def wait_until(what: str, holds: Callable[[], Any], seconds: float = 240.0, every_s: float = 0.5) -> Any:
    """The first answer of ``holds`` that is true."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if answer := holds():
            return answer
        time.sleep(every_s)
    raise AssertionError(f"never came: {what}")


def automate(desk: Desk, **settings: Any) -> None:
    lines = "".join(f"{name} = {value!r}\n" for name, value in ({"look_every_s": 1} | settings).items())
    edit(desk.campaign, "[shards]", f"[automation]\n{lines}\n[shards]")


def runs_of(instance: dg.DagsterInstance, job: str) -> list[dg.DagsterRun]:
    return list(instance.get_runs(filters=dg.RunsFilter(job_name=job)))


def successes(instance: dg.DagsterInstance) -> dict[str, int]:
    """Shard -> how many runs of it succeeded."""
    done = [run for run in runs_of(instance, "tiny_shard") if run.is_success]
    shards = [run.tags["dagster/partition"] for run in done]
    return {shard: shards.count(shard) for shard in shards}


def tick_says(ui: Ui, sensor: str, *words: str) -> str:
    """The reason of the latest tick, once it has all these words."""

    def reason() -> str:
        (tick,) = ui.ask(TICKS, of={**PLACE, "sensorName": sensor})["sensorOrError"]["sensorState"]["ticks"] or [{}]
        text = tick.get("skipReason") or ""
        return text if all(word in text for word in words) else ""

    return str(wait_until(f"{sensor} says {words}", reason))


def promoted(desk: Desk, name: str) -> Callable[[], bool]:
    """Whether readers get a version, and no promotion runs any more."""

    def holds() -> bool:
        with desk.runner().instance as instance:
            runs = runs_of(instance, "tiny_promote")
        return current_version(desk.config).name == name and all(run.is_finished for run in runs)

    return holds


@pytest.fixture
def start(made_desk) -> Start:
    return partial(started_ui, made_desk.home, made_desk.campaign)


def test_previews_write_nothing_and_a_killed_daemon_loses_nothing(made_desk, start, tmp_path):
    previews_write_nothing_and_a_killed_daemon_loses_nothing(made_desk, start, tmp_path)


def previews_write_nothing_and_a_killed_daemon_loses_nothing(made_desk: Desk, start: Start, tmp_path: Path) -> None:
    automate(made_desk)
    with made_desk.runner().instance as instance:
        with start() as ui:
            tick_says(ui, "tiny_promotion", "all 2 shards are promoted")
            append_synthetic_snippets(made_desk.source, 1, workers=1)
            before = written(made_desk, instance)
            answers = ui.ask(TEST_SENSOR, of=SENSOR) | ui.ask(TEST_SCHEDULE, of=SCHEDULE, at=time.time())
            if find_browser() is not None:
                preview_in_the_browser(ui, tmp_path)
            assert written(made_desk, instance) == before
            for answer in answers.values():
                assert answer["evaluationResult"]["error"] is None
                assert len(answer["evaluationResult"]["runRequests"]) == 1

            ui.ask(START_SENSOR, of=SENSOR)
            planned = len(runs_of(instance, "tiny_plan"))
            wait_until("planning", lambda: len(runs_of(instance, "tiny_plan")) > planned, every_s=0.02)
            ui.kill()
        with start() as ui:
            wait_until("a promotion", promoted(made_desk, "v000002"), 400)
            tick_says(ui, "tiny_new_snippets", "all 4 shards are validated")
            assert successes(instance) == dict.fromkeys((f"shard-{number:06d}" for number in range(4)), 1)
            assert len(current_version(made_desk.config).shard_ids) == 4

            (plan,) = ui.ask(STALE)["assetNodes"]
            assert (plan["staleStatus"], plan["staleCauses"]) == ("FRESH", [])
            tags = {tag["key"] for tag in plan["assetMaterializations"][0]["tags"]}
            assert "dagster/input_event_pointer/tiny/vin_offline_store" in tags
            if find_browser() is not None:
                plan_in_the_browser(ui, tmp_path)


def preview_in_the_browser(ui: Ui, folder: Path) -> None:
    with browsing(ui.url, folder / "first", PICTURES) as page:
        page.open("/locations/rollout_assets.definitions/sensors/tiny_new_snippets")
        page.wait("tiny_new_snippets")
        page.click("Preview tick result")
        page.wait("Cursor|cursor")
        page.click("Continue")
        page.wait("(?i)1 run requests?|run requests")
        page.picture("preview")


def plan_in_the_browser(ui: Ui, folder: Path) -> None:
    with browsing(ui.url, folder / "second", PICTURES) as page:
        page.open("/assets/tiny/rollout_shard_plan")
        page.wait("rollout_shard_plan", "new_shards", "Latest materialization", "ago")
        page.picture("plan_after_new_snippets")
        assert "Unsynced" not in page.text(), "which stands beside the name of a plan without its input event pointer"


def command(desk: Desk, *arguments: str) -> None:
    start = "from rollout_assets.cli import main; main()"
    whole = [sys.executable, "-c", start, "campaign", *arguments, "--campaign", str(desk.campaign)]
    subprocess.run(whole, env=os.environ | {"DAGSTER_HOME": str(desk.home)}, check=True)


def rollback_in_the_browser(ui: Ui, folder: Path) -> None:
    with browsing(ui.url, folder / "profile", PICTURES) as page:
        page.open("/assets/tiny/rollouts_zarr?view=overview")
        page.wait("Latest materialization", "rows_by_split", "readers are pinned to v000001 by a rollback")
        page.picture("rollback")


def test_a_rollback_stays_promotion_goes_by_the_plan_and_a_failed_one_is_tried_again(made_desk, start, tmp_path):
    a_rollback_stays_promotion_goes_by_the_plan_and_a_failed_one_is_tried_again(made_desk, start, tmp_path)


def a_rollback_stays_promotion_goes_by_the_plan_and_a_failed_one_is_tried_again(
    made_desk: Desk, start: Start, tmp_path: Path
) -> None:
    automate(made_desk, retry_after_minutes=0.5)
    command(made_desk, "promote", "--anew")
    runner = made_desk.runner()
    with runner.instance as instance, start() as ui:
        tick_says(ui, "tiny_promotion", "all 2 shards are promoted")
        before = len(runs_of(instance, "tiny_promote"))
        command(made_desk, "rollback", "--yes")
        assert told(instance)[0] == "v000001" and "pinned" in told(instance)[1], "at once, not with the next tick"
        tick_says(ui, "tiny_promotion", "pinned to v000001 by a rollback", "campaign unpin")
        time.sleep(15)
        assert current_version(made_desk.config).name == "v000001" and len(runs_of(instance, "tiny_promote")) == before
        if find_browser() is not None:
            rollback_in_the_browser(ui, tmp_path)
        command(made_desk, "unpin", "--yes")
        assert told(instance) == ("v000001", "")

        edit(made_desk.campaign, "radius_max_m = 0.9", "radius_max_m = 0.8")
        tick_says(ui, "tiny_promotion", "the campaign was edited")
        ui.ask(RELOAD)
        again = made_desk.runner()
        with again.instance:
            assert again.run("plan").ok
            tick_says(ui, "tiny_promotion", "2 of 2 shards are not validated as planned")
            assert again.run("shard", "shard-000000").ok
            tick_says(ui, "tiny_promotion", "1 of 2 shards are not validated as planned: shard-000001")
            assert len(runs_of(instance, "tiny_promote")) == before

            chunk = next(path for path in made_desk.layout.shard("shard-000000").rglob("c/0") if path.is_file())
            sound = chunk.read_bytes()
            chunk.write_bytes(sound[::-1])
            assert again.run("shard", "shard-000001").ok
        text = tick_says(ui, "tiny_promotion", "of tiny_promote failed: ", "shard-000000", "tries again after")
        (failed, *earlier) = runs_of(instance, "tiny_promote")
        assert f"run {failed.run_id[:8]}" in text and len(earlier) == before
        chunk.write_bytes(sound)
        wait_until("another try", promoted(made_desk, "v000003"))
        assert told(instance) == ("v000003", "")


def test_a_night_plans_and_its_shards_follow(made_desk, start):
    a_night_plans_and_its_shards_follow(made_desk, start)


def a_night_plans_and_its_shards_follow(made_desk: Desk, start: Start) -> None:
    automate(made_desk, nightly="* * * * *")
    append_synthetic_snippets(made_desk.source, 1, workers=1)
    with made_desk.runner().instance as instance, start() as ui:
        ui.ask(START_SCHEDULE, of=SCHEDULE)
        wait_until("a promotion", promoted(made_desk, "v000002"), 400)
        assert successes(instance) == dict.fromkeys((f"shard-{number:06d}" for number in range(4)), 1)
