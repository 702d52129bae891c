"""Which planned shards are finished and current, by columns; whoever finds another one asks ``shard_problems`` why."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollout_assets.campaigns.columns.folders import ShardFolders
from rollout_assets.campaigns.columns.marker_columns import FinishedShards, built_numbers
from rollout_assets.campaigns.layout import CampaignLayout
from rollout_assets.campaigns.markers import source_files_changed
from rollout_assets.campaigns.objects.working_copy import refresh_shards
from rollout_assets.campaigns.plan import read_rollout_shard_manifest
from rollout_assets.campaigns.plan_entry import PlannedShards
from rollout_assets.config import CampaignConfig
from rollout_assets.errors import MeshError
from rollout_assets.locations.url import ObjectUrl
from rollout_assets.sources.vin_store import VinOfflineStore


@dataclass(frozen=True, eq=False)
class CampaignSurvey:
    """The planned shards of a campaign, its folders, and the finished shards among them."""

    planned: PlannedShards
    folders: ShardFolders
    finished: FinishedShards

    @classmethod
    def of(cls, config: CampaignConfig, planned: PlannedShards | None = None) -> CampaignSurvey:
        """Look at a campaign as it is now."""
        planned = read_rollout_shard_manifest(config) if planned is None else planned
        layout = CampaignLayout.of(config)
        refresh_shards(layout)
        folders = ShardFolders.look(layout)
        built = [number for number in built_numbers(folders.built) if number < len(planned)]
        return cls(planned, folders, FinishedShards.look(layout, built, len(planned)))

    def current(self, source: VinOfflineStore | None = None) -> NDArray[np.bool_]:
        """(shards,) which shards ``shard_problems`` would find nothing wrong with, without reading every byte."""
        finished, planned = self.finished, self.planned.columns
        there = finished.place >= 0
        rows = finished.place[there]
        current = there.copy()
        current[there] = (finished.columns["entry"][rows] == planned.digests[there]) & ~finished.columns["faults"][rows]
        if source is not None and not isinstance(source.location, ObjectUrl):  # objects are never changed in place
            current &= ~self._changed_meshes(source) & ~self._changed_sources(source)
        return current

    def content(self, number: int) -> str | None:
        """Digest of a finished shard's content; None for one without a store."""
        return self.finished.lists["content"][self.finished.place[number]] or None

    def _changed_meshes(self, source: VinOfflineStore) -> NDArray[np.bool_]:
        """(shards,) which finished shards were scored with another mesh than the present one of a scene."""
        scenes = self.planned.columns.names["scenes"]

        @cache
        def present(scene: str) -> str | None:
            try:
                return source.meshes.known_hash(scene) if source.meshes.find(scene) is not None else None
            except MeshError:
                return None

        def changed(meshes: Mapping[str, Any], scene: int) -> bool:
            name = scenes[scene]
            return bool(meshes.get(name) != present(name))

        return self._shards_where("meshes", self.planned.columns.scene, changed)

    def _changed_sources(self, source: VinOfflineStore) -> NDArray[np.bool_]:
        """(shards,) which finished shards were built from other files than those of the present source."""
        names = self.planned.columns.names["source_shards"]
        folders = {shard.shard_id: shard for shard in source.manifest.shards}

        @cache
        def differs(name: str, seal: tuple[str, str] | None) -> bool:
            return seal is None or source_files_changed(source.shard_dir(folders[name], anew=True), *seal)

        def changed(seals: Mapping[str, Any], number: int) -> bool:
            name, seal = names[number], seals.get(names[number])
            return name in folders and differs(name, None if seal is None else (seal[0], seal[1]))

        return self._shards_where("sources", self.planned.columns.source_shard, changed)

    def _shards_where(self, text: str, codes: NDArray[np.int32], changed: Any) -> NDArray[np.bool_]:
        """(shards,) finished shards for which ``changed`` holds of a text, parsed, and one of the codes of its rows."""
        planned, finished = self.planned.columns, self.finished
        parsed = [json.loads(value) for value in finished.texts[text]]
        pairs = finished.pairs(text, planned.shard_of_row, codes)
        bad = {pair for pair in pairs if changed(parsed[pair[0]], pair[1])}
        if not bad:
            return np.zeros(len(planned), np.bool_)
        place = finished.place[planned.shard_of_row]
        there = np.flatnonzero(place >= 0)
        of_row = zip(finished.columns[text][place[there]].tolist(), codes[there].tolist(), strict=True)
        mask = np.zeros(planned.num_rows, np.bool_)
        mask[there[[pair in bad for pair in of_row]]] = True
        return planned.shards_with(mask)
