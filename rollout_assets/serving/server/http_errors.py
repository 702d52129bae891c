"""Failed requests as a client and a log see them: a status, what went wrong, and the request's id in both.

The log never holds a token, a header, a query or a body: it names the route, the status and the reason.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import Scope

from rollout_assets.config import RolloutRecipeConfig
from rollout_assets.config.problems import validation_problems
from rollout_assets.errors import RolloutAssetsError, RowRefused, counted
from rollout_assets.rollouts.remote.messages import AgentRef, RolloutParams, RolloutRequest
from rollout_assets.serving.error_entries import INTERNAL, UNPROCESSABLE, error_entry, error_status
from rollout_assets.serving.server.streams import ClientGone

logger = logging.getLogger(__name__)

CLIENT_CLOSED_REQUEST = 499
ROUTES = ("/health", "/run", "/run_rollouts", "/aggregate_metrics")
_LOGGED_CHARACTERS = 300
_TOLD_PROBLEMS = 100
_FIELDS = frozenset(
    name
    for model in (RolloutRequest, RolloutParams, RolloutRecipeConfig, AgentRef)
    for key, field in model.model_fields.items()
    for name in (key, field.alias)
) | {"rows", "results"}


class RequestRefused(HTTPException):
    """A request that is not run: the status to answer with, and why."""

    def __init__(
        self, status: int, message: str, *, transient: bool = False, headers: Mapping[str, str] | None = None
    ) -> None:
        self.transient = transient
        super().__init__(status, message, headers)

    def response(self, scope: Scope, logged: str | None = None) -> Response:
        """The answer; ``logged`` is the reason in the log when the message quotes what the client sent."""
        entry = {"class": type(self).__name__, "message": self.detail, "transient": self.transient}
        log_failure(scope, self.status_code, type(self).__name__, logged or self.detail)
        return _error_response(scope, self.status_code, entry, self.headers)


def log_failure(scope: Scope, status: int, kind: str, reason: str, error: Exception | None = None) -> None:
    """One line about a failed request; with a traceback when the program itself is at fault."""
    route = scope["path"] if scope["path"] in ROUTES else "an unknown path"
    one_line = "".join(char if char.isprintable() else " " for char in reason[:_LOGGED_CHARACTERS])
    own = error is None or isinstance(error, RolloutAssetsError)
    logger.log(
        logging.ERROR if status >= INTERNAL else logging.WARNING,
        "request %s: %s %s: %d %s: %s",
        scope["request_id"],
        scope["method"],
        route,
        status,
        kind,
        one_line,
        exc_info=None if own else error,
    )


async def on_malformed(request: Request, error: Exception) -> Response:
    """Handler of a body that the route cannot read: 422 with what is wrong. The log has no word of the body."""
    assert isinstance(error, ValidationError)
    problems = [replace(problem, field=problem.field or "body") for problem in validation_problems(error)]
    told = problems[:_TOLD_PROBLEMS]
    more = [f"and {counted(len(problems) - len(told), 'problem')} more"] if len(told) < len(problems) else []
    entry = {
        "class": RowRefused.__name__,
        "message": "; ".join([*map(str, told), *more]),
        "transient": False,
        "field": problems[0].field,
        "problems": [vars(problem) for problem in told],
    }
    details = error.errors(include_url=False, include_context=False, include_input=False)[:_TOLD_PROBLEMS]
    reasons = "; ".join(f"{_known(detail['loc'])}: {detail['type']}" for detail in details)
    log_failure(request.scope, UNPROCESSABLE, RowRefused.__name__, reasons)
    return _error_response(request.scope, UNPROCESSABLE, entry)


async def on_http(request: Request, error: Exception) -> Response:
    """Handler of ``RequestRefused``, and of unknown routes and methods."""
    assert isinstance(error, HTTPException)
    if isinstance(error, RequestRefused):
        return error.response(request.scope)
    message = f"{request.method} {request.url.path}: {error.detail.lower()}"
    return RequestRefused(error.status_code, message, headers=error.headers).response(request.scope, error.detail)


async def on_gone(request: Request, _error: Exception) -> Response:
    """Handler of a client that went away; nobody reads this answer."""
    log_failure(request.scope, CLIENT_CLOSED_REQUEST, "ClientGone", "the client went away before its answer was ready")
    return Response(status_code=CLIENT_CLOSED_REQUEST)


async def on_failure(request: Request, error: Exception) -> Response:
    """Handler of every other error: one request's failure does not touch the others."""
    entry, status = error_entry(error), error_status(error)
    log_failure(request.scope, status, entry["class"], logged_reason(error), error)
    return _error_response(request.scope, status, entry)


def logged_reason(error: Exception) -> str:
    """What the log says of a failure: of a request at fault only the field, because the message quotes the request."""
    if error_status(error) != UNPROCESSABLE:
        return str(error_entry(error)["message"])
    return _known(re.split(r"[.\[\]]+", error.field)) if isinstance(error, RowRefused) else "what was sent is refused"


def _known(parts: Iterable[str | int]) -> str:
    """A field by those parts of its path that do not come from the client."""
    return ".".join(str(part) for part in parts if isinstance(part, int) or part in _FIELDS) or "body"


def _error_response(
    scope: Scope, status: int, entry: Mapping[str, Any], headers: Mapping[str, str] | None = None
) -> Response:
    return JSONResponse({"error": entry, "request_id": scope["request_id"]}, status, headers)


HANDLERS = {
    HTTPException: on_http,
    ValidationError: on_malformed,
    ClientDisconnect: on_gone,
    ClientGone: on_gone,
    RolloutAssetsError: on_failure,
    Exception: on_failure,
}
"""Who answers for which error of a route."""
