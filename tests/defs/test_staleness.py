"""What is stale, and why: by Dagster's versions per partition, and by the check on the promoted store."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rollout_assets.defs.code_location import CAMPAIGNS_VARIABLE
from rollout_assets.defs.headless import CheckOutcome
from rollout_assets.defs.keys import CHAIN
from rollout_assets.synthetic.store import append_synthetic_snippets
from tests.defs.campaigns import edit
from tests.defs.conftest import Desk
from tests.defs.looks import Ticker

SHARDS = ("shard-000000", "shard-000001")
PER_SHARD = ("vin_source_rows", "rollout_shards", "validated_shards")


def stale(desk: Desk) -> set[str]:
    """Assets, or asset and shard, that Dagster shows as out of sync after a reload."""
    return {place for place, status in stale_statuses(desk).items() if status == "STALE"}


def stale_statuses(desk: Desk) -> dict[str, str]:
    """Asset, or asset and shard -> its status as the UI gets it, from a process that loads the definitions anew."""
    places = {name: (name, "") for name in CHAIN[1:] if name not in PER_SHARD}
    places |= {f"{name}[{shard}]": (name, f'(partition: "{shard}")') for name in PER_SHARD for shard in SHARDS}
    fields = [
        f'a{number}: assetNodes(assetKeys: [{{path: ["tiny", "{name}"]}}]) {{ staleStatus{partition} }}'
        for number, (name, partition) in enumerate(places.values())
    ]
    answer = desk.folder / "answer.json"
    command = [Path(sys.executable).with_name("dagster-graphql"), "-m", "rollout_assets.definitions", "-o", answer]
    environment = os.environ | {"DAGSTER_HOME": str(desk.home), CAMPAIGNS_VARIABLE: str(desk.campaign)}
    query = "{ " + " ".join(fields) + " }"
    done = subprocess.run([*command, "-t", query], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    data = json.loads(answer.read_text())["data"]
    return {place: data[f"a{number}"][0]["staleStatus"] for number, place in enumerate(places)}


def up_to_date(desk: Desk) -> CheckOutcome:
    runner = desk.runner()
    with runner.instance:
        run = runner.run("promote")
        checks = {check.check: check for check in run.checks}
        assert run.ok, run.error
    return checks["up_to_date"]


@pytest.mark.ci
def test_a_finished_campaign_is_not_stale(made_desk):
    assert set(stale_statuses(made_desk).values()) == {"FRESH"}


@pytest.mark.ci
def test_an_edited_oracle_section_makes_every_shard_stale_and_a_device_none(made_desk):
    edit(made_desk.campaign, 'device = "cpu"', 'device = "auto"  # comment')
    assert stale(made_desk) == set()
    edit(made_desk.campaign, "[oracle]\nwidth_px = 16", "[oracle]\nwidth_px = 18")
    stale_names = stale(made_desk)
    assert {"rollout_shards[shard-000000]", "rollout_shards[shard-000001]"} <= stale_names
    assert not any(name.startswith("vin_source_rows") for name in stale_names)


@pytest.mark.ci
def test_after_new_snippets_the_plan_is_stale_and_the_check_names_them(made_desk):
    append_synthetic_snippets(made_desk.source, 1, workers=1)
    runner = made_desk.runner()
    with runner.instance:
        assert runner.run("observe").ok
    assert stale(made_desk) == {"rollout_shard_plan"}
    check = up_to_date(made_desk)
    assert not check.passed and check.level == "WARN"
    assert "rollout_shard_plan" in check.evidence and "2 new source row" in check.evidence


@pytest.mark.ci
def test_a_plan_that_the_sensor_let_grow_is_not_stale(made_desk):
    append_synthetic_snippets(made_desk.source, 1, workers=1)
    with made_desk.runner().instance as instance:
        Ticker(made_desk, instance).accept(Ticker(made_desk, instance).sensor("tiny_new_snippets"))
        assert len(instance.get_dynamic_partitions("tiny_shards")) == 4
    assert "rollout_shard_plan" not in stale(made_desk)


def test_an_edited_campaign_refuses_promotion_and_says_what_to_do(made_desk):
    edit(made_desk.campaign, "radius_max_m = 0.9", "radius_max_m = 0.8")
    runner = made_desk.runner()
    with runner.instance:
        shard = runner.run("shard", "shard-000000")
        assert not shard.ok and "ShardDrift" in shard.error and "campaign plan" in shard.error
        assert runner.run("plan").ok
        refused = runner.run("promote")
        assert not refused.ok and "shard-000000: " in refused.error
