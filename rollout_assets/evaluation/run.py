"""Evaluating policies from start to end: campaigns over held-out scenes, tables, result and page.

The campaigns are ordinary ones, so an evaluation that is killed goes on where it stopped, and ``inspect``, ``report``
and replay work on its stores. The same evaluation again reuses every finished shard.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import polars as pl

from rollout_assets import __version__
from rollout_assets.campaigns.layout import CampaignLayout
from rollout_assets.campaigns.plan import open_source
from rollout_assets.campaigns.promotion import promote_rollout_campaign
from rollout_assets.campaigns.run import CampaignRunResult, run_campaign
from rollout_assets.campaigns.versions import PromotedVersion
from rollout_assets.config import CampaignConfig, canonical_hash, load_campaign, toml_text
from rollout_assets.errors import EvaluationError, counted
from rollout_assets.evaluation.campaigns import evaluated_scenes, evaluation_campaigns
from rollout_assets.evaluation.config import EvaluationConfig
from rollout_assets.evaluation.failures import failure_table, with_pages
from rollout_assets.evaluation.outcomes import PAIR, count_targets, read_outcomes
from rollout_assets.evaluation.page import write_evaluation_page
from rollout_assets.evaluation.result import EvaluationFacts, PolicyEvaluation, PolicyFacts, SeedFacts
from rollout_assets.evaluation.roster import Contestant, roster
from rollout_assets.evaluation.seen_scenes import scene_overlap
from rollout_assets.evaluation.tables import PairedOutcomes, comparison_table, group_table, policy_table, view_table
from rollout_assets.files import file_lock, publish_bytes
from rollout_assets.progress import SILENT, ProgressEvent, ProgressSink
from rollout_assets.reports.rollout_picture import StoredPictures
from rollout_assets.rollouts.zarr_store.manifest import RolloutStoreInvocation
from rollout_assets.rollouts.zarr_store.reader import RolloutZarrStoreReader

_SHOWN_FAILURES = 3


def evaluate_policies(
    config: EvaluationConfig, progress: ProgressSink = SILENT, *, base: CampaignConfig | None = None
) -> PolicyEvaluation:
    """Roll the policies and the references out on held-out scenes, compare them, and write result and page.

    ``base`` is the campaign if it is loaded already. A policy that was trained on an evaluated scene is
    ``PolicyRefused``, unless the configuration allows it; a shard that cannot be built is an ``EvaluationError``.
    """
    base = base or load_campaign(config.campaign, config.campaign_settings)
    contestants = roster(config)
    scenes = evaluated_scenes(config, base)
    policies = tuple(_policy_facts(contestant, scenes, config) for contestant in contestants)
    campaigns = evaluation_campaigns(config, base, contestants, scenes)
    config.output_dir.mkdir(parents=True, exist_ok=True)
    with file_lock(config.output_dir / ".evaluation.lock", str(config.output_dir)):
        seeds = tuple(_run(campaign, config, progress) for campaign in campaigns)
        facts = _facts(config, base, scenes, policies, seeds)
        evaluation = _measured(config, facts, campaigns, contestants, progress)
        evaluation.write()
        write_evaluation_page(evaluation)
    return evaluation


def _run(campaign: CampaignConfig, config: EvaluationConfig, progress: ProgressSink) -> SeedFacts:
    """Build, validate and promote the campaign of one seed; what is finished stays as it is."""
    named = _named(progress, campaign.seed)
    invocation = RolloutStoreInvocation.of_config(campaign)
    result = run_campaign(campaign, workers=config.workers, invocation=invocation, progress=named)
    _refuse_unfinished(campaign, result)
    version = promote_rollout_campaign(campaign, invocation=invocation, progress=named).version
    layout = CampaignLayout.of(campaign)
    publish_bytes(layout.root / "campaign.toml", toml_text(campaign).encode())
    counts = count_targets(_reader(campaign, config))
    return SeedFacts(
        seed=campaign.seed,
        folder=layout.root.relative_to(config.output_dir.absolute()).as_posix(),
        writer_config_hash=campaign.writer_config_hash,
        store_sha256=_content(version),
        source_rows=len(open_source(campaign).rows(config.split)),
        skipped_rows=result.skipped,
        targets=counts.targets,
        refused_targets=dict(counts.refused),
    )


def _named(progress: ProgressSink, seed: int) -> ProgressSink:
    """A sink whose tasks say which seed they are for."""

    def report(event: ProgressEvent, /) -> None:
        progress(replace(event, task=f"seed {seed}: {event.task}"))

    return report


def _refuse_unfinished(campaign: CampaignConfig, result: CampaignRunResult) -> None:
    if result.barren:
        raise EvaluationError(f"{campaign.shards.output_dir}: no source row gave a rollout: {_some(result.skipped)}")
    if not result.finished:
        reasons = [f"{shard.shard_id}: {shard.reason}" for shard in result.shards if shard.reason]
        raise EvaluationError(
            f"{campaign.shards.output_dir}: {counted(len(reasons), 'shard')} could not be built: {_some(reasons)}; "
            f"evaluate again to go on from there"
        )


def _some(lines: Sequence[str]) -> str:
    more = f"; and {len(lines) - _SHOWN_FAILURES} more" if len(lines) > _SHOWN_FAILURES else ""
    return "; ".join(lines[:_SHOWN_FAILURES]) + more


def _content(version: PromotedVersion) -> str:
    """Digest of what a promoted version holds: the content of its shards in order."""
    splits = version.record.splits.items()
    return canonical_hash({split: [shard.content_sha256 for shard in shards] for split, shards in splits})


def _reader(campaign: CampaignConfig, config: EvaluationConfig) -> RolloutZarrStoreReader:
    return RolloutZarrStoreReader(CampaignLayout.of(campaign).store_location / config.split)


def _measured(
    config: EvaluationConfig,
    facts: EvaluationFacts,
    campaigns: Sequence[CampaignConfig],
    contestants: Sequence[Contestant],
    progress: ProgressSink,
) -> PolicyEvaluation:
    """All tables, from the promoted stores."""
    readers = {campaign.seed: _reader(campaign, config) for campaign in campaigns}
    parts = [read_outcomes(reader, seed, contestants, config.horizon) for seed, reader in readers.items()]
    outcomes = pl.concat(parts).sort(*PAIR)
    if outcomes.is_empty():
        raise EvaluationError(f"{config.output_dir}: no target got a label, so there is nothing to compare")
    names = tuple(contestant.name for contestant in contestants)
    paired = PairedOutcomes(outcomes, names, config.horizon, config.bootstrap)
    progress(ProgressEvent("tables", 0, 2, unit="parts"))
    failures = failure_table(paired, facts.named, config.failures)
    pictures = {campaign.seed: StoredPictures(readers[campaign.seed], campaign) for campaign in campaigns}
    failures = with_pages(failures, pictures, config.output_dir, config.max_pages)
    progress(ProgressEvent("tables", 1, 2, unit="parts"))
    return PolicyEvaluation(
        folder=config.output_dir,
        facts=facts,
        outcomes=outcomes,
        policies=policy_table(paired, [contestant.role for contestant in contestants]),
        views=view_table(paired),
        comparisons=comparison_table(paired, facts.named),
        groups=group_table(paired),
        failures=failures,
    )


def _policy_facts(contestant: Contestant, scenes: Sequence[str], config: EvaluationConfig) -> PolicyFacts:
    overlap = scene_overlap(contestant, scenes, allow=config.allow_seen_scenes)
    return PolicyFacts(
        name=contestant.name,
        role=contestant.role,
        policy=contestant.recipe.policy,
        draws=len(contestant.recipes),
        checkpoint=None if contestant.recipe.checkpoint is None else str(contestant.recipe.checkpoint),
        checkpoint_sha256=contestant.recipe.checkpoint_sha256,
        trained_on=overlap.trained_on,
        seen_scenes=overlap.seen,
    )


def _facts(
    config: EvaluationConfig,
    base: CampaignConfig,
    scenes: Sequence[str],
    policies: tuple[PolicyFacts, ...],
    seeds: tuple[SeedFacts, ...],
) -> EvaluationFacts:
    return EvaluationFacts(
        package_version=__version__,
        campaign=base.name,
        split=config.split,
        horizon=config.horizon,
        scenes=tuple(scenes),
        candidate_config_hash=base.candidate_config_hash,
        oracle_config_hash=base.oracle_config_hash,
        target_config_hash=canonical_hash(base.hashable("targets")),
        source_manifest_hash=open_source(base).source_manifest_hash,
        bootstrap=config.bootstrap,
        policies=policies,
        seeds=seeds,
    )
