"""Runs moto's S3 until it is killed: ``python -m rollout_assets.testing.object_server [--ignore-conditions|--google]``.

With ``--ignore-conditions`` it accepts conditional writes and does not keep their conditions, as some endpoints do.
With ``--google`` it speaks the dialect of Google Cloud Storage: conditions go by the generation of an object.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from itertools import count
from threading import Lock
from typing import Any

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import run_simple
from werkzeug.test import run_wsgi_app
from werkzeug.wrappers import Response

CONDITIONS = ("HTTP_IF_MATCH", "HTTP_IF_NONE_MATCH")

_SIGNED = "AWS4-HMAC-SHA256 Credential=testing/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0"
"""What moto asks of whoever removes objects; it does not verify it."""

Environment = dict[str, Any]
Application = Callable[[Environment, Any], Iterable[bytes]]


def ignoring_conditions(application: Application) -> Application:
    """The same server, which does not see the conditions of a write."""

    def answer(environ: Environment, start_response: Any) -> Iterable[bytes]:
        kept = {name: value for name, value in environ.items() if name not in CONDITIONS}
        return application(kept if environ.get("REQUEST_METHOD") == "PUT" else environ, start_response)

    return answer


class GoogleDialect:
    """The same server as a client of Google Cloud Storage expects it, as far as our requests go.

    A write names the generation that it replaces, 0 for none; an answer names the generation of the object; removing
    an object that is not there is an error.
    """

    def __init__(self, application: Application) -> None:
        self._application = application
        self._generations: dict[str, int] = {}
        self._next = count(1_000)
        self._one_at_a_time = Lock()

    def __call__(self, environ: Environment, start_response: Any) -> Iterable[bytes]:
        with self._one_at_a_time:
            return self._answer(environ)(environ, start_response)

    def _answer(self, environ: Environment) -> Response:
        path, method = environ["PATH_INFO"], environ["REQUEST_METHOD"]
        expected = environ.get("HTTP_X_GOOG_IF_GENERATION_MATCH")
        if expected is not None and int(expected) != self._generations.get(path, 0):
            return Response("<Error><Code>PreconditionFailed</Code></Error>", 412)
        if method == "DELETE" and path not in self._generations:
            return Response("<Error><Code>NoSuchKey</Code></Error>", 404)
        if source := environ.get("HTTP_X_GOOG_COPY_SOURCE"):
            environ["HTTP_X_AMZ_COPY_SOURCE"] = source
        environ["HTTP_AUTHORIZATION"] = _SIGNED
        body, status, headers = run_wsgi_app(self._application, environ)
        if status.startswith("2"):
            self._remember(method, path)
        if path in self._generations:
            headers["x-goog-generation"] = str(self._generations[path])
        return Response(body, status, headers)

    def _remember(self, method: str, path: str) -> None:
        if method == "PUT":
            self._generations[path] = next(self._next)
        elif method == "DELETE":
            del self._generations[path]


def _served(arguments: list[str]) -> Application:
    s3: Any = DomainDispatcherApplication(create_backend_app)
    if "--google" in arguments:
        return GoogleDialect(s3)
    return ignoring_conditions(s3) if "--ignore-conditions" in arguments else s3


if __name__ == "__main__":
    served: Any = _served(sys.argv)
    run_simple("127.0.0.1", 0, served, threaded=True)
