"""A format version that nobody can read is refused in one line, whoever opens the store."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rollout_assets.errors import SourceVersionUnknown
from rollout_assets.sources import layout
from rollout_assets.sources.audit import audit_store
from rollout_assets.sources.versions import BLOCK_USES, SUPPORTED_VERSIONS, name_problems, unsupported_version
from rollout_assets.sources.vin_store import VinOfflineStore
from rollout_assets.testing.tiny_campaign import write_tiny_campaign
from tests.support.commands import call
from tests.support.refusals import assert_names, refused

NO_VERSION: tuple[Any, ...] = (6, 12, "7", None, True, 7.0, [7], -7)


def relabel(store: Path, version: Any) -> None:
    path = store / layout.MANIFEST_FILE
    path.write_text(json.dumps(json.loads(path.read_text()) | {"version": version}))


def versions(version: Any) -> tuple[str, str]:
    """What a refusal names: the version of the store, and those that can be read."""
    return f"version {json.dumps(version)} ", "7 to 11"


@pytest.mark.parametrize("version", NO_VERSION)
def test_only_a_whole_number_from_seven_to_eleven_is_a_version(store_copy: Path, version: Any) -> None:
    relabel(store_copy, version)
    with refused(SourceVersionUnknown, store_copy, *versions(version)):
        VinOfflineStore.open(store_copy)
    audit = audit_store(store_copy)
    (broken,) = audit.broken
    assert_names(broken, *versions(version))
    assert not audit.ok and audit.format_version is None


def test_a_manifest_without_a_version_is_refused(store_copy: Path) -> None:
    path = store_copy / layout.MANIFEST_FILE
    manifest = json.loads(path.read_text())
    del manifest["version"]
    path.write_text(json.dumps(manifest))
    with refused(SourceVersionUnknown, store_copy, *versions(None)):
        VinOfflineStore.open(store_copy)


COMMANDS = (
    "source info {store}",
    "source info {store} --rows",
    "source append {store}",
    "campaign plan --campaign {campaign}",
    "campaign run --campaign {campaign} --workers 1",
    "rollout 0 --campaign {campaign}",
    "collect --campaign {campaign} --out {out}",
    "serve --campaign {campaign} --port 0",
)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_refuses_it_in_one_line(store_copy: Path, tmp_path: Path, command: str) -> None:
    relabel(store_copy, 12)
    campaign = write_tiny_campaign(tmp_path, store_copy)
    places = {"store": store_copy, "campaign": campaign, "out": tmp_path / "out.jsonl"}
    done = call(*(part.format(**places) for part in command.split()))
    assert done.code == 2 and done.out == ""
    (line,) = (line for line in done.err.splitlines() if line != "warming up …")
    assert_names(line, store_copy, *versions(12))


def test_check_lists_it_as_broken(store_copy: Path) -> None:
    relabel(store_copy, 12)
    shown = call("source", "check", str(store_copy))
    assert shown.code == 2 and "broken" in shown.out and "7 to 11" in " ".join(shown.out.split())
    told = call("source", "check", str(store_copy), "--json")
    (broken,) = json.loads(told.out)["broken"]
    assert told.code == 2
    assert_names(broken, *versions(12))


def test_status_says_that_nothing_was_compared(store_copy: Path, tmp_path: Path) -> None:
    campaign = write_tiny_campaign(tmp_path, store_copy)
    assert call("campaign", "plan", "--campaign", str(campaign)).code == 0
    relabel(store_copy, 12)
    done = call("campaign", "status", "--campaign", str(campaign))
    assert done.code == 2
    (line,) = done.err.strip().splitlines()
    assert line.startswith("warning: ")
    assert_names(line, store_copy, *versions(12))


def test_every_version_has_the_names_that_are_known_of_it() -> None:
    required = {
        version: {use.name for use in BLOCK_USES if use.required and use.in_version(version)}
        for version in SUPPORTED_VERSIONS
    }
    assert required[8] - required[7] == {layout.T_WORLD_SNIPPET} and required[7] < required[8]
    assert required[11] - required[8] == {layout.VIN_REFERENCE_POSE}
    assert required[8] - required[11] == {layout.REFERENCE_POSE}
    assert {layout.REFERENCE_POSE, layout.VIN_REFERENCE_POSE} <= required[9] == required[10]
    assert all(unsupported_version(version) is None for version in SUPPORTED_VERSIONS)
    assert {use.name for use in BLOCK_USES} == layout.KNOWN_BLOCKS.keys()
    assert list(name_problems(11, required[11])) == []
