"""A campaign's splits by scene: one split each, by the scene alone, in the shares that were asked for."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from rollout_assets.config import CampaignConfig, SplitConfig, SplitShares, canonical_hash, load_campaign
from rollout_assets.errors import ConfigError
from rollout_assets.sources.layout import SPLITS, IndexRow, MovedRow, split_manifest_hash
from rollout_assets.sources.scene_splits import hashed_split, scene_splits
from tests.support.refusals import refused

pytestmark = pytest.mark.quick

SCENES = st.lists(st.text(min_size=1, max_size=12), min_size=1, max_size=30, unique=True)
SEEDS = st.integers(0, 2**63 - 1)
VAL_SHARES = st.floats(0, 1).map(lambda val: SplitShares(train=1 - val, val=val))


def rows_of(scenes, own="train", snippets=2):
    """Rows of some scenes, some snippets each, all in one split of the source."""
    keys = [(scene, number) for scene in scenes for number in range(snippets)]
    return [
        IndexRow(
            sample_index=index,
            sample_key=f"{scene}/{number}",
            scene_id=scene,
            snippet_id=str(number),
            split=own,
            shard_id="shard-000000",
            row=index,
        )
        for index, (scene, number) in enumerate(keys)
    ]


def splits_of(config, rows):
    return {row.sample_key: row.split for row in scene_splits(config).assign(rows, "source")}


@given(SCENES, SEEDS, VAL_SHARES)
def test_every_scene_is_in_exactly_one_split(scenes, seed, shares):
    config = SplitConfig(mode="by_scene", seed=seed, shares=shares)
    assigned = scene_splits(config).assign(rows_of(scenes), "source")
    assert len(assigned) == 2 * len(scenes)
    for scene in scenes:
        assert len({row.split for row in assigned if row.scene_id == scene}) == 1
    assert {row.split for row in assigned} <= set(SPLITS)


@given(SCENES, SEEDS, VAL_SHARES, st.data())
def test_split_of_a_scene_is_independent_of_other_scenes(scenes, seed, shares, data):
    config = SplitConfig(mode="by_scene", seed=seed, shares=shares)
    whole = splits_of(config, rows_of(scenes))
    shuffled = data.draw(st.permutations(scenes))
    assert splits_of(config, rows_of(shuffled)) == whole
    some = data.draw(st.sets(st.sampled_from(scenes), min_size=1))
    assert splits_of(config, rows_of(sorted(some))) == {
        key: split for key, split in whole.items() if key.rsplit("/", 1)[0] in some
    }


@given(SCENES, SEEDS, st.floats(0, 1), st.floats(0, 1))
def test_a_larger_share_only_adds_scenes(scenes, seed, one, other):
    less, more = sorted((one, other))
    val = {
        share: {
            scene for scene in scenes if hashed_split(scene, seed, SplitShares(train=1 - share, val=share)) == "val"
        }
        for share in (less, more)
    }
    assert val[less] <= val[more]


@pytest.mark.parametrize("share", [0.0, 0.05, 0.2, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("seed", [0, 1, 2**62])
def test_shares_are_met_within_binomial_bounds(share, seed):
    count, shares = 4_000, SplitShares(train=1 - share, val=share)
    val = sum(hashed_split(f"synthetic-11-{number:05d}", seed, shares) == "val" for number in range(count))
    assert abs(val - count * share) <= 4.5 * math.sqrt(count * share * (1 - share))


def test_two_seeds_are_independent_divisions():
    half = SplitShares(train=0.5, val=0.5)
    same = sum(hashed_split(f"scene-{n}", 1, half) == hashed_split(f"scene-{n}", 2, half) for n in range(4_000))
    assert abs(same - 2_000) <= 4.5 * math.sqrt(1_000)


def test_the_split_of_a_scene_is_pinned():
    """By hand: SHA-256 over the text [0,"ase-1"] begins below a fifth of all hashes."""
    val = [number for number in range(12) if hashed_split(f"ase-{number}", 0, SplitShares()) == "val"]
    assert val == [1, 4]


def test_moved_row_keeps_its_source_split():
    rows = rows_of(["kitchen", "hall"])
    config = SplitConfig(mode="explicit", scenes={"val": ["kitchen"]}, rest="train")
    first, _, third, _ = scene_splits(config).assign(rows, "source")
    assert isinstance(first, MovedRow) and (first.split, first.own_split) == ("val", "train")
    assert third is rows[2] and third.own_split == "train"
    assert scene_splits(SplitConfig()).assign((first,), "source") == (rows[0],), "the way back"
    assert split_manifest_hash("0" * 16, "val", (first,)) != split_manifest_hash("0" * 16, "val", rows[:1])


def test_the_default_changes_no_hash_and_no_row():
    rows = rows_of(["kitchen"])
    assert scene_splits(SplitConfig()).assign(rows, "source") == tuple(rows)
    by_scene = CampaignConfig(name="a", split={"mode": "by_scene", "seed": 3})
    assert by_scene.hashes() == CampaignConfig(name="a").hashes(), "it decides where rows go, not what is in them"
    assert canonical_hash(by_scene.hashable()) == canonical_hash(CampaignConfig(name="a").hashable())


@pytest.mark.parametrize(
    ("section", "names"),
    [
        ({"mode": "by_scene", "shares": {"train": 0.8, "val": 0.3}}, ["shares", "train = 0.8", "val = 0.3", "1.1"]),
        ({"mode": "by_scene", "shares": {"val": 0.5}}, ["shares", "train = 0.8", "val = 0.5", "1.3"]),
        ({"mode": "by_scene", "shares": {"train": -0.2, "val": 1.2}}, ["shares.train", -0.2, "shares.val", 1.2]),
        ({"mode": "by_scene", "rest": "val"}, ["rest", 'mode = "explicit"', 'mode = "by_scene"']),
        ({"seed": 3}, ["seed", 'mode = "by_scene"', 'mode = "from_source"']),
        ({"mode": "explicit"}, ['mode = "explicit"', "scenes", "CSV", "neither"]),
        (
            {"mode": "explicit", "file": "a.csv", "scenes": {"val": ["a"]}},
            ['mode = "explicit"', "scenes", "CSV", "both"],
        ),
        ({"mode": "explicit", "scenes": {"train": ["a", "b"], "val": ["b"]}}, ["scenes", " b ", "train", "val"]),
        ({"mode": "explicit", "scenes": {"train": [""]}}, ["scenes.train.0", "string_too_short"]),
        ({"mode": "explicit", "scenes": {"test": ["a"]}}, ["scenes.test", "extra_forbidden"]),
        ({"mode": "by_sample"}, ["mode", "'from_source'", "'by_scene'", "'explicit'", "'by_sample'"]),
    ],
)
def test_invalid_split_section_is_refused_with_its_values(section, names):
    with refused(ValidationError, *names):
        SplitConfig(**section)


def test_unlisted_scenes_are_refused_by_name():
    config = SplitConfig(mode="explicit", scenes={"train": ["hall"]})
    rows = rows_of(["hall", *(f"room-{number}" for number in range(7))])
    listed = "room-0, room-1, room-2, room-3, room-4 and 2 more"
    with refused(ConfigError, "/data/source", "7 scenes", "[split]", listed, "rest"):
        scene_splits(config).assign(rows, "/data/source")


def test_split_csv_is_read_again_when_it_changes(tmp_path):
    path = tmp_path / "splits.csv"
    path.write_text("\ufeffsplit, scene_id\r\nval,kitchen\r\n\r\n train , hall\r\nval,kitchen\r\n")
    config = SplitConfig(mode="explicit", file=path)
    assert splits_of(config, rows_of(["kitchen", "hall"], snippets=1)) == {"kitchen/0": "val", "hall/0": "train"}
    path.write_text("scene_id,split\nkitchen,train\nhall,train\n")
    assert set(splits_of(config, rows_of(["kitchen", "hall"])).values()) == {"train"}


@pytest.mark.parametrize(
    ("text", "line", "names"),
    [
        ("", 1, ["scene_id", "split"]),
        ("scene_id,split,weight\na,train,1\n", 1, ["scene_id, split, weight"]),
        ("scene,split\na,train\n", 1, ["scene_id", "scene, split"]),
        ("scene_id;split\na;train\n", 1, ["scene_id;split"]),
        ("scene_id,split\na,test\n", 2, ["train", "val", "'a,test'"]),
        ("scene_id,split\n,train\n", 2, ["',train'"]),
        ("scene_id,split\na,train,7\n", 2, ["'a,train,7'"]),
        ("scene_id,split\na\n", 2, ["'a'"]),
        ("scene_id,split\na,train\nb,val\na,val\n", 4, ["scene a", "val", "train"]),
        ('scene_id,split\n"a,train\n', 2, ["CSV"]),
    ],
)
def test_invalid_split_csv_is_refused_with_its_line(tmp_path, text, line, names):
    path = tmp_path / "splits.csv"
    path.write_text(text)
    with refused(ConfigError, f"{path}:{line}: ", *names):
        scene_splits(SplitConfig(mode="explicit", file=path))


def test_split_csv_path_is_relative_to_the_campaign_file(tmp_path):
    campaign = tmp_path / "campaign.toml"
    campaign.write_text('name = "a"\n[split]\nmode = "explicit"\nfile = "lists/splits.csv"\n')
    config = load_campaign(campaign).split
    assert config.file == tmp_path / "lists/splits.csv"
    with refused(ConfigError, config.file, "split.file", "scene_id"):
        scene_splits(config)
    config.file.mkdir(parents=True)
    with refused(ConfigError, config.file):
        scene_splits(config)
