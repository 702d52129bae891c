"""Cron expressions: minute, hour, day of the month, month and weekday, in numbers."""

from __future__ import annotations

import re

FIELDS = {"minute": (0, 59), "hour": (0, 23), "day": (1, 31), "month": (1, 12), "weekday": (0, 7)}
"""Field -> its smallest and largest number, in the order in which they are written."""

_PART = re.compile(r"(?:\*|(\d{1,2})(?:-(\d{1,2}))?)(?:/(\d{1,2}))?")


def cron_expression(text: str) -> str:
    """The text, if it says when something happens; otherwise ``ValueError``."""
    fields = text.split()
    if len(fields) != len(FIELDS):
        raise ValueError(f"must be {len(FIELDS)} fields ({', '.join(FIELDS)}) such as '0 3 * * *', got {text!r}")
    for field, (name, (low, high)) in zip(fields, FIELDS.items(), strict=True):
        if not all(_fits(part, low, high) for part in field.split(",")):
            raise ValueError(f"{name} must be *, */2, or numbers from {low} to {high} as 1,5 or 1-5, got {field!r}")
    return text


def _fits(part: str, low: int, high: int) -> bool:
    match = _PART.fullmatch(part)
    if match is None:
        return False
    first, last, step = (None if number is None else int(number) for number in match.groups())
    start = low if first is None else first
    return low <= start <= (start if last is None else last) <= high and step != 0
