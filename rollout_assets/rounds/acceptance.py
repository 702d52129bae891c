"""Whether a campaign's evaluated policy is accepted, and the policies that were.

    <output_dir>/accepted/000002/policy.safetensors   the policy, as it was evaluated
                                 evaluation.json      that evaluation, which later ones are compared with
                                 outcomes.parquet

A policy is accepted if it beats chance, is not worse than the one accepted before it, and was evaluated on scenes
that it had not seen. The folder appears in one step, and none is ever changed.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from rollout_assets.campaigns.layout import CampaignLayout
from rollout_assets.campaigns.objects.publishing import publish_folder
from rollout_assets.campaigns.objects.working_copy import fetch_folder
from rollout_assets.config import CampaignConfig, checkpoint_sha256
from rollout_assets.errors import EvaluationError
from rollout_assets.evaluation.accepted import AcceptedComparison, compare_to_accepted
from rollout_assets.evaluation.result import (
    OUTCOMES_FILE,
    RESULT_FILE,
    PolicyEvaluation,
    PolicyFacts,
    PolicyVerdict,
    read_evaluation,
)
from rollout_assets.files import file_lock, publishing
from rollout_assets.learning.training.run import POLICY_NAME
from rollout_assets.rounds.evaluation import TRAINED

CONFIDENCE = 0.95
"""Confidence with which a policy must beat chance; an evaluation with narrower intervals says too little."""


@dataclass(frozen=True, eq=False)
class PolicyJudgement:
    """What an evaluation says about a campaign's policy.

    ``previous`` is the folder of the policy accepted before it. ``comparison`` with that is None if there is none, or
    if both cannot be compared; ``incomparable`` then says why.
    """

    evaluation: PolicyEvaluation
    previous: Path | None
    comparison: AcceptedComparison | None
    incomparable: str

    @property
    def verdict(self) -> PolicyVerdict:
        """The verdict about the trained policy."""
        return self.evaluation.verdict(TRAINED)

    @property
    def beats_random(self) -> bool:
        """Whether the trained policy beats chance with at least 95 % confidence."""
        return self.verdict.beats_random and self.verdict.confidence >= CONFIDENCE

    @property
    def not_worse(self) -> bool:
        """Whether it is not shown to be worse than the policy accepted before it; the first has no such policy."""
        return self.previous is None or (self.comparison is not None and self.comparison.not_worse)

    @property
    def seen_scenes(self) -> dict[str, tuple[str, ...]]:
        """Evaluated policy -> the evaluated scenes that it was trained on; policies without any are left out."""
        return {policy.name: policy.seen_scenes for policy in self.evaluation.facts.policies if policy.seen_scenes}

    @property
    def accepted(self) -> bool:
        """Whether the policy may become the accepted one."""
        return self.beats_random and self.not_worse and not self.seen_scenes


def judge_policy(campaign: CampaignConfig) -> PolicyJudgement:
    """Judge the last evaluation of a campaign, as it lies there."""
    layout = CampaignLayout.of(campaign)
    for folder in (layout.evaluation, layout.accepted):
        fetch_folder(layout, folder)
    evaluation, previous = read_evaluation(layout.evaluation), last_accepted(layout)
    if previous is None:
        return PolicyJudgement(evaluation, None, None, "")
    try:
        return PolicyJudgement(evaluation, previous, _compare(evaluation, previous), "")
    except EvaluationError as error:
        return PolicyJudgement(evaluation, previous, None, str(error))


def last_accepted(layout: CampaignLayout) -> Path | None:
    """The folder of the policy that was accepted last."""
    return max(layout.accepted.glob("[0-9]" * 6), default=None)


def accept_policy(campaign: CampaignConfig, judgement: PolicyJudgement) -> Path:
    """Keep policy and evaluation as the accepted ones, and return their folder; the same ones are kept once."""
    layout, evaluation = CampaignLayout.of(campaign), judgement.evaluation
    layout.accepted.mkdir(parents=True, exist_ok=True)
    lock = layout.lock("accepted")
    lock.parent.mkdir(parents=True, exist_ok=True)
    with file_lock(lock, str(layout.accepted)):
        last = last_accepted(layout)
        if last is not None and _same_result(last, evaluation.folder):
            return last
        checkpoint = _evaluated_checkpoint(_trained(evaluation))
        folder = layout.accepted / f"{1 if last is None else int(last.name) + 1:06d}"
        with publishing(folder) as scratch:
            scratch.mkdir()
            shutil.copyfile(checkpoint, scratch / POLICY_NAME)
            for name in (RESULT_FILE, OUTCOMES_FILE):
                shutil.copyfile(evaluation.folder / name, scratch / name)
        publish_folder(layout, folder)
        return folder


def _compare(evaluation: PolicyEvaluation, previous: Path) -> AcceptedComparison:
    """Against the accepted policy: in the same evaluation if it is among the policies there, else in its own."""
    before = read_evaluation(previous)
    content = _trained(before).checkpoint_sha256
    others = [policy for policy in evaluation.facts.policies if policy.name != TRAINED]
    together = [policy.name for policy in others if policy.checkpoint_sha256 == content]
    if together:
        return compare_to_accepted(evaluation, evaluation, TRAINED, together[0])
    return compare_to_accepted(evaluation, before, TRAINED, TRAINED)


def _trained(evaluation: PolicyEvaluation) -> PolicyFacts:
    return next(policy for policy in evaluation.facts.policies if policy.name == TRAINED)


def _evaluated_checkpoint(facts: PolicyFacts) -> Path:
    """The file of the policy that was evaluated, if it still is what it was."""
    path = Path(str(facts.checkpoint))
    content = checkpoint_sha256(path)
    if content != facts.checkpoint_sha256:
        raise EvaluationError(
            f"{path}: has SHA-256 {content}, but {facts.checkpoint_sha256} was evaluated; evaluate it again"
        )
    return path


def _same_result(folder: Path, other: Path) -> bool:
    return (folder / RESULT_FILE).read_bytes() == (other / RESULT_FILE).read_bytes()
