import textwrap
import tomllib
from pathlib import Path

import dagster as dg
import pytest
from pydantic import ValidationError

from rollout_assets.collection.configs import CollectCommandConfig
from rollout_assets.config import (
    CampaignConfig,
    ConfigSection,
    canonical_hash,
    canonical_json,
    commented_toml,
    hashed_when_set,
    load_campaign,
    shipped_campaigns,
    toml_text,
    unhashed,
)
from rollout_assets.config.problems import _models_in
from rollout_assets.errors import ConfigError
from rollout_assets.metrics.results import MetricOptions
from rollout_assets.rollouts.remote.messages import RolloutRequest
from rollout_assets.serving.server.options import ServerOptions
from rollout_assets.synthetic.config import SyntheticConfig
from tests.support.refusals import assert_names, refused

pytestmark = pytest.mark.quick

DEMO_HASHES = {
    "candidate": "ac7d01e140a4547c1713488efef758e362f1942d2499ac949ca4e0446012da75",
    "oracle": "d9f4287f310a57f9788a8679a9168049577ba1635a38180e83d4576f377b89c4",
    "rollout": "a7d6e7f7c0ac19e8e6207c9eb9b935ace8c1e327c81e9f4940d997be00f4b307",
    "writer": "d43b6a467a29b28a7c639df034dc24fdf1f20481bf929d2dcd8651b966a8571a",
}


def write(folder: Path, text: str) -> Path:
    path = folder / "campaign.toml"
    path.write_text(textwrap.dedent(text))
    return path


def test_digests_of_the_demo_campaign_are_pinned():
    assert load_campaign("demo").hashes() == DEMO_HASHES


def test_writing_defaults_out_changes_no_digest():
    assert CampaignConfig(name="other-name", seed=7).hashes() == DEMO_HASHES


def test_key_order_comments_device_and_paths_change_no_digest(tmp_path):
    path = write(
        tmp_path,
        """
        seed = 7   # the same seed
        name = "reordered"
        [shards]
        output_dir = "/somewhere/else"
        rows_per_shard = 9
        [oracle]
        device = "cpu"
        batch_mib = 1
        height_px = 48
        width_px = 48
        [source]
        mesh_dirs = ["a", "b"]
        store_dir = "another"
        """,
    )
    assert load_campaign(path).hashes() == DEMO_HASHES


@pytest.mark.parametrize(
    ("text", "changed"),
    [
        ("[oracle]\nfusion_voxel_m = 0.03", {"oracle", "writer"}),
        ("[candidates]\nkappa = 9", {"candidate", "writer"}),
        ("[candidates.rules]\nmax_step_m = 0.5", {"candidate", "writer"}),
        ("[targets]\ntop_k = 2", {"rollout", "writer"}),
        ("[targets]\npolicy = 'all_eligible'", {"rollout", "writer"}),
        ("[targets]\npolicy = 'explicit'\ntarget_ids = ['scene:snippet:detected_obbs:x']", {"rollout", "writer"}),
        ("[[recipes]]\nname = 'a'\npolicy = 'random'", {"rollout", "writer"}),
        ("[selected_depth]\nenabled = false", {"writer"}),
        ("[store]\ndiscount_gamma = 0.9", {"writer"}),
        ("[automation]\nnightly = '30 1 * * *'\nshards_per_tick = 7", set()),
        ("[quality]\nmin_valid_fanout = 5\nmin_label_yield = 0.5", set()),
        ("[suspicious]\nmax_abs_gain = 2.0\nerrors = ['empty_depth']", set()),
    ],
)
def test_a_section_changes_exactly_its_own_digests(tmp_path, text, changed):
    hashes = load_campaign(write(tmp_path, f"name = 'x'\nseed = 7\n{text}")).hashes()
    assert {name for name in hashes if hashes[name] != DEMO_HASHES[name]} == changed


class OldSection(ConfigSection):
    size: int = 1


class GrownSection(OldSection):
    """The section after two options were added to it."""

    inner: OldSection = hashed_when_set(OldSection())
    place: str = unhashed("here")


def test_an_option_added_later_is_hashed_only_when_set():
    assert GrownSection().hashable() == GrownSection(place="there").hashable() == OldSection().hashable()
    assert GrownSection(inner=OldSection(size=2)).hashable() == {"size": 1, "inner": {"size": 2}}
    assert GrownSection(inner=OldSection(size=2)).hashable("inner", "place") == {"inner": {"size": 2}}


