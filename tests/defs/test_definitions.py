"""The definitions: the chain, its checks, its automation; light to load, and one set per campaign."""

import subprocess
import sys
import warnings
from itertools import pairwise
from pathlib import Path

import dagster as dg
import pytest

from rollout_assets.config import shipped_campaigns
from rollout_assets.defs.assets import ASSETS
from rollout_assets.defs.checks import CHECK_GROUPS
from rollout_assets.defs.code_location import (
    CAMPAIGNS_VARIABLE,
    build_all_definitions,
    build_definitions,
    known_campaigns,
)
from rollout_assets.defs.keys import CHAIN, FURTHER_JOBS, JOBS, READINGS, UPKEEP_JOBS, CampaignKeys
from rollout_assets.defs.lazy import load
from rollout_assets.errors import ConfigError
from tests.defs.campaigns import edit, write_campaign
from tests.support.refusals import refused

CHECKS = {
    "rollout_shards": {
        "schema_and_linkage": "blocking",
        "content_digests": "blocking",
        "lineage_hashes": "blocking",
        "rows_accounted_for": "blocking",
    },
    "validated_shards": {"suspicious_rows": "", "valid_fanout": "", "label_yield": ""},
    "rollouts_zarr": {"stores_valid": "", "no_leakage": "", "rows_add_up": "", "up_to_date": "", "second_opinion": ""},
    "rollout_report": {"readiness": ""},
}
LOAD = """
import resource, sys, rollout_assets.definitions as module
module.defs().resolve_asset_graph()
used = resource.getrusage(resource.RUSAGE_SELF)
print(used.ru_utime + used.ru_stime, *sorted({"torch", "warp"} & set(sys.modules)))
"""


@pytest.fixture(scope="module")
def demo() -> dg.Definitions:
    return build_definitions(["demo"])


def test_the_assets_are_one_chain_in_one_group(demo):
    graph = demo.resolve_asset_graph()
    keys = CampaignKeys.of("demo")
    assert {key.to_user_string() for key in graph.get_all_asset_keys()} == {
        f"demo/{name}" for name in (*CHAIN, *READINGS)
    }
    for upstream, downstream in pairwise(CHAIN):
        assert graph.get(keys.key(downstream)).parent_keys == {keys.key(upstream)}
    partitioned = [name for name in CHAIN if graph.get(keys.key(name)).is_partitioned]
    assert partitioned == ["vin_source_rows", "rollout_shards", "validated_shards"]
    for name in CHAIN:
        node = graph.get(keys.key(name))
        assert node.group_name == "demo" and node.owners and node.kinds and len(node.description) > 80


def test_every_check_is_where_a_reader_looks_for_it(demo):
    checks: dict[str, dict[str, str]] = {}
    for node in demo.resolve_asset_graph().asset_check_keys:
        spec = demo.resolve_asset_graph().get_check_spec(node)
        checks.setdefault(node.asset_key.path[-1], {})[node.name] = "blocking" if spec.blocking else ""
        assert spec.description
    assert checks == CHECKS


def test_jobs_sensors_and_schedules_are_named_after_the_campaign(demo):
    repository = demo.get_repository_def()
    jobs = {job.name for job in repository.get_all_jobs() if not job.name.startswith("__")}
    assert jobs == {f"demo_{job}" for job in (*JOBS, *FURTHER_JOBS, *UPKEEP_JOBS)}
    assert {sensor.name: sensor.default_status.value for sensor in repository.sensor_defs} == {
        "default_automation_condition_sensor": "STOPPED",
        "demo_new_snippets": "STOPPED",
        "demo_nightly_shards": "RUNNING",
        "demo_promotion": "RUNNING",
    }
    assert {schedule.name: schedule.cron_schedule for schedule in repository.schedule_defs} == {
        "demo_nightly": "0 3 * * *",
        "demo_up_to_date": "0 6 * * *",
    }


def test_only_the_step_that_scores_waits_for_the_gpu_pool(demo):
    pools = {asset.op.name: asset.op.pool for asset in demo.assets if asset.op.pool}
    assert pools == {"demo__shards": "gpu"}


def test_report_and_metrics_follow_the_promoted_store_which_is_overdue_after_a_while(demo, tmp_path, small_store):
    graph, keys = demo.resolve_asset_graph(), CampaignKeys.of("demo")
    conditional = {key.path[-1] for key in graph.get_all_asset_keys() if graph.get(key).automation_condition}
    assert conditional == set(READINGS)
    campaign = write_campaign(tmp_path, small_store)
    edit(campaign, "[shards]", "[automation]\noverdue_days = 2\n\n[shards]")
    windows = {}
    for definitions, place in ((demo, keys), (build_definitions([campaign]), CampaignKeys.of(campaign))):
        specs = {spec.key.path[-1]: spec.freshness_policy for spec in definitions.resolve_all_asset_specs()}
        windows[place.name] = {name: policy.fail_window.to_timedelta().days for name, policy in specs.items() if policy}
    assert windows == {"demo": {"rollouts_zarr": 30}, "tiny": {"rollouts_zarr": 2}}


def test_definitions_are_made_without_a_warning_and_others_warnings_are_not_silenced():
    with warnings.catch_warnings():
        warnings.simplefilter("error", dg.PreviewWarning)
        warnings.simplefilter("error", dg.BetaWarning)
        build_definitions(["demo"]).get_repository_def()
        with pytest.raises(dg.PreviewWarning):
            dg.AssetCheckSpec("own", asset="own", partitions_def=dg.StaticPartitionsDefinition(["one"]))


