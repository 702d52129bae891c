"""Recipes with policies that packages bring: the same records however they are run, and nothing chosen by chance."""

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from rollout_assets.campaigns.layout import CampaignLayout
from rollout_assets.campaigns.plan import open_source
from rollout_assets.campaigns.run import run_campaign
from rollout_assets.collection import RolloutCollectionConfig, collect_rollouts
from rollout_assets.collection.campaign_inputs import CampaignInputs
from rollout_assets.config import CampaignConfig, RolloutRecipeConfig, load_campaign, pin_checkpoints
from rollout_assets.errors import ConfigError, PolicyRefused, ReplayRefused, RowRefused
from rollout_assets.geometry.poses import IDENTITY_POSE
from rollout_assets.inspection.provenance import recorded_campaign
from rollout_assets.inspection.replay import replay, replay_sources
from rollout_assets.inspection.suspicious import suspicious_rollout_rows
from rollout_assets.rollouts import policy_registry
from rollout_assets.rollouts.engine import offered_chain
from rollout_assets.rollouts.evaluation import StateEvaluator
from rollout_assets.rollouts.generator import RolloutGenerator
from rollout_assets.rollouts.manager.batching import BatchLimits
from rollout_assets.rollouts.manager.completions import RolloutTask
from rollout_assets.rollouts.manager.native import AsyncRolloutImpl
from rollout_assets.rollouts.remote.codec import content_sha256, pack
from rollout_assets.rollouts.remote.messages import RolloutRequest
from rollout_assets.rollouts.trace import RolloutZarrRecord
from rollout_assets.rollouts.trace import recipe_of as recipe_of_id
from rollout_assets.rollouts.zarr_store import RolloutZarrStoreReader, validate_rollout_zarr_store
from rollout_assets.serving.request_plans import plan_request
from tests.collection.test_collector import lines_of
from tests.rollouts.brought_policy import installed, write_checkpoint, write_package
from tests.rollouts.shells import shell_at
from tests.rollouts.zarr_store.conftest import write_campaign_store
from tests.rollouts.zarr_store.forging import Rows, at, bump, forge
from tests.rollouts.zarr_store.store_under_test import Mutable
from tests.serving.server_process import running_server
from tests.support.digests import content_digest
from tests.support.refusals import refused

CAMPAIGN = """
name = "brought"
seed = 5
source.store_dir = "STORE"
targets.top_k = 2
oracle = { width_px = 8, height_px = 8, device = "cpu" }
selected_depth = { width_px = 16, height_px = 16, chunk_steps = 4 }
shards = { rows_per_shard = 1, output_dir = "out" }

[[candidates.mixture]]
position = "target_bearing_local"
count = 8

[[recipes]]
name = "ranked"
policy = "weighted"
checkpoint = "weights.json"
horizon = 3
branch = [2, 1]
beam_width = 2

[[recipes]]
name = "drawn"
policy = "weighted"
checkpoint = "weights.json"
draw = true
temperature = 0.5
branch = 2
beam_width = 2

[[recipes]]
name = "turn"
policy = "largest_turn"

[[recipes]]
name = "new"
policy = "most_new_points"

[[recipes]]
name = "greedy"
policy = "oracle_greedy"
"""


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = write_package(tmp_path_factory.mktemp("package"))
    with installed(folder):
        yield folder


def write_campaign_file(folder: Path, source: Path) -> Path:
    path = folder / "campaign.toml"
    path.write_text(CAMPAIGN.replace("STORE", str(source)))
    write_checkpoint(folder / "weights.json")
    return path


