"""Whether a policy is worse than the one that was accepted before, root by root."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from rollout_assets.errors import EvaluationError
from rollout_assets.evaluation.bootstrap import Estimate, PairedMeans
from rollout_assets.evaluation.outcomes import ROOT
from rollout_assets.evaluation.result import PolicyEvaluation
from rollout_assets.evaluation.roster import GREEDY

SAME_GAIN = 1e-6
"""How far two devices may disagree about the same gain."""

_NEW, _OLD = "new", "accepted"


@dataclass(frozen=True)
class AcceptedComparison:
    """A policy against the accepted one on the roots of both evaluations; ``difference`` is new minus accepted."""

    policy: str
    accepted: str
    roots: int
    scenes: int
    difference: Estimate

    @property
    def worse(self) -> bool:
        """Whether the whole interval of the difference is below zero."""
        return self.difference.below_zero

    @property
    def better(self) -> bool:
        """Whether the whole interval of the difference is above zero."""
        return self.difference.above_zero

    @property
    def not_worse(self) -> bool:
        """Whether the policy may be accepted; roots too few for an interval decide by their mean alone."""
        if self.difference.low is None:
            return (self.difference.value or 0.0) >= 0
        return not self.worse


def compare_to_accepted(
    evaluation: PolicyEvaluation,
    previous: PolicyEvaluation,
    policy: str | None = None,
    accepted: str | None = None,
) -> AcceptedComparison:
    """The policy of an evaluation against the accepted one of an earlier evaluation, paired by root and seed.

    By default the first policy of each. Evaluations of other views, labels, targets or horizons cannot be compared, and
    neither can those without a root in common, or on whose roots ``oracle_greedy`` no longer gains what it did: all are
    an ``EvaluationError`` that says what differs.
    """
    _refuse_other_ground(evaluation, previous)
    new, old = evaluation.verdict(policy).policy, previous.verdict(accepted).policy
    both = _paired(evaluation, new, previous, old)
    where = f"{evaluation.folder} and {previous.folder}"
    if both.is_empty():
        raise EvaluationError(f"{where}: no root in common; evaluate {old} together with {new} to compare them")
    greedy = _paired(evaluation, GREEDY, previous, GREEDY)
    if not np.allclose(greedy[_NEW], greedy[_OLD], rtol=0, atol=SAME_GAIN):
        raise EvaluationError(
            f"{where}: {GREEDY} gains something else on the same roots, so the source or the code has changed; "
            f"evaluate {old} together with {new} to compare them"
        )
    values = {name: both[name].to_numpy() for name in (_NEW, _OLD)}
    means = PairedMeans(values, both["scene"].to_list(), evaluation.facts.bootstrap)
    return AcceptedComparison(new, old, means.roots, means.scenes, means.difference(_NEW, _OLD))


def _paired(evaluation: PolicyEvaluation, new: str, previous: PolicyEvaluation, old: str) -> pl.DataFrame:
    """The roots of both, each with the gain of a policy of one and of a policy of the other."""
    on = (*ROOT, "scene")
    return _gains(evaluation, new, _NEW).join(_gains(previous, old, _OLD), on=on, how="inner").sort(*ROOT)


def _gains(evaluation: PolicyEvaluation, policy: str, name: str) -> pl.DataFrame:
    own = evaluation.outcomes.filter(pl.col("policy") == policy)
    return own.group_by(*ROOT, "scene").agg(pl.col("gain").mean().alias(name))


def _refuse_other_ground(evaluation: PolicyEvaluation, previous: PolicyEvaluation) -> None:
    names = ("horizon", "candidate_config_hash", "oracle_config_hash", "target_config_hash")
    differing = [
        f"{name} is {getattr(evaluation.facts, name)}, was {getattr(previous.facts, name)}"
        for name in names
        if getattr(evaluation.facts, name) != getattr(previous.facts, name)
    ]
    if differing:
        raise EvaluationError(
            f"{evaluation.folder} and {previous.folder} cannot be compared: {'; '.join(differing)}; "
            f"evaluate both policies together"
        )
