"""`dg` from the repository's root: quiet when every campaign loads, and it names one that does not."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rollout_assets.defs.home import prepare_home
from tests.defs.campaigns import write_campaign
from tests.defs.conftest import REPOSITORY

pytestmark = pytest.mark.ci  # processes that import Dagster; infra/test checks the definitions too

DG = Path(sys.executable).with_name("dg")


def check_defs(home: Path, verb: str = "check") -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"DAGSTER_HOME": str(home), "NO_COLOR": "1", "COLUMNS": "300"}
    command = [DG, verb, "defs"]
    return subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture
def home(tmp_path, small_store) -> Path:
    """A home with a campaign of its own."""
    (tmp_path / "home" / "campaigns").mkdir(parents=True)
    write_campaign(tmp_path / "home" / "campaigns", small_store)
    return prepare_home(tmp_path / "home")


def test_definitions_of_every_campaign_pass_quietly(home):
    checked = check_defs(home)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "All definitions loaded successfully." in checked.stdout
    assert len((checked.stdout + checked.stderr).splitlines()) <= 3


def test_a_broken_campaign_is_named_and_the_others_load(home):
    campaign = home / "campaigns" / "tiny.toml"
    campaign.write_text(campaign.read_text().replace("top_k = 1", "top_k = -1"))
    listed = check_defs(home, "list")
    assert listed.returncode == 0, listed.stderr
    assert "broken_campaigns/tiny_" in listed.stdout and "demo/rollouts_zarr" in listed.stdout