def test_explicit_targets_are_a_policy_with_ids_and_each_id_once(tmp_path):
    ids = [load_campaign("demo", {"targets": {"policy": "explicit", "target_ids": [name]}}) for name in ("a", "b")]
    assert ids[0].rollout_config_hash != ids[1].rollout_config_hash
    for targets in ({"policy": "explicit"}, {"target_ids": ["a"]}, {"policy": "all_eligible", "target_ids": ["a"]}):
        with refused(ConfigError, "target_ids", "explicit"):
            load_campaign("demo", {"targets": targets})
    with refused(ConfigError, "target_ids", "unique", " a "):
        load_campaign("demo", {"targets": {"policy": "explicit", "target_ids": ["a", "b", "a"]}})


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"source": {"store_dir": 'odd "quotes" \\ and\ttabs, ünïcode \U0001f600 and \x7f'}},
        {"recipes": [{"name": "a", "policy": "random", "branch": {"counts": [1, 2], "probabilities": [0.5, 0.5]}}]},
        {"recipes": [{"name": "a", "policy": "random", "branch": [2, 1]}], "suspicious": {"errors": ["empty_depth"]}},
        {"quality": {"noise_m": 1e-30}, "targets": {"policy": "explicit", "target_ids": ["a:b", "[/x]"]}},
    ],
)
def test_a_campaign_as_toml_text_reads_back_to_itself(settings):
    campaign = load_campaign("demo", settings)
    assert CampaignConfig.model_validate(tomllib.loads(toml_text(campaign))) == campaign


@pytest.mark.parametrize("text", ["0 3 * * *", "*/5 0-6 1,15 1-12/3 7", "59 23 31 12 0", "  0   3 * *  1 "])
def test_a_cron_expression_means_the_same_to_dagster(text):
    assert load_campaign("demo", {"automation": {"nightly": text}}).automation.nightly == text
    dg.ScheduleDefinition(name="nightly", job_name="any", cron_schedule=text)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("0 3 * *", "5 fields"),
        ("", "5 fields"),
        ("60 3 * * *", "minute"),
        ("0 24 * * *", "hour"),
        ("0 3 0 * *", " day "),
        ("0 3 * 13 *", "month"),
        ("0 3 * * 8", "weekday"),
        ("5-1 3 * * *", "minute"),
        ("*/0 3 * * *", "minute"),
        ("0 3 * * mon", "weekday"),
    ],
)
def test_a_cron_expression_that_never_happens_is_refused(text, part):
    with refused(ConfigError, "automation.nightly", part):
        load_campaign("demo", {"automation": {"nightly": text}})


def test_all_problems_are_reported_with_file_key_and_value(tmp_path):
    path = write(
        tmp_path,
        """
        name = "Bad Name"
        seeed = 3
        [oracle]
        znear_m = -1
        devise = "cpu"
        device = "gpu"
        [[recipes]]
        name = "a"
        policy = "best"
        horizon = 0
        branch = [1, 0]
        [[recipes]]
        name = "b"
        policy = "random"
        branch = {counts = [1, 2], probabilities = [0.5, 0.6]}
        """,
    )
    with pytest.raises(ConfigError) as caught:
        load_campaign(path)
    title, *lines = str(caught.value).splitlines()
    assert_names(title, path, 9)
    problems = dict(line.removeprefix("  - ").split(": ", 1) for line in lines)
    named = {
        "name": ["Bad Name"],
        "seeed": ["seed"],
        "oracle.znear_m": [0, -1],
        "oracle.devise": ["device"],
        "oracle.device": ["auto|cpu|cuda", "'gpu'"],
        "recipes[0].policy": ["farthest_from_history", "best"],
        "recipes[0].horizon": [1, 0],
        "recipes[0].branch[1]": [1, 0],
        "recipes[1].branch": ["probabilities", 1.1],
    }
    assert problems.keys() == named.keys()
    for key, names in named.items():
        assert_names(problems[key], *names)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("name = 'x'\nseed = = 3", ["TOML", "line 2"]),
        ("seed = 3", ["name: required"]),
        ("name='x'\nrecipes = []", ["recipe"]),
        ("name='x'\n[candidates]\nradius_min_m = 3.0", ["radius_max_m", "radius_min_m", 3.0, 1.1]),
        ("name='x'\n[oracle]\nzfar_m = 0.0001", ["zfar_m", "znear_m", 0.001]),
        (
            "name='x'\n[[recipes]]\nname='a'\npolicy='random'\n[[recipes]]\nname='a'\npolicy='random'",
            ["recipe", "unique", "got a"],
        ),
    ],
)
def test_bad_files_are_refused(tmp_path, text, names):
    path = write(tmp_path, text)
    with refused(ConfigError, path, *names):
        load_campaign(path)


def test_a_missing_file_names_the_shipped_campaigns(tmp_path):
    with refused(ConfigError, tmp_path / "none.toml", "demo"):
        load_campaign(tmp_path / "none.toml")


def test_relative_paths_start_at_the_file(tmp_path):
    config = load_campaign(write(tmp_path, "name = 'x'\n[source]\nstore_dir = 'in'\n[shards]\noutput_dir = 'out'"))
    assert config.source.store_dir == tmp_path / "in"
    assert config.shards.output_dir == tmp_path / "out"


def test_shipped_campaigns_live_under_the_data_home(tmp_path, monkeypatch):
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    assert "demo" in shipped_campaigns()
    assert load_campaign("demo").source.store_dir == tmp_path / "demo" / "source"


