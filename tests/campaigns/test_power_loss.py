"""The power goes at any point of an operation on a campaign: what is marked is whole, and the next run finishes it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from rollout_assets.campaigns.cleaning.clean import clean_campaign
from rollout_assets.campaigns.inventory import check_version
from rollout_assets.campaigns.layout import STORE_NAME, CampaignLayout
from rollout_assets.campaigns.markers import damage, owner_if_finished
from rollout_assets.campaigns.pin import read_pin
from rollout_assets.campaigns.promotion import promote_rollout_campaign
from rollout_assets.campaigns.versions import (
    current_name,
    current_version,
    rollback_promotion,
    unpin_promotion,
    versions_on_disk,
)
from rollout_assets.files import tree_status
from rollout_assets.testing.fake_shards import FakeCampaign
from tests.campaigns.kill_campaigns import fake_campaign
from tests.support.digests import store_digests, version_digests
from tests.support.power_loss import Enumeration, Operation, recorded, restarted

ONE, TWO = [("train", 1)], [("train", 2)]
AT_ONCE = {"set_aside_days": 0, "staging_days": 0, "replaced_plans": 0, "trainings": 0, "versions": 1}
SOME = {"build": 2, "promotion": 2, "extension": 2}
"""States of an operation that the default run restarts; 1 of the others."""

TIMED = {"staging", "set_aside", "columns", "locks"}
"""Folders that a restart reads nothing from, or nothing that it cannot make again."""


@pytest.fixture(scope="module")
def disk() -> Iterator[Path]:
    """In memory where there is such a place: the states come from the recording, not from the disk."""
    place = Path("/dev/shm")
    with TemporaryDirectory(dir=place if os.access(place, os.W_OK) else None, prefix="power-") as name:
        yield Path(name) / "disk"


def campaign_at(root: Path, rows: list[tuple[str, int]]) -> FakeCampaign:
    return fake_campaign(
        root,
        rows,
        store={"chunk_rows": 8, "chunk_states": 4},
        options={"targets": 2, "chains": 2},
        retention=AT_ONCE,
    )


def in_attempt(path: tuple[str, ...]) -> bool:
    """Whether names lie in the folder of one attempt, which no restart reads."""
    return len(path) > 3 and path[1] == "staging"


class Life:
    """The operations of a campaign's life in ``root``, each begun where the one before has ended."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.layout = CampaignLayout(root)
        self.small, self.large = campaign_at(root, ONE), campaign_at(root, TWO)
        self._expected: dict[str, object] = {}
        self._finished_from: set[frozenset[str]] = set()

    def operations(self) -> Iterator[Operation]:
        """Each operation, with what must hold when it has returned, and what at every moment."""
        config = self.large.config
        yield self._operation("plan", self.small.plan, lambda: self._planned() == 1)
        yield self._operation("build", lambda: self._build(self.small, 0), lambda: self._built() == 1)
        yield self._operation(
            "promotion", lambda: promote_rollout_campaign(self.small.config), lambda: self._promoted() == 1
        )
        yield self._operation("longer plan", self.large.plan, lambda: self._planned() == 2, lambda: self._planned() > 0)
        self._build(self.large, 1)
        yield self._operation(
            "extension",
            lambda: promote_rollout_campaign(config),
            lambda: self._promoted() == 2,
            lambda: self._promoted() > 0 and self._built() == 2,
        )
        yield self._operation(
            "rollback",
            self._roll_back,
            lambda: self._readers() == "v000001" and read_pin(self.layout) is not None,
            lambda: self._readers() in ("v000001", "v000002"),
        )
        yield self._operation(
            "lifted pin",
            lambda: unpin_promotion(config),
            lambda: read_pin(self.layout) is None,
            lambda: self._readers() == "v000001",
        )
        promote_rollout_campaign(config)
        yield self._operation(
            "cleaning",
            lambda: clean_campaign(config, apply=True),
            lambda: [version.name for version in versions_on_disk(config)] == ["v000002"],
            lambda: self._readers() == "v000002" and self._built() == 2,
        )
        self._expected.update(self._digests())

    def _operation(
        self,
        name: str,
        act: Callable[[], object],
        done: Callable[[], bool],
        kept: Callable[[], bool] = lambda: True,
    ) -> Operation:
        def check(returned: bool) -> None:
            self._require_whole()
            assert kept(), "something that was there before is lost"
            assert done() or not returned, "what had returned is lost"
            act()
            assert done(), "run again, it does not happen"
            self._require_whole()
            names = frozenset(path for path in tree_status(self.root) if not set(path.split("/")) & TIMED)
            if names not in self._finished_from:
                self._finish()
                assert self._digests() == self._expected
                assert list(self.layout.staging.iterdir()) == []
                self._finished_from.add(names)

        return Operation(name, act, check)

    def _build(self, campaign: FakeCampaign, number: int) -> None:
        campaign.run(campaign.plan().entries[number])

    def _roll_back(self) -> None:
        if self._readers() != "v000001" or read_pin(self.layout) is None:
            rollback_promotion(self.large.config, "v000001")

    def _finish(self) -> None:
        """Everything that an operator would run."""
        self.large.run_all()
        unpin_promotion(self.large.config)
        promote_rollout_campaign(self.large.config)
        clean_campaign(self.large.config, apply=True)

    def _planned(self) -> int:
        return len(self.layout.plan.read_bytes().splitlines()) if self.layout.plan.exists() else 0

    def _built(self) -> int:
        return len([folder for folder in self.layout.shards.glob("shard-*") if owner_if_finished(folder) is not None])

    def _promoted(self) -> int:
        """Shards that readers get."""
        return 0 if self._readers() is None else len(current_version(self.large.config).shard_ids)

    def _readers(self) -> str | None:
        return current_name(self.layout)

    def _digests(self) -> dict[str, object]:
        """Content of every finished shard and of the version that readers get."""
        shards = sorted(self.layout.shards.glob("shard-*"))
        promoted = version_digests(current_version(self.large.config))
        return {**{path.name: store_digests(path / STORE_NAME) for path in shards}, "promoted": promoted}

    def _require_whole(self) -> None:
        """What counts as finished has every byte; readers get a version, if there is one to get."""
        for folder in self.layout.shards.glob("shard-*"):
            if (owner := owner_if_finished(folder)) is not None:
                assert list(damage(folder, owner, deep=True)) == [], folder
        for version in versions_on_disk(self.large.config):
            problems = check_version(self.layout, version.name, deep=True).problems
            assert problems == (), problems
        if self._readers() is not None:
            current_version(self.large.config)


def enumerated(disk: Path, every: bool) -> Iterator[Enumeration]:
    recordings = [recorded(operation, disk, in_attempt) for operation in Life(disk / "out").operations()]
    for operation, recording in recordings:
        yield restarted(operation, recording, None if every else SOME.get(operation.name, 1))


def test_a_campaign_survives_some_power_losses(disk: Path) -> None:
    for done in enumerated(disk, every=False):
        assert done.tried and not done.failures, "\n".join(done.failures)


@pytest.mark.slow
def test_a_campaign_survives_every_power_loss(disk: Path) -> None:
    failures = []
    for done in enumerated(disk, every=True):
        sys.stdout.write(f"{done}\n")
        failures += done.failures
    assert failures == []
