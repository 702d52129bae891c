"""What the catalog says about the version that readers get; a rollback or a promotion may happen outside of Dagster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dagster as dg

from rollout_assets.campaigns.layout import CampaignLayout
from rollout_assets.campaigns.pin import read_pin
from rollout_assets.campaigns.versions import current_name
from rollout_assets.defs.home import open_instance
from rollout_assets.defs.keys import ROLLOUTS_ZARR, CampaignKeys
from rollout_assets.defs.records import promotion_in_progress

DESCRIPTION = "The version that readers get, which was changed outside of a run."


def readers_event(keys: CampaignKeys, instance: dg.DagsterInstance) -> dg.AssetObservation | None:
    """What the catalog must be told; None if its latest event names the version that readers get, and the pin.

    Nothing is told while a promotion is running, which tells it itself, and about a store that the catalog has never
    heard of, because its first promotion through Dagster is still to come.
    """
    layout, key = CampaignLayout.of(keys.config), keys.key(ROLLOUTS_ZARR)
    version, pin = current_name(layout), read_pin(layout)
    told = _latest(instance, key)
    if version is None or told is None or promotion_in_progress(instance, keys):
        return None
    facts = {"version": version, "pin": "" if pin is None else pin.holds}
    if {name: _text(told, name) for name in facts} == facts:
        return None
    return dg.AssetObservation(key, description=DESCRIPTION, metadata=facts)


def tell_catalog(campaign: str, home: Path) -> bool:
    """Tell the catalog of a home which version readers get, if its latest event says otherwise; returns whether."""
    keys = CampaignKeys.of(campaign)
    with open_instance(home) as instance:
        event = readers_event(keys, instance)
        if event is not None:
            instance.report_runless_asset_event(event)
    return event is not None


def _latest(instance: dg.DagsterInstance, key: dg.AssetKey) -> Any:
    """The latest materialization or observation of an asset, whichever came last; None if there is none."""
    events = [
        *instance.fetch_materializations(key, limit=1).records,
        *instance.fetch_observations(key, limit=1).records,
    ]
    if not events:
        return None
    last = max(events, key=lambda record: record.storage_id)
    return last.asset_materialization or last.asset_observation


def _text(event: Any, name: str) -> object:
    value = event.metadata.get(name)
    return "" if value is None else value.value
