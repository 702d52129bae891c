"""Second opinions and pages of several splits are made in processes of their own, with the same results."""

import os

import polars as pl
import pytest

from rollout_assets.campaigns.versions import current_version
from rollout_assets.defs import splits
from rollout_assets.defs.splits import PromotedSplit, side_by_side


def pages_and_opinions(promoted):
    pages = {split.name: split.page.read_text() for split in promoted}
    opinions = {split.name: split.known_opinion()[0].labels for split in promoted}
    return pages, opinions


@pytest.mark.ci
def test_large_splits_are_measured_and_drawn_in_fresh_processes(made_desk, monkeypatch):
    monkeypatch.setattr(splits, "WORTH_A_PROCESS", 1)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    promoted = PromotedSplit.of_version(made_desk.config, current_version(made_desk.config))
    assert [split.known_opinion() for split in promoted] == [None, None], "a campaign elsewhere is another one"
    side_by_side(PromotedSplit.measure_opinion, {split: split.opinion_inputs() for split in promoted})
    side_by_side(PromotedSplit.write_page, {split: split.page_inputs() for split in promoted})
    assert all(split.known_page() for split in promoted)
    pages, opinions = pages_and_opinions(promoted)

    for split in promoted:
        split.measure_opinion(split.opinion_inputs())
        assert opinions[split.name].equals(split.known_opinion()[0].labels)
        assert isinstance(opinions[split.name], pl.DataFrame) and pages[split.name].startswith("<!doctype html>")
