"""Pydantic's errors in the words of the person who wrote the file: the key, the value and what is wrong with it."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails


def config_problems(error: ValidationError, model: type[BaseModel]) -> list[str]:
    """One line per problem; an unknown key comes with the known one that it resembles."""
    return [_problem(detail, model) for detail in error.errors(include_url=False)]


def _problem(error: ErrorDetails, model: type[BaseModel]) -> str:
    loc = [part for part in error["loc"] if part not in ("constant", "schedule", "stochastic")]
    key = _key(loc)
    if error["type"] == "extra_forbidden":
        known = _known_keys(loc[:-1], model)
        close = difflib.get_close_matches(str(loc[-1]), known, n=1)
        hint = f"did you mean {close[0]}?" if close else f"known keys: {', '.join(known)}"
        return f"{key}: unknown key; {hint}"
    if error["type"] == "missing":
        return f"{key}: required, but not given"
    message = error["msg"].removeprefix("Value error, ")
    if error["type"] == "value_error":
        return f"{key}: {message}" if key else message
    return f"{key} = {json.dumps(error['input'], default=str)}: {message[:1].lower()}{message[1:]}"


def _key(loc: list[int | str]) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc).lstrip(".")


def _known_keys(loc: list[int | str], model: type[BaseModel]) -> list[str]:
    for part in (part for part in loc if isinstance(part, str)):
        model = next(kind for kind in _models_in(model.model_fields[part].annotation))
    return list(model.model_fields)


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in getattr(annotation, "__args__", ()):
        yield from _models_in(argument)
