"""What a run does with each of its shards: rows, rollouts, checks and validation, recorded shard by shard as it goes.

A shard that fails stops no other one. It is reported at once, is not validated, and is listed again when the run ends,
which then has failed. A run that is killed has lost nothing: what it recorded stays, and whoever runs the same shards
again reads and keeps the finished ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import dagster as dg

from rollout_assets.defs import keys as names
from rollout_assets.defs.assets import ASSETS, CampaignAsset, code_version
from rollout_assets.defs.checks import CHECK_GROUPS, CheckGroup
from rollout_assets.defs.checks.missing import not_yet, unchecked
from rollout_assets.defs.checks.verdict import evaluation
from rollout_assets.defs.lazy import load
from rollout_assets.defs.retries import failure_text, tried_again
from rollout_assets.defs.shards.provenance import version_tags
from rollout_assets.defs.step import CampaignStep
from rollout_assets.errors import RolloutAssetsError, StoreError

SHOWN_FAILURES = 20
"""Failed shards that the message of a run lists; its log has all of them."""

ShardEvent = dg.AssetMaterialization | dg.AssetCheckEvaluation

_CHAIN = tuple(asset for asset in ASSETS if asset.partitioned)
_PARTITIONED = {asset.name for asset in _CHAIN}


@dataclass(frozen=True)
class Asked:
    """What a run wants of its shards, by name, and the backfill that it belongs to."""

    assets: frozenset[str]
    checks: frozenset[str]
    backfill: Mapping[str, str]

    @classmethod
    def by(cls, context: dg.AssetExecutionContext) -> Asked:
        """What the run of a context was launched for."""
        tag = context.run.tags.get(names.BACKFILL_TAG)
        return cls(
            frozenset(key.path[-1] for key in context.selected_asset_keys),
            frozenset(key.name for key in context.selected_asset_check_keys),
            {} if tag is None else {names.BACKFILL_TAG: tag},
        )


def run_shards(step: CampaignStep, context: dg.AssetExecutionContext) -> Iterator[ShardEvent]:
    """Take each shard of a run through what is asked for; a ``Failure`` at the end names those that failed.

    A run that names no shard can only be one of checks alone, and checks every shard.
    """
    asked = Asked.by(context)
    if not asked.assets:  # to run checks alone is to ask for them to be made again
        step = replace(step, anew=True)
    if not (context.has_partition_key_range or context.has_partition_key or asked.assets):
        yield from _check_every_shard(step, asked)
        return
    shard_ids = shards_of(step, context)
    failures: dict[str, Exception] = {}
    for shard_id in shard_ids:
        try:
            yield from _run_shard(step.of_shard(shard_id), asked)
        except Exception as error:
            failures[shard_id] = error
            known = isinstance(error, RolloutAssetsError)
            step.log.error(f"{shard_id} failed: {failure_text(error)}", exc_info=None if known else error)
    if failures:
        first = next(iter(failures.values()))
        raise dg.Failure(description=_summary(failures, len(shard_ids)), allow_retries=False) from first


def _check_every_shard(step: CampaignStep, asked: Asked) -> Iterator[dg.AssetCheckEvaluation]:
    reason = not_yet(step, "plan")
    for group in CHECK_GROUPS:
        checks = asked.checks & group.promises.keys() if group.partitioned else frozenset()
        key = step.keys.key(group.asset)
        if checks and reason is not None:
            yield from (evaluation(key, result) for result in unchecked(checks, reason))
        elif checks:
            results: Iterator[dg.AssetCheckEvaluation] = load(group.evaluate)(step)
            yield from (result for result in results if result.check_name in checks)


def shards_of(step: CampaignStep, context: dg.AssetExecutionContext) -> Sequence[str]:
    """The shards that a run is about."""
    if context.has_partition_key_range:
        return context.partition_keys
    return [context.partition_key if context.has_partition_key else step.shard_id]


def _summary(failures: Mapping[str, Exception], count: int) -> str:
    texts = {shard_id: failure_text(error) for shard_id, error in failures.items()}
    if count == 1:
        return next(iter(texts.values()))
    listed = [f"  {shard_id}: {text}" for shard_id, text in texts.items()]
    more = [f"  and {len(listed) - SHOWN_FAILURES} more, see the log"] if len(listed) > SHOWN_FAILURES else []
    return "\n".join([f"{len(listed)} of {count} shards failed:", *listed[:SHOWN_FAILURES], *more])


def _run_shard(step: CampaignStep, asked: Asked) -> Iterator[ShardEvent]:
    """One shard, in the order of the chain. Blocking checks that failed let no asset behind them be made."""
    blocked: list[str] = []
    for asset in _CHAIN:
        if asset.name in asked.assets:
            _refuse_blocked(step, blocked)
            yield _materialization(step, asset, asked)
        for group in CHECK_GROUPS:
            if group.asset == asset.name and asked.checks & group.promises.keys():
                for found in _evaluations(step, group, asked):
                    yield found
                    if group.blocking and not found.passed:
                        blocked.append(f"{found.check_name} ({found.description})")
    _refuse_blocked(step, blocked)


def _refuse_blocked(step: CampaignStep, blocked: Sequence[str]) -> None:
    if blocked:
        raise StoreError(
            f"{step.shard_id}: {len(blocked)} blocking check(s) failed: {'; '.join(blocked)}\nMaterialize "
            "rollout_shards of this partition again: the damaged shard is set aside and a new one is built."
        )


def _materialization(step: CampaignStep, asset: CampaignAsset, asked: Asked) -> dg.AssetMaterialization:
    result: dg.MaterializeResult[None] = _tried_again(step, asset.compute)
    key, upstream = step.keys.key(asset.name), step.keys.key(asset.upstream)
    version = "" if result.data_version is None else result.data_version.value
    partition = step.shard_id if asset.upstream in _PARTITIONED else None
    tags = version_tags(step.instance, code_version(step.keys, asset), version, upstream, partition)
    return dg.AssetMaterialization(
        key, partition=step.shard_id, metadata=result.metadata, tags={**tags, **asked.backfill}
    )


def _evaluations(step: CampaignStep, group: CheckGroup, asked: Asked) -> Iterator[dg.AssetCheckEvaluation]:
    results: list[dg.AssetCheckResult] = _tried_again(step, group.evaluate)
    for result in results:
        if result.check_name in asked.checks:
            yield evaluation(step.keys.key(group.asset), result, group.blocking, step.shard_id)


def _tried_again(step: CampaignStep, path: str) -> Any:
    """The result of a function of this shard, or all its results; every attempt after a fault opens the source anew."""

    def attempt() -> Any:
        try:
            result = load(path)(step)
            return list(result) if isinstance(result, Iterator) else result
        except Exception:
            step.reopen_source()
            raise

    return tried_again(attempt, step.log, step.shard_id)
