"""How commands talk: tables and JSON on stdout, progress and errors on stderr."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from pydantic import BaseModel
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from rollout_assets.errors import counted
from rollout_assets.progress import terminal_progress

PIPE_WIDTH = 160
"""Columns of a table that goes to a file or a pipe."""

NOT_OK = 2
"""Exit code of a command that found something wrong, different or unfinished."""

SHOWN_SKIPS = 20
"""Source rows without a record that are named one by one."""

Value = TypeVar("Value")

out = Console() if Console().is_terminal else Console(width=PIPE_WIDTH)
err = Console(stderr=True)
progress_bars = partial(terminal_progress, err)
"""Bars on stderr when it is a terminal, silence otherwise."""

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
CampaignOption = Annotated[
    str,
    typer.Option("--campaign", "-c", help="A campaign TOML file, or the name of a shipped one.", metavar="FILE|NAME"),
]


def say(text: str) -> None:
    """One line of prose on stdout, with Rich markup; a long line is not wrapped."""
    out.print(text, highlight=False, soft_wrap=True)


def show_skipped(rows: Sequence[str]) -> None:
    """Name the source rows that gave no record, and why; nothing if there are none."""
    if not rows:
        return
    say(f"[yellow]{counted(len(rows), 'source row')} gave no record[/]:")
    for row in rows[:SHOWN_SKIPS]:
        say(f"  {escape(row)}")
    if len(rows) > SHOWN_SKIPS:
        say(f"  and {len(rows) - SHOWN_SKIPS:,} more; 'rollout-assets campaign status' counts them by reason")


def print_json(value: Any) -> None:
    """Any dataclass, model or plain value as indented JSON on stdout."""
    out.print_json(json.dumps(value, default=_plain), indent=2)


def show(value: Value, as_json: bool, print_value: Callable[[Value], None]) -> None:
    """Print a value as JSON, or the way people read it."""
    print_json(value) if as_json else print_value(value)


def exit_unless(ok: bool) -> None:
    """End the command with exit code 2 unless all is well."""
    if not ok:
        raise typer.Exit(NOT_OK)


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print rows as a table."""
    out.print(make_table(title, columns, rows))


def make_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> Table:
    """Rows as a table; numbers to the right, None as a dash."""
    table = Table(title=title, title_justify="left", title_style="bold")
    for index, column in enumerate(columns):
        numeric = any(isinstance(row[index], int | float) for row in rows)
        table.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(_cell(value) for value in row))
    return table


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.1f}" if isinstance(value, float) else str(value)


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")
