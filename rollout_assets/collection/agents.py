"""Who answers rows: servers over HTTP, or a service in this process. Both give the same lines."""

from __future__ import annotations

import json
import os
import ssl
from collections.abc import Mapping
from typing import Any

import httpx
from pydantic import ValidationError

from rollout_assets.collection.failures import RequestFailed
from rollout_assets.config import CampaignConfig, canonical_hash
from rollout_assets.config.problems import problems_text
from rollout_assets.errors import ConfigError, ServerUnavailable
from rollout_assets.rollouts.remote.messages import RolloutRequest, RolloutResult
from rollout_assets.serving.http_errors import error_entry

IDENTITY = ("campaign", "config_hashes", "source_manifest_hash")
"""What results depend on, among what a server says of itself."""

HEALTH_TIMEOUT_S = 10.0
BUSY = 429
DEFAULT_RETRY_AFTER_S = 1.0


class _Server:
    """One server, and connections to it that are not in use.

    A client per connection: what a shared one does for each request grows with the number of its connections.
    """

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        self.url = url.rstrip("/")
        self.asked = self.in_flight = 0
        self._headers = headers
        self._verify = ssl.create_default_context() if url.startswith("https://") else False
        self._clients: list[httpx.AsyncClient] = []
        self._idle: list[httpx.AsyncClient] = []

    async def ask(self, method: str, path: str, **options: Any) -> httpx.Response:
        """One request over a connection of its own."""
        http = self._idle.pop() if self._idle else self._connect()
        self.asked += 1
        self.in_flight += 1
        try:
            return await http.request(method, f"{self.url}{path}", **options)
        finally:
            self.in_flight -= 1
            self._idle.append(http)

    async def aclose(self) -> None:
        for http in self._clients:
            await http.aclose()

    def _connect(self) -> httpx.AsyncClient:
        http = httpx.AsyncClient(headers=dict(self._headers), timeout=None, verify=self._verify, trust_env=False)
        self._clients.append(http)
        return http


class RemoteAgent:
    """Rollout servers behind one door: each row goes to the server with the fewest rows under way, in turn."""

    def __init__(self, urls: tuple[str, ...], token_env: str | None = None) -> None:
        headers = {"Authorization": f"Bearer {_token(token_env)}"} if token_env is not None else {}
        self._servers = [_Server(url, headers) for url in dict.fromkeys(urls)]

    async def identity(self) -> dict[str, Any]:
        """What all servers answer for; servers that differ are ``ServerUnavailable`` with the field."""
        found = {server.url: await self._health(server) for server in self._servers}
        first_url, first = next(iter(found.items()))
        for url, other in found.items():
            for name in IDENTITY:
                if other[name] != first[name]:
                    raise ServerUnavailable(
                        f"{url}: {name} is {other[name]}, but {first_url} has {first[name]}; "
                        f"all servers must serve the same campaign and source"
                    )
        return first

    async def run(self, row: RolloutRequest) -> dict[str, Any]:
        """Ask one server for one row."""
        server = min(self._servers, key=lambda server: (server.in_flight, server.asked))
        body = row.model_dump_json(by_alias=True, exclude_defaults=True)
        headers = {"Content-Type": "application/json", "Idempotency-Key": canonical_hash(json.loads(body))}
        try:
            answer = await server.ask("POST", "/run", content=body, headers=headers)
        except httpx.HTTPError as error:
            raise RequestFailed(type(error).__name__, f"{server.url}: {error}", transient=True) from None
        if answer.status_code != httpx.codes.OK:
            raise _refusal(server.url, answer)
        try:
            result = RolloutResult.model_validate_json(answer.content)
        except ValidationError as error:
            problems = problems_text(error, RolloutResult)
            raise RequestFailed("AnswerRefused", f"{server.url}: {problems}", transient=False) from None
        return _answer_to(row, result)

    async def aclose(self) -> None:
        """Close all connections."""
        for server in self._servers:
            await server.aclose()

    async def _health(self, server: _Server) -> dict[str, Any]:
        url = server.url
        try:
            answer = await server.ask("GET", "/health", timeout=HEALTH_TIMEOUT_S)
            answer.raise_for_status()
            found = answer.json()
            return {name: found[name] for name in IDENTITY}
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            told = str(error) or type(error).__name__
            raise ServerUnavailable(f"{url}: no rollout server answers there: {told}") from None
        except (ValueError, KeyError, TypeError) as error:
            raise ServerUnavailable(f"{url}: /health is not that of a rollout server: {error!r}") from None


class LocalAgent:
    """The campaign run in this process, without a server."""

    def __init__(self, config: CampaignConfig) -> None:
        from rollout_assets.serving.service import RolloutService

        self._service = RolloutService(config)

    async def identity(self) -> dict[str, Any]:
        """The campaign's hashes and its source's, once kernels are loaded and rows can be run."""
        await self._service.warm_up()
        found = self._service.describe()
        return {name: found[name] for name in IDENTITY}

    async def run(self, row: RolloutRequest) -> dict[str, Any]:
        """Run one row; a failure reads as a server would tell it."""
        try:
            result = await self._service.run(row)
        except Exception as error:
            told = error_entry(error)
            raise RequestFailed(told["class"], told["message"], transient=told["transient"]) from error
        return _answer_to(row, result)

    async def aclose(self) -> None:
        """Stop the scoring threads."""
        await self._service.aclose()


def _answer_to(row: RolloutRequest, result: RolloutResult) -> dict[str, Any]:
    """The result as JSON values, if it is about what was asked."""
    asked = {"sample_key": row.sample_key, "source_row": row.source_row, "seed": row.seed}
    asked |= {"agent": row.agent_name, "_task_index": row.task_index, "_rollout_index": row.rollout_index}
    found = {"sample_key": result.sample_key, "source_row": result.source_row, "seed": result.seed}
    found |= {"agent": result.agent_ref.name, "_task_index": result.task_index, "_rollout_index": result.rollout_index}
    for name, value in asked.items():
        if value is not None and found[name] != value:
            told = f"the answer is about {name} {found[name]!r}, asked was {value!r}"
            raise RequestFailed("AnswerRefused", told, transient=False)
    if "record" in row.include and result.record is None:
        raise RequestFailed("AnswerRefused", "the answer has no record, which was asked for", transient=False)
    answer = result.model_dump(mode="json", by_alias=True)
    for name in ("chains", "record", "_rowidx"):
        if answer[name] is None:
            del answer[name]
    return answer


def _refusal(url: str, answer: httpx.Response) -> RequestFailed:
    """What a server that did not give a result says about it."""
    status = answer.status_code
    try:
        told = answer.json()["error"]
        kind, message, transient = str(told["class"]), str(told["message"]), bool(told["transient"])
    except (ValueError, KeyError, TypeError):
        kind, message, transient = f"HTTP{status}", answer.text[:200], status == BUSY or status >= 500
    after = _retry_after(answer) if status == BUSY else None
    transient = transient or after is not None
    return RequestFailed(kind, f"{url}: {status}: {message}", transient=transient, retry_after_s=after)


def _retry_after(answer: httpx.Response) -> float:
    try:
        return max(float(answer.headers["Retry-After"]), 0.01)
    except (KeyError, ValueError):
        return DEFAULT_RETRY_AFTER_S


def _token(name: str) -> str:
    token = os.environ.get(name)
    if not token:
        raise ConfigError(f"the environment variable {name} must hold the server's token; it is empty or not set")
    return token
