"""Rows run in this process: the shard path's records to the bit, whatever runs beside them."""

import asyncio
from collections.abc import Sequence

import pytest

from rollout_assets.collection.store_results import stored_results
from rollout_assets.config import CampaignConfig, RolloutRecipeConfig, load_campaign
from rollout_assets.errors import ConfigError, RowRefused
from rollout_assets.metrics.results import aggregate_results
from rollout_assets.rollouts.engine import Chain
from rollout_assets.rollouts.generator import RolloutGenerator
from rollout_assets.rollouts.manager.batching import BatchLimits
from rollout_assets.rollouts.remote.codec import content_sha256, from_text, pack, unpack
from rollout_assets.rollouts.remote.messages import RolloutRequest, RolloutResult
from rollout_assets.rollouts.roots import RefusedTarget
from rollout_assets.rollouts.trace import RolloutZarrRecord
from rollout_assets.rollouts.zarr_store import (
    RolloutZarrStoreConfig,
    RolloutZarrStoreReader,
    write_rollout_zarr_store,
)
from rollout_assets.serving.request_plans import MAX_STEPS
from rollout_assets.serving.service import RolloutService, ServiceLimits
from rollout_assets.sources.vin_store import VinOfflineStore
from tests.support.digests import content_digest
from tests.support.refusals import refused

CAMPAIGN = """
name = "collected"
seed = 5
source.store_dir = "STORE"
targets.top_k = 2
oracle = { width_px = 16, height_px = 16, device = "cpu" }
selected_depth = { width_px = 16, height_px = 16 }

[[candidates.mixture]]
position = "target_bearing_local"
count = 8

[[recipes]]
name = "oracle_greedy"
policy = "oracle_greedy"

[[recipes]]
name = "softmax"
policy = "temperature_softmax"
branch = 2
beam_width = 2
"""


@pytest.fixture(scope="module")
def campaign_file(small_store, tmp_path_factory):
    path = tmp_path_factory.mktemp("collected") / "campaign.toml"
    path.write_text(CAMPAIGN.replace("STORE", str(small_store)))
    return path


@pytest.fixture(scope="module")
def config(campaign_file) -> CampaignConfig:
    return load_campaign(campaign_file)


@pytest.fixture(scope="module")
def store(config) -> VinOfflineStore:
    return VinOfflineStore.open(config.source.store_dir)


@pytest.fixture(scope="module")
def records(config, store) -> list[RolloutZarrRecord]:
    """What the shard path makes of every row, target and recipe."""
    return list(RolloutGenerator(config, store).records(store.rows()))


def row_of(record: RolloutZarrRecord, **changes) -> RolloutRequest:
    recipe = record.rollout_id_prefix.split("-", 3)[3]
    asked = {"sample_key": record.lineage.source_sample_key, "target": record.lineage.target_id, "recipe": recipe}
    return RolloutRequest.model_validate(asked | {"include": ("record",)} | changes)


def run(
    config: CampaignConfig, store: VinOfflineStore, rows: Sequence[RolloutRequest], **options
) -> list[RolloutResult]:
    async def work() -> list[RolloutResult]:
        service = RolloutService(config, store, **options)
        try:
            return list(await asyncio.gather(*(service.run(row) for row in rows)))
        finally:
            await service.aclose()

    return asyncio.run(work())


def content(result: RolloutResult) -> RolloutResult:
    return result.model_copy(update={"timings_s": {}, "step_timings_s": ()})


def test_every_row_gives_the_shard_paths_record_to_the_bit(config, store, records):
    results = run(config, store, [row_of(record) for record in records])
    assert len(results) == len(records) > 10
    for result, record in zip(results, records, strict=True):
        made = unpack(RolloutZarrRecord, from_text(result.record))
        assert content_digest(made) == content_digest(record)
        assert result.content_sha256 == content_sha256(pack(RolloutZarrRecord, record))
        assert result.target_rank == record.lineage.target_selection_rank


def test_another_seed_gives_what_a_campaign_of_that_seed_stores(config, store):
    other = config.model_copy(update={"seed": 99})
    record = next(iter(RolloutGenerator(other, store).records(store.rows()[:1])))
    (result,) = run(config, store, [row_of(record, seed=99)])
    assert result.seed == 99
    assert content_digest(unpack(RolloutZarrRecord, from_text(result.record))) == content_digest(record)


@pytest.fixture(scope="module")
def plain(config, store, records) -> list[RolloutResult]:
    """Every row at another seed, run in order with everything at its default."""
    return run(config, store, [row_of(record, include=("record", "chains"), seed=7) for record in records])


