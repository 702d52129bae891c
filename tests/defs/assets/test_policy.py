"""A campaign that asks for them has a trained policy and its evaluation in the graph, and no job but one trains."""

from __future__ import annotations

from pathlib import Path

import dagster as dg
import pytest

from rollout_assets.campaigns.layout import CampaignLayout
from rollout_assets.config import load_campaign
from rollout_assets.defs.code_location import build_definitions
from rollout_assets.defs.headless import HeadlessRunner, materialize_campaign
from rollout_assets.defs.keys import CHAIN, POLICY_CHAIN, READINGS, CampaignKeys
from rollout_assets.files import file_sha256
from tests.rounds.campaigns import write_rounds

CHECKS = {"beats_random", "not_worse_than_accepted", "trained_on_no_evaluated_scene"}


@pytest.fixture
def campaign(tmp_path: Path) -> Path:
    """A campaign whose source is not there: definitions do not look at it."""
    return write_rounds(tmp_path, tmp_path / "homes")[0]


def test_the_policy_lies_behind_the_promoted_store(campaign: Path) -> None:
    definitions, keys = build_definitions([campaign]), CampaignKeys.of(campaign)
    graph = definitions.resolve_asset_graph()
    assert {key.path[-1] for key in graph.get_all_asset_keys()} == {*CHAIN, *READINGS, *POLICY_CHAIN}
    assert graph.get(keys.key("trained_policy")).parent_keys == {keys.key("rollouts_zarr")}
    assert graph.get(keys.key("policy_evaluation")).parent_keys == {keys.key("trained_policy")}
    assert graph.get(keys.key("trained_policy")).code_version == load_campaign(campaign).training.config_hash
    checks = {key.name for key in graph.asset_check_keys if key.asset_key == keys.key("policy_evaluation")}
    assert checks == CHECKS
    assert all(graph.get_check_spec(key).description for key in graph.asset_check_keys)


def test_only_one_job_trains(campaign: Path) -> None:
    definitions, keys = build_definitions([campaign]), CampaignKeys.of(campaign)
    policy = {keys.key(name) for name in POLICY_CHAIN}
    jobs = [job for job in definitions.resolve_all_job_defs() if not job.name.startswith("__")]
    training = {job.name for job in jobs if policy & set(job.asset_layer.executable_asset_keys)}
    assert training == {"first_train_and_evaluate"}
    checking = {job.name for job in jobs if {key.name for key in job.asset_layer.asset_graph.asset_check_keys} & CHECKS}
    assert checking == {"first_train_and_evaluate"}


def test_a_campaign_with_a_training_alone_has_no_evaluation(campaign: Path) -> None:
    campaign.write_text(campaign.read_text().split("[evaluation]")[0])
    graph = build_definitions([campaign]).resolve_asset_graph()
    assert {key.path[-1] for key in graph.get_all_asset_keys()} == {*CHAIN, *READINGS, "trained_policy"}
    assert not {key.name for key in graph.asset_check_keys} & CHECKS


@pytest.mark.parametrize(
    ("old", "new", "stale"),
    [
        ("epochs = 2", "epochs = 3", {"trained_policy"}),
        ("seeds = 1", "seeds = 2", {"policy_evaluation"}),
        ('cache_dir = "observations"', 'cache_dir = "elsewhere"', set()),
        ("failures = 1", "failures = 1\nworkers = 2", set()),
    ],
)
def test_an_edited_section_makes_its_own_asset_stale(campaign: Path, old: str, new: str, stale: set[str]) -> None:
    before = _code_versions(campaign)
    assert old in campaign.read_text()
    campaign.write_text(campaign.read_text().replace(old, new))
    after = _code_versions(campaign)
    assert {name for name in before if before[name] != after[name]} == stale


@pytest.mark.slow
def test_both_assets_are_materialized_with_figures_pages_and_checks(four_homes: Path, tmp_path: Path) -> None:
    campaign = write_rounds(tmp_path, four_homes)[0]
    home, layout = tmp_path / "home", CampaignLayout(load_campaign(campaign).shards.output_dir)
    result = materialize_campaign(campaign, home=home)
    assert result.promoted and not layout.policies.exists(), "a headless campaign does not train"
    runner = HeadlessRunner(str(campaign), str(home))
    with runner.instance as instance:
        run = runner.run("train_and_evaluate")
        assert run.ok, run.error
        trained, evaluated = (_metadata(instance, name) for name in POLICY_CHAIN)

        checkpoint = layout.policy.resolve() / "policy.safetensors"
        assert trained["checkpoint"].value == str(checkpoint)
        assert trained["checkpoint_sha256"].value == file_sha256(checkpoint)
        assert Path(trained["curves"].value).is_file()
        assert isinstance(trained["validation_share_of_headroom"], dg.FloatMetadataValue)
        assert len(trained["learning_curve"].value.splitlines()) == 2 + 2, "a head and a line per epoch"

        assert Path(evaluated["page"].value).is_file() and Path(evaluated["result"].value).is_file()
        assert isinstance(evaluated["gain"], dg.FloatMetadataValue) and evaluated["scenes"].value == 1
        for name in ("| trained |", "| random_valid |", "| oracle_greedy |", "| nearest_to_target |"):
            assert name in evaluated["policies"].value

        checks = {check.check: check for check in run.checks}
        assert set(checks) == CHECKS
        assert (checks["beats_random"].passed, checks["beats_random"].level) == (False, "WARN"), "one scene is too few"
        assert (
            "on 2 roots of 1 scenes" in checks["beats_random"].evidence or "1 scenes" in checks["beats_random"].evidence
        )
        assert checks["not_worse_than_accepted"].passed and checks["trained_on_no_evaluated_scene"].passed
        assert not layout.accepted.exists(), "what does not pass every check is not accepted"

        again = runner.run("train_and_evaluate")
        assert again.ok and _metadata(instance, "trained_policy")["seconds"] == trained["seconds"]

        campaign.write_text(campaign.read_text().replace("[evaluation]", '[evaluation]\nsplit = "train"'))
        refused = HeadlessRunner(str(campaign), str(home)).run("train_and_evaluate")
        assert not refused.ok and "3 of the 3 scenes" in refused.error
        campaign.write_text(campaign.read_text().replace("[evaluation]", "[evaluation]\nallow_seen_scenes = true"))
        seen = HeadlessRunner(str(campaign), str(home)).run("train_and_evaluate")
        failed = {check.check for check in seen.failed_checks("ERROR")}
        assert failed == {"trained_on_no_evaluated_scene"}


def _metadata(instance: dg.DagsterInstance, asset: str) -> dict[str, dg.MetadataValue]:
    event = instance.get_latest_materialization_event(dg.AssetKey(["first", asset]))
    return event.asset_materialization.metadata


def _code_versions(campaign: Path) -> dict[str, str | None]:
    graph = build_definitions([campaign]).resolve_asset_graph()
    return {key.path[-1]: graph.get(key).code_version for key in graph.get_all_asset_keys()}
