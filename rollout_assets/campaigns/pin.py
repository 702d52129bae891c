"""The pin: after a rollback readers keep that version until someone lifts the pin, whatever is promoted meanwhile."""

from __future__ import annotations

import getpass
import os
import socket
from typing import Literal

from pydantic import ValidationError

from rollout_assets.campaigns.layout import CampaignLayout, StoredModel
from rollout_assets.files import now_utc, publish_json, remove_path, sync_path


class Pin(StoredModel):
    """``pin.json``: readers keep ``version``. It is None for a pin that cannot be read, which holds all the same."""

    pin_version: Literal["rollout-pin-v1"] = "rollout-pin-v1"
    version: str | None
    by: str
    since_utc: str

    @property
    def holds(self) -> str:
        """Who keeps readers where, in words."""
        if self.version is None:
            return "readers are kept where they are by a pin.json that cannot be read"
        return f"readers are pinned to {self.version} by a rollback of {self.by} at {self.since_utc}"

    def __str__(self) -> str:
        return f"{self.holds}; 'rollout-assets campaign unpin' lifts it"


def new_pin(version: str) -> Pin:
    """A pin that keeps readers at a version from now on."""
    return Pin(version=version, by=f"{_user()} on {socket.gethostname()}", since_utc=now_utc())


def write_pin(layout: CampaignLayout, pin: Pin) -> None:
    """Keep readers at the pin's version."""
    publish_json(layout.pin, pin.model_dump(mode="json"))


def read_pin(layout: CampaignLayout) -> Pin | None:
    """What keeps readers where they are; None if nothing does."""
    try:
        return Pin.model_validate_json(layout.pin.read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError:
        return Pin(version=None, by="", since_utc="")


def remove_pin(layout: CampaignLayout) -> None:
    """Let the next promotion decide what readers get."""
    remove_path(layout.pin)
    sync_path(layout.root)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user often has no name
        return f"user {os.getuid()}"
