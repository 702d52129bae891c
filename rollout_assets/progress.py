"""Progress as events: long work reports to a sink and does not know whether anybody watches.

Functions take ``progress: ProgressSink = SILENT`` and call it; a terminal gets Rich bars, a log gets lines, tests get
nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Task as RichTask
from rich.text import Text

from rollout_assets.errors import visible


@dataclass(frozen=True)
class ProgressEvent:
    """``done`` of ``total`` units of ``task`` are finished; ``note`` says what is under way."""

    task: str
    done: int
    total: int | None = None
    note: str = ""
    unit: str = "items"


class ProgressSink(Protocol):
    """Anything that can be told how far some work has come."""

    def __call__(self, event: ProgressEvent, /) -> None: ...


def SILENT(event: ProgressEvent, /) -> None:  # noqa: N802 - a constant sink, used as a default argument
    """The sink that drops every event."""


class _RateColumn(TextColumn):
    """Units per second, with the unit that the task's events name."""

    def __init__(self) -> None:
        super().__init__("")

    def render(self, task: RichTask) -> Text:
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{speed:,.1f} {task.fields['unit']}/s", style="progress.data.speed")


@contextmanager
def terminal_progress(console: Console) -> Iterator[ProgressSink]:
    """Bars with rate and time left on a terminal; silence when the console is not one."""
    if not console.is_terminal:
        yield SILENT
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        _RateColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}", style="dim", markup=False),
    )
    with Progress(*columns, console=console, transient=True) as bars:
        ids: dict[str, TaskID] = {}

        def show(event: ProgressEvent, /) -> None:
            if event.task not in ids:
                ids[event.task] = bars.add_task(
                    visible(event.task, keep=""), total=event.total, unit=event.unit, note=""
                )
            note = visible(event.note, keep="")
            bars.update(ids[event.task], completed=event.done, total=event.total, note=note)

        yield show
