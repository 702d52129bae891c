"""The evaluation that a campaign asks for: its trained policy on the scenes that it holds out."""

from __future__ import annotations

from rollout_assets.campaigns.layout import CampaignLayout
from rollout_assets.campaigns.objects.publishing import publish_folder
from rollout_assets.campaigns.objects.working_copy import fetch_policy
from rollout_assets.config import CampaignConfig
from rollout_assets.config.evaluation import EvaluatedPolicy
from rollout_assets.config.policy_names import LEARNED_POLICY
from rollout_assets.errors import ConfigError, EvaluationError
from rollout_assets.evaluation.config import EvaluationConfig
from rollout_assets.evaluation.result import PolicyEvaluation
from rollout_assets.evaluation.run import evaluate_policies
from rollout_assets.learning.training.run import POLICY_NAME
from rollout_assets.progress import SILENT, ProgressSink

TRAINED = "trained"
"""What the campaign's own policy is called in the tables of its evaluation."""


def evaluate_campaign_policy(campaign: CampaignConfig, progress: ProgressSink = SILENT) -> PolicyEvaluation:
    """Evaluate the policy that the campaign trained last, beside the references and the policies that it names."""
    evaluation = evaluate_policies(campaign_evaluation(campaign), progress, base=campaign)
    layout = CampaignLayout.of(campaign)
    publish_folder(layout, layout.evaluation)
    return evaluation


def campaign_evaluation(campaign: CampaignConfig) -> EvaluationConfig:
    """The evaluation of a campaign as it is run; its trained policy comes first."""
    settings = campaign.evaluation
    if settings is None:
        raise ConfigError(f"campaign {campaign.name} has no section [evaluation], so there is nothing to evaluate")
    layout = CampaignLayout.of(campaign)
    fetch_policy(layout)
    checkpoint = layout.policy.resolve() / POLICY_NAME
    if not checkpoint.is_file():
        raise EvaluationError(f"{layout.policy / POLICY_NAME}: not trained yet; materialize trained_policy first")
    trained = EvaluatedPolicy(name=TRAINED, policy=LEARNED_POLICY, checkpoint=checkpoint)
    return EvaluationConfig(
        **settings.model_dump(exclude={"policies"}),
        campaign=campaign.name,
        policies=(trained, *settings.policies),
        output_dir=layout.evaluation,
    )
