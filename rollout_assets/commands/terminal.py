"""How commands talk: tables and JSON on stdout, progress and errors on stderr.

Names, paths and values come from users and from files, so nothing that is printed is read as console markup: colours
are given with ``coloured`` and its short forms, and ``plain_text`` makes every string and cell printable.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from pydantic import BaseModel
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rollout_assets.errors import counted, visible
from rollout_assets.progress import terminal_progress

PIPE_WIDTH = 100_000
"""Characters of a line that goes to a file or a pipe, where nothing has to be squeezed: more than any table has."""

WIDEST_CELL = 160
"""Characters after which a cell goes on in its next line."""

COMFORTABLE_CELL = 30
"""Characters that a long cell gets in a table whose columns may be left out."""

TABLE_EDGE = " │ "
"""What separates two columns."""

NOT_OK = 2
"""Exit code of a command that found something wrong, different or unfinished."""

SHOWN_SKIPS = 20
"""Source rows without a record that are named one by one."""

Value = TypeVar("Value")

_console = partial(Console, markup=False, emoji=False, highlight=False)
out = _console() if _console().file.isatty() else _console(width=PIPE_WIDTH)
err = _console(stderr=True)
progress_bars = partial(terminal_progress, err)
"""Bars on stderr when it is a terminal, silence otherwise."""

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
CampaignOption = Annotated[
    str,
    typer.Option("--campaign", "-c", help="A campaign TOML file, or the name of a shipped one.", metavar="FILE|NAME"),
]


def plain_text(value: Any) -> Text:
    """Any value as text without markup and without characters that a terminal would obey; Rich text stays as it is."""
    return value if isinstance(value, Text) else Text(visible(str(value)))


def coloured(colour: str, value: Any) -> Text:
    """A value in a colour, or in any style of Rich."""
    return Text(visible(str(value)), style=colour)


green, yellow, red = (partial(coloured, colour) for colour in ("green", "yellow", "red"))


def line(*parts: Any) -> Text:
    """Parts of a line, coloured or not, without anything between them."""
    return Text.assemble(*map(plain_text, parts))


def say(*parts: Any) -> None:
    """One line of prose on stdout, from its parts; a long line is not wrapped."""
    out.print(line(*parts), soft_wrap=True)


def warn(*parts: Any) -> None:
    """One line of prose on stderr, from its parts."""
    err.print(line(*parts), soft_wrap=True)


def show_skipped(rows: Sequence[str]) -> None:
    """Name the source rows that gave no record, and why; nothing if there are none."""
    if not rows:
        return
    say(yellow(f"{counted(len(rows), 'source row')} gave no record"), ":")
    for row in rows[:SHOWN_SKIPS]:
        say(f"  {row}")
    if len(rows) > SHOWN_SKIPS:
        say(f"  and {len(rows) - SHOWN_SKIPS:,} more; 'rollout-assets campaign status' counts them by reason")


def print_json(value: Any) -> None:
    """Any dataclass, model or plain value as indented JSON on stdout, never with colours; NaN becomes null."""
    typer.echo(json.dumps(_json(value), indent=2, allow_nan=False))


def show(value: Value, as_json: bool, print_value: Callable[[Value], None]) -> None:
    """Print a value as JSON, or the way people read it."""
    print_json(value) if as_json else print_value(value)


def exit_unless(ok: bool) -> None:
    """End the command with exit code 2 unless all is well."""
    if not ok:
        raise typer.Exit(NOT_OK)


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print a title, in one line however narrow the table is, and rows as a table."""
    say(coloured("bold", title))
    out.print(make_table("", columns, rows))


def make_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> Table:
    """Rows as a table; numbers to the right, None as a dash."""
    table = Table(title=plain_text(title) if title else None, title_justify="left", title_style="bold")
    for index, column in enumerate(columns):
        justify: Any = "right" if any(isinstance(row[index], int | float) for row in rows) else "left"
        table.add_column(plain_text(column), justify=justify, overflow="fold", max_width=WIDEST_CELL)
    for row in rows:
        table.add_row(*(_cell(value) for value in row))
    return table


def columns_that_fit(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> int:
    """How many columns, from the left and at least one, have room on this terminal without being squeezed."""
    left = out.width - len(TABLE_EDGE)
    for index, column in enumerate(columns):
        widths = [len(column), *(_cell(row[index]).cell_len for row in rows)]
        left -= min(max(widths), COMFORTABLE_CELL) + len(TABLE_EDGE)
        if left < 0:
            return max(index, 1)
    return len(columns)


def _cell(value: Any) -> Text:
    if value is None:
        return Text("–")
    if isinstance(value, bool):
        return Text("yes" if value else "no")
    if isinstance(value, int):
        return Text(f"{value:,}")
    return Text(f"{value:,.1f}") if isinstance(value, float) else plain_text(value)


def _json(value: Any) -> Any:
    """A value and everything in it as JSON can hold it."""
    if isinstance(value, BaseModel):
        return _json(value.model_dump(mode="json"))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _json(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {key: _json(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_json(entry) for entry in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Sequence):
        return [_json(entry) for entry in value]
    raise TypeError(f"{type(value).__name__} has no JSON form")
