"""URLs of object storage: what is one, what is refused, and that no secret in one is ever printed."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from rollout_assets.config import CampaignConfig
from rollout_assets.config.toml_text import toml_text
from rollout_assets.errors import ConfigError
from rollout_assets.locations.url import ObjectUrl, below, cache_root, parse_location, resolved
from tests.support.refusals import refused


@pytest.mark.parametrize("text", ["s3://bucket/a/b", "gs://bucket", "az://container/prefix"])
def test_a_url_keeps_its_text_and_has_names(text):
    url = ObjectUrl(f"{text}/")
    assert url == text and f"{url / 'more'}" == f"{text}/more"
    assert isinstance(parse_location(text), ObjectUrl) and below(Path("/base"), url) == url == resolved(url)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("http://host/a", ["http://host/a", "s3://, gs://, az://"]),
        ("s3:///a", ["s3:///a", "s3://BUCKET/PREFIX"]),
        ("s3://bucket/a//b", ["s3://bucket/a//b"]),
        ("s3://bucket/../b", ["s3://bucket/../b"]),
        ("s3://key:hidden@bucket/a", ["bucket/a", "environment"]),
        ("s3://bucket/a?token=hidden", ["bucket/a", "environment"]),
    ],
)
def test_what_is_no_usable_url_is_refused_without_its_secrets(text, names):
    with refused(ConfigError, *names) as caught:
        ObjectUrl(text)
    assert "hidden" not in str(caught.value)


def test_two_urls_have_two_folders_for_copies(monkeypatch, tmp_path):
    monkeypatch.setenv("ROLLOUT_ASSETS_CACHE", str(tmp_path))
    folders = {ObjectUrl(f"s3://bucket/{name}").cache_dir for name in ("a/b", "a_b", "a.b")}
    assert len(folders) == 3 and all(folder.parent == cache_root() == tmp_path for folder in folders)


def test_a_campaign_takes_urls_and_writes_them_back():
    config = CampaignConfig(
        name="far", source={"store_dir": "s3://b/source", "mesh_dirs": ["gs://m"]}, shards={"output_dir": "az://c/out"}
    )
    assert isinstance(config.shards.output_dir, ObjectUrl)
    text = toml_text(config)
    assert 'output_dir = "az://c/out"' in text and 'store_dir = "s3://b/source"' in text
    assert CampaignConfig.recorded(config.model_dump(mode="json")) == config
    with refused(ValidationError, "shards.output_dir.url", "s3://b/a"):
        CampaignConfig(name="far", shards={"output_dir": "s3://b/a?key=1"})
    assert config.writer_config_hash == CampaignConfig(name="far").writer_config_hash
