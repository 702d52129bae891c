"""Pydantic's errors in the words of the person who wrote the file or the request: the key, what is wrong, the value.

Every message about a value that does not validate is made here, so that all of them read alike:
``recipes[0].horizon: input should be greater than or equal to 1, got 0``.
"""

from __future__ import annotations

import difflib
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from rollout_assets.errors import counted

_UNION_MEMBERS = {"str", "constrained-int", "RolloutRecipeConfig", "constant", "schedule", "stochastic"}
"""Parts of a pydantic location that name a member of a union, not a key."""

_SHOWN_CHARACTERS = 80
_WITHOUT_VALUE = {"missing", "json_invalid"}


@dataclass(frozen=True)
class ValueProblem:
    """One thing that is wrong: the field by its path (``rows[3].params.horizon``), what, and the value if it helps."""

    field: str
    message: str
    value: str | None

    def __str__(self) -> str:
        where = f"{self.field}: " if self.field else ""
        given = "" if self.value is None else f", got {self.value}"
        return f"{where}{self.message}{given}"


def validation_problems(error: ValidationError, model: type[BaseModel] | None = None) -> tuple[ValueProblem, ...]:
    """Every problem that pydantic found; of several about one value, those that lie deepest.

    With the ``model`` that did not validate, an unknown key comes with the known one that it resembles.
    """
    problems = tuple(dict.fromkeys(_problem(detail, model) for detail in error.errors(include_url=False)))
    fields = sorted({problem.field for problem in problems})
    return tuple(problem for problem in problems if not _lies_above(problem.field, fields))


def problems_text(error: ValidationError, model: type[BaseModel] | None = None) -> str:
    """All problems in one line."""
    return "; ".join(map(str, validation_problems(error, model)))


def problems_list(where: str, error: ValidationError, model: type[BaseModel] | None = None) -> str:
    """All problems, one a line, below a line that says where and how many."""
    problems = [str(problem) for problem in validation_problems(error, model)]
    return "\n  - ".join([f"{where}: {counted(len(problems), 'problem')}", *problems])


def _lies_above(field: str, fields: Sequence[str]) -> bool:
    """Whether one of the sorted fields is a key of ``field`` itself."""
    at = bisect_left(fields, f"{field}.")
    return bool(field) and at < len(fields) and fields[at].startswith(f"{field}.")


def _problem(error: ErrorDetails, model: type[BaseModel] | None) -> ValueProblem:
    location = [part for part in error["loc"] if not _names_union_member(part)]
    message = error["msg"].removeprefix("Value error, ")
    value = None if error["type"] in _WITHOUT_VALUE else _shown(error["input"])
    if error["type"] == "missing":
        message = "required, but not given"
    elif error["type"] == "extra_forbidden":
        message, value = f"unknown key{_hint(location, model)}", None
    elif error["type"] == "value_error":
        value = None  # our own validators name it
    return ValueProblem(_path(location), message[:1].lower() + message[1:], value)


def _names_union_member(part: int | str) -> bool:
    """Pydantic calls a model that has validators of its own ``function-after[…, RolloutRecipeConfig]``."""
    return part in _UNION_MEMBERS or str(part).startswith("function-after[")


def _shown(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= _SHOWN_CHARACTERS else shown[: _SHOWN_CHARACTERS - 1] + "…"


def _path(location: Sequence[int | str]) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location).lstrip(".")


def _hint(location: Sequence[int | str], model: type[BaseModel] | None) -> str:
    keys = [] if model is None else _keys(location[:-1], model)
    resembling = difflib.get_close_matches(str(location[-1]), keys, n=1)
    if resembling:
        return f"; did you mean {resembling[0]}?"
    return f"; known keys: {', '.join(keys)}" if keys else ""


def _keys(location: Sequence[int | str], model: type[BaseModel]) -> list[str]:
    for part in (part for part in location if isinstance(part, str)):
        field = model.model_fields.get(part)
        inner = None if field is None else next(_models_in(field.annotation), None)
        if inner is None:
            return []
        model = inner
    return list(model.model_fields)


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in getattr(annotation, "__args__", ()):
        yield from _models_in(argument)
