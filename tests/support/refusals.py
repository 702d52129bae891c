"""Errors by their type, their attributes and the things that they name, not by their wording."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def refused(
    kind: type[Exception] | tuple[type[Exception], ...], *names: object, **attributes: object
) -> Iterator[pytest.ExceptionInfo[Exception]]:
    """Expect an error of this type that has these attributes and names all of these paths, keys or values."""
    with pytest.raises(kind) as caught:
        yield caught
    assert_names(str(caught.value), *names)
    held = {name: getattr(caught.value, name) for name in attributes}
    assert held == attributes


def assert_names(message: str, *names: object) -> None:
    """Assert that a message names every one of these things."""
    missing = [str(name) for name in names if str(name) not in message]
    assert not missing, f"{missing} not in: {message}"
