"""Checks of an evaluated policy, and its acceptance if it passes all of them."""

from __future__ import annotations

from collections.abc import Iterator

import dagster as dg

from rollout_assets.campaigns.check_names import BEATS_RANDOM, NOT_WORSE_THAN_ACCEPTED, TRAINED_ON_NO_EVALUATED_SCENE
from rollout_assets.defs.checks.verdict import verdict
from rollout_assets.defs.metadata import Metadata, evidence, table
from rollout_assets.defs.step import CampaignStep
from rollout_assets.evaluation.bootstrap import Estimate
from rollout_assets.rounds.acceptance import CONFIDENCE, PolicyJudgement, accept_policy, judge_policy


def evaluated_policy(step: CampaignStep) -> Iterator[dg.AssetCheckResult]:
    """Judge the policy of the last evaluation; one that passes every check becomes the accepted one."""
    judgement = judge_policy(step.config)
    if judgement.accepted:
        step.log.info(f"accepted: {accept_policy(step.config, judgement)}")
    yield _beats_random(judgement)
    yield _not_worse(judgement)
    yield _unseen(judgement)


def _beats_random(judgement: PolicyJudgement) -> dg.AssetCheckResult:
    """A warning only: the evaluation is in order, and with few scenes it says no more than that they are few."""
    found = judgement.verdict
    metadata = {
        "roots": found.roots,
        "scenes": found.scenes,
        "confidence": found.confidence,
        "needed_confidence": CONFIDENCE,
        **_figure("over_random", found.over_random),
        **_figure("headroom", found.headroom),
    }
    return verdict(BEATS_RANDOM, judgement.beats_random, metadata, warns=True, description=found.sentence)


def _not_worse(judgement: PolicyJudgement) -> dg.AssetCheckResult:
    """An error if the policy is worse; a warning if nobody can tell."""
    comparison = judgement.comparison
    metadata: Metadata = {"accepted_now": judgement.accepted}
    description = judgement.incomparable
    if judgement.previous is None:
        description = "no policy was accepted before"
    else:
        metadata["accepted_before"] = dg.MetadataValue.path(str(judgement.previous))
    if comparison is not None:
        metadata |= {"roots": comparison.roots, "scenes": comparison.scenes}
        metadata |= _figure("difference", comparison.difference)
    return verdict(
        NOT_WORSE_THAN_ACCEPTED,
        judgement.not_worse,
        metadata,
        warns=comparison is None,
        description=description or None,
    )


def _unseen(judgement: PolicyJudgement) -> dg.AssetCheckResult:
    """An error: figures on scenes that were trained on say nothing about others."""
    facts = judgement.evaluation.facts
    seen = [{"policy": name, "scene": scene} for name, scenes in judgement.seen_scenes.items() for scene in scenes]
    learned = [policy for policy in facts.policies if policy.trained_on is not None]
    trained_on = [{"policy": policy.name, "scenes": policy.trained_on} for policy in learned]
    metadata = {"evaluated_scenes": len(facts.scenes), "trained_on": table(trained_on), **evidence(table(seen))}
    return verdict(TRAINED_ON_NO_EVALUATED_SCENE, not seen, metadata)


def _figure(name: str, estimate: Estimate) -> Metadata:
    """An estimate as numbers; what does not exist is left out."""
    values = {name: estimate.value, f"{name}_low": estimate.low, f"{name}_high": estimate.high}
    return {key: value for key, value in values.items() if value is not None}