def test_definitions_load_in_three_seconds_without_torch_and_warp():
    """CPU seconds of the whole process: wall time says more about the neighbours."""
    done = subprocess.run([sys.executable, "-c", LOAD], capture_output=True, text=True, check=True)
    seconds, *heavy = done.stdout.split()
    assert heavy == [] and float(seconds) < 3.0


def test_every_step_that_is_loaded_on_first_use_is_there():
    paths = [asset.compute for asset in ASSETS] + [group.evaluate for group in CHECK_GROUPS]
    paths += ["assets.source.vin_offline_store", "automation.quiet.unless_quiet", "step.CampaignStep"]
    paths += [f"automation.shards.{name}" for name in ("request_new_shards", "request_night", "request_nights_shards")]
    paths += ["automation.promotion.request_promotion", "shards.running.run_shards"]
    assert all(callable(load(path)) for path in paths)


def test_campaigns_live_side_by_side_and_same_names_are_refused(tmp_path, small_store):
    one, two = (write_campaign(tmp_path, small_store, name) for name in ("one", "two-b"))
    graph = build_definitions([one, two, one]).resolve_asset_graph()
    assert {key.path[0] for key in graph.get_all_asset_keys()} == {"one", "two_b"}
    (tmp_path / "other").mkdir()
    same = write_campaign(tmp_path / "other", small_store, "one")
    with refused(ConfigError, one, same):
        build_definitions([one, same])


def test_campaigns_of_one_output_folder_are_refused_with_both_files(tmp_path, small_store):
    one, two = (write_campaign(tmp_path, small_store, name) for name in ("one", "two"))
    (tmp_path / "elsewhere").symlink_to(tmp_path / "one")
    edit(two, 'output_dir = "two"', 'output_dir = "elsewhere"')
    with refused(ConfigError, one, two, tmp_path / "one", "shards.output_dir"):
        build_definitions([one, two])


def test_campaigns_come_from_package_home_and_environment(tmp_path, small_store, monkeypatch):
    (tmp_path / "campaigns").mkdir()
    at_home = write_campaign(tmp_path / "campaigns", small_store, "home")
    named = write_campaign(tmp_path, small_store, "named")
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    monkeypatch.setenv(CAMPAIGNS_VARIABLE, str(named))
    assert known_campaigns() == (*shipped_campaigns(), str(at_home), str(named))


def test_keys_keep_a_shipped_name_and_make_a_file_absolute(tmp_path, small_store, monkeypatch):
    path = write_campaign(tmp_path, small_store)
    monkeypatch.chdir(tmp_path)
    assert CampaignKeys.of(path.name).campaign == str(path)
    assert CampaignKeys.of("demo").campaign == "demo"


@pytest.mark.parametrize(
    ("old", "new", "stale"),
    [
        ("radius_max_m = 0.9", "radius_max_m = 0.8", {"rollout_shard_plan", "rollout_shards"}),
        (
            "width_px = 16\nheight_px = 16\ndevice",
            "width_px = 20\nheight_px = 16\ndevice",
            {"rollout_shard_plan", "rollout_shards"},
        ),
        ('device = "cpu"', 'device = "auto"', set()),
        ("seed = 5", "# a comment\nseed = 5", set()),
        ("rows_per_shard = 1", "rows_per_shard = 2", set()),
    ],
)
def test_code_versions_change_with_what_decides_bytes_and_with_nothing_else(
    tmp_path: Path, small_store, old, new, stale
):
    path = write_campaign(tmp_path, small_store)
    before = _code_versions(path)
    edit(path, old, new)
    after = _code_versions(path)
    assert {name for name in before if before[name] != after[name]} == stale


def _code_versions(campaign: Path) -> dict[str, str | None]:
    graph = build_definitions([campaign]).resolve_asset_graph()
    return {key.path[-1]: graph.get(key).code_version for key in graph.get_all_asset_keys()}


def test_one_bad_file_takes_no_other_campaign_down(tmp_path, small_store):
    for name in ("first", "twin"):
        (tmp_path / name).mkdir()
    good, twin = (write_campaign(tmp_path / name, small_store, "good") for name in ("first", "twin"))
    bad = tmp_path / "bad.toml"
    bad.write_text('name = "bad"\nno_such_key = 1\n')
    with pytest.warns(UserWarning, match=r"bad\.toml"):
        definitions = build_all_definitions([good, bad, twin])
    specs = {spec.key.to_user_string(): spec for spec in definitions.resolve_all_asset_specs()}
    assert "good/rollouts_zarr" in specs
    broken = {key: spec for key, spec in specs.items() if key.startswith("broken_campaigns/")}
    assert len(broken) == 2
    assert any("no_such_key" in (spec.description or "") for spec in broken.values())
    assert any(str(good) in text and str(twin) in text for text in (spec.description or "" for spec in broken.values()))
    assert definitions.resolve_job_def("good_promote") is not None


def test_one_check_of_a_group_can_run_alone(tmp_path, small_store):
    definitions = build_definitions([write_campaign(tmp_path, small_store, "alone")])
    with_checks = [node for node in definitions.resolve_asset_graph().assets_defs if node.check_keys]
    assert with_checks and all(node.can_subset for node in with_checks)
