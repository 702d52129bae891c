"""One share of a campaign's shards, for a job array whose tasks know nothing of each other but their number.

Task I of N builds every Nth planned shard, beginning with the Ith. No task leads: each plans, which changes nothing
when another has planned already, and a plan only grows at its end, so that the shares stay what they are while it does.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from rollout_assets.campaigns.plan import ShardPlan, write_rollout_shard_manifest_from_config
from rollout_assets.config import CampaignConfig
from rollout_assets.errors import ConfigError, ShardBusy

TASK_ID, TASK_COUNT, TASK_MIN, TASK_MAX, TASK_STEP = SLURM_VARIABLES = (
    "SLURM_ARRAY_TASK_ID",
    "SLURM_ARRAY_TASK_COUNT",
    "SLURM_ARRAY_TASK_MIN",
    "SLURM_ARRAY_TASK_MAX",
    "SLURM_ARRAY_TASK_STEP",
)
"""What Slurm tells every task of an array."""

MOST_TASKS = 1_000_000
"""More tasks than any scheduler has in one array."""

PLAN_PATIENCE_S = 900.0
"""How long a task waits while others of its array plan, which each does for a moment, one after another."""

_SHARE = re.compile(r"([0-9]{1,7})/([0-9]{1,7})")
_NUMBER = re.compile(r"[0-9]{1,9}")

Entry = TypeVar("Entry")


@dataclass(frozen=True)
class ArrayShare:
    """Which of ``count`` tasks this is; ``index`` counts from 0."""

    index: int
    count: int

    def __post_init__(self) -> None:
        if not 1 <= self.count <= MOST_TASKS:
            raise ConfigError(f"an array has 1 to {MOST_TASKS:,} tasks, got {self.count}")
        if not 0 <= self.index < self.count:
            raise ConfigError(
                f"the tasks of this array are 0/{self.count} to {self.count - 1}/{self.count}, got {self}"
            )

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"

    @classmethod
    def parse(cls, text: str) -> ArrayShare:
        """``0/4`` to ``3/4``."""
        match = _SHARE.fullmatch(text)
        if match is None:
            raise ConfigError(f"an array task must be I/N with I from 0 to N-1, for example 0/4, got {text!r}")
        return cls(int(match[1]), int(match[2]))

    @classmethod
    def of_slurm(cls, environment: Mapping[str, str]) -> ArrayShare | None:
        """The task that Slurm started, from its variables; None outside an array.

        An array must be a range, with a step or without: in a list with gaps a task cannot tell its place.
        """
        if TASK_ID not in environment:
            return None
        if TASK_COUNT not in environment:
            raise ConfigError(f"{TASK_ID} is set and {TASK_COUNT} is not; give --array I/N")
        task, count = _number(environment, TASK_ID), _number(environment, TASK_COUNT)
        first = _number(environment, TASK_MIN, 0)
        step = max(_number(environment, TASK_STEP, 1), 1)
        last = _number(environment, TASK_MAX, first + max(count - 1, 0) * step)
        if count and (last != first + (count - 1) * step or (task - first) % step):
            raise ConfigError(
                f"the array has {count} tasks from {first} to {last} in steps of {step}, which is not a whole range; "
                f"submit it as --array=0-{count - 1}, or give --array I/N"
            )
        return cls((task - first) // step, count)

    def of(self, entries: Sequence[Entry]) -> Sequence[Entry]:
        """The share of some entries that belongs to this task; all shares together are the whole, without overlap."""
        return entries[self.index :: self.count]


def plan_as_one_of_many(config: CampaignConfig, patience_s: float = PLAN_PATIENCE_S) -> ShardPlan:
    """Plan a campaign that other tasks plan at the same time: whoever comes first writes it, the others find it."""
    deadline = time.monotonic() + patience_s
    while True:
        try:
            return write_rollout_shard_manifest_from_config(config)
        except ShardBusy:  # planning has waited for a while itself
            if time.monotonic() >= deadline:
                raise


def _number(environment: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = environment.get(name, "" if default is None else str(default))
    if not _NUMBER.fullmatch(text):
        raise ConfigError(f"{name} must be a number as Slurm sets it, got {text!r}; or give --array I/N")
    return int(text)
