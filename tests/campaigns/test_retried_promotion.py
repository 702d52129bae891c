"""A promotion that a fault of the machine interrupts publishes what its inventory says, and the inventory lasts."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path

from rollout_assets.campaigns.inventory import check_version
from rollout_assets.campaigns.layout import CampaignLayout
from rollout_assets.campaigns.promotion import promote_rollout_campaign
from tests.campaigns.failing_machine import Fault, failing
from tests.campaigns.kill_campaigns import fake_campaign


def test_a_child_that_is_built_a_second_time_has_the_digests_of_the_second(tmp_path):
    fault = Fault("candidates/target_rri/c/0", "EMFILE")
    first = fake_campaign(tmp_path, (("train", 1),))
    first.run_all()
    promote_rollout_campaign(first.config)
    grown = fake_campaign(tmp_path, (("train", 2),))
    grown.run_all()
    machines = []
    with ExitStack() as stack:

        def too_many_files(step: str) -> None:
            if step == "train/validate" and not machines:
                machines.append(stack.enter_context(failing(fault)))

        result = promote_rollout_campaign(grown.config, on_step=too_many_files)
    assert machines[0].happened == [fault] and [split.how for split in result.splits] == ["built"]
    assert check_version(CampaignLayout(tmp_path), result.version.name, deep=True).problems == ()


def test_the_folders_of_the_first_promotion_are_flushed_before_its_version_appears(tmp_path, monkeypatch):
    campaign = fake_campaign(tmp_path, (("train", 1),))
    campaign.run_all()
    flushed: list[tuple[str, set[str]]] = []
    fsync = os.fsync

    def noting(handle: int) -> None:
        fsync(handle)
        path = Path(f"/proc/self/fd/{handle}").readlink()
        if path.is_dir():
            flushed.append((str(path), {entry.name for entry in path.iterdir()}))

    monkeypatch.setattr(os, "fsync", noting)

    def look(step: str) -> None:
        if step == "rename/before":
            names = set().union(*(names for path, names in flushed if path == str(tmp_path)))
            assert names >= {"inventories", "versions"}

    promote_rollout_campaign(campaign.config, on_step=look)
