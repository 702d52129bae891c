"""Dagster's own SQLite event log with its connections kept open, for processes that run many small runs.

The stock storage makes a new engine for every statement, about 180 of them per run, and migrates a new database for
every run. Here engines live as long as the process uses them, and a new run's database is a copy of an empty one. Files
and tables are the stock storage's, so the UI and every other process read them as ever.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as db
from dagster._core.storage.event_log.sqlite.sqlite_event_log import INDEX_SHARD_NAME, SqliteEventLogStorage
from dagster._core.storage.sqlite import SQLITE_BUSY_TIMEOUT_SECONDS
from dagster._serdes import ConfigurableClassData

KEPT_ENGINES = 4
"""Databases kept open: the index and those of the latest runs."""


class KeptOpenEventLog(SqliteEventLogStorage):
    """The stock event log, faster for whoever writes much and alone. One connection per database, under its lock."""

    def __init__(self, base_dir: str, inst_data: ConfigurableClassData | None = None) -> None:
        self._engines: OrderedDict[str, db.Engine] = OrderedDict()
        self._tables: set[str] = set()
        self._empty_run: bytes | None = None
        super().__init__(base_dir, inst_data)

    @classmethod
    def from_config_value(
        cls, inst_data: ConfigurableClassData | None, config_value: Mapping[str, Any]
    ) -> KeptOpenEventLog:
        return cls(inst_data=inst_data, **config_value)

    def has_table(self, table_name: str) -> bool:
        """Whether the index has a table; one that is there stays."""
        if table_name not in self._tables and super().has_table(table_name):
            self._tables.add(table_name)
        return table_name in self._tables

    def dispose(self) -> None:
        """Close everything."""
        with self._db_lock:
            while self._engines:
                self._engines.popitem()[1].dispose()
        super().dispose()

    @contextmanager
    def _connect(self, shard: str) -> Iterator[db.Connection]:
        with self._db_lock, self._engine(shard).connect() as connection, connection.begin():
            yield connection

    def _engine(self, shard: str) -> db.Engine:
        known = self._engines.get(shard)
        if known is not None:
            self._engines.move_to_end(shard)
            return known
        fresh = shard != INDEX_SHARD_NAME and not Path(self.path_for_shard(shard)).exists()
        copied = fresh and self._copy_empty(shard)
        engine = db.create_engine(
            self.conn_string_for_shard(shard),
            poolclass=db.StaticPool,
            connect_args={"timeout": SQLITE_BUSY_TIMEOUT_SECONDS, "check_same_thread": False},
        )
        if shard not in self._initialized_dbs:
            if not copied:
                self._initdb(engine)
                if fresh and self._empty_run is None:
                    self._empty_run = _serialized(engine)
            self._initialized_dbs.add(shard)
        self._engines[shard] = engine
        self._forget_oldest()
        return engine

    def _copy_empty(self, shard: str) -> bool:
        """Put an empty database at a run's place; False when there is none to copy or another process was first."""
        if self._empty_run is None:
            return False
        path = Path(self.path_for_shard(shard))
        scratch = path.with_suffix(f".empty-{os.getpid()}")
        scratch.write_bytes(self._empty_run)
        try:
            os.link(scratch, path)
        except OSError:
            return False
        finally:
            scratch.unlink()
        return True

    def _forget_oldest(self) -> None:
        for shard in [name for name in self._engines if name != INDEX_SHARD_NAME][: -(KEPT_ENGINES - 1)]:
            self._engines.pop(shard).dispose()


def _serialized(engine: db.Engine) -> bytes:
    """The bytes of a database file as they would be without its write-ahead log."""
    with engine.connect() as connection:
        raw = connection.connection.driver_connection
        assert raw is not None
        return bytes(raw.serialize())
