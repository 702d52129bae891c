"""What ``test_daemon`` and ``test_backfill`` show, with records in Postgres and definitions in a server of their own.

Run it with -m cluster. It needs a Postgres server and dagster-postgres (pip install 'rollout-assets[cluster]').
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from rollout_assets.defs import keys as names
from rollout_assets.defs.backfills import backfill_is_running
from rollout_assets.defs.home import open_instance
from rollout_assets.defs.records import validated_versions
from rollout_assets.testing.local_daemon import LocalDaemon, local_daemon, wait_until
from rollout_assets.testing.postgres import STORAGE, URL_VARIABLE, running_postgres
from tests.defs.browser import Ui
from tests.defs.conftest import Desk, new_desk
from tests.defs.test_daemon import (
    Start,
    a_night_plans_and_its_shards_follow,
    a_rollback_stays_promotion_goes_by_the_plan_and_a_failed_one_is_tried_again,
    previews_write_nothing_and_a_killed_daemon_loses_nothing,
)

pytest.importorskip("dagster_postgres", reason="dagster-postgres is not installed; install rollout-assets[cluster]")
pytestmark = pytest.mark.cluster


@dataclass(frozen=True)
class Servers(Ui):
    """Web server, daemon and server of definitions, each a process of its own."""

    daemon: LocalDaemon

    def kill(self) -> None:
        self.daemon.kill_daemon()


@contextmanager
def started_servers(desk: Desk) -> Iterator[Servers]:
    with local_daemon(desk.folder, [desk.campaign]) as daemon:
        url = daemon.start_web()
        daemon.start_daemon()
        assert daemon.daemon is not None
        yield Servers(url, daemon.daemon, daemon)


@pytest.fixture
def desk(tmp_path, small_store, monkeypatch) -> Iterator[Desk]:
    """A campaign of two shards of which nothing is made yet, and an instance in Postgres."""
    desk = new_desk(tmp_path / "desk", small_store, rows_per_shard=2)
    with (desk.home / "dagster.yaml").open("a") as settings:
        settings.write(STORAGE)
    with running_postgres() as url:
        monkeypatch.setenv(URL_VARIABLE, url)
        yield desk
    assert not list(desk.home.rglob("*.db")), "records that went elsewhere"


@pytest.fixture
def start(desk) -> Start:
    return lambda: started_servers(desk)


@pytest.fixture
def made_desk(desk) -> Desk:
    assert desk.materialize().ok
    return desk


def test_previews_write_nothing_and_a_killed_daemon_loses_nothing(made_desk, start, tmp_path):
    previews_write_nothing_and_a_killed_daemon_loses_nothing(made_desk, start, tmp_path)


def test_a_rollback_stays_promotion_goes_by_the_plan_and_a_failed_one_is_tried_again(made_desk, start, tmp_path):
    a_rollback_stays_promotion_goes_by_the_plan_and_a_failed_one_is_tried_again(made_desk, start, tmp_path)


def test_a_night_plans_and_its_shards_follow(made_desk, start):
    a_night_plans_and_its_shards_follow(made_desk, start)


def test_a_backfill_is_promoted_by_the_sensor_and_the_pages_know_its_runs(desk):
    runner = desk.runner()
    with runner.instance as instance:
        assert runner.run(names.PLAN).ok
        shards = sorted(instance.get_dynamic_partitions("tiny_shards"))
    with started_servers(desk) as servers:
        backfill = servers.daemon.backfill([runner.keys.key(asset).path for asset in names.SHARD_CHAIN], shards)
        with open_instance(desk.home) as instance:
            wait_until("the backfill", lambda: not backfill_is_running(instance, backfill), 900, every_s=1.0)
            assert sorted(validated_versions(instance, runner.keys)) == shards
        wait_until("a promotion", lambda: desk.layout.promoted.exists(), 300, every_s=1.0)
        of_location = servers.ask(
            "query($of: RepositorySelector!) { repositoryOrError(repositorySelector: $of) "
            "{ ... on Repository { pipelines { name runs(limit: 5) { id } } } } }",
            of={"repositoryLocationName": "rollout_assets.definitions", "repositoryName": "__repository__"},
        )["repositoryOrError"]["pipelines"]
    ran = {job["name"] for job in of_location if job["runs"]}
    assert {"tiny_plan", "tiny_promote"} <= ran, "runs of a process of ours and of the daemon"
