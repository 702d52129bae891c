"""From kept chains to the record that a store takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from cachetools import LRUCache

from rollout_assets.candidates.shell import CandidateShell
from rollout_assets.config import CampaignConfig, RolloutRecipeConfig
from rollout_assets.rollouts.engine import Chain, StepDecision, offered_chain
from rollout_assets.rollouts.keys import RolloutKey, ShellPath
from rollout_assets.rollouts.proposing import score_source_of
from rollout_assets.rollouts.recipes import branch_schedule_id, largest_branch
from rollout_assets.rollouts.trace import (
    NOT_SELECTED,
    CandidateSelection,
    RolloutChain,
    RolloutLineage,
    RolloutRoot,
    RolloutStep,
    RolloutZarrRecord,
    SelectedDepth,
    rollout_id_prefix,
)
from rollout_assets.sources.sample import VinActor
from rollout_assets.targets.matching import TargetMatch


@dataclass(frozen=True)
class SourceProvenance:
    """What a record says about the store its source row came from."""

    cache_version: str
    manifest_hash: str
    split_hashes: Mapping[str, str]


def rollout_record(
    actor: VinActor,
    match: TargetMatch,
    recipe: RolloutRecipeConfig,
    config: CampaignConfig,
    provenance: SourceProvenance,
    mesh_version: str,
    chains: Sequence[Chain],
    depths: Mapping[tuple[ShellPath, int], SelectedDepth],
) -> RolloutZarrRecord:
    """All kept chains of one root, target and recipe; no chains says that the target got no rollout.

    ``depths`` holds the selected views' depth by state path and shell index; empty when none is retained.
    """
    identity = actor.identity
    key = RolloutKey(config.seed, identity.sample_key, match.target.target_id)
    last = len(actor.trajectory_world_camera) - 1
    rank = match.target.draw.rank
    return RolloutZarrRecord(
        lineage=_lineage(actor, match, recipe, config, provenance, mesh_version),
        rollout_id_prefix=rollout_id_prefix(identity.sample_index, rank, recipe.name),
        root=RolloutRoot(
            pose_world_camera=actor.reference_pose_world_camera,
            time_ns=-1 if actor.time_ns is None else int(actor.time_ns[last]),
            trajectory_index=last,
            frame_index=last,
        ),
        horizon=recipe.horizon,
        branch_factor=largest_branch(recipe),
        beam_width=recipe.beam_width,
        temperature=recipe.temperature,
        chains=tuple(
            RolloutChain(
                chain_id=chain_id,
                steps=tuple(_step(step, config, depths) for step in chain.steps),
                termination_reason=chain.termination(recipe.horizon),
                selection_rng_state_hash=key.selection_digest(recipe, chain.path),
            )
            for chain_id, chain in enumerate(chains)
        ),
    )


def refused_record(
    actor: VinActor,
    match: TargetMatch,
    shell: CandidateShell | None,
    config: CampaignConfig,
    provenance: SourceProvenance,
    mesh_version: str,
) -> RolloutZarrRecord:
    """The record of a target that got no rollout, under the first recipe: without chains, or with the views offered."""
    recipe = config.recipes[0]
    chains: tuple[Chain, ...] = ()
    if shell is not None:
        chains = (offered_chain(shell, actor.reference_pose_world_camera, recipe, score_source_of(recipe)),)
    return rollout_record(actor, match, recipe, config, provenance, mesh_version, chains, {})


def _step(
    step: StepDecision, config: CampaignConfig, depths: Mapping[tuple[ShellPath, int], SelectedDepth]
) -> RolloutStep:
    decision = step.decision
    chosen = step.selected_shell_index
    keeps_depth = config.selected_depth.enabled and chosen != NOT_SELECTED
    depth = depths[step.state.path, chosen] if keeps_depth else None
    return RolloutStep(
        shell=step.state.shell,
        labels=step.state.labels,
        selection=CandidateSelection(
            logits=decision.logits,
            probabilities=decision.probabilities,
            log_probabilities=decision.log_probabilities,
            inclusion_probabilities=decision.inclusion_probabilities,
            drawn_mask=decision.drawn_mask,
            draw_log_probability=step.draw_log_probability,
            selected_shell_index=step.selected_shell_index,
            score_source=decision.score_source,
        ),
        selected_depth=depth,
    )


class _Hashes(NamedTuple):
    candidate: str
    oracle: str
    rollout: str


_HASHES: LRUCache[int, tuple[CampaignConfig, _Hashes]] = LRUCache(8)
"""Hashes of the configurations used last, by identity: every record of a campaign has the same."""


def _config_hashes(config: CampaignConfig) -> _Hashes:
    kept = _HASHES.get(id(config))
    if kept is None or kept[0] is not config:
        hashes = _Hashes(config.candidate_config_hash, config.oracle_config_hash, config.rollout_config_hash)
        kept = config, hashes
        _HASHES[id(config)] = kept
    return kept[1]


def _lineage(
    actor: VinActor,
    match: TargetMatch,
    recipe: RolloutRecipeConfig,
    config: CampaignConfig,
    provenance: SourceProvenance,
    mesh_version: str,
) -> RolloutLineage:
    identity, hashes = actor.identity, _config_hashes(config)
    return RolloutLineage(
        **match.lineage_fields(),
        mesh_version=mesh_version,
        candidate_config_hash=hashes.candidate,
        oracle_config_hash=hashes.oracle,
        rollout_config_hash=hashes.rollout,
        model_checkpoint_hash=recipe.checkpoint_sha256,
        random_seed=config.seed,
        rollout_policy=recipe.policy,
        source_cache_version=provenance.cache_version,
        split=identity.split,
        source_split=None if identity.own_split == identity.split else identity.own_split,
        source_offline_store_manifest_hash=provenance.manifest_hash,
        source_sample_index=identity.sample_index,
        source_sample_key=identity.sample_key,
        split_manifest_hash=provenance.split_hashes[identity.split],
        source_shard_id=identity.shard_id,
        source_shard_row=identity.row,
        branch_schedule_id=branch_schedule_id(recipe),
        target_crop_policy=config.oracle.crop_policy_name,
    )
