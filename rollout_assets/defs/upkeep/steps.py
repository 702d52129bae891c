"""What the jobs rollback, unpin and clean do, and what they leave in the instance about it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import dagster as dg

from rollout_assets.campaigns.cleaning.clean import clean_campaign
from rollout_assets.campaigns.layout import CampaignLayout
from rollout_assets.campaigns.pin import read_pin
from rollout_assets.campaigns.versions import (
    current_name,
    present_pin,
    rollback_promotion,
    rollback_target,
    unpin_promotion,
)
from rollout_assets.config import load_campaign
from rollout_assets.defs.catalog import readers_event
from rollout_assets.defs.keys import ROLLOUTS_ZARR, CampaignKeys
from rollout_assets.defs.metadata import Metadata, page, table
from rollout_assets.defs.upkeep.old_runs import clean_recorded_runs


def roll_back(keys: CampaignKeys, context: dg.OpExecutionContext, version: str, *, apply: bool) -> None:
    """Make an earlier version current again and pin readers to it; only name it unless ``apply``."""
    config = load_campaign(keys.campaign)
    target = rollback_target(config, version or None)
    before = current_name(CampaignLayout.of(config))
    if not apply:
        context.log.info(
            f"readers would get {target.name} instead of {before}; 'apply: true' in the run config does it"
        )
        return
    rollback_promotion(config, target.name)
    context.log.info(f"readers get {target.name} instead of {before}, until the job {keys.job('unpin')} is run")
    if (event := readers_event(keys, context.instance)) is not None:
        context.log_event(event)
    _record(keys, context, "The version that readers get since a rollback.", {"version_before": before or ""})


def unpin(keys: CampaignKeys, context: dg.OpExecutionContext, *, apply: bool) -> None:
    """Lift the pin of a rollback; only name it unless ``apply``."""
    config = load_campaign(keys.campaign)
    pin = unpin_promotion(config) if apply else present_pin(config)
    if pin is None:
        context.log.info("nothing is pinned: every promotion moves readers on")
        return
    if not apply:
        context.log.info(f"{pin.holds}; the next promotion moves them on once 'apply: true' in the run config lifts it")
        return
    context.log.info(f"the pin is lifted: {pin.holds}; the next promotion moves them on")
    _record(keys, context, "The pin of a rollback was lifted; the next promotion moves readers on.", {})


def clean(keys: CampaignKeys, context: dg.OpExecutionContext, *, apply: bool) -> None:
    """List what nobody needs any more, and remove it if ``apply``."""
    cleaning = clean_campaign(load_campaign(keys.campaign), apply=apply)
    home = Path(context.instance.root_directory)
    runs = clean_recorded_runs(keys, context.instance, home, apply=apply, besides=context.run_id)
    found = (*cleaning.found, *runs)
    removed = (*cleaning.removed, *runs) if apply else ()
    for reason in cleaning.kept_back:
        context.log.warning(f"kept back: {reason}")
    sizes: Counter[str] = Counter()
    for item in found:
        sizes[item.kind] += item.bytes
    counts: Counter[str] = Counter(item.kind for item in found)
    facts: Metadata = {
        "verdict": f"{len(removed)} of {len(found)} things removed" if apply else f"{len(found)} things may go",
        "found": len(found),
        "removed": len(removed),
        "bytes": sum(sizes.values()),
        "kinds": table([{"kind": kind, "count": counts[kind], "bytes": sizes[kind]} for kind in sizes]),
        "things": table([{"kind": item.kind, "name": item.name, "why it may go": item.why} for item in found]),
    }
    context.log.info(f"{facts['verdict']}, {facts['bytes'] / 1e6:,.1f} MB")
    _record(keys, context, "What a cleaning removed." if apply else "What a cleaning would remove.", facts)


def _record(keys: CampaignKeys, context: dg.OpExecutionContext, description: str, facts: Metadata) -> None:
    """Let the page of the promoted store show what happened, with the version that readers get and its pin."""
    layout = CampaignLayout.of(load_campaign(keys.campaign))
    pin = read_pin(layout)
    state = {"version": current_name(layout) or "", "pin": "" if pin is None else pin.holds}
    context.log_event(
        dg.AssetObservation(keys.key(ROLLOUTS_ZARR), description=description, metadata=page({**facts, **state}))
    )
