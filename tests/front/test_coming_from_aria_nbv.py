"""The page for users of ARIA-NBV names only what exists: functions, columns, settings, kinds and commands."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, get_args

import polars as pl
import pytest
from pydantic import BaseModel
from typer.testing import CliRunner

from rollout_assets import rollouts
from rollout_assets.cli import app
from rollout_assets.config import CampaignConfig, RolloutRecipeConfig, SelectedDepthRetentionConfig, SuspiciousKind
from rollout_assets.inspection.summary import GroupBy
from rollout_assets.rollouts.zarr_store import RolloutZarrStoreConfig, RolloutZarrStoreReader, write_rollout_zarr_store
from rollout_assets.testing.fake_records import SyntheticRecords
from tests.inspection.test_public_names import NAMES

PAGE = Path(__file__).parents[2] / "infra" / "docs" / "coming_from_aria_nbv.md"
TEXT = PAGE.read_text()


def quoted(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


def table(title: str) -> list[list[str]]:
    """The cells of the rows below a heading."""
    section = TEXT.split(f" {title}\n", 1)[1].split("\n#", 1)[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_every_function_exists_and_none_is_forgotten() -> None:
    listed = [name for row in table("Functions") for name in quoted(row[0]) if name[0].islower()]
    functions = [name for name in NAMES if name[0].islower() and not name.startswith("decode_")]
    assert sorted(set(listed)) == sorted(functions)
    assert [name for name in listed if not callable(getattr(rollouts, name, None))] == []


@pytest.fixture(scope="module")
def frames(tmp_path_factory: pytest.TempPathFactory) -> dict[str, pl.DataFrame]:
    """One frame per function whose columns the page names."""
    path = tmp_path_factory.mktemp("page") / "s.zarr"
    config = RolloutZarrStoreConfig(selected_depth=SelectedDepthRetentionConfig(enabled=False))
    write_rollout_zarr_store(path, SyntheticRecords(sources=1, targets=1, horizon=1), config)
    reader = RolloutZarrStoreReader(path)
    names = {row[0].strip("`") for row in table("Columns that have another name")}
    return {name: getattr(rollouts, name)(reader) for name in names}


def test_every_column_that_is_said_to_be_here_is(frames: dict[str, pl.DataFrame]) -> None:
    for function, there, here in table("Columns that have another name"):
        frame = frames[function.strip("`")]
        known = {*frame.columns, *frame.get_columns()[0].to_list()}
        assert [name for name in quoted(here) if name not in known] == []
        assert [name for name in quoted(there) if name in frame.columns and name not in ("selected",)] == []


def test_every_group_exists() -> None:
    (row,) = [row for row in table("Functions") if "candidate_group_summary_rows" in row[0]]
    assert set(quoted(row[1])) - {"group_by"} <= set(get_args(GroupBy))


def setting(path: str) -> Any:
    """The field behind a dotted key; a recipe stands for all of them."""
    section: Any = CampaignConfig
    for name in path.split("."):
        assert issubclass(section, BaseModel) and name in section.model_fields, path
        kind = section.model_fields[name].annotation
        section = RolloutRecipeConfig if name == "recipes" else kind
    return section


def test_every_setting_exists() -> None:
    sections = "|".join(CampaignConfig.model_fields)
    here = [key for row in table("Config") for key in quoted(row[1])]
    prose = [key.split(" = ")[0] for key in quoted(TEXT.split("## What differs", 1)[1])]
    keys = here + [key for key in prose if re.match(rf"({sections})\.", key)]
    assert len(keys) > 40
    for key in keys:
        setting(key)


@pytest.mark.parametrize("value", sorted(set(re.findall(r'`(oracle\.\w+) = "(\w+)"`', TEXT))))
def test_values_are_values_of_their_settings(value: tuple[str, str]) -> None:
    assert value[1] in get_args(setting(value[0]))


def test_kinds_and_protocols_are_spelled_as_they_are() -> None:
    assert {"dominant_invalid_reason", "dominant_reason_of_shell"} <= set(get_args(SuspiciousKind)) & set(quoted(TEXT))
    assert set(get_args(setting("targets.protocol"))) <= set(quoted(TEXT))


@pytest.mark.parametrize("command", sorted({name for name in quoted(TEXT) if name.startswith("rollout-assets ")}))
def test_every_command_exists(command: str) -> None:
    words = command.split()[1:]
    result = CliRunner().invoke(app, [*(word for word in words if not word.startswith("--")), "--help"])
    assert result.exit_code == 0
    assert all(word in result.stdout for word in words if word.startswith("--"))