def test_canonical_json_is_sorted_compact_and_refuses_nan():
    assert canonical_json({"b": 1.0, "a": [True, None, "ü"]}) == b'{"a":[true,null,"\\u00fc"],"b":1.0}'
    assert canonical_hash({}) == "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"
    with pytest.raises(ValueError):
        canonical_json(float("nan"))


NUMBERS = [
    ("seed", "campaign"),
    ("top_k", "targets"),
    ("temperature", "targets"),
    ("min_confidence", "targets"),
    ("path_samples", "candidates.rules"),
    ("kappa", "candidates"),
    ("width_px", "oracle"),
    ("zfar_m", "oracle"),
    ("chunk_rows", "store"),
    ("rows_per_shard", "shards"),
    ("unstable_support_px", "suspicious"),
    ("noise_m", "quality"),
]


@pytest.mark.parametrize(("key", "table"), NUMBERS)
@pytest.mark.parametrize("value", ["true", "false", '"1"'])
def test_true_false_and_text_are_no_numbers(tmp_path, key, table, value):
    heading = "" if table == "campaign" else f"[{table}]\n"
    with refused(ConfigError, f"{key}: ", "got", value.strip('"') if "1" in value else value.capitalize()):
        load_campaign(write(tmp_path, f"name = 'x'\n{heading}{key} = {value}"))


def numeric_fields(model, seen):
    """Every field of a configuration and the configurations inside it that a number can be given to."""
    if model in seen:
        return
    seen.add(model)
    for name, field in model.model_fields.items():
        yield from (pair for inner in _models_in(field.annotation) for pair in numeric_fields(inner, seen))
        if any(kind in str(field.annotation) for kind in ("int", "float")) and "Literal" not in str(field.annotation):
            yield model, name


def test_no_number_of_any_configuration_can_be_true():
    models = [CampaignConfig, SyntheticConfig, CollectCommandConfig, ServerOptions, MetricOptions, RolloutRequest]
    fields = [pair for model in models for pair in numeric_fields(model, set())]
    assert len(fields) > 90
    for model, name in fields:
        alias = model.model_fields[name].alias or name
        try:
            model.model_validate({alias: True})
        except ConfigError as error:  # a collection's own error
            assert name in str(error), (model, name)
        except ValidationError as error:
            assert any(detail["loc"][0] == alias for detail in error.errors()), (model, name)
        else:
            raise AssertionError((model, name))


@pytest.mark.parametrize("setting", ["horizon = 40000", "beam_width = 40000", "branch = 40000", "branch = [1, 40000]"])
def test_what_a_store_cannot_hold_is_refused(tmp_path, setting):
    recipe = f"name = 'x'\n[[recipes]]\nname = 'a'\npolicy = 'random'\n{setting}"
    with refused(ConfigError, "recipes[0]", 32767, 40000):
        load_campaign(write(tmp_path, recipe))
    assert load_campaign(write(tmp_path, recipe.replace("40000", "3" if "branch" in setting else "32767")))


def test_a_recipe_that_would_fill_the_memory_is_refused(tmp_path):
    recipe = "name = 'x'\n[[recipes]]\nname = 'a'\npolicy = 'random'\nbranch = 10\nhorizon = 10"
    with refused(ConfigError, "recipe a ", "10,000,000,000", "100,000"):
        load_campaign(write(tmp_path, recipe))
    assert load_campaign(write(tmp_path, f"{recipe}\nbeam_width = 100")).recipes[0].most_chains(60) == 1_000


@pytest.mark.parametrize("setting", ["seed = 9", "recipes = [{name = 'a', policy = 'random', branch = [2, 1]}]"])
def test_a_campaign_as_toml_reads_back_to_itself(tmp_path, setting):
    config = load_campaign(write(tmp_path, f"name = 'x'\n{setting}\n[targets]\ntop_k = 2"))
    assert CampaignConfig.model_validate(tomllib.loads(toml_text(config))) == config
    assert CampaignConfig.model_validate(tomllib.loads(commented_toml(config))) == config


def test_every_setting_of_a_file_to_start_from_is_explained():
    lines = commented_toml(CampaignConfig(name="x")).splitlines()
    recipes, quality = lines.index("[[recipes]]"), lines.index("[quality]")
    named = {line.split(" =")[0].strip("# ") for line in lines if " = " in line}
    for model, name in all_settings(CampaignConfig):
        assert name in named, (model, name)
        assert model.model_fields[name].description, f"{model.__name__}.{name} has no description"
    assert recipes < quality and lines[quality - 1].startswith("# How closely a finished store is examined.")


def all_settings(model):
    """Every field of a configuration that is no table."""
    for name, field in model.model_fields.items():
        inner = [found for found in _models_in(field.annotation) if found.__name__ != "StochasticBranching"]
        if inner:
            yield from all_settings(inner[0])
        else:
            yield model, name
