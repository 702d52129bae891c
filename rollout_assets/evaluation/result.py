"""What an evaluation found: its tables, where they come from, and what they say about each policy.

<output_dir>/evaluation.json         every table but the outcomes, with hashes; written last
             outcomes.parquet        one row per policy, draw, seed and root
             evaluation.html         the page
             evaluation_rollouts/    3-D pages of failures
             campaigns/seed-12-…/    a campaign per seed: plan, shards, promoted store
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import polars as pl
from pydantic import ValidationError

from rollout_assets.config import ConfigSection
from rollout_assets.config.problems import problems_text
from rollout_assets.errors import EvaluationError
from rollout_assets.evaluation.bootstrap import Estimate
from rollout_assets.evaluation.config import BootstrapConfig
from rollout_assets.evaluation.roster import GREEDY, RANDOM, Role
from rollout_assets.files import file_sha256, publish_bytes, publish_json
from rollout_assets.parsing import parse_json, read_text_file

RESULT_FILE, OUTCOMES_FILE, PAGE_FILE = "evaluation.json", "outcomes.parquet", "evaluation.html"

EVALUATION_VERSION: Literal["policy-evaluation-v1"] = "policy-evaluation-v1"

_TABLES = ("policies", "views", "comparisons", "groups", "failures")


class PolicyFacts(ConfigSection):
    """A contestant and what its checkpoint says. ``trained_on`` counts scenes; ``seen_scenes`` were evaluated too."""

    name: str
    role: Role
    policy: str
    draws: int
    checkpoint: str | None = None
    checkpoint_sha256: str | None = None
    trained_on: int | None = None
    seen_scenes: tuple[str, ...] = ()


class SeedFacts(ConfigSection):
    """One campaign of an evaluation: where it is, what decided its bytes, and what it could not use."""

    seed: int
    folder: str
    writer_config_hash: str
    store_sha256: str
    source_rows: int
    skipped_rows: tuple[str, ...]
    targets: int
    refused_targets: dict[str, int]


class EvaluationFacts(ConfigSection):
    """Where an evaluation's figures come from."""

    evaluation_version: Literal["policy-evaluation-v1"] = EVALUATION_VERSION
    package_version: str
    campaign: str
    split: str
    horizon: int
    scenes: tuple[str, ...]
    candidate_config_hash: str
    oracle_config_hash: str
    target_config_hash: str
    source_manifest_hash: str
    bootstrap: BootstrapConfig
    policies: tuple[PolicyFacts, ...]
    seeds: tuple[SeedFacts, ...]

    @property
    def named(self) -> tuple[str, ...]:
        """The policies that were asked about, without the references."""
        return tuple(policy.name for policy in self.policies if policy.role == "policy")


@dataclass(frozen=True)
class PolicyVerdict:
    """What an evaluation says about one policy. ``beats`` and ``loses_to`` are those the intervals are clear about."""

    policy: str
    roots: int
    scenes: int
    confidence: float
    over_random: Estimate
    headroom: Estimate
    beats: tuple[str, ...]
    loses_to: tuple[str, ...]
    undecided: tuple[str, ...]
    seen_scenes: tuple[str, ...]

    @property
    def beats_random(self) -> bool:
        """Whether the policy gains more than ``random_valid``, the whole interval of the difference above zero."""
        return RANDOM in self.beats

    @property
    def sentence(self) -> str:
        """The verdict in one sentence."""
        against = "beats" if self.beats_random else "is not shown to beat"
        against = "loses to" if RANDOM in self.loses_to else against
        others = [name for name in self.beats if name != RANDOM]
        beaten = f", and beats {', '.join(others)}" if others else ""
        return f"{self.policy} {against} {RANDOM} {self._difference}{self._headroom}{beaten}; on {self._ground}."

    @property
    def _difference(self) -> str:
        value = self.over_random
        return f"({_signed(value.value)} root gain, {_interval(value, _signed)})"

    @property
    def _headroom(self) -> str:
        if self.headroom.value is None:
            return f", where {GREEDY} does not gain more than {RANDOM} either"
        share = f"{_percent(self.headroom.value)} ({_interval(self.headroom, _percent)})"
        return f", recovers {share} of the headroom to {GREEDY}"

    @property
    def _ground(self) -> str:
        seen = f", {len(self.seen_scenes)} of them seen in training" if self.seen_scenes else ""
        return f"{self.roots:,} roots of {self.scenes:,} scenes{seen}"


