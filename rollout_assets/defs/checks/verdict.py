"""What a check concluded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import dagster as dg


@dataclass(frozen=True)
class Verdict:
    """Whether a check passed, and what it found. A check that did not pass is an error unless it only warns."""

    check: str
    passed: bool
    metadata: Mapping[str, Any] = field(default_factory=dict)
    warns: bool = False
    description: str | None = None

    def result(self, asset: dg.AssetKey) -> dg.AssetCheckResult:
        """The verdict in Dagster's terms."""
        return dg.AssetCheckResult(
            passed=self.passed,
            asset_key=asset,
            check_name=self.check,
            severity=dg.AssetCheckSeverity.WARN if self.warns else dg.AssetCheckSeverity.ERROR,
            description=self.description,
            metadata=self.metadata,
        )
