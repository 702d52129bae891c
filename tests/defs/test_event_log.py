"""The kept-open event log writes what the stock one writes, where the stock one looks for it."""

import sqlite3

import dagster as dg
import pytest
from dagster import DagsterInstance
from dagster._core.storage.event_log import SqliteEventLogStorage

from rollout_assets.defs.event_log import KEPT_ENGINES, KeptOpenEventLog
from rollout_assets.defs.home import open_instance


@dg.job
def nothing():
    @dg.op
    def step():
        return None

    step()


def schema(database):
    with sqlite3.connect(database) as connection:
        tables = connection.execute("select type, name, sql from sqlite_master order by 1, 2").fetchall()
        return tables, connection.execute("select version_num from alembic_version").fetchall()


@pytest.fixture
def runs_of_both(tmp_path):
    """Two runs recorded through the kept-open log and one through the stock log, in two homes."""
    with open_instance(tmp_path / "kept") as kept:
        assert isinstance(kept.event_log_storage, KeptOpenEventLog)
        ours = [nothing.execute_in_process(instance=kept).run_id for _ in range(KEPT_ENGINES + 2)]
    (tmp_path / "stock").mkdir()
    with DagsterInstance.from_config(str(tmp_path / "stock")) as stock:
        theirs = nothing.execute_in_process(instance=stock).run_id
    return tmp_path, ours, theirs


def test_the_stock_storage_reads_every_event_of_every_run(runs_of_both):
    folder, ours, theirs = runs_of_both
    with DagsterInstance.from_config(str(folder / "stock")) as stock:
        wanted = [record.event_log_entry.dagster_event_type for record in stock.get_records_for_run(theirs).records]
    with DagsterInstance.from_config(str(folder / "kept")) as stock:
        assert type(stock.event_log_storage) is SqliteEventLogStorage
        assert {run.run_id for run in stock.get_runs()} == set(ours)
        for run in ours:
            events = [record.event_log_entry.dagster_event_type for record in stock.get_records_for_run(run).records]
            assert events == wanted and stock.get_run_by_id(run).is_success


def test_the_database_of_a_run_is_the_stock_one_first_and_copied(runs_of_both):
    folder, ours, theirs = runs_of_both
    wanted = schema(folder / "stock" / "history" / "runs" / f"{theirs}.db")
    for run in ours:
        assert schema(folder / "kept" / "history" / "runs" / f"{run}.db") == wanted
    assert not [path for path in (folder / "kept" / "history" / "runs").iterdir() if "empty" in path.name]


def test_a_home_with_a_storage_of_its_own_is_opened_as_it_says(tmp_path):
    (tmp_path / "dagster.yaml").write_text(f"storage:\n  sqlite:\n    base_dir: {tmp_path / 'elsewhere'}\n")
    with open_instance(tmp_path) as instance:
        run = nothing.execute_in_process(instance=instance).run_id
    assert (tmp_path / "elsewhere" / "history" / "runs" / f"{run}.db").exists()
