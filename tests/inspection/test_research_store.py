"""Every command of `store`, `inspect` and `report` on a store of the research code, and on one of another version."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import zarr
from typer.testing import CliRunner

from rollout_assets.cli import app, load_verb
from rollout_assets.config import CampaignConfig, toml_text
from rollout_assets.errors import RolloutAssetsError, StoreError
from rollout_assets.learning import QHDataset, QHIterableDataset
from rollout_assets.rollouts import rollout_store_inventory_rows
from rollout_assets.rollouts.zarr_store import RolloutZarrStoreReader, validate_rollout_zarr_store
from rollout_assets.rollouts.zarr_store.foreign.convert import convert_store
from rollout_assets.sources.vin_store import VinOfflineStore
from tests.inspection.conftest import campaign_of, write_campaign
from tests.rollouts.zarr_store.research_store import write_research_store
from tests.support.commands import call
from tests.support.refusals import assert_names, refused

pytestmark = pytest.mark.ci

NEWER = "2.0-target-rollout-provenance"
VERSIONS = (f"'{NEWER}'", "'1.0-target-rollout-core'")
"""What a refusal names: the version of the store, and the one that can be read."""

ARGUMENTS = {
    "head": ["STORE", "steps"],
    "export": ["STORE", "candidates", "out.csv"],
    "convert": ["STORE", "ours.zarr"],
    "schema": [],
    "explain": ["STORE", 0],
    "replay": ["STORE", "--campaign", "CAMPAIGN"],
    "second-opinion": ["STORE", "--limit", 2, "--campaign", "CAMPAIGN"],
    "diff": ["STORE", "STORE"],
    "report": ["STORE", "-o", "page.html"],
}
"""Verb -> its arguments, where these are more than a store."""


def verbs() -> list[tuple[str, ...]]:
    """Every verb of both nouns; one that is added later is run too."""
    named = [(noun, verb) for noun in ("store", "inspect") for verb in load_verb(noun).commands]
    return [*named, ("report",)]


@pytest.fixture(scope="module")
def every_step(small_store: Path) -> CampaignConfig:
    """A campaign whose training view holds dead ends, as that of the research code does."""
    return campaign_of(small_store, store={"dead_ends_in_training_view": True})


@pytest.fixture(scope="module")
def campaign_file(every_step: CampaignConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("campaign") / "campaign.toml"
    path.write_text(toml_text(every_step))
    return path


@pytest.fixture(scope="module")
def research(every_step: CampaignConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows of a real campaign, as the research code lays them out. Shared: never change it."""
    folder = tmp_path_factory.mktemp("research")
    rows = [row.sample_index for row in VinOfflineStore.open(every_step.source.store_dir).rows("train")][:1]
    ours = write_campaign(every_step, folder / "ours.zarr", rows)
    return write_research_store(folder / "research.zarr", ours)


@pytest.fixture(scope="module")
def newer(research: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same store relabelled."""
    path = Path(shutil.copytree(research, tmp_path_factory.mktemp("newer") / "newer.zarr"))
    zarr.open_group(path, mode="r+").attrs["schema_version"] = NEWER
    return path


def command(verb: tuple[str, ...], store: Path, campaign: Path) -> list[str]:
    words = {"STORE": str(store), "CAMPAIGN": str(campaign)}
    return [*verb, *(words.get(str(part), str(part)) for part in ARGUMENTS.get(verb[-1], ["STORE"]))]


@pytest.mark.parametrize("verb", verbs(), ids=" ".join)
def test_every_command_works(
    research: Path, campaign_file: Path, verb: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, command(verb, research, campaign_file), catch_exceptions=False)
    assert result.exit_code == 0 or verb[-1] in ("ready", "suspicious"), result.output
    assert result.exit_code in (0, 2) and result.output


@pytest.mark.parametrize("verb", verbs(), ids=" ".join)
def test_every_command_names_another_version_in_one_line(
    newer: Path, campaign_file: Path, verb: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if verb[-1] == "schema":
        return  # is not about a store
    arguments = command(verb, newer, campaign_file)
    if verb[-1] in ("validate", "inventory"):
        result = CliRunner().invoke(app, arguments, catch_exceptions=False, env={"COLUMNS": "400"})
        said = [line for line in result.output.splitlines() if NEWER in line]
        assert (result.exit_code, len(said)) == (2 if verb[-1] == "validate" else 0, 1), result.output
    else:
        with pytest.raises(RolloutAssetsError) as refusal:
            CliRunner().invoke(app, arguments, catch_exceptions=False)
        said = str(refusal.value).splitlines()
        assert len(said) == 1
    assert_names(said[0], *VERSIONS)
    assert list(tmp_path.iterdir()) == []


def test_so_does_every_other_way_in(newer: Path, tmp_path: Path) -> None:
    for way_in in (
        RolloutZarrStoreReader,
        QHDataset,
        lambda store: QHDataset(store, verify="none"),
        lambda store: QHIterableDataset(store, 4),
        lambda store: convert_store(store, tmp_path / "ours.zarr"),
        lambda store: RolloutZarrStoreReader(f"file://{store}"),
    ):
        with refused(StoreError, newer, *VERSIONS):
            way_in(newer)
    (finding,) = validate_rollout_zarr_store(newer).findings
    assert_names(str(finding), *VERSIONS)
    (row,) = rollout_store_inventory_rows([newer]).to_dicts()
    assert row["status"] == "stale"
    assert_names(row["problem"], *VERSIONS)


@pytest.mark.parametrize("verb", ["inspect replay STORE", "inspect second-opinion STORE --limit 1"])
def test_verbs_that_read_the_source_name_its_unknown_version(
    research: Path, store_copy: Path, every_step: CampaignConfig, tmp_path: Path, verb: str
) -> None:
    manifest = store_copy / "manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"version": 12}))
    source = every_step.source.model_copy(update={"store_dir": store_copy})
    campaign = tmp_path / "campaign.toml"
    campaign.write_text(toml_text(every_step.model_copy(update={"source": source})))
    words = [str(research) if word == "STORE" else word for word in verb.split()]
    done = call(*words, "--campaign", str(campaign))
    (line,) = filter(None, done.err.splitlines())
    assert done.code == 2, done
    assert_names(line, store_copy, 12, 7, 11)


def test_inventory_finds_it_valid(research: Path) -> None:
    (row,) = rollout_store_inventory_rows([research]).to_dicts()
    assert (row["status"], row["valid"], row["findings"], row["problem"]) == ("current", True, 0, None)
