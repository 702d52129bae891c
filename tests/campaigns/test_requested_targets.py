"""Which targets get rollouts, as a campaign asks for them: the best, all eligible ones, or some by name."""

import json
import sys
import tomllib

import pytest

from rollout_assets.campaigns.layout import STORE_NAME
from rollout_assets.campaigns.plan import write_rollout_shard_manifest_from_config
from rollout_assets.campaigns.run import run_campaign
from rollout_assets.campaigns.shard import run_rollout_shard
from rollout_assets.config import CampaignConfig, load_campaign
from rollout_assets.errors import CampaignError
from rollout_assets.rollouts.zarr_store.manifest import RolloutStoreInvocation
from rollout_assets.rollouts.zarr_store.reader import RolloutZarrStoreReader
from rollout_assets.sources.vin_store import VinOfflineStore
from rollout_assets.targets.selection import describe_sample
from rollout_assets.testing.tiny_campaign import write_tiny_campaign
from tests.support.refusals import assert_names, refused
from tests.test_cli import run


@pytest.fixture(scope="module")
def source(small_store) -> VinOfflineStore:
    return VinOfflineStore.open(small_store)


@pytest.fixture
def campaign(small_store, tmp_path):
    return write_tiny_campaign(tmp_path, small_store, rows_per_shard=4)


def boxes(source: VinOfflineStore, row: int, config: CampaignConfig):
    return describe_sample(source.sample(source.row(row)), config.targets)


def with_targets(path, **targets) -> CampaignConfig:
    return load_campaign(path, {"targets": targets})


def stored(config: CampaignConfig) -> list[tuple[str, str]]:
    """Id and selection policy of every target of the first shard."""
    reader = RolloutZarrStoreReader(config.shards.output_dir / "shards" / "shard-000000" / STORE_NAME)
    targets = reader.table("targets", decode=True, columns=("target_id", "target_selection_policy_id"))
    return list(targets.iter_rows())


def test_all_eligible_targets_are_rolled_out_beyond_top_k(campaign, source):
    config = with_targets(campaign, policy="all_eligible", require_reachable=False, top_k=1)
    assert run_campaign(config, shard_ids=["shard-000000"]).ok
    expected = [
        (table.target_id[row], "all_eligible")
        for table in (boxes(source, row.sample_index, config) for row in source.rows("train"))
        for row in range(len(table))
        if table.selectable[row]
    ]
    assert sorted(stored(config)) == sorted(expected) and len(expected) > len(source.rows("train"))


def test_explicit_targets_are_those_named_and_absent_are_counted(campaign, source):
    config = load_campaign(campaign)
    first, second = (boxes(source, row.sample_index, config) for row in source.rows("train"))
    weak = next(name for name, eligible in zip(first.target_id, first.eligible, strict=True) if not eligible)
    gone, elsewhere = f"{second.target_id[0].rsplit('=', 1)[0]}=999", "attic:0007:detected_obbs:sem=1:inst=1:idx=1"
    names = (elsewhere, first.target_id[0], gone, weak)
    config = with_targets(campaign, policy="explicit", target_ids=names)
    result = run_campaign(config, shard_ids=["shard-000000"])
    assert result.ok and result.targets_without_row == (elsewhere,)
    assert result.shards[0].targets_absent == (gone,)
    assert stored(config) == [(first.target_id[0], "explicit"), (weak, "explicit")]
    owner = run_rollout_shard(config, "shard-000000").owner
    assert owner.stats["targets_absent"] == {gone: source.rows("train")[1].sample_key}
    assert owner.stats["rows_skipped"] == {"NO_EXPLICIT_TARGET": 1}


def test_a_campaign_of_a_program_is_recorded_with_all_defaults(campaign):
    config = with_targets(campaign, top_k=1)
    result = run_rollout_shard(config, write_rollout_shard_manifest_from_config(config).entries[0])
    recorded = RolloutZarrStoreReader(result.store_dir).sidecar_manifest()["generation"]["invocation"]
    assert (recorded["mode"], recorded["config_path"], recorded["argv"]) == ("programmatic", None, sys.argv)
    assert CampaignConfig.model_validate(tomllib.loads(recorded["raw_toml_text"])) == config


@pytest.mark.parametrize(("argv0", "argv"), [("/usr/bin/rollout-assets", ["rollout-assets", "demo"]), ("grpc", [])])
def test_a_shipped_campaign_is_recorded_with_text_and_command(monkeypatch, argv0, argv):
    monkeypatch.setattr(sys, "argv", [argv0, "demo"])
    recorded = RolloutStoreInvocation.of_campaign("demo", "dagster").to_jsonable()
    assert recorded["mode"] == "dagster" and recorded["argv"] == argv
    assert tomllib.loads(recorded["raw_toml_text"])["name"] == "demo"
    assert recorded["config_path"].endswith("campaigns/shipped/demo.toml") and len(recorded["raw_toml_sha256"]) == 64


def test_a_list_that_matches_nothing_is_refused_at_planning(campaign, source):
    present = boxes(source, 0, load_campaign(campaign)).target_id[0]
    for absent in (f"{present}9", "attic:0007:detected_obbs:sem=1:inst=1:idx=1", "nonsense"):
        config = with_targets(campaign, policy="explicit", target_ids=[absent])
        with refused(CampaignError, "1 explicit target", "split train, val", absent, "targets.protocol"):
            write_rollout_shard_manifest_from_config(config)
        assert not config.shards.output_dir.exists()
    val = boxes(source, source.rows("val")[0].sample_index, load_campaign(campaign)).target_id[0]
    settings = {"targets": {"policy": "explicit", "target_ids": [val]}, "source": {"splits": ["train"]}}
    with refused(CampaignError, "1 explicit target", "split train: ", val):
        write_rollout_shard_manifest_from_config(load_campaign(campaign, settings))


@pytest.mark.ci
def test_targets_are_chosen_on_the_command_line(campaign, source):
    table = boxes(source, 0, load_campaign(campaign))
    name = table.target_id[-1]
    choice = ["--set", 'targets.policy="explicit"', "--set", f'targets.target_ids=["{name}", "nonsense"]']
    planned = run("campaign", "plan", "-c", str(campaign), *choice)
    assert planned.returncode == 0
    assert_names(planned.stdout, "1 explicit target", "nonsense")
    one = run("rollout", "0", "-c", str(campaign), "--target", table.target_id[0], "--json")
    assert one.returncode == 0 and json.loads(one.stdout)
    wrong = run("rollout", "0", "-c", str(campaign), "--target", f"{table.target_id[0]}9")
    assert wrong.returncode == 2
    assert_names(wrong.stderr, f"{table.target_id[0]}9", f"{table.target_id[0]}?")