@dataclass(frozen=True, eq=False)
class PolicyEvaluation:
    """Policies compared on the same roots. All gains are root gains: shares of the target's error at its root.

    ``outcomes`` has a row per policy, draw and root, ``policies`` per policy, ``views`` per policy and view taken,
    ``comparisons`` per pair of policies, ``groups`` per class, scene and difficulty, ``failures`` per bad case.
    A figure ``x`` has the interval ``x_low`` to ``x_high``.
    """

    folder: Path
    facts: EvaluationFacts
    outcomes: pl.DataFrame
    policies: pl.DataFrame
    views: pl.DataFrame
    comparisons: pl.DataFrame
    groups: pl.DataFrame
    failures: pl.DataFrame

    @property
    def page(self) -> Path:
        """The page about it."""
        return self.folder / PAGE_FILE

    def verdict(self, policy: str | None = None) -> PolicyVerdict:
        """What is known about a policy; by default about the first that was asked about."""
        policy = self.facts.named[0] if policy is None else policy
        if policy not in self.facts.named:
            raise EvaluationError(f"no policy {policy} was evaluated; there are {', '.join(self.facts.named)}")
        row = self.policies.row(by_predicate=pl.col("policy") == policy, named=True)
        pairs = self.comparisons.filter(pl.col("policy") == policy)
        by_word = {word: tuple(pairs.filter(pl.col("verdict") == word)["against"].to_list()) for word in _WORDS}
        facts = next(facts for facts in self.facts.policies if facts.name == policy)
        return PolicyVerdict(
            policy=policy,
            roots=row["roots"],
            scenes=row["scenes"],
            confidence=self.facts.bootstrap.confidence,
            over_random=_estimate(row, "over_random"),
            headroom=_estimate(row, "headroom"),
            beats=by_word["better"],
            loses_to=by_word["worse"],
            undecided=by_word["undecided"],
            seen_scenes=facts.seen_scenes,
        )

    def to_jsonable(self) -> dict[str, Any]:
        """Everything but the outcomes as plain JSON values; equal evaluations give equal values."""
        verdicts = {name: self.verdict(name) for name in self.facts.named}
        return {
            "facts": self.facts.model_dump(mode="json"),
            "verdicts": {name: _verdict_json(verdict) for name, verdict in verdicts.items()},
            **{name: [_plain(row) for row in getattr(self, name).to_dicts()] for name in _TABLES},
        }

    def write(self) -> Path:
        """Write outcomes, then all other tables; whoever finds ``evaluation.json`` finds both."""
        buffer = io.BytesIO()
        self.outcomes.write_parquet(buffer)
        publish_bytes(self.folder / OUTCOMES_FILE, buffer.getvalue())
        digest = file_sha256(self.folder / OUTCOMES_FILE)
        publish_json(self.folder / RESULT_FILE, self.to_jsonable() | {"outcomes_sha256": digest})
        return self.folder / RESULT_FILE


_WORDS = ("better", "worse", "undecided")


def read_evaluation(folder: Path) -> PolicyEvaluation:
    """A finished evaluation again; one that is not there, cut off or of another version is an ``EvaluationError``."""
    path = folder / RESULT_FILE
    try:
        values = parse_json(read_text_file(path))
        facts = EvaluationFacts.model_validate(values["facts"])
        tables = {name: pl.DataFrame(values[name], infer_schema_length=None) for name in _TABLES}
        matches = values["outcomes_sha256"] == file_sha256(folder / OUTCOMES_FILE)
    except FileNotFoundError as error:
        missing = Path(error.filename or path).name
        raise EvaluationError(f"{folder}: no finished evaluation, {missing} is missing; run the evaluation") from None
    except ValidationError as error:
        raise EvaluationError(
            f"{path}: of another version or damaged: {problems_text(error, EvaluationFacts)}"
        ) from None
    except (ValueError, KeyError, TypeError) as error:
        raise EvaluationError(f"{path}: is not an evaluation: {error}; run the evaluation again") from None
    if not matches:
        raise EvaluationError(
            f"{folder / OUTCOMES_FILE}: is not the one that {RESULT_FILE} was made from; run it again"
        )
    return PolicyEvaluation(folder, facts, pl.read_parquet(folder / OUTCOMES_FILE), **tables)


def _estimate(row: Mapping[str, Any], name: str) -> Estimate:
    return Estimate(row[name], row[f"{name}_low"], row[f"{name}_high"])


def _verdict_json(verdict: PolicyVerdict) -> dict[str, Any]:
    return {
        "beats_random": verdict.beats_random,
        "beats": list(verdict.beats),
        "loses_to": list(verdict.loses_to),
        "undecided": list(verdict.undecided),
        "sentence": verdict.sentence,
    }


def _plain(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in row.items()
    }


def _interval(value: Estimate, text: Any) -> str:
    if value.low is None or value.high is None:
        return "no interval"
    return f"{text(value.low)} to {text(value.high)}"


def _signed(value: float | None) -> str:
    return "unknown" if value is None else f"{value:+.4f}".replace("-", "−")


def _percent(value: float) -> str:
    return f"{100 * value:.0f} %".replace("-", "−")
