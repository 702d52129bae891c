"""Asking a rollout server for rows, and reading its lines as they come."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any
from weakref import WeakKeyDictionary

import httpx
from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError

from rollout_assets.config import Seconds
from rollout_assets.config.problems import problems_text
from rollout_assets.errors import AnswerRefused, RowRefused, ServerError, ServerUnavailable
from rollout_assets.rollouts.remote.messages import RolloutRequest, RolloutResult

_COME_AGAIN = {408, 429, 502, 503, 504}


class GymServerConfig(BaseModel):
    """Where rollouts are run, and how long and how often to ask.

    ``deadline_s`` holds for a whole group, further attempts included. A server that says nothing for ``silence_s``, not
    even a heartbeat, counts as gone.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    url: Annotated[str, Field(pattern=r"^https?://[^/\s]+$")]
    token: SecretStr | None = None
    deadline_s: Seconds = 600.0
    attempts: Annotated[int, Field(ge=1)] = 4
    connect_s: Seconds = 5.0
    silence_s: Seconds = 30.0


@dataclass(frozen=True)
class RowFailure:
    """What a server says of a row that it could not run."""

    row_index: int
    error_class: str
    message: str
    transient: bool


class GymClient:
    """One server, over connections that are kept open per event loop."""

    def __init__(self, config: GymServerConfig) -> None:
        self.config = config
        self._clients: WeakKeyDictionary[asyncio.AbstractEventLoop, httpx.AsyncClient] = WeakKeyDictionary()

    async def answers(
        self, rows: Sequence[RolloutRequest], idempotency_key: str
    ) -> AsyncIterator[RolloutResult | RowFailure]:
        """What the server says of rows, in its order; it may end early. Leaving off cancels the rest on the server.

        ``ServerUnavailable`` when asking again may help, another ``ServerError`` when it does not.
        """
        body = {"rows": [row.model_dump(mode="json", by_alias=True, exclude_none=True) for row in rows]}
        headers = {"Idempotency-Key": idempotency_key}
        try:
            async with self._client().stream("POST", "/run_rollouts", json=body, headers=headers) as response:
                if response.status_code != httpx.codes.OK:
                    await response.aread()
                    raise self._refusal(response)
                async for line in _lines(response):
                    answer = self._read(line)
                    if answer is not None:
                        yield answer
        except httpx.HTTPError as error:
            raise ServerUnavailable(f"{self.config.url}: {type(error).__name__}: {error or 'no answer'}") from error

    async def aclose(self) -> None:
        """Close the running loop's connections."""
        client = self._clients.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.aclose()

    def _client(self) -> httpx.AsyncClient:
        loop = asyncio.get_running_loop()
        if loop not in self._clients:
            token = self.config.token
            self._clients[loop] = httpx.AsyncClient(
                base_url=self.config.url,
                headers={} if token is None else {"Authorization": f"Bearer {token.get_secret_value()}"},
                timeout=httpx.Timeout(self.config.silence_s, connect=self.config.connect_s),
                trust_env=False,
            )
        return self._clients[loop]

    def _read(self, line: bytes) -> RolloutResult | RowFailure | None:
        """A line's answer; None for a heartbeat."""
        try:
            if line.startswith((b'{"heartbeat"', b'{"_rowidx"')):
                said = json.loads(line)
                return None if "heartbeat" in said else _failure(said)
            return RolloutResult.model_validate_json(line)
        except ValidationError as error:
            problems = problems_text(error, RolloutResult)
            raise AnswerRefused(f"{self.config.url}: a line is not a result: {problems}") from None
        except (ValueError, KeyError, TypeError) as error:
            raise AnswerRefused(f"{self.config.url}: a line cannot be read: {error!r}: {line[:80]!r}") from None

    def _refusal(self, response: httpx.Response) -> ServerError | RowRefused:
        """The error that a status other than 200 stands for."""
        try:
            said = response.json()["error"]
            message, field = str(said["message"]), said.get("field")
        except (ValueError, KeyError, TypeError):
            message, field = response.text[:200] or "no reason given", None
        if field is not None:
            return RowRefused(str(field), f"{message} (said {self.config.url})")
        told = f"{self.config.url}: {response.status_code}: {message}"
        if response.status_code in _COME_AGAIN:
            after = response.headers.get("retry-after", "")
            return ServerUnavailable(told, float(after) if after.isdigit() else 0.0)
        return ServerError(told)


def _failure(said: dict[str, Any]) -> RowFailure:
    error = said["error"]
    return RowFailure(int(said["_rowidx"]), str(error["class"]), str(error["message"]), bool(error["transient"]))


async def _lines(response: httpx.Response) -> AsyncIterator[bytes]:
    """Whole lines; a last one without its end was torn off and is left out."""
    rest = bytearray()
    async for piece in response.aiter_bytes():
        begin = len(rest)
        rest += piece
        while (end := rest.find(b"\n", begin)) >= 0:
            yield bytes(rest[:end])
            del rest[: end + 1]
            begin = 0
