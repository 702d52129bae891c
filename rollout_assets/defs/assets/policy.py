"""A campaign's policy as assets: trained on the promoted store, and evaluated on scenes that it has not seen."""

from __future__ import annotations

from typing import Any

import dagster as dg

from rollout_assets.defs.metadata import Metadata, data_version, frame_table, markdown_table, page, table
from rollout_assets.defs.step import CampaignStep, LogProgress
from rollout_assets.evaluation.result import RESULT_FILE, EvaluationFacts, PolicyEvaluation
from rollout_assets.evaluation.tables import spread_texts
from rollout_assets.learning.checkpoints import read_card
from rollout_assets.learning.training.run import read_metrics
from rollout_assets.rounds.evaluation import TRAINED, evaluate_campaign_policy
from rollout_assets.rounds.training import CampaignTraining, train_campaign_policy

CURVE_COLUMNS = (
    *("epoch", "loss", "validation_share_of_headroom", "validation_first_share", "validation_gain"),
    *("validation_regret", "validation_rank_correlation", "learning_rate", "best"),
)
"""What is shown of every epoch."""

FIGURES = ("gain", "over_random", "regret", "headroom", "headroom_lookahead", "first_headroom")
"""Figures of a policy, each with its interval."""

SHARES = ("headroom", "headroom_lookahead", "first_headroom")
"""Figures that are shown in percent."""

HASHES = ("candidate_config_hash", "oracle_config_hash", "target_config_hash", "source_manifest_hash")
"""What decides roots, views and labels of an evaluation."""


def trained_policy(step: CampaignStep) -> dg.MaterializeResult[None]:
    """Train the campaign's policy, or find it again."""
    training = train_campaign_policy(step.config, LogProgress(step.log))
    digest = training.result.checkpoint_sha256
    return dg.MaterializeResult(
        metadata=page(_training_metadata(training)), data_version=dg.DataVersion(data_version({"checkpoint": digest}))
    )


def _training_metadata(training: CampaignTraining) -> Metadata:
    result, card = training.result, read_card(training.result.checkpoint)
    metadata: Metadata = {
        "checkpoint": dg.MetadataValue.path(str(result.checkpoint)),
        "checkpoint_sha256": result.checkpoint_sha256,
        "training_config_hash": card.training_config_hash,
        "observation_layout": card.observation_layout,
        "stores": table([{"store": str(store)} for store in training.config.stores]),
        "store_manifests": table([{"sha256": digest} for digest in card.stores]),
        "head": card.head,
        "parameters": card.parameters,
        "scenes": len(card.scenes),
        "validation_scenes": len(card.validation_scenes),
        "epochs": result.epochs,
        "best_epoch": result.best_epoch,
        "stopped_by": result.stopped_by,
        "seconds": round(result.seconds, 1),
        **{name: float(value) for name, value in result.validation.items()},
        "learning_curve": markdown_table(_epochs(training)),
    }
    if training.curves is not None:
        metadata["curves"] = dg.MetadataValue.path(str(training.curves))
    return metadata


def _epochs(training: CampaignTraining) -> list[Metadata]:
    names = {name: name.removeprefix("validation_").replace("_", " ") for name in CURVE_COLUMNS}
    return [{short: row[name] for name, short in names.items()} for row in read_metrics(training.result.folder)]


def policy_evaluation(step: CampaignStep) -> dg.MaterializeResult[None]:
    """Evaluate the policy that was trained last."""
    evaluation = evaluate_campaign_policy(step.config, LogProgress(step.log))
    return dg.MaterializeResult(
        metadata=page(_evaluation_metadata(evaluation)),
        data_version=dg.DataVersion(data_version(_content(evaluation.facts))),
    )


def _evaluation_metadata(evaluation: PolicyEvaluation) -> Metadata:
    facts = evaluation.facts
    rows = evaluation.policies.sort("gain", descending=True).to_dicts()
    trained = next(row for row in rows if row["policy"] == TRAINED)
    numbers = [name for figure in FIGURES for name in (figure, f"{figure}_low", f"{figure}_high")]
    checkpoints = [
        {"policy": policy.name, "sha256": policy.checkpoint_sha256} for policy in facts.policies if policy.checkpoint
    ]
    return {
        "verdict": evaluation.verdict(TRAINED).sentence,
        "page": dg.MetadataValue.path(str(evaluation.page)),
        "result": dg.MetadataValue.path(str(evaluation.folder / RESULT_FILE)),
        "policies": markdown_table([_policy_row(row) for row in rows]),
        "comparisons": frame_table(evaluation.comparisons),
        **{name: float(trained[name]) for name in numbers if trained[name] is not None},
        "dagster/row_count": evaluation.outcomes.height,
        "roots": int(trained["roots"]),
        "scenes": int(trained["scenes"]),
        "horizon": facts.horizon,
        "split": facts.split,
        "checkpoints": table(checkpoints),
        **{name: getattr(facts, name) for name in HASHES},
    }


def _policy_row(row: dict[str, Any]) -> Metadata:
    """One line of the table of policies: every figure with its interval."""
    shown: Metadata = {"policy": row["policy"]}
    for name in FIGURES:
        value, interval = spread_texts(row, name, percent=name in SHARES)
        shown[name.replace("_", " ")] = f"{value} ({interval})" if interval else value
    return shown


def _content(facts: EvaluationFacts) -> Any:
    """What decides the figures: policies, stores, and how they are compared; not where anything lies."""
    return {
        "policies": [[policy.name, policy.policy, policy.checkpoint_sha256] for policy in facts.policies],
        "stores": [[seed.seed, seed.writer_config_hash, seed.store_sha256] for seed in facts.seeds],
        "bootstrap": facts.bootstrap.model_dump(mode="json"),
        "horizon": facts.horizon,
    }
