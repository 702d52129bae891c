"""Ticks with nothing new: a sensor that asked for nothing looks at stamps first, and at shards only when one changed.

The cursor of a sensor holds the stamps that were taken before its last look, and why that look asked for nothing. While
all of them are the same, so is the answer. Among them are the campaign, its plan, its source, its folders, and the last
records, unfinished runs and unfinished backfills of the instance. A marker that is edited in place changes none
of them, so that everything is looked at once an hour all the same.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dagster as dg

from rollout_assets.campaigns.columns.kept import file_stamp
from rollout_assets.campaigns.layout import CampaignLayout
from rollout_assets.config import canonical_hash
from rollout_assets.defs import keys as names
from rollout_assets.defs.automation.answer import Answer
from rollout_assets.defs.records import last_storage_id, unfinished_backfills, unfinished_runs
from rollout_assets.defs.step import CampaignStep
from rollout_assets.sources.layout import INDEX_FILE, MANIFEST_FILE

LOOK_ANYWAY_S = 3600.0
"""How long the answer of a look may be repeated."""


def unless_quiet(step: CampaignStep, cursor: str | None, look: Callable[[CampaignStep], Answer]) -> dg.SensorResult:
    """The answer of the last look if nothing has changed since, otherwise that of another look."""
    stamp, now = _stamp(step), time.time()
    before = _read(cursor)
    if stamp is not None and before.get("stamp") == stamp and now < float(before.get("good_until", 0)):
        return dg.SensorResult(skip_reason=str(before["reason"]), cursor=cursor)
    answer = look(step)
    if answer.requests or stamp is None:
        return answer.result()
    good_until = min(now + LOOK_ANYWAY_S, answer.good_until_s)
    return answer.result(json.dumps({"stamp": stamp, "good_until": good_until, "reason": answer.reason}))


def _read(cursor: str | None) -> dict[str, Any]:
    try:
        value = json.loads(cursor or "{}")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _stamp(step: CampaignStep) -> str | None:
    """A digest of everything that a look depends on; None for a campaign whose files have no stamps, behind a URL."""
    config, layout = step.config, CampaignLayout.of(step.config)
    source = config.source.store_dir
    if layout.url is not None or not isinstance(source, Path):
        return None
    files = [
        *(source / MANIFEST_FILE, source / INDEX_FILE),
        *(layout.plan, layout.claim, layout.pin, layout.promoted, layout.shards, layout.versions),
        *([] if config.split.file is None else [config.split.file]),
    ]
    recorded = (names.ROLLOUT_SHARD_PLAN, names.VALIDATED_SHARDS, names.ROLLOUTS_ZARR)
    return canonical_hash(
        {
            "campaign": config.model_dump(mode="json"),
            "files": [list(file_stamp(path)) for path in files],
            "records": [last_storage_id(step.instance, step.keys.key(name)) for name in recorded],
            "runs": sorted(run.run_id for run in unfinished_runs(step.instance)),
            "backfills": sorted(unfinished_backfills(step.instance)),
        }
    )
