"""What a policy that users bring is: observations of many states in, a score per candidate out."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from rollout_assets.config.observation import ObservationConfig
from rollout_assets.config.policy_names import POLICY_GROUP
from rollout_assets.geometry.poses import Float64
from rollout_assets.observations.observation import Arrays, Observations

__all__ = ["POLICY_GROUP", "PolicyFactory", "ViewPolicy"]


class ViewPolicy(Protocol):
    """Scores views from what the actor knows. Threads may share one.

    A state's scores must not depend on the states beside it, to the bit, because how states are batched is a matter of
    the machine. A policy that computes with floats should round what it returns well above its rounding errors.
    """

    @property
    def observation(self) -> ObservationConfig:
        """What it wants to be shown."""

    @property
    def score_source(self) -> str:
        """Names the scores in stores."""

    def scores(self, observations: Observations[Arrays]) -> Float64:
        """(b, k) scores, higher is better; rows that cannot be taken are not looked at."""


class PolicyFactory(Protocol):
    """What an entry point of ``POLICY_GROUP`` names."""

    def __call__(self, checkpoint: Path | None) -> ViewPolicy:
        """The policy of a checkpoint, or without one; ``PolicyRefused`` in one line if that is not possible."""
