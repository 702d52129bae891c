"""How good policies are: rolled out on held-out scenes, scored by the oracle, compared root by root."""

from rollout_assets.evaluation.accepted import (
    AcceptedComparison as AcceptedComparison,
    compare_to_accepted as compare_to_accepted,
)
from rollout_assets.evaluation.bootstrap import Estimate as Estimate, PairedMeans as PairedMeans
from rollout_assets.evaluation.config import (
    BootstrapConfig as BootstrapConfig,
    EvaluatedPolicy as EvaluatedPolicy,
    EvaluationConfig as EvaluationConfig,
)
from rollout_assets.evaluation.result import (
    EvaluationFacts as EvaluationFacts,
    PolicyEvaluation as PolicyEvaluation,
    PolicyVerdict as PolicyVerdict,
    read_evaluation as read_evaluation,
)
from rollout_assets.evaluation.run import evaluate_policies as evaluate_policies