@pytest.mark.parametrize(
    "options",
    [
        {"service_limits": ServiceLimits(running=1, kept_samples=1)},
        {"limits": BatchLimits(max_wait_s=0.05, workers=2), "service_limits": ServiceLimits(running=64)},
        {"limits": BatchLimits(max_views=1)},
    ],
)
def test_neither_company_nor_order_nor_batching_changes_a_result(config, store, records, plain, options):
    rows = [row_of(record, include=("record", "chains"), seed=7) for record in reversed(records)]
    assert [content(r) for r in run(config, store, rows, **options)] == [content(r) for r in reversed(plain)]


def test_collected_and_stored_results_count_the_same_steps(config, store, tmp_path):
    every = config.targets.model_copy(update={"require_reachable": False, "top_k": 9})
    behind = config.model_copy(update={"targets": every})
    rows = store.rows("train")
    made = list(RolloutGenerator(behind, store).records(rows))
    write_rollout_zarr_store(tmp_path / "store", made, RolloutZarrStoreConfig.from_campaign(behind))
    stored = {
        (line["target_id"], line["agent_ref"]["name"]): line
        for line in stored_results(RolloutZarrStoreReader(tmp_path / "store"))
    }
    results = run(behind, store, [row_of(record) for record in made if record.chains])
    assert len(results) == len(stored)
    for result in results:
        line = stored[result.target_id, result.agent_ref.name]
        assert result.num_steps == line["num_steps"]
        assert result.reward == (None if line["reward"] is None else pytest.approx(line["reward"]))
        assert result.mean_valid_fanout == line["mean_valid_fanout"]
    nowhere = [result for result in results if result.end_reason == "no_takeable_view"]
    assert nowhere and all((r.reward, r.steps, r.step_timings_s) == (None, (), ()) for r in nowhere)
    assert sum(line.get("end_reason") == "no_takeable_view" for line in stored.values()) == len(nowhere)
    counted = aggregate_results(stored.values())
    assert sum(entry["counts"]["no_view"] for entry in counted) == len(nowhere)


def test_figures_agree_with_the_record(config, store, records):
    record = next(record for record in records if record.chains)
    (result,) = run(config, store, [row_of(record, include=("chains",))])
    best = record.chains[0].steps
    gains = [float(s.labels.target_root_gain[s.selection.selected_shell_index]) for s in best]
    assert result.status == "completed" and result.reward == pytest.approx(sum(gains))
    assert [step["root_gain"] for step in result.steps] == gains
    assert [step["shell_index"] for step in result.steps] == [s.selection.selected_shell_index for s in best]
    assert result.num_steps == len(best) and len(result.step_timings_s) == len(best)
    assert (result.end_reason, result.truncated, result.truncation_reason) == ("horizon", False, None)
    assert result.final_points > result.root_points > 0
    assert result.mean_valid_fanout == pytest.approx(sum(step["valid_fanout"] for step in result.steps) / len(best))
    assert result.final_error_m2 == result.steps[-1]["error_after_m2"] < result.root_error_m2
    (chain, *_) = unpack(tuple[Chain, ...], from_text(result.chains))
    assert content_digest(chain.steps[0].state.shell) == content_digest(best[0].shell)
    assert {"wait", "prepare", "score", "select", "record", "total"} == result.timings_s.keys()


def test_a_target_without_a_label_is_refused_with_its_record(config, store):
    strict = config.model_copy(update={"targets": config.targets.model_copy(update={"min_match_iou": 0.99})})
    generator = RolloutGenerator(strict, store)
    row = store.rows()[0]
    assert all(isinstance(target, RefusedTarget) for target in generator.prepare(row).targets)
    first = next(iter(generator.records([row])))
    (result,) = run(strict, store, [RolloutRequest(source_row=0, recipe="softmax", include=("record",))])
    assert result.status == "refused" and result.refused_reason and result.reward is None
    assert result.agent_ref.name == "softmax"
    assert content_digest(unpack(RolloutZarrRecord, from_text(result.record))) == content_digest(first)


def test_a_step_limit_cuts_the_rollout_and_says_so(config, store):
    row = RolloutRequest.model_validate(
        {"source_row": 0, "recipe": "oracle_greedy", "params": {"max_rollout_steps": 1}}
    )
    (cut,) = run(config, store, [row])
    assert (cut.num_steps, cut.truncated, cut.truncation_reason) == (1, True, "max_rollout_steps")


