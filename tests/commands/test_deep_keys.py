"""Keys of thousands of parts and values nested as deeply: one line, wherever a user can write them."""

import pytest

from rollout_assets.errors import ConfigError
from rollout_assets.parsing import DEEPEST, parse_toml, refuse_deep
from tests.support.commands import call
from tests.support.refusals import assert_names, refused

DEEP = ".".join(["a"] * 5_000) + " = 1"


@pytest.mark.parametrize("depth", [DEEPEST, DEEPEST + 1, 5_000])
def test_only_what_is_nested_beyond_the_limit_is_refused(depth):
    dotted, listed = ".".join(["a"] * depth) + " = 1", []
    for _ in range(depth - 1):
        listed = [listed]
    if depth <= DEEPEST:
        refuse_deep(listed)
        assert parse_toml(dotted)
        return
    with refused(ValueError):
        refuse_deep(listed)
    with refused(ValueError):
        parse_toml(dotted)


def test_a_key_of_thousands_of_parts_is_one_line(tmp_path):
    campaign, collection = tmp_path / "campaign.toml", tmp_path / "collection.toml"
    campaign.write_text(f'name = "deep"\n{DEEP}\n')
    collection.write_text(f'output_jsonl_fpath = "out.jsonl"\nprompt_config.{DEEP}\n')
    for arguments, named in (
        (("campaign", "status", "-c", str(campaign)), campaign),
        (("collect", str(collection)), collection),
        (("campaign", "status", "--set", DEEP), "--set"),
        (("collect", "--out", str(tmp_path / "out.jsonl"), "--set", DEEP), "--set"),
    ):
        done = call(*arguments)
        assert done.code == 2 and done.err.count("\n") == 1 and len(done.err) < 3_000
        assert_names(done.err, named)


def test_the_reader_of_settings_refuses_it():
    from rollout_assets.commands.settings import read_setting

    with refused(ConfigError, "--set"):
        read_setting(DEEP)
