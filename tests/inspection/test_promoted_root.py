"""A promoted ``rollouts.zarr`` holds one store per split: these are listed, and every verb asks for one of them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from rollout_assets.campaigns.layout import CampaignLayout
from rollout_assets.cli import app, load_verb
from rollout_assets.errors import StoreError
from rollout_assets.learning import QHDataset, QHIterableDataset
from rollout_assets.rollouts import (
    discover_rollout_store_paths,
    promote_rollout_campaign,
    rollout_store_inventory_rows,
)
from rollout_assets.rollouts.zarr_store import RolloutZarrStoreReader
from tests.campaigns.kill_campaigns import fake_campaign
from tests.support.refusals import refused

pytestmark = pytest.mark.ci

SPLITS = ("(train, val)", "/train", "--split")
"""What the refusal of a promoted store's root names: its splits, the store to open, and the option."""


@pytest.fixture(scope="module")
def promoted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    campaign = fake_campaign(tmp_path_factory.mktemp("campaign"), [("train", 1), ("val", 1)])
    campaign.run_all()
    promote_rollout_campaign(campaign.config)
    return CampaignLayout.of(campaign.config).promoted


def run(*arguments: object) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "300"})
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.stdout


def test_the_stores_of_its_splits_are_listed(promoted: Path) -> None:
    expected = {promoted / "train", promoted / "val"}
    assert set(discover_rollout_store_paths(promoted)) == expected
    assert set(discover_rollout_store_paths(promoted.parent, "*.zarr")) == expected
    for root in (promoted, promoted.resolve()):
        rows = rollout_store_inventory_rows([root]).to_dicts()
        assert [(Path(row["path"]), row["split"]) for row in rows] == [(root / "train", "train"), (root / "val", "val")]
        assert [(row["status"], row["valid"]) for row in rows] == [("current", True)] * 2
        listed = json.loads(run("inspect", "inventory", root, "--json"))
        assert {(row["split"], row["status"]) for row in listed} == {("train", "current"), ("val", "current")}


def test_a_damaged_split_is_a_row_that_says_so(promoted: Path, tmp_path: Path) -> None:
    root = Path(shutil.copytree(promoted.resolve(), tmp_path / "rollouts.zarr"))
    (root / "val" / "zarr.json").unlink()
    assert set(discover_rollout_store_paths(root)) == {root / "train", root / "val"}
    rows = {row["path"]: row for row in rollout_store_inventory_rows([root]).to_dicts()}
    assert rows[str(root / "val")]["status"] == "unreadable" and "zarr.json" in rows[str(root / "val")]["problem"]


def test_readers_and_datasets_say_which_splits_there_are(promoted: Path) -> None:
    for opened in (promoted, str(promoted), f"file://{promoted.resolve()}"):
        with refused(StoreError, *SPLITS):
            RolloutZarrStoreReader(opened)
    for dataset in (lambda: QHIterableDataset(promoted, 4), lambda: QHDataset([promoted])):
        with refused(StoreError, promoted, *SPLITS):
            dataset()


ARGUMENTS = {
    "head": ["steps"],
    "export": ["steps", "out.csv"],
    "convert": ["ours.zarr"],
    "explain": [0],
    "replay": [0],
    "report": ["-o", "page.html"],
}
"""Verb -> what else it must be given."""


def verbs_about_a_store() -> list[tuple[str, ...]]:
    names = []
    for noun in ("store", "inspect"):
        group = load_verb(noun)
        names += [(noun, verb) for verb, command in group.commands.items() if takes_a_store(command)]
    return [*names, ("report",)]


def takes_a_store(command: typer.core.TyperCommand) -> bool:
    return any(parameter.name in ("store", "a") for parameter in command.params)


@pytest.mark.parametrize("verb", verbs_about_a_store(), ids=" ".join)
def test_every_verb_names_the_splits_or_takes_one(
    promoted: Path, verb: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    stores = [promoted, promoted] if verb[-1] == "diff" else [promoted]
    command = (*verb, *stores, *ARGUMENTS.get(verb[-1], ()))
    with refused(StoreError, promoted, *SPLITS):
        run(*command)
    with refused(StoreError, "'tset'", "train, val"):
        run(*command, "--split", "tset")
    if verb[-1] == "convert":
        with refused(StoreError, promoted / "val"):
            run(*command, "--split", "val")
    elif verb[-1] not in ("replay", "second-opinion"):  # these need the source, which a fake campaign has not
        run(*command, "--split", "val")


def test_the_split_is_the_one_that_was_asked_for(promoted: Path) -> None:
    for split in ("train", "val"):
        info = json.loads(run("store", "info", promoted, "--split", split, "--json"))
        assert Path(info["location"]).name == split
        assert info == json.loads(run("store", "info", promoted / split, "--split", split, "--json"))
    with refused(StoreError, promoted / "train", "'train'", "'val'", "--split"):
        run("store", "info", promoted / "train", "--split", "val")
