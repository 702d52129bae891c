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
    ("section", "message"),
    [
        ({"mode": "by_scene", "shares": {"train": 0.8, "val": 0.3}}, r"shares must sum to 1, got train = 0\.8 and val"),
        ({"mode": "by_scene", "shares": {"val": 0.5}}, "shares must sum to 1"),
        ({"mode": "by_scene", "shares": {"train": -0.2, "val": 1.2}}, "greater than or equal to 0"),
        ({"mode": "by_scene", "rest": "val"}, 'rest belongs to mode = "explicit", got mode = "by_scene"'),
        ({"seed": 3}, 'seed belongs to mode = "by_scene", got mode = "from_source"'),
        ({"mode": "explicit"}, "either the lists in scenes or a CSV file, got neither"),
        ({"mode": "explicit", "file": "a.csv", "scenes": {"val": ["a"]}}, "got both"),
        (
            {"mode": "explicit", "scenes": {"train": ["a", "b"], "val": ["b"]}},
            "one list only, got b in train and in val",
        ),
        ({"mode": "explicit", "scenes": {"train": [""]}}, "at least 1 character"),
        ({"mode": "explicit", "scenes": {"test": ["a"]}}, "Extra inputs"),
        ({"mode": "by_sample"}, "'from_source', 'by_scene' or 'explicit'"),
    ],
)
def test_invalid_split_section_is_refused_with_its_values(section, message):
    with pytest.raises(ValidationError, match=message):
        SplitConfig(**section)


def test_unlisted_scenes_are_refused_by_name():
    config = SplitConfig(mode="explicit", scenes={"train": ["hall"]})
    rows = rows_of(["hall", *(f"room-{number}" for number in range(7))])
    with pytest.raises(ConfigError) as refused:
        scene_splits(config).assign(rows, "/data/source")
    assert str(refused.value) == (
        '/data/source: 7 scenes not listed in [split] of mode "explicit": room-0, room-1, room-2, room-3, room-4 and 2 '
        'more; list them, or set rest = "train" or "val" in [split]'
    )


def test_split_csv_is_read_again_when_it_changes(tmp_path):
    path = tmp_path / "splits.csv"
    path.write_text("\ufeffsplit, scene_id\r\nval,kitchen\r\n\r\n train , hall\r\nval,kitchen\r\n")
    config = SplitConfig(mode="explicit", file=path)
    assert splits_of(config, rows_of(["kitchen", "hall"], snippets=1)) == {"kitchen/0": "val", "hall/0": "train"}
    path.write_text("scene_id,split\nkitchen,train\nhall,train\n")
    assert set(splits_of(config, rows_of(["kitchen", "hall"])).values()) == {"train"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"splits.csv:1: must have the columns scene_id and split, got nothing"),
        ("scene_id,split,weight\na,train,1\n", r"splits.csv:1: .* got scene_id, split, weight"),
        ("scene,split\na,train\n", r"splits.csv:1: .* got scene, split"),
        ("scene_id;split\na;train\n", r"splits.csv:1: .* got scene_id;split"),
        ("scene_id,split\na,test\n", r"splits.csv:2: must be a scene id and train or val, got 'a,test'"),
        ("scene_id,split\n,train\n", r"splits.csv:2: must be a scene id"),
        ("scene_id,split\na,train,7\n", r"splits.csv:2: must be a scene id"),
        ("scene_id,split\na\n", r"splits.csv:2: must be a scene id"),
        ("scene_id,split\na,train\nb,val\na,val\n", r"splits.csv:4: scene a is in val here and in train above"),
        ('scene_id,split\n"a,train\n', r"splits.csv:2: is not CSV"),
    ],
)
def test_invalid_split_csv_is_refused_with_its_line(tmp_path, text, message):
    path = tmp_path / "splits.csv"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        scene_splits(SplitConfig(mode="explicit", file=path))


def test_split_csv_path_is_relative_to_the_campaign_file(tmp_path):
    campaign = tmp_path / "campaign.toml"
    campaign.write_text('name = "a"\n[split]\nmode = "explicit"\nfile = "lists/splits.csv"\n')
    config = load_campaign(campaign).split
    assert config.file == tmp_path / "lists/splits.csv"
    with pytest.raises(
        ConfigError, match=r"lists/splits\.csv: no such file; split\.file must be a CSV with the columns"
    ):
        scene_splits(config)
    config.file.mkdir(parents=True)
    with pytest.raises(ConfigError, match="is a folder; give a regular file"):
        scene_splits(config)
