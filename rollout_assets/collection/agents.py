"""Who runs rollouts for a collection: servers over HTTP, or a service in this process. Both give the same lines."""

from __future__ import annotations

import os
from typing import Any

from rollout_assets.config import CampaignConfig
from rollout_assets.errors import AnswerRefused, ConfigError, ServerError, ServerUnavailable
from rollout_assets.rollouts.remote.client import RolloutClient
from rollout_assets.rollouts.remote.messages import RolloutRequest, RolloutResult
from rollout_assets.serving.service import RolloutService

IDENTITY = ("campaign", "config_hashes", "source_manifest_hash", "split_manifest_hashes")
"""What results depend on, among what a server says of itself."""

HEALTH_TIMEOUT_S = 10.0


class RemoteAgent:
    """Rollout servers as one: each request goes to the server with the fewest requests under way, in turn."""

    def __init__(self, urls: tuple[str, ...], token_env: str | None = None) -> None:
        token = None if token_env is None else os.environ.get(token_env)
        if token_env is not None and not token:
            problem = "must hold the server's token; it is empty or not set"
            raise ConfigError(f"the environment variable {token_env} {problem}")
        self._servers = [RolloutClient(url, token) for url in dict.fromkeys(urls)]

    async def identity(self) -> dict[str, Any]:
        """What all servers run; servers that differ are ``ServerUnavailable`` with the field."""
        identities = {server.url: await self._health(server) for server in self._servers}
        first_url, first = next(iter(identities.items()))
        for url, other in identities.items():
            for name in IDENTITY:
                if other[name] != first[name]:
                    raise ServerUnavailable(
                        f"{url}: {name} is {other[name]}, but {first_url} has {first[name]}; "
                        f"all servers must serve the same campaign and source"
                    )
        return first

    async def run(self, request: RolloutRequest) -> dict[str, Any]:
        """Have one server run one request."""
        server = min(self._servers, key=lambda server: (server.in_flight, server.sent))
        return _line_of(request, await server.run(request))

    async def aclose(self) -> None:
        """Close all connections."""
        for server in self._servers:
            await server.aclose()

    async def _health(self, server: RolloutClient) -> dict[str, Any]:
        try:
            health = await server.health(HEALTH_TIMEOUT_S)
            return {name: health[name] for name in IDENTITY}
        except ServerError as error:
            problem = str(error).removeprefix(f"{server.url}: ")
            raise ServerUnavailable(f"{server.url}: no rollout server answers there: {problem}") from None
        except KeyError as error:
            raise ServerUnavailable(f"{server.url}: /health is not that of a rollout server: no {error}") from None


class LocalAgent:
    """The campaign run in this process, without a server."""

    def __init__(self, config: CampaignConfig) -> None:
        self._service = RolloutService(config)

    async def identity(self) -> dict[str, Any]:
        """The campaign's hashes and its source's, once kernels are loaded and requests can be run."""
        await self._service.warm_up()
        description = self._service.describe()
        return {name: description[name] for name in IDENTITY}

    async def run(self, request: RolloutRequest) -> dict[str, Any]:
        """Run one request."""
        return _line_of(request, await self._service.run(request))

    async def aclose(self) -> None:
        """Stop the scoring threads."""
        await self._service.aclose()


def _line_of(request: RolloutRequest, result: RolloutResult) -> dict[str, Any]:
    """The result as JSON values; a result of something else than the request is ``AnswerRefused``."""
    answered = {
        "sample_key": (request.sample_key, result.sample_key),
        "source_row": (request.source_row, result.source_row),
        "seed": (request.seed, result.seed),
        "agent": (request.agent_name, result.agent_ref.name),
        "_task_index": (request.task_index, result.task_index),
        "_rollout_index": (request.rollout_index, result.rollout_index),
    }
    for name, (asked, given) in answered.items():
        if asked is not None and given != asked:
            raise AnswerRefused(f"the answer is about {name} {given!r}, asked was {asked!r}")
    if "record" in request.include and result.record is None:
        raise AnswerRefused("the answer has no record, which was asked for")
    absent = {name for name in ("chains", "record", "row_index") if getattr(result, name) is None}
    return result.model_dump(mode="json", by_alias=True, exclude=absent)
