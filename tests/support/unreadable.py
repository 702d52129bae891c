"""Files that cannot be opened, although a test that runs as root may open any."""

import builtins
import io
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch


@contextmanager
def unreadable(path: Path, code: int) -> Iterator[None]:
    """Let every attempt to open a file fail with an ``OSError`` of this number."""

    def refusing(opens: Callable[..., Any]) -> Callable[..., Any]:
        def call(file: Any, *rest: Any, **options: Any) -> Any:
            if isinstance(file, str | os.PathLike) and Path(file) == path:
                raise OSError(code, os.strerror(code), str(file))
            return opens(file, *rest, **options)

        return call

    with ExitStack() as patched:
        for module in (builtins, io, os):
            patched.enter_context(patch.object(module, "open", refusing(module.open)))
        yield
