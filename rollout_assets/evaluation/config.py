"""What is evaluated, on what and how closely: one frozen model, from a TOML file, the command line or Dagster."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

from pydantic import Field, ValidationError

from rollout_assets.config import UsablePath, shipped_campaigns
from rollout_assets.config.evaluation import EvaluatedPolicy, EvaluationSettings
from rollout_assets.config.problems import problems_list
from rollout_assets.errors import ConfigError
from rollout_assets.parsing import expand_path, read_toml_file


class EvaluationConfig(EvaluationSettings):
    """Policies, the held-out roots they are run on, and how closely the results are looked at."""

    campaign: str = Field(description="Source, targets, candidates, oracle and splits come from this campaign.")
    campaign_settings: dict[str, Any] = Field(
        default_factory=dict, description="Keys of the campaign that are replaced, such as oracle.device."
    )
    policies: tuple[EvaluatedPolicy, ...] = Field(min_length=1, description="What is compared with the references.")
    output_dir: UsablePath = Field(description="Stores, tables and the page go here.")

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise ConfigError(problems_list("evaluation", error, type(self))) from None

    @classmethod
    def of(cls, values: dict[str, Any]) -> Self:
        """A configuration from keys of a file and a command line; what is None is left to its default."""
        return cls(**{name: value for name, value in values.items() if value is not None})


def read_evaluation_file(path: Path) -> dict[str, Any]:
    """The keys of an evaluation's TOML file. Relative paths in it mean relative to the file, as in a campaign file."""
    values = read_toml_file(path)
    folder = path.resolve().parent
    if isinstance(values.get("output_dir"), str):
        values["output_dir"] = folder / expand_path(values["output_dir"])
    campaign = values.get("campaign")
    if isinstance(campaign, str) and campaign not in shipped_campaigns():
        values["campaign"] = str(folder / expand_path(campaign))
    if isinstance(values.get("policies"), list):
        values["policies"] = [_policy_below(folder, policy, path) for policy in values["policies"]]
    return values


def _policy_below(folder: Path, policy: Any, path: Path) -> EvaluatedPolicy:
    try:
        return EvaluatedPolicy.model_validate(policy).below(folder)
    except ValidationError as error:
        raise ConfigError(problems_list(f"{path}: policies", error, EvaluatedPolicy)) from None
