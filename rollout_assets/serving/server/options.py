"""How a rollout server listens and what it allows."""

from __future__ import annotations

import ipaddress
from typing import Annotated, Self

from pydantic import Field, SecretStr, field_validator, model_validator

from rollout_assets.config import ConfigSection, Count, Seconds, Whole


class ServerOptions(ConfigSection):
    """One server's settings. Beyond loopback it accepts no request without the token."""

    host: str = "127.0.0.1"
    port: Annotated[Whole, Field(ge=0, le=65_535)] = 0
    """0 takes any free port."""
    token: SecretStr | None = None
    """The token that ``Authorization: Bearer`` must carry; never shown."""
    max_body_bytes: Count = 16 << 20
    """Size of one request's body."""
    max_in_flight: Count = 256
    """Rollouts that are run or wait for it, over all requests; also the most that one request may ask for."""
    remembered_bytes: Count = 64 << 20
    """Results kept for requests that come again with their idempotency key."""
    max_connections: Count = 2_048
    """Open connections. Beyond three quarters of it, the oldest one without a request under way is closed."""
    heartbeat_s: Seconds = 5.0
    """Seconds after which a stream without a new line sends a heartbeat."""
    headers_timeout_s: Seconds = 10.0
    """How long a client may take to send the headers of a request."""
    body_timeout_s: Seconds = 30.0
    """How long a client may take to send its body, or to read a piece of an answer."""
    shutdown_s: Seconds = 10.0
    """How long requests under way may take to end once the server is asked to stop."""

    @field_validator("token")
    @classmethod
    def _usable(cls, token: SecretStr | None) -> SecretStr | None:
        if token is not None:
            text = token.get_secret_value()
            if not text or not text.isascii() or not text.isprintable() or " " in text:
                raise ValueError("token must be printable ASCII without spaces, and not empty")
        return token

    @model_validator(mode="after")
    def _guarded(self) -> Self:
        if self.token is None and not is_loopback(self.host):
            raise ValueError(f"host {self.host!r} can be reached from elsewhere, which needs a token, got none")
        return self


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a host."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
