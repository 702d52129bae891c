"""What a check concluded, in Dagster's terms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import dagster as dg


def verdict(
    check: str, passed: bool, metadata: Mapping[str, Any], *, warns: bool = False, description: str | None = None
) -> dg.AssetCheckResult:
    """Whether a check passed, and what it found. A check that did not pass is an error unless it only warns."""
    severity = dg.AssetCheckSeverity.WARN if warns else dg.AssetCheckSeverity.ERROR
    return dg.AssetCheckResult(
        passed=passed, check_name=check, severity=severity, description=description, metadata=metadata
    )


def evaluation(
    key: dg.AssetKey, result: dg.AssetCheckResult, blocking: bool = False, partition: str | None = None
) -> dg.AssetCheckEvaluation:
    """A result as the instance keeps it, of one partition if it is given."""
    return dg.AssetCheckEvaluation(
        asset_key=key,
        check_name=str(result.check_name),
        passed=result.passed,
        metadata=result.metadata,
        severity=result.severity,
        description=result.description,
        blocking=blocking,
        partition=partition,
    )
