"""Sources of others through Dagster: nothing is written beside them, and what cannot be read is refused in one line."""

import hashlib
import json
import shutil
from pathlib import Path

import pytest

from tests.defs.campaigns import write_campaign
from tests.defs.conftest import REPOSITORY
from tests.sources.foreign_writer import Variant, write_foreign_store
from tests.support.commands import call


def everything_in(folder: Path) -> dict[str, tuple[int, str]]:
    """Every folder and file below a folder: when it was changed, and the digest of its bytes."""
    return {
        path.relative_to(folder).as_posix(): (
            path.stat().st_mtime_ns,
            hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "",
        )
        for path in (folder, *folder.rglob("*"))
    }


@pytest.mark.slow  # without Dagster and a report, tests/campaigns/test_faults.py holds it in every run
def test_the_input_folder_is_the_same_after_a_whole_campaign_and_its_report(tmp_path, monkeypatch):
    variant = Variant(version=11, walks=(6, 4, 5, 6), without_truth=(1,), snippet_shift_m=0.3)
    source = write_foreign_store(tmp_path / "input", variant)
    before = everything_in(source)
    campaign = write_campaign(tmp_path, source, rows_per_shard=2)
    (tmp_path / "home").mkdir()
    shutil.copy(REPOSITORY / "dagster_home" / "dagster.yaml", tmp_path / "home")
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "home"))

    done = call("ci", "--campaign", str(campaign), "--junit", str(tmp_path / "ci.xml"), "--workers", "1")
    assert done.code == 0, done.out + done.err
    page = tmp_path / "pages" / "report.html"
    promoted = tmp_path / "tiny" / "rollouts.zarr"
    done = call("report", str(promoted), "--split", "train", "--campaign", str(campaign), "-o", str(page))
    assert done.code == 0 and page.exists(), done.out + done.err
    for words in (("source", "info"), ("source", "check")):
        assert call(*words, str(source)).code == 0
    assert everything_in(source) == before


def test_the_observation_of_an_unknown_version_fails_in_one_line(desk):
    path = desk.source / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"version": 12}))
    runner = desk.runner()
    with runner.instance:
        outcome = runner.run("observe")
    assert not outcome.ok
    text = f"SourceVersionUnknown: {desk.source}: format version 12 is not supported; versions 7 to 11 can be read"
    assert outcome.error == text
