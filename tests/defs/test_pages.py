"""What the page of an asset shows: verdict and picture first, hashes last, numbers as numbers, and nothing empty."""

from pathlib import Path

import dagster as dg
import pytest

from rollout_assets.defs.asset_pages import CODE_REFERENCES, COLUMN_SCHEMA, EDITED_FIELDS
from rollout_assets.defs.code_location import build_definitions
from rollout_assets.defs.keys import CHAIN, READINGS
from rollout_assets.rollouts.zarr_store.schema import CANDIDATES
from tests.defs.campaigns import edit

DRAWN_AT_ONCE = 1_000
"""Characters of Markdown below which the UI of Dagster shows it without a click."""


def metadata_of(instance, asset) -> dict[str, dg.MetadataValue]:
    return dict(instance.get_latest_materialization_event(dg.AssetKey(["tiny", asset])).asset_materialization.metadata)


def definition_of(desk, asset) -> dict[str, object]:
    specs = build_definitions([desk.campaign]).resolve_all_asset_specs()
    return dict(next(spec.metadata for spec in specs if spec.key == dg.AssetKey(["tiny", asset])))


@pytest.mark.parametrize("asset", [*CHAIN[1:], *READINGS])
def test_hashes_come_last_and_nothing_empty_is_shown(finished_desk, asset):
    with finished_desk[0].runner().instance as instance:
        metadata = metadata_of(instance, asset)
    hashes = ["hash" in name or name.endswith("sha256") for name in metadata]
    assert hashes == sorted(hashes)
    for name, value in metadata.items():
        assert value.value != "", name
        assert not isinstance(value, dg.TableMetadataValue) or value.records, name


@pytest.mark.parametrize("asset", ["rollout_shards", "rollouts_zarr"])
def test_verdict_picture_and_shares_lead_the_page_of_a_store(finished_desk, asset):
    with finished_desk[0].runner().instance as instance:
        metadata = metadata_of(instance, asset)
    assert next(iter(metadata)) == "verdict"
    names = list(metadata)
    order = ("views", "candidates", "validity_waterfall", "pictures", "writer_config_hash")
    assert sorted(order, key=names.index) == list(order)
    assert metadata["views"].value.startswith("![](data:image/svg+xml;base64,")
    assert len(metadata["views"].value) < DRAWN_AT_ONCE
    for name in ("actor_valid_percent", "q_train_percent", "first_step_mean_root_gain"):
        assert isinstance(metadata[name], dg.FloatMetadataValue), name
    for name in ("targets", "rollouts", "steps", "candidates", "bytes"):
        assert isinstance(metadata[name], dg.IntMetadataValue), name


def test_quality_can_be_plotted_over_versions(finished_desk):
    with finished_desk[0].runner().instance as instance:
        assert metadata_of(instance, "rollouts_zarr")["version_number"].value == 1
        metadata = metadata_of(instance, "rollout_metrics")
    assert isinstance(metadata["reward_mean oracle_greedy train"], dg.FloatMetadataValue)
    columns = {column.name: column.type for column in metadata["per_recipe"].schema.columns}
    assert columns["reward/mean"] == columns["reward max"] == "float" and columns["rollouts"] == "int"


@pytest.mark.parametrize("asset", ["rollout_shards", "validated_shards", "rollouts_zarr"])
def test_stores_have_their_columns_their_code_and_their_campaign(finished_desk, asset):
    desk, _ = finished_desk
    metadata = definition_of(desk, asset)
    columns = {column.name: column.type for column in metadata[COLUMN_SCHEMA].columns}
    assert list(columns) == [column.name for column in CANDIDATES.columns]
    assert columns["pose_world_cam"] == "float32[12]" and columns["q_train_mask"] == "bool"
    code, campaign = metadata[CODE_REFERENCES].code_references
    lines = Path(code.file_path).read_text().splitlines()
    assert lines[code.line_number - 1].startswith(f"def {asset}(")
    assert campaign.file_path == str(desk.campaign)
    assert desk.campaign.read_text().strip() in metadata["campaign_toml"].value
    assert EDITED_FIELDS not in metadata, "nothing was edited"


def test_an_edited_campaign_shows_its_edits_field_by_field_on_the_page_and_in_the_check(made_desk):
    edit(made_desk.campaign, "[oracle]\nwidth_px = 16", "[oracle]\nwidth_px = 18")
    for asset in ("rollout_shard_plan", "rollout_shards", "rollouts_zarr"):
        assert definition_of(made_desk, asset)[EDITED_FIELDS].value == "- oracle.width_px: store 16, campaign 18"
    runner = made_desk.runner()
    with runner.instance:
        (check,) = runner.run("up_to_date").checks
    assert check.check == "up_to_date" and not check.passed and check.level == "WARN"
    with runner.instance as instance:
        history = instance.event_log_storage.get_asset_check_execution_history(
            dg.AssetCheckKey(dg.AssetKey(["tiny", "rollouts_zarr"]), "up_to_date"), limit=1
        )
    rows = [record.data for record in history[0].evaluation.metadata["evidence"].records]
    shard = next(row for row in rows if row["what"] == "shard-000001")
    assert "oracle.width_px: store 16, campaign 18" in shard["why"]
