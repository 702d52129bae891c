"""Runs moto's S3 until it is killed: ``python -m rollout_assets.testing.object_server [--ignore-conditions]``.

With ``--ignore-conditions`` it accepts conditional writes and does not keep their conditions, as some endpoints do.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import run_simple

CONDITIONS = ("HTTP_IF_MATCH", "HTTP_IF_NONE_MATCH")

Application = Callable[[dict[str, Any], Any], Iterable[bytes]]


def ignoring_conditions(application: Application) -> Application:
    """The same server, which does not see the conditions of a write."""

    def answer(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        kept = {name: value for name, value in environ.items() if name not in CONDITIONS}
        return application(kept if environ.get("REQUEST_METHOD") == "PUT" else environ, start_response)

    return answer


if __name__ == "__main__":
    s3: Any = DomainDispatcherApplication(create_backend_app)
    run_simple("127.0.0.1", 0, ignoring_conditions(s3) if "--ignore-conditions" in sys.argv else s3, threaded=True)
