"""What a ``dagster.yaml`` says about the cluster: who launches runs, what a run needs, how many there may be, and where
the database is.

It is read as the file that it is, because the nodes of a cluster have no instance of their own, and because the check
must be able to say what is wrong with a file that Dagster would refuse.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

import yaml

from rollout_assets.errors import ConfigError

SETTINGS_FILE = "dagster.yaml"

Launcher = Literal["ray", "kubernetes", "here"]
"""Where runs are executed; ``here`` is the daemon's own machine."""

_LAUNCHERS: dict[str, Launcher] = {"RayRunLauncher": "ray", "K8sRunLauncher": "kubernetes"}


@dataclass(frozen=True)
class ClusterSettings:
    """The part of an instance's settings that other machines depend on.

    ``address`` takes jobs of Ray; ``num_cpus`` and ``num_gpus`` are what one run needs; ``slots`` are the runs that may
    be under way at once and ``pool_limit`` the steps that may score views at once, None if the file does not say.
    ``database`` is the storage section with names of environment variables where it has them, None for SQLite.
    """

    launcher: Launcher = "here"
    address: str = ""
    num_cpus: float = 0.0
    num_gpus: float = 0.0
    env_vars: tuple[str, ...] = ()
    slots: int | None = None
    pool_limit: int | None = None
    database: Mapping[str, Any] | None = field(default=None)

    def variables(self) -> dict[str, str]:
        """The environment variables that the launcher copies to every run, as they are here."""
        pairs = (name.partition("=") for name in self.env_vars)
        given = {name: value if sign else os.environ.get(name, "") for name, sign, value in pairs}
        return {name: value for name, value in given.items() if value}


def read_settings(home: Path | None) -> ClusterSettings:
    """The settings of an instance's home; without a home or a file, those of a single machine."""
    path = None if home is None else home / SETTINGS_FILE
    if path is None or not path.is_file():
        return ClusterSettings()
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(raw, dict):
        raise ConfigError(f"{path}: must be a table of settings, got {type(raw).__name__}")
    launcher = _table(raw, "run_launcher")
    kind = _LAUNCHERS.get(str(launcher.get("class", "")), "here")
    ray = _table(launcher, "config", "ray") if kind == "ray" else {}
    if kind == "ray" and "address" not in ray:
        raise ConfigError(f"{path}: run_launcher.config.ray.address is missing; settings of Ray lie under config: ray:")
    return ClusterSettings(
        launcher=kind,
        address=resolve_value(ray.get("address", "")),
        num_cpus=float(ray.get("num_cpus") or 0.0),
        num_gpus=float(ray.get("num_gpus") or 0.0),
        env_vars=tuple(ray.get("env_vars") or ()),
        slots=_table(raw, "concurrency", "runs").get("max_concurrent_runs"),
        pool_limit=_table(raw, "concurrency", "pools").get("default_limit"),
        database=_database(raw),
    )


def resolve_value(value: Any) -> str:
    """A setting as text; ``{"env": NAME}`` is what that environment variable holds, a ``ConfigError`` if nothing."""
    if isinstance(value, Mapping):
        name = str(value.get("env", ""))
        if not os.environ.get(name):
            raise ConfigError(f"the environment variable {name} is not set")
        return os.environ[name]
    return str(value)


def database_url(database: Mapping[str, Any]) -> str:
    """The URL of a ``storage: postgres:`` section, with the environment variables of this machine."""
    if "postgres_url" in database:
        return resolve_value(database["postgres_url"])
    parts = {name: resolve_value(value) for name, value in _table(database, "postgres_db").items() if name != "params"}
    missing = [name for name in ("hostname", "username", "password", "db_name") if name not in parts]
    if missing:
        raise ConfigError(f"storage.postgres: {', '.join(missing)} of the database is not given")
    login = f"{quote(parts['username'], safe='')}:{quote(parts['password'], safe='')}"
    return f"postgresql+psycopg2://{login}@{parts['hostname']}:{parts.get('port', '5432')}/{parts['db_name']}"


def _database(raw: Mapping[str, Any]) -> dict[str, Any] | None:
    """The settings of Postgres: of the storage as a whole, or of the runs' own as Dagster's Helm chart writes it."""
    runs = _table(raw, "run_storage")
    own = _table(runs, "config") if str(runs.get("class", "")).startswith("Postgres") else {}
    return _table(raw, "storage", "postgres") or own or None


def _table(raw: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """A table inside tables; an empty one if it is not there."""
    value: Any = raw
    for name in names:
        value = value.get(name) if isinstance(value, Mapping) else None
    return dict(value) if isinstance(value, Mapping) else {}
