"""What is made of each split of a promoted store: its second opinion and its page, splits of some size side by side.

Processes that do so import this module, and with it neither Dagster nor, before they need it, Warp or Plotly.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

from rollout_assets.campaigns.derived import DerivedFiles, derived_record, inputs_digest
from rollout_assets.campaigns.layout import CampaignLayout
from rollout_assets.campaigns.objects.publishing import publish_folder
from rollout_assets.campaigns.objects.working_copy import fetch_folder
from rollout_assets.campaigns.plan import open_source
from rollout_assets.campaigns.versions import PromotedVersion
from rollout_assets.config import CampaignConfig
from rollout_assets.errors import StoreDamaged
from rollout_assets.files import file_sha256
from rollout_assets.inspection.stored_opinion import SecondOpinion, publish_opinion, read_opinion
from rollout_assets.locations.url import Location
from rollout_assets.progress import ProgressSink
from rollout_assets.rollouts.zarr_store.reader import RolloutZarrStoreReader
from rollout_assets.workers import run_tasks

SECONDS_PER_SPLIT = 60.0
"""Time after which no further label of a split is measured again; the result says how many were left out."""

WORTH_A_PROCESS = 4_096
"""Candidates of a split from which on its turn takes longer than starting a process for it."""

HEALS = "'rollout-assets campaign promote', or the job that promotes, builds it again from its shards"
"""The way out of a damaged version."""


@contextmanager
def naming(version: str, split: str) -> Iterator[None]:
    """Let damage that is met on the way name the version and the split that it is in, and the way out."""
    try:
        yield
    except StoreDamaged as error:
        raise StoreDamaged(f"{version} {split} {error.where}", f"{error.problem}; {HEALS}") from error


@dataclass(frozen=True, eq=False)
class PromotedSplit:
    """One child store of a promoted version, and where what is made of it is kept."""

    config: CampaignConfig
    child: Location
    version: str
    number: int

    @classmethod
    def of_version(cls, config: CampaignConfig, version: PromotedVersion) -> tuple[PromotedSplit, ...]:
        """Every split of a version."""
        layout = CampaignLayout.of(config)
        fetch_folder(layout, layout.reports)
        return tuple(cls(config, child, version.name, version.number) for child in version.children)

    @property
    def name(self) -> str:
        """The split."""
        return self.child.name

    @property
    def layout(self) -> CampaignLayout:
        """The layout of the campaign."""
        return CampaignLayout.of(self.config)

    @property
    def page(self) -> Path:
        """Its page."""
        return self.layout.reports / f"{self.name}.html"

    @cached_property
    def reader(self) -> RolloutZarrStoreReader:
        """Its store."""
        with naming(self.version, self.name):
            return RolloutZarrStoreReader(self.child)

    def opinion_inputs(self) -> str:
        """Digest of what its second opinion depends on."""
        return inputs_digest(self.config, self.reader, seed=self.number)

    def known_opinion(self) -> tuple[SecondOpinion, str] | None:
        """Its second opinion and when it was measured; None unless it is of the same inputs."""
        found = DerivedFiles.find(self._record("second_opinion"), self.opinion_inputs())
        if found is None or (kept := read_opinion(self._opinion, self.reader)) is None:
            return None
        return kept, found.made_at

    def measure_opinion(self, inputs: str) -> None:
        """Measure its second opinion and keep it as one of these inputs."""
        from rollout_assets.inspection.second_opinion import second_opinion  # loads Warp

        source, count = open_source(self.config), self.config.quality.second_opinions_per_split
        with naming(self.version, self.name):
            opinion = second_opinion(
                self.reader, 1.0, self.number, self.config, source=source, limit=count, budget_s=SECONDS_PER_SPLIT
            )
        publish_opinion(self._opinion, opinion, self.reader)
        DerivedFiles.publish(self._record("second_opinion"), inputs, [self._opinion])

    def page_inputs(self) -> str:
        """Digest of what its page depends on, its second opinion among it."""
        opinion = file_sha256(self._opinion) if self._opinion.exists() else None
        return inputs_digest(self.config, self.reader, opinion=opinion)

    def known_page(self) -> str:
        """When its page was written; empty unless that is of the same inputs."""
        found = DerivedFiles.find(self._record("report"), self.page_inputs())
        return "" if found is None else found.made_at

    def write_page(self, inputs: str) -> None:
        """Write its page and what belongs to it, and keep them as those of these inputs."""
        from rollout_assets.reports.store_report import pictures_folder, write_store_report  # loads Plotly and Warp

        opinion = read_opinion(self._opinion, self.reader)
        write_store_report(self.reader, self.page, campaign=self.config, opinion=opinion)
        pictures = pictures_folder(self.page)
        outputs = [self.page, *sorted(pictures.iterdir() if pictures.is_dir() else ())]
        DerivedFiles.publish(self._record("report"), inputs, outputs)

    def __reduce__(self) -> tuple[type[PromotedSplit], tuple[CampaignConfig, Location, str, int]]:
        """Another process opens the store anew."""
        return PromotedSplit, (self.config, self.child, self.version, self.number)

    @property
    def _opinion(self) -> Path:
        return self.layout.second_opinion(self.name)

    def _record(self, name: str) -> Path:
        return derived_record(self.layout, f"{self.name}_{name}")


def side_by_side(make: Callable[[PromotedSplit, str], None], inputs: Mapping[PromotedSplit, str]) -> None:
    """Make something of every split and its inputs, in fresh processes if there are several large ones."""
    if not inputs:
        return
    large = all(split.reader.num_rows("candidates") >= WORTH_A_PROCESS for split in inputs)
    workers = min(len(inputs), os.cpu_count() or 1) if large else 1
    run_tasks(partial(_maker, make), {split.name: (split, digest) for split, digest in inputs.items()}, workers)
    layout = next(iter(inputs)).layout
    publish_folder(layout, layout.reports)


def _maker(make: Callable[[PromotedSplit, str], None]) -> Callable[[tuple[PromotedSplit, str], ProgressSink], None]:
    return lambda task, _progress: make(*task)
