"""The home of an instance: ours when nothing is there yet, and whatever the user has otherwise."""

from __future__ import annotations

from pathlib import Path

import dagster as dg
from dagster._core.instance.config import dagster_instance_config
from dagster._core.instance.ref import InstanceRef

QUIET_HOME = """\
telemetry:
  enabled: false
nux:
  enabled: false
"""
"""``dagster.yaml`` of a new home: SQLite and local files, and nothing is sent anywhere."""

STORAGE_KEYS = ("storage", "run_storage", "event_log_storage", "schedule_storage")
"""Settings by which a home chooses where its records are kept."""


def prepare_home(home: Path) -> Path:
    """Make sure that a home exists and that its instance tells nobody about itself."""
    home.mkdir(parents=True, exist_ok=True)
    settings = home / "dagster.yaml"
    if not settings.exists():
        settings.write_text(QUIET_HOME)
    return home


def open_instance(home: Path) -> dg.DagsterInstance:
    """The instance of a home, made if need be, for a process that runs many runs itself.

    On Dagster's default SQLite storage the event log's databases are kept open between statements; a home with a
    storage of its own is opened as it says.
    """
    settings, own_class = dagster_instance_config(str(prepare_home(home)))
    if own_class is not None or any(settings.get(key) for key in STORAGE_KEYS):
        return dg.DagsterInstance.from_config(str(home))
    event_log = {
        "module": "rollout_assets.defs.event_log",
        "class": "KeptOpenEventLog",
        "config": {"base_dir": str(home.resolve() / "history" / "runs")},
    }
    return dg.DagsterInstance.from_ref(InstanceRef.from_dir(str(home), overrides={"event_log_storage": event_log}))