@pytest.fixture(scope="module")
def campaign_file(small_store: Path, package: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_campaign_file(tmp_path_factory.mktemp("brought"), small_store)


@pytest.fixture(scope="module")
def campaign(campaign_file: Path) -> CampaignConfig:
    return load_campaign(campaign_file)


@pytest.fixture(scope="module")
def records(campaign: CampaignConfig) -> list[RolloutZarrRecord]:
    source = open_source(campaign)
    return list(RolloutGenerator(campaign, source).records(source.rows("train")))


@pytest.fixture(scope="module")
def shards(campaign: CampaignConfig) -> list[RolloutZarrStoreReader]:
    """The shards of the training rows, built, validated and sealed."""
    done = run_campaign(campaign)
    assert done.ok, done.shards
    layout = CampaignLayout.of(campaign)
    readers = [RolloutZarrStoreReader(layout.shard(s.shard_id) / "rollouts.zarr") for s in done.shards if s.records]
    return [reader for reader in readers if reader.strings("split") == ["train"]]


def recipe_names(records: list[RolloutZarrRecord]) -> list[str]:
    return [record.rollout_id_prefix.split("-", 3)[3] for record in records]


def test_scores_logits_and_the_checkpoint_are_recorded(campaign, records):
    (sha,) = {recipe.checkpoint_sha256 for recipe in campaign.recipes if recipe.checkpoint is not None}
    sources = {"turn": "turn_around_target_deg", "new": "unseen_target_area_m2", "greedy": "target_root_gain"}
    assert set(recipe_names(records)) == {"ranked", "drawn", *sources}
    for record, name in zip(records, recipe_names(records), strict=True):
        weighted = name in ("ranked", "drawn")
        assert record.lineage.model_checkpoint_hash == (sha if weighted else None)
        for step in (step for chain in record.chains for step in chain.steps):
            takeable, selection = step.shell.actor_action_mask, step.selection
            assert selection.score_source == sources.get(name, "weighted_facts")
            assert np.array_equal(np.isfinite(selection.logits), takeable)
            assert selection.probabilities.sum() == pytest.approx(float(takeable.any()), abs=1e-5)
            if name != "drawn" and takeable.any():
                assert selection.probabilities[np.nanargmax(selection.logits)] == 1


def test_shards_hold_the_records_and_name_the_checkpoint(campaign, records, shards):
    stored = {r.lineage.rollout_id: r for s in shards for r in map(s.rollout, range(s.num_rows("rollouts")))}
    chains = {record.rollout_id(chain): chain for record in records for chain in record.chains}
    assert stored.keys() == chains.keys() and len(stored) >= 5
    for name, chain in chains.items():
        for own, there in zip(chain.steps, stored[name].chain.steps, strict=True):
            assert content_digest(own.selection) == content_digest(there.selection) and content_digest(
                own.shell
            ) == content_digest(there.shell)
    sha = campaign.recipes[0].checkpoint_sha256
    for shard in shards:
        assert shard.sidecar_manifest()["config_hashes"]["model_checkpoint"] == [sha]
        kinds = set(suspicious_rollout_rows(shard)["kind"])
        assert "chosen_with_probability_near_zero" not in kinds, "a later branch of a ranking policy is certain"


def test_policies_are_asked_for_all_states_that_wait(campaign, records):
    module = sys.modules["brought_policy_module"]
    module.CALLS.clear()
    source = open_source(campaign)
    generator = RolloutGenerator(campaign, source)
    prepared = generator.prepare(source.rows("train")[0])
    list(generator.records_of(prepared))
    assert len(module.CALLS) == 3, "one call a depth, for both recipes and all targets"
    assert max(module.CALLS) >= 2 * len(prepared.roots)


@pytest.mark.parametrize("limits", [BatchLimits(), BatchLimits(max_views=1), BatchLimits(max_wait_s=0.02, workers=2)])
def test_the_manager_gives_the_same_chains(campaign, records, limits):
    source = open_source(campaign)
    generator = RolloutGenerator(campaign, source)
    roots = [root for row in source.rows("train") for root in generator.prepare(row).roots]
    tasks = [RolloutTask(0, root, recipe, campaign.seed) for root in roots for recipe in campaign.recipes]

    async def work() -> list[list[object]]:
        impl = AsyncRolloutImpl(1, StateEvaluator(campaign, generator.scorer), limits=limits)
        done = await asyncio.gather(*(impl.run_alone(task) for task in tasks))
        await impl.aclose()
        return [[(s.state.shell, s.decision.logits) for chain in one.chains for s in chain.steps] for one in done]

    rolled_out = [record for record in records if record.lineage.gt_match_status == "matched"]
    expected = [[(s.shell, s.selection.logits) for chain in one.chains for s in chain.steps] for one in rolled_out]
    assert len(expected) == len(tasks) and content_digest(asyncio.run(work())) == content_digest(expected)


def collected(path: Path, rows: Path, **changes: object) -> list[dict]:
    report = collect_rollouts(RolloutCollectionConfig(input_jsonl_fpath=rows, output_jsonl_fpath=path, **changes))
    assert report.exit_code == 0
    lines = sorted(lines_of(path), key=lambda line: (line["_task_index"], line["agent_ref"]["name"]))
    differs = ("timings_s", "step_timings_s", "_attempt")
    return [{name: value for name, value in line.items() if name not in differs} for line in lines]


@pytest.mark.slow
def test_collection_and_a_server_give_the_same_records(tmp_path, campaign_file, campaign, records):
    rows = tmp_path / "rows.jsonl"
    CampaignInputs(campaign, "train", rows).write()
    local = collected(tmp_path / "local.jsonl", rows, campaign=str(campaign_file))
    with running_server(campaign_file, tmp_path / "server") as server:
        remote = collected(tmp_path / "remote.jsonl", rows, server_urls=(server.url,))
    assert local == remote
    expected = {content_sha256(pack(RolloutZarrRecord, record)) for record in records}
    assert {line["content_sha256"] for line in remote} == expected


@pytest.mark.slow
def test_worker_processes_make_the_same_shards(tmp_path, small_store, package, shards):
    config = load_campaign(write_campaign_file(tmp_path, small_store))
    done = run_campaign(config, workers=2)
    assert done.ok, done.shards
    for shard in shards:
        other = CampaignLayout.of(config).shard(Path(shard.location).parent.name) / "rollouts.zarr"
        for path in ("candidates/selection_logits", "steps/selected_shell_index", "lineage/model_checkpoint_id"):
            assert np.array_equal(
                RolloutZarrStoreReader(other).array(path), shard.array(path), equal_nan="logits" in path
            )


def test_a_replay_has_no_differences(campaign, shards):
    for shard in shards:
        for done in replay_sources(shard, campaign):
            assert done.identical, done.differences.to_dicts()
    assert replay(shards[0], 0, campaign).identical


def test_a_changed_checkpoint_is_refused_with_both_hashes(tmp_path, small_store, package, campaign_file, shards):
    path = write_campaign_file(tmp_path, small_store)
    old = load_campaign(path)
    write_checkpoint(tmp_path / "weights.json", 1.0, 2.0, 3.0, 4.0)
    new = load_campaign(path)
    hashes = [config.recipes[0].checkpoint_sha256 for config in (old, new)]
    assert hashes[0] != hashes[1] and old.rollout_config_hash != new.rollout_config_hash
    with refused(PolicyRefused, "recipe ranked", *hashes[:2]):
        RolloutGenerator(old, open_source(old))
    with refused(ReplayRefused, "recipes[0].checkpoint_sha256", *hashes[:2]):
        replay(shards[0], 0, new)
    recorded = recorded_campaign(shards[0])
    assert recorded is not None and recorded.recipes[0].checkpoint_sha256 == hashes[0]
    assert replay(shards[0], 0, recorded).identical
    path.write_text(path.read_text().replace('"weights.json"', f'"weights.json"\ncheckpoint_sha256 = "{hashes[0]}"'))
    with refused(ConfigError, "recipes[0].checkpoint: ", *hashes[:2]):
        load_campaign(path)


def recipe_of(**changes: object) -> RolloutRecipeConfig:
    return RolloutRecipeConfig.model_validate({"name": "own", "policy": "weighted", "checkpoint": "x.json"} | changes)


def test_a_request_names_recipes_never_files_or_modules(campaign):
    def planned(recipe: object, **more: object) -> RolloutRecipeConfig:
        return plan_request(RolloutRequest(source_row=0, recipe=recipe, **more), campaign).recipe_run

    own = campaign.recipes[0]
    assert planned("ranked") == planned(own) == own
    elsewhere = own.model_copy(update={"checkpoint": Path("/somewhere/else.json")})
    assert planned(elsewhere) == own, "the campaign's file is read, whatever path the request has"
    assert planned("ranked", params={"horizon": 1}).checkpoint == own.checkpoint
    for foreign in (
        recipe_of(checkpoint="/etc/passwd"),
        recipe_of(name="ranked", checkpoint=own.checkpoint, checkpoint_sha256="0" * 64),
        own.model_copy(update={"checkpoint_sha256": None}),
        recipe_of(policy="nearest_to_target", checkpoint=None),
        own.model_copy(update={"horizon": 1}),
    ):
        with refused(RowRefused, foreign.policy, "ranked, drawn, turn, new", field="recipe.policy"):
            planned(foreign)


@pytest.mark.parametrize(
    ("policy", "names"),
    [
        ("not_a_number", ("nan", "path []")),
        ("too_narrow", (", 8)", "float64", ", 7)")),
        ("absent", ("brought_policy_module_that_is_not_there:policy",)),
    ],
)
def test_a_policy_that_cannot_choose_is_refused(campaign, policy, names):
    recipe = RolloutRecipeConfig(name="broken", policy=policy)
    broken = campaign.model_copy(update={"recipes": (recipe,)})
    source = open_source(broken)
    with refused(PolicyRefused, f"policy {policy}", *names):
        list(RolloutGenerator(broken, source).records(source.rows("train")[:1]))


@pytest.mark.parametrize(
    ("recipe", "names"),
    [
        ({"policy": "nonsense"}, ["recipes[0].policy", "farthest_from_history", "weighted", "'nonsense'"]),
        ({"policy": "learned"}, ["recipes[0]", 'policy = "learned"', "checkpoint"]),
        ({"policy": "random", "draw": True}, ["recipes[0]", 'policy = "random"', "checkpoint", "draw"]),
        ({"policy": "random", "checkpoint": "weights.json"}, ["recipes[0]", 'policy = "random"', "checkpoint", "draw"]),
        ({"policy": "weighted", "checkpoint": "none.json"}, ["recipes[0].checkpoint", "/none.json"]),
        ({"policy": "weighted", "checkpoint": "."}, ["recipes[0].checkpoint", "folder"]),
        ({"policy": "weighted", "checkpoint_sha256": "0" * 64}, ["recipes[0]", "checkpoint_sha256"]),
    ],
)
def test_a_recipe_that_cannot_be_meant_is_one_line(tmp_path, package, recipe, names):
    path = tmp_path / "campaign.toml"
    keys = "\n".join(
        f"{key} = {str(value).lower() if isinstance(value, bool) else repr(value)}" for key, value in recipe.items()
    )
    path.write_text(f"name = 'x'\n[[recipes]]\nname = 'a'\n{keys}\n")
    with refused(ConfigError, *names) as caught:
        load_campaign(path)
    assert len(str(caught.value).splitlines()) <= 2


def test_names_are_looked_up_without_importing_the_package(tmp_path, package):
    path = tmp_path / "campaign.toml"
    path.write_text("name = 'x'\n[[recipes]]\nname = 'a'\npolicy = 'absent'\n")
    assert load_campaign(path).recipes[0].brings_policy


def test_a_checkpoint_that_nobody_pinned_is_refused(tmp_path, package, campaign):
    loose = recipe_of(checkpoint=write_checkpoint(tmp_path / "x.json"))
    with refused(PolicyRefused, "recipe own", tmp_path / "x.json", "pin_checkpoints"):
        policy_registry.policy_of(loose)
    (pinned,) = pin_checkpoints((loose.model_copy(update={"checkpoint": Path("x.json")}),), tmp_path)
    assert policy_registry.policy_of(pinned) is policy_registry.policy_of(pinned)


@pytest.fixture(scope="module")
def store(
    campaign: CampaignConfig, records: list[RolloutZarrRecord], tmp_path_factory: pytest.TempPathFactory
) -> Mutable:
    """The records as a store that can be forged."""
    path = tmp_path_factory.mktemp("forged") / "rollouts.zarr"
    return Mutable(write_campaign_store(path, campaign, records))


@pytest.fixture(scope="module")
def rows(store: Mutable) -> Rows:
    """Views that were not taken, and rollouts, by recipe."""
    reader = RolloutZarrStoreReader(store.path)
    names = np.array([recipe_of_id(name) for name in reader.table("rollouts", decode=True)["rollout_id"]])
    recipe = names[reader.array("candidates/rollout_row_id")]
    idle = reader.array("candidates/actor_action_mask") & ~reader.array("candidates/drawn_mask")
    found = {name: int(np.flatnonzero(idle & (recipe == name))[-1]) for name in ("ranked", "drawn", "turn")}
    return found | {f"{name} rollout": int(np.flatnonzero(names == name)[0]) for name in ("ranked", "turn")}


@pytest.mark.parametrize(
    ("path", "check", "change"),
    [
        ("candidates/selection_logits", "logits_follow_policy", at("ranked", np.nan)),
        ("candidates/selection_logits", "logits_follow_policy", at("drawn", 9.0)),
        ("candidates/selection_logits", "draws_follow_recipe", at("turn", 1e6)),
        ("candidates/selection_probabilities", "probabilities_follow_logits", at("drawn", 0.9)),
        ("candidates/score_source_id", "logits_follow_policy", bump("turn")),
        ("lineage/model_checkpoint_id", "lineage_follows_campaign", at("ranked rollout", -1)),
        ("lineage/model_checkpoint_id", "lineage_follows_campaign", at("turn rollout", 0)),
    ],
)
def test_what_such_a_policy_stores_cannot_be_forged(store, rows, path, check, change):
    forge(store, path, change, rows)
    result = validate_rollout_zarr_store(store.path, deep=True)
    assert check in {finding.check for finding in result.findings}, result.errors


def test_a_store_is_valid_where_the_package_is_not_installed(store, package, campaign_file, monkeypatch):
    store.restore()
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path != str(package)])
    with refused(ConfigError, "recipes[0].policy", "recipes[1].policy", "'weighted'"):
        load_campaign(campaign_file)
    assert recorded_campaign(RolloutZarrStoreReader(store.path)) is not None
    assert validate_rollout_zarr_store(store.path, deep=True).errors == []


def test_unlabelled_views_are_stored_under_their_policy(package):
    shell = shell_at(np.zeros((4, 3)), np.ones(4, np.bool_))
    (step,) = offered_chain(shell, IDENTITY_POSE, recipe_of(), "weighted_facts").steps
    assert step.decision.score_source == "weighted_facts" and np.isnan(step.decision.logits).all()
    with refused(PolicyRefused, "recipe own", "policy weighted"):
        offered_chain(shell, IDENTITY_POSE, recipe_of())
