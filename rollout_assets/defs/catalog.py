"""What the catalog says about the version that readers get; a rollback or a promotion may happen outside of Dagster."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import dagster as dg

from rollout_assets.campaigns.layout import CampaignLayout
from rollout_assets.campaigns.pin import read_pin
from rollout_assets.campaigns.versions import current_name, current_version
from rollout_assets.defs.assets.store import store_data_version, version_metadata
from rollout_assets.defs.home import open_instance
from rollout_assets.defs.keys import DATA_VERSION_TAG, ROLLOUTS_ZARR, CampaignKeys
from rollout_assets.defs.metadata import page
from rollout_assets.defs.records import described_version, promotion_in_progress
from rollout_assets.errors import RolloutAssetsError

DESCRIPTION = "The version that readers get, which was changed outside of a promotion run."


def readers_event(
    keys: CampaignKeys, instance: dg.DagsterInstance
) -> dg.AssetMaterialization | dg.AssetObservation | None:
    """The event that the catalog lacks; None if its latest events describe the version that readers get, and the pin.

    Another version than the last materialization is about is a materialization, because pages show that; a change of
    the pin alone is an observation. Nothing is recorded while a promotion is running, which records it itself, or about
    a store that the catalog does not have, because its first promotion through Dagster is still to come.
    """
    layout, key = CampaignLayout.of(keys.config), keys.key(ROLLOUTS_ZARR)
    version, pin = current_name(layout), read_pin(layout)
    described = described_version(instance, key)
    if version is None or described is None or promotion_in_progress(instance, keys):
        return None
    facts = {"version": version, "pin": "" if pin is None else pin.holds}
    if described != version:
        with suppress(RolloutAssetsError):  # of a damaged version only the name is recorded
            return _materialization(keys, facts)
    told = _latest(instance, key)
    if {name: _text(told, name) for name in facts} == facts:
        return None
    return dg.AssetObservation(key, description=DESCRIPTION, metadata=facts)


def _materialization(keys: CampaignKeys, facts: dict[str, str]) -> dg.AssetMaterialization:
    """The version that readers get as a promotion would show it, without what only a promotion knows."""
    version = current_version(keys.config)
    contents = version_metadata(CampaignLayout.of(keys.config), version)
    return dg.AssetMaterialization(
        keys.key(ROLLOUTS_ZARR),
        description=DESCRIPTION,
        metadata=page({"verdict": f"readers get {version.name}", **facts, **contents}),
        tags={DATA_VERSION_TAG: store_data_version(version.record)},
    )


def tell_catalog(campaign: str, home: Path) -> bool:
    """Tell the catalog of a home which version readers get, if its latest event says otherwise; returns whether."""
    keys = CampaignKeys.of(campaign)
    with open_instance(home) as instance:
        event = readers_event(keys, instance)
        if event is not None:
            instance.report_runless_asset_event(event)
    return event is not None


def _latest(instance: dg.DagsterInstance, key: dg.AssetKey) -> Any:
    """The latest materialization or observation of an asset that was materialized, whichever came last."""
    events = [
        *instance.fetch_materializations(key, limit=1).records,
        *instance.fetch_observations(key, limit=1).records,
    ]
    last = max(events, key=lambda record: record.storage_id)
    return last.asset_materialization or last.asset_observation


def _text(event: Any, name: str) -> object:
    value = event.metadata.get(name)
    return "" if value is None else value.value
