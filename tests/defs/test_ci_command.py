"""`rollout-assets ci`: exit code and JUnit file say whether a campaign holds."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from rollout_assets.defs.headless import CheckOutcome, HeadlessResult, RunOutcome
from rollout_assets.defs.junit import write_junit

RUN = "from rollout_assets.cli import main; main()"


def ci(desk, junit: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", RUN, "ci", "--campaign", str(desk.campaign), "--junit", str(junit)]
    environment = os.environ | {"DAGSTER_HOME": str(desk.home)}
    return subprocess.run([*command, "--workers", "1"], capture_output=True, text=True, env=environment, check=False)


@pytest.mark.ci
def test_a_campaign_that_holds_passes_and_one_with_a_damaged_source_does_not(made_desk, tmp_path):
    done = ci(made_desk, tmp_path / "good.xml")
    assert done.returncode == 0, done.stdout + done.stderr
    root = ElementTree.parse(tmp_path / "good.xml").getroot()
    assert [suite.get("name") for suite in root] == [
        f"tiny.{name}" for name in ("observe", "plan", "shard-000000", "shard-000001", "promote")
    ]
    assert len(root.findall(".//testcase")) == 5 + 2 * 7 + 6
    assert not root.findall(".//failure") and not root.findall(".//error")

    shutil.rmtree(made_desk.source / "shards" / "shard-000000")
    done = ci(made_desk, tmp_path / "bad.xml")
    assert done.returncode == 2 and "SourceDamaged" in done.stdout
    assert ElementTree.parse(tmp_path / "bad.xml").getroot().findall(".//error")


def test_failed_checks_fail_and_warnings_only_speak(tmp_path):
    checks = (
        CheckOutcome("rollout_shards", "content_digests", False, "ERROR", "steps/step_index row 3\x00: altered"),
        CheckOutcome("validated_shards", "valid_fanout", False, "WARN", "step 4"),
    )
    result = HeadlessResult("tiny", (RunOutcome("shard", "shard-000000", "id", True, "", checks, 1.0),), 1.0)
    assert not result.ok
    write_junit(result, tmp_path / "ci.xml")
    root = ElementTree.parse(tmp_path / "ci.xml").getroot()
    assert [failure.get("message") for failure in root.findall(".//failure")] == ["steps/step_index row 3: altered"]
    assert [out.text for out in root.findall(".//system-out")] == ["warning: step 4"]
