"""Shards of one process overlap: one is written and validated while the next is scored, and each is its own outcome."""

import threading

import pytest

from rollout_assets.campaigns import dataset_writer
from rollout_assets.campaigns.layout import CampaignLayout
from rollout_assets.campaigns.run import run_campaign
from rollout_assets.campaigns.status import summarize_rollout_shard_campaign
from rollout_assets.errors import StoreError
from rollout_assets.rollouts.generator import RolloutGenerator
from tests.campaigns.kill_campaigns import real
from tests.support.waiting import PATIENCE_S


@pytest.fixture
def config(tmp_path, small_store):
    return real(tmp_path / "out", small_store, rows_per_shard=2)


def scoring_of_the_second(monkeypatch, when_it_begins):
    """Call something when the second shard's rows are asked for."""
    begun: list[object] = []
    records = RolloutGenerator.records

    def watched(self, rows, progress):
        begun.append(rows)
        if len(begun) == 2:
            when_it_begins()
        yield from records(self, rows, progress)

    monkeypatch.setattr(RolloutGenerator, "records", watched)


def validation(monkeypatch, instead):
    """Validate with ``instead``, which gets the former function and its argument."""
    former = dataset_writer.validate_and_seal
    monkeypatch.setattr(dataset_writer, "validate_and_seal", lambda path: instead(former, path))


def test_a_shard_is_validated_while_the_next_one_is_scored(config, monkeypatch):
    scoring, waited = threading.Event(), []
    scoring_of_the_second(monkeypatch, scoring.set)

    def wait_for_the_next(former, path):
        waited.append(scoring.wait(PATIENCE_S))
        return former(path)

    validation(monkeypatch, wait_for_the_next)
    result = run_campaign(config)
    assert [shard.outcome for shard in result.shards] == ["built", "built"]
    assert waited == [True, True]


def test_an_interrupted_run_keeps_the_shard_that_is_only_to_be_finished(config, monkeypatch):
    def interrupt():
        raise KeyboardInterrupt

    scoring_of_the_second(monkeypatch, interrupt)
    with pytest.raises(KeyboardInterrupt):
        run_campaign(config)
    states = [shard.state for shard in summarize_rollout_shard_campaign(config, deep=True).shards]
    assert states == ["succeeded", "missing"]
    assert not list(CampaignLayout.of(config).staging.glob("shard-*"))


def test_a_fault_while_a_shard_is_finished_is_tried_again_and_a_lasting_one_is_its_own(config, monkeypatch):
    faults = {
        "shard-000000": OSError(5, "Input/output error"),
        "shard-000001": StoreError("not what was written"),
    }

    def fail(former, path):
        shard = path.parent.name.split(".")[0]
        if shard in faults:
            raise faults.pop(shard)
        return former(path)

    validation(monkeypatch, fail)
    first, second = run_campaign(config).shards
    assert first.outcome == "built" and len(first.retried) == 1 and "Input/output error" in first.retried[0]
    assert second.outcome == "failed" and "not what was written" in second.reason and second.retried == ()
    assert [shard.outcome for shard in run_campaign(config).shards] == ["already_finished", "built"]
