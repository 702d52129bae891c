"""A user's program: what an editor and mypy see of the public names. Checked by ``test_typed_surface.py``, not run.

Every ``reveal_type`` must name a type; ``Any`` in one of them means that the surface is not typed there.
"""

from pathlib import Path
from typing import reveal_type

import rollout_assets
from rollout_assets import (
    CampaignConfig,
    QHDataset,
    QHIterableDataset,
    QHLoader,
    RolloutAssetsError,
    RolloutManager,
    RolloutZarrStoreReader,
    VinOfflineStore,
    load_campaign,
    plan_rollout_shards,
    promote_rollout_campaign,
    run_campaign,
    summarize_rollout_shard_campaign,
    validate_rollout_zarr_store,
    write_rollout_shard_manifest_from_config,
)
from rollout_assets.collection import (
    CollectionReport,
    RolloutAggregationConfig,
    RolloutCollectionConfig,
    aggregate_rollouts,
    collect_rollouts,
)
from rollout_assets.learning import DepthHistory, EpochPosition, QHBatch
from rollout_assets.rollouts import (
    RolloutGenerator,
    RolloutShardEntry,
    RolloutZarrRecord,
    diff_stores,
    run_rollout_shard,
    training_readiness,
    validity_waterfall_rows,
)
from rollout_assets.rollouts.manager import RolloutTask


def look(store: Path) -> None:
    reader = RolloutZarrStoreReader(store)
    reveal_type(rollout_assets.__version__)
    reveal_type(reader)
    reveal_type(reader.num_rows("candidates"))
    reveal_type(reader.table("candidates"))
    reveal_type(reader.rollout(0).chain)
    reveal_type(reader.step(0))
    result = validate_rollout_zarr_store(store, deep=True)
    reveal_type(result)
    reveal_type([finding.problem for finding in result.findings])
    reveal_type(validity_waterfall_rows(reader))
    reveal_type(training_readiness(reader).verdict)
    reveal_type(diff_stores(reader, reader).equal)


def train(stores: list[Path]) -> EpochPosition:
    dataset = QHIterableDataset(stores, batch_size=16, seed=0, history=2)
    loader = QHLoader(dataset, num_workers=2)
    reveal_type(loader)
    for batch in loader:
        reveal_type(batch)
        reveal_type(batch.one_step_target_root_gain)
        reveal_type(batch.depth_history)
        reveal_type(batch.to("cuda"))
    reveal_type(QHDataset(stores)[0].q_train_mask.sum().item())
    reveal_type(loader.state_dict())
    return loader.state_dict()


def depth_of(batch: QHBatch) -> DepthHistory | None:
    return batch.depth_history


def make(name: str) -> CampaignConfig:
    config = load_campaign(name)
    source = VinOfflineStore.open(config.source.store_dir, config.source.mesh_dirs)
    reveal_type(source.sample(source.row(0)))
    plan = write_rollout_shard_manifest_from_config(config)
    reveal_type(plan.entries)
    reveal_type(plan_rollout_shards)
    for entry in plan.entries:
        shard(config, entry)
    reveal_type(run_campaign(config, workers=2).ok)
    reveal_type(summarize_rollout_shard_campaign(config).counts())
    reveal_type(promote_rollout_campaign(config).version)
    return config


def shard(config: CampaignConfig, entry: RolloutShardEntry) -> None:
    reveal_type(run_rollout_shard(config, entry))


def records(config: CampaignConfig, store: VinOfflineStore) -> list[RolloutZarrRecord]:
    generator = RolloutGenerator(config, store)
    prepared = generator.prepare(store.row(0))
    reveal_type(prepared.targets)
    return list(generator.records_of(prepared))


async def manage(manager: RolloutManager, task: RolloutTask) -> None:
    group = await manager.run_rollout(task)
    reveal_type(group.completions)


def collect(rows: Path, output: Path) -> CollectionReport | None:
    config = RolloutCollectionConfig(input_jsonl_fpath=rows, output_jsonl_fpath=output, campaign="demo")
    try:
        report = collect_rollouts(config)
    except RolloutAssetsError as error:
        reveal_type(error)
        return None
    reveal_type(report.coverage)
    reveal_type(aggregate_rollouts(RolloutAggregationConfig(input_glob=str(output), output_jsonl_fpath=output)))
    return report
