"""A fresh Postgres server on this machine alone, for instances of Dagster that are to be as on a cluster."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import sqlalchemy

from rollout_assets.errors import MachineFault
from rollout_assets.testing.local_daemon import (
    HOST,
    LocalDaemon,
    answers,
    end_process,
    free_port,
    local_daemon,
    run_quietly,
    wait_until,
)

DATABASE_USER = "rollouts"

URL_VARIABLE = "DAGSTER_POSTGRES_URL"
"""The variable that our templates for ``dagster.yaml`` take the database from."""

STORAGE = f"storage: {{postgres: {{postgres_url: {{env: {URL_VARIABLE}}}}}}}\n"
"""The line of ``dagster.yaml`` that keeps everything in that database."""

POSTGRES_FOLDERS = ("/usr/lib/postgresql/*/bin", "/usr/local/pgsql/bin", "/opt/homebrew/bin")
"""Where the server's programs are, when they are not on the PATH."""


@contextmanager
def running_postgres() -> Iterator[str]:
    """A fresh Postgres server; its URL as Dagster wants it. Postgres refuses root, who starts it as ``postgres``."""
    folder = Path(tempfile.mkdtemp(prefix="rollout-postgres-"))
    prefix: list[str] = []
    if os.geteuid() == 0:
        shutil.chown(folder, "postgres", "postgres")
        prefix = ["runuser", "-u", "postgres", "--"]
    port, data = free_port(), str(folder / "data")
    try:
        run_quietly([*prefix, _postgres("initdb"), "-D", data, "-U", DATABASE_USER, "-A", "trust", "-N"], folder)
        options = ["-h", HOST, "-p", str(port), "-k", "", "-c", "fsync=off", "-c", "max_connections=200"]
        log = (folder / "log").open("wb")
        server = subprocess.Popen(
            [*prefix, _postgres("postgres"), "-D", data, *options],
            stdout=log,
            stderr=log,
            cwd="/",
            start_new_session=True,
        )
        try:
            wait_until("Postgres", lambda: answers(port))
            yield f"postgresql+psycopg2://{DATABASE_USER}@{HOST}:{port}/postgres"
        finally:
            end_process(server)
            log.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _postgres(program: str) -> str:
    path = shutil.which(program)
    for pattern in POSTGRES_FOLDERS if path is None else ():
        for folder in sorted(Path("/").glob(pattern.removeprefix("/")), reverse=True):
            if (folder / program).is_file():
                return str(folder / program)
    if path is None:
        raise MachineFault(f"{program} is not installed; install the Postgres server, for example postgresql-15")
    return path


@contextmanager
def daemon_on_postgres(folder: Path, campaigns: Sequence[Path], settings: str = "") -> Iterator[LocalDaemon]:
    """``local_daemon`` with a database of its own; this process has its variables until the block ends."""
    if find_spec("dagster_postgres") is None:
        raise MachineFault("dagster-postgres is not installed; run: pip install 'rollout-assets[cluster]'")
    with (
        running_postgres() as url,
        local_daemon(folder, campaigns, settings + STORAGE, {URL_VARIABLE: url}) as daemon,
        daemon.variables(),
    ):
        yield daemon


def database_bytes(url: str) -> int:
    """How large a database is."""
    engine = sqlalchemy.create_engine(url)
    with engine.connect() as connection:
        size = connection.execute(sqlalchemy.text("select pg_database_size(current_database())")).scalar_one()
    engine.dispose()
    return int(size)
