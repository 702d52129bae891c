"""A rollout request and its result as JSON: what collection files hold and what a server reads and writes."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from rollout_assets.config import Count, Natural, NonNegative, Positive, RolloutRecipeConfig, Seed, SmallCount

Index = Natural
Payload = Literal["chains", "record"]
EndReason = Literal["horizon", "dead_end", "no_takeable_view", "max_rollout_steps", "max_views_scored"]
"""Why a rollout ended: naturally (the first two), not at all begun, or truncated by a limit (the last two)."""


class Message(BaseModel):
    """Unknown keys are refused. Keys that begin with an underscore are the collector's own stamps."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class AgentRef(Message):
    """Who runs a request: a recipe by its name."""

    name: Annotated[str, Field(min_length=1)]


class RequestPart(Message):
    """What a client sends. Null means the default of a field."""

    @model_validator(mode="before")
    @classmethod
    def _leave_out_nulls(cls, given: Any) -> Any:
        return {name: value for name, value in given.items() if value is not None} if isinstance(given, dict) else given


class RolloutParams(RequestPart):
    """What a request changes about its recipe; a field left out keeps the recipe's value.

    ``max_rollout_steps`` and ``max_views_scored`` are limits of the rollout, not of the recipe: what they cut is
    truncated.
    """

    max_rollout_steps: SmallCount | None = None
    max_views_scored: Count | None = None
    horizon: SmallCount | None = None
    temperature: Positive | None = None
    branch: Any = None
    beam_width: SmallCount | None = None
    min_history_distance_m: NonNegative | None = None
    min_sibling_distance_m: NonNegative | None = None


class RolloutRequest(RequestPart):
    """One rollout to run: a source row by key or index, a target by id or rank, and a recipe by name or in full.

    ``seed`` defaults to the campaign's own. ``include`` asks for payloads beside the plain result: the chains, or the
    record that a rollout store takes.
    """

    sample_key: str | None = None
    source_row: Index | None = None
    target: str | Index = 0
    recipe: str | RolloutRecipeConfig | None = None
    agent_ref: AgentRef | None = None
    seed: Seed | None = None
    params: RolloutParams = RolloutParams()
    include: tuple[Payload, ...] = ()
    task_index: Index | None = Field(None, alias="_task_index")
    rollout_index: Index | None = Field(None, alias="_rollout_index")
    row_index: Index | None = Field(None, alias="_rowidx")

    @model_validator(mode="after")
    def _one_of_each(self) -> Self:
        if (self.sample_key is None) == (self.source_row is None):
            raise ValueError("name the source row by sample_key or by source_row, one of the two")
        if self.recipe is not None and self.agent_ref is not None:
            raise ValueError("name recipe or agent_ref, not both")
        return self

    @property
    def agent_name(self) -> str | None:
        """Name of the recipe, however it was given."""
        if self.agent_ref is not None:
            return self.agent_ref.name
        return self.recipe.name if isinstance(self.recipe, RolloutRecipeConfig) else self.recipe


class RolloutResult(Message):
    """One rollout run. Everything but its timings is the same to the bit wherever and however often it is run.

    A target without a label gets no rollout: ``status`` is ``refused``, with the reason, and there is no reward. A root
    at which no view can be taken has no reward and no steps either; ``end_reason`` says so. Errors and points are what
    the oracle knew of the target at the root and at the end. ``content_sha256`` is the digest of the record that a
    store would take, depth images included. ``step_timings_s`` has one entry per entry of ``steps``.
    """

    sample_key: str
    source_row: int
    split: str
    target_id: str
    target_rank: int
    agent_ref: AgentRef
    seed: int
    status: Literal["completed", "refused"]
    refused_reason: str | None = None
    reward: float | None
    num_steps: int
    views_scored: int
    mean_valid_fanout: float | None
    root_error_m2: float | None
    final_error_m2: float | None
    root_points: int | None
    final_points: int | None
    truncated: bool
    truncation_reason: EndReason | None
    end_reason: EndReason | None
    steps: tuple[dict[str, Any], ...]
    content_sha256: str
    timings_s: dict[str, float]
    step_timings_s: tuple[float, ...]
    chains: str | None = None
    record: str | None = None
    task_index: Index | None = Field(None, alias="_task_index")
    rollout_index: Index | None = Field(None, alias="_rollout_index")
    row_index: Index | None = Field(None, alias="_rowidx")
    attempt: Index | None = Field(None, alias="_attempt")