def test_a_view_budget_cuts_the_rollout_and_its_record_says_so(config, store):
    def asked(budget):
        params = {"max_views_scored": budget}
        return RolloutRequest.model_validate(
            {"source_row": 0, "recipe": "oracle_greedy", "params": params, "include": ["record"]}
        )

    (whole,) = run(config, store, [asked(None)])
    cut, nothing = run(config, store, [asked(whole.views_scored - 1), asked(1)])
    assert (cut.num_steps, cut.truncated, cut.truncation_reason) == (1, True, "max_views_scored")
    record = unpack(RolloutZarrRecord, from_text(cut.record))
    assert [chain.termination_reason for chain in record.chains] == ["incomplete_rollout"]
    assert (nothing.num_steps, nothing.reward, nothing.truncated, nothing.views_scored) == (0, None, True, 0)
    assert unpack(RolloutZarrRecord, from_text(nothing.record)).chains == ()


def test_a_changed_recipe_gives_what_its_campaign_stores(config, store):
    changed = config.recipes[0].model_copy(update={"horizon": 1, "branch": (3, 1)})
    variant = config.model_copy(update={"recipes": (changed, config.recipes[1])})
    record = next(iter(RolloutGenerator(variant, store).records(store.rows()[:1])))
    by_params = row_of(record, params={"horizon": 1, "branch": [3, 1]})
    in_full = row_of(record, recipe=changed)
    for result in run(config, store, [by_params, in_full]):
        assert content_digest(unpack(RolloutZarrRecord, from_text(result.record))) == content_digest(record)


@pytest.mark.parametrize(
    ("asked", "field", "names"),
    [
        ({"sample_key": "nowhere"}, "sample_key", ("0 to 3", "'nowhere'")),
        ({"source_row": 4}, "source_row", ("0 to 3", 4)),
        ({"source_row": 0, "target": 7}, "target", ("0 to 1", 7)),
        ({"source_row": 0, "target": "chair"}, "target", ("idx=0", "idx=1", "'chair'")),
        ({"source_row": 0, "recipe": "best"}, "recipe", ("oracle_greedy, softmax", "'best'")),
        (
            {"source_row": 0, "recipe": None, "agent_ref": {"name": "x"}},
            "agent_ref.name",
            ("oracle_greedy, softmax", "'x'"),
        ),
        ({"source_row": 0, "recipe": None}, "recipe", ("oracle_greedy, softmax", None)),
        ({"source_row": 0, "params": {"branch": [0]}}, "params.branch[0]", (1, 0)),
        ({"source_row": 0, "params": {"horizon": 9, "branch": 2}}, "recipe", ("oracle_greedy", f"{MAX_STEPS:,}")),
        ({"source_row": 0, "params": {"horizon": 10_000, "beam_width": 2}}, "recipe", ("horizon", 256, 10_000)),
    ],
)
def test_a_row_that_cannot_be_run_names_the_field_and_values(config, store, asked, field, names):
    with refused(RowRefused, *names, field=field):
        run(config, store, [RolloutRequest.model_validate({"recipe": "oracle_greedy"} | asked)])


def test_a_row_of_a_split_that_the_campaign_leaves_out_is_refused(config, store):
    only = config.model_copy(update={"source": config.source.model_copy(update={"splits": ("val",)})})
    train = next(row for row in store.rows() if row.split == "train")
    with refused(RowRefused, "train", "val", field="source_row"):
        run(only, store, [RolloutRequest(source_row=train.sample_index, recipe="softmax")])


def test_a_deep_recipe_with_a_narrow_beam_is_within_bounds(config, store):
    deep = RolloutRecipeConfig(name="deep", policy="random_valid", horizon=6, branch=4, beam_width=2)
    (result,) = run(config, store, [RolloutRequest(source_row=0, recipe=deep)])
    assert result.agent_ref.name == "deep" and result.num_steps <= 6


def test_simultaneous_requests_share_one_preparation(config, store):
    async def work() -> int:
        service = RolloutService(config, store)
        prepared = []
        prepare = service._samples._prepare
        service._samples._prepare = lambda row: prepared.append(row) or prepare(row)
        rows = [RolloutRequest(source_row=0, recipe="oracle_greedy", seed=seed) for seed in range(6)]
        given_up = asyncio.ensure_future(service.run(rows[0]))
        others = [asyncio.ensure_future(service.run(row)) for row in rows]
        await asyncio.sleep(0.01)
        given_up.cancel()
        await asyncio.gather(*others)
        assert service.describe()["in_flight"] == 0
        await service.aclose()
        return len(prepared)

    assert asyncio.run(work()) == 1


def test_limits_are_checked(config, store):
    with refused(ConfigError, "running", 0):
        ServiceLimits(running=0)
