"""The home of an instance: ours when nothing is there yet, and whatever the user has otherwise."""

from __future__ import annotations

from pathlib import Path

QUIET_HOME = """\
telemetry:
  enabled: false
nux:
  enabled: false
"""
"""``dagster.yaml`` of a new home: SQLite and local files, and nothing is sent anywhere."""


def prepare_home(home: Path) -> Path:
    """Make sure that a home exists and that its instance tells nobody about itself."""
    home.mkdir(parents=True, exist_ok=True)
    settings = home / "dagster.yaml"
    if not settings.exists():
        settings.write_text(QUIET_HOME)
    return home
