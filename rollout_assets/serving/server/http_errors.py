"""Errors as a client sees them: a status, and JSON that says what, where, and whether asking again may help."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from rollout_assets.errors import RowRefused
from rollout_assets.rollouts.remote.messages import row_problems
from rollout_assets.serving.error_entries import UNPROCESSABLE, error_entry, error_status

CLIENT_CLOSED_REQUEST = 499


class RequestRefused(Exception):
    """A request that is not even looked at: the status to answer with, and why."""

    def __init__(
        self, status: int, message: str, *, transient: bool = False, headers: Mapping[str, str] | None = None
    ) -> None:
        self.status, self.message, self.transient, self.headers = status, message, transient, headers
        super().__init__(message)

    def response(self) -> Response:
        """The answer."""
        body = {"error": {"class": type(self).__name__, "message": self.message, "transient": self.transient}}
        return JSONResponse(body, self.status, self.headers)


def malformed(error: ValidationError) -> Response:
    """422 with every problem of a body."""
    problems = row_problems(error)
    body = {
        "error": {
            "class": RowRefused.__name__,
            "message": "; ".join(str(problem) for problem in problems),
            "transient": False,
            "field": problems[0].field,
            "problems": [vars(problem) for problem in problems],
        }
    }
    return JSONResponse(body, UNPROCESSABLE)


async def on_refused(_request: Request, error: Exception) -> Response:
    """Handler of ``RequestRefused``."""
    assert isinstance(error, RequestRefused)
    return error.response()


async def on_malformed(_request: Request, error: Exception) -> Response:
    """Handler of a body that is not what the route takes."""
    assert isinstance(error, ValidationError)
    return malformed(error)


async def on_http(request: Request, error: Exception) -> Response:
    """Handler of unknown routes and methods."""
    assert isinstance(error, HTTPException)
    message = f"{request.method} {request.url.path}: {error.detail.lower()}"
    return RequestRefused(error.status_code, message, headers=error.headers).response()


async def on_gone(_request: Request, _error: Exception) -> Response:
    """Handler of a client that went away; nobody reads this answer."""
    return Response(status_code=CLIENT_CLOSED_REQUEST)


async def on_failure(_request: Request, error: Exception) -> Response:
    """Handler of what the rooms below raise, and of everything else: one request's failure is its own."""
    return JSONResponse({"error": error_entry(error)}, error_status(error))
