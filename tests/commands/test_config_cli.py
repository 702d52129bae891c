"""`rollout-assets config`: a file to start from, and a campaign as it is run."""

import tomllib
from pathlib import Path

import pytest

from rollout_assets.config import CampaignConfig, load_campaign
from tests.support.commands import call
from tests.support.refusals import assert_names


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_new_writes_a_file_that_is_the_default_campaign():
    assert call("config", "new", "mine").code == 0
    config = load_campaign("mine.toml")
    defaults = CampaignConfig(name="mine")
    assert config.hashes() == defaults.hashes()
    assert config.source.store_dir == Path("source").resolve()
    assert config.model_copy(update={"source": defaults.source, "shards": defaults.shards}) == defaults
    assert call("config", "validate", "mine.toml").out.startswith("ok: campaign mine")


def test_new_never_overwrites_and_refuses_a_bad_name():
    Path("mine.toml").write_text("precious")
    refused = call("config", "new", "mine")
    assert refused.code == 2
    assert_names(refused.err, "mine.toml")
    assert Path("mine.toml").read_text() == "precious"
    assert call("config", "new", "mine", "-o", "other.toml").code == 0
    bad = call("config", "new", "Bad Name")
    assert bad.code == 2
    assert_names(bad.err, "name", "Bad Name")
    assert sorted(path.name for path in Path().iterdir()) == ["mine.toml", "other.toml"]
    assert call("config", "new", "x", "-o", "none/x.toml").code == 0 and Path("none/x.toml").is_file()


def test_show_as_toml_is_the_campaign_as_it_is_run():
    Path("c.toml").write_text("name = 'c'\n[source]\nstore_dir = 'in'\n[[recipes]]\nname = 'a'\npolicy = 'random'\n")
    shown = tomllib.loads(call("config", "show", "c.toml", "--toml").out)
    assert shown["source"]["store_dir"] == str(Path("in").resolve()) and shown["recipes"][0]["horizon"] == 2
    Path("again.toml").write_text(call("config", "show", "c.toml", "--toml").out)
    assert load_campaign("again.toml") == load_campaign("c.toml")
