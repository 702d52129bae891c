"""A job array without a coordinator: every task takes its share, and all shares together are the local run's shards."""

import os
import subprocess
from pathlib import Path

import pytest

from rollout_assets.campaigns import array
from rollout_assets.campaigns.array import ArrayShare, plan_as_one_of_many
from rollout_assets.campaigns.layout import CampaignLayout
from rollout_assets.campaigns.markers import read_owner
from rollout_assets.campaigns.run import run_campaign
from rollout_assets.config import CampaignConfig, load_campaign
from rollout_assets.errors import ConfigError, ShardBusy
from rollout_assets.files import file_lock
from tests.campaigns.kill_campaigns import fake_campaign
from tests.defs.campaigns import write_campaign
from tests.support.commands import call
from tests.support.refusals import assert_names, refused
from tests.support.waiting import PATIENCE_S
from tests.test_cli import COMMAND


def slurm(task: int, count: int, **more: int) -> dict[str, str]:
    values = {"ID": task, "COUNT": count} | more
    return {f"SLURM_ARRAY_TASK_{name}": str(value) for name, value in values.items()}


def contents(config: CampaignConfig) -> dict[str, str]:
    """Shard -> digest of what it holds."""
    shards = CampaignLayout(config.shards.output_dir).shards
    return {path.name: read_owner(path).content_sha256 for path in sorted(shards.glob("shard-*"))}


@pytest.mark.parametrize("count", [1, 2, 3, 7, 8, 20])
def test_all_shares_together_are_every_shard_once(count):
    shards = [f"shard-{number:06d}" for number in range(8)]
    shares = [ArrayShare(index, count).of(shards) for index in range(count)]
    assert sorted(shard for share in shares for shard in share) == shards
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    grown = [ArrayShare(index, count).of([*shards, "shard-000008"]) for index in range(count)]
    assert all(list(after[: len(before)]) == list(before) for before, after in zip(shares, grown, strict=True))


@pytest.mark.parametrize(
    ("environment", "share"),
    [
        ({}, None),
        (slurm(0, 4), ArrayShare(0, 4)),
        (slurm(4, 4, MIN=1, MAX=4), ArrayShare(3, 4)),
        (slurm(8, 4, MIN=0, MAX=12, STEP=4), ArrayShare(2, 4)),
        (slurm(7, 1, MIN=7, MAX=7), ArrayShare(0, 1)),
    ],
)
def test_slurm_tells_a_task_its_share(environment, share):
    assert ArrayShare.of_slurm(environment) == share


@pytest.mark.parametrize(
    ("environment", "names"),
    [
        ({"SLURM_ARRAY_TASK_ID": "3"}, ["SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_COUNT", "--array I/N"]),
        (slurm(7, 3, MIN=1, MAX=7), ["3 tasks", "1 to 7", "--array=0-2"]),
        (slurm(3, 2, MIN=0, MAX=2, STEP=2), ["2 tasks", "0 to 2", "--array=0-1"]),
        (slurm(9, 4, MIN=0, MAX=3), ["0/4 to 3/4", "9/4"]),
        (slurm(0, 4) | {"SLURM_ARRAY_TASK_ID": "one"}, ["SLURM_ARRAY_TASK_ID", "'one'"]),
        (slurm(0, 0), ["1,000,000", 0]),
    ],
)
def test_an_array_that_cannot_be_shared_out_is_refused(environment, names):
    with refused(ConfigError, *names):
        ArrayShare.of_slurm(environment)


@pytest.mark.parametrize("text", ["4/4", "-1/4", "1", "1/0", "a/b", "1/4/2", "", "²/4", "1/99999999"])
def test_a_share_that_is_none_is_refused(text):
    with refused(ConfigError, "array"):
        ArrayShare.parse(text)


def test_options_that_do_not_go_together_are_refused(small_store, tmp_path, monkeypatch):
    campaign = str(write_campaign(tmp_path, small_store))
    both = call("campaign", "run", "-c", campaign, "--array", "0/4", "--shard", "shard-000000")
    assert both.code == 2
    assert_names(both.err, "--array", "--shard")
    early = call("campaign", "run", "-c", campaign, "--array", "0/4", "--promote")
    assert early.code == 2
    assert_names(early.err, "--promote", "4 tasks")
    for name, value in slurm(0, 4).items():
        monkeypatch.setenv(name, value)
    assert call("campaign", "run", "-c", campaign, "--promote").code == 2
    assert not (tmp_path / "tiny").exists()


def test_a_task_without_a_shard_is_done_at_once(small_store, tmp_path):
    campaign = str(write_campaign(tmp_path, small_store))
    done = call("campaign", "run", "-c", campaign, "--array", "5/6")
    assert done.code == 0 and done.out.startswith("0 of 4 shards")


def test_a_task_waits_while_another_plans_and_then_says_who(tmp_path, monkeypatch):
    campaign = fake_campaign(tmp_path / "out")
    monkeypatch.setattr("rollout_assets.campaigns.plan.open_source", lambda _config: campaign.source)
    monkeypatch.setattr("rollout_assets.campaigns.plan.PLAN_PATIENCE_S", 0.05)
    lock = CampaignLayout(campaign.config.shards.output_dir).lock("plan")
    with file_lock(lock, "the plan"), refused(ShardBusy, f"process {os.getpid()}"):
        plan_as_one_of_many(campaign.config, patience_s=0.2)
    attempts = iter([ShardBusy("held"), ShardBusy("held")])

    def planned_by_another(config):
        for error in attempts:
            raise error
        return campaign.plan()

    monkeypatch.setattr(array, "write_rollout_shard_manifest_from_config", planned_by_another)
    assert len(plan_as_one_of_many(campaign.config).entries) == 3


@pytest.mark.ci
def test_four_slurm_tasks_give_the_shards_of_a_local_run(small_store, tmp_path):
    """Four processes at once, with nothing planned before, each with nothing but Slurm's variables."""
    local = load_campaign(write_campaign(tmp_path, small_store, "local"))
    together: Path = write_campaign(tmp_path, small_store, "together")
    tasks = [
        subprocess.Popen(
            [*COMMAND, "campaign", "run", "-c", str(together)],
            env=os.environ | slurm(5 + task, 4, MIN=5, MAX=8),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for task in range(4)
    ]
    assert run_campaign(local).ok
    for number, task in enumerate(tasks):
        out, err = task.communicate(timeout=PATIENCE_S)
        assert task.returncode == 0, err
        assert_names(err, f"task {number}/4", "SLURM_ARRAY_TASK_ID")
        assert out.startswith("1 of 4 shards: 1 built")
    config = load_campaign(together)
    assert contents(config) == contents(local) and len(contents(config)) == 4
