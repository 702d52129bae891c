"""What a benchmark measured, as JSON and as tables.

A result is a frozen dataclass. ``Annotated[float, Figure(...)]`` on a field, or on what a property returns, says how
that figure is printed; so a figure, its name, its unit and its goal are written once, where it is declared.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from rich.console import Group
from rich.table import Table


@dataclass(frozen=True)
class Figure:
    """A figure's label, its format, and the goal that it is compared with.

    A label with ``{}`` belongs to a mapping, or pairs, of which every entry gets a line.
    """

    label: str
    form: str = "{}"
    goal: str = ""

    def text(self, value: Any) -> str:
        """The value as it is printed."""
        return ("no", "yes")[value] if isinstance(value, bool) else self.form.format(value)


def to_json(result: Any) -> Any:
    """Plain values: every field, and every property that has a figure."""
    if is_dataclass(result):
        names = [field.name for field in fields(result)] + [name for name, _ in _figures(type(result))]
        return {name: to_json(getattr(result, name)) for name in dict.fromkeys(names)}
    if isinstance(result, tuple | list):
        return [to_json(value) for value in result]
    return result


def render(result: Any) -> Group:
    """The result's figures line by line, and a table for each tuple of results inside it."""
    main = _table(str(result), ("what", "measured", "goal"))
    tables = []
    for name, figure in _figures(type(result)):
        value = getattr(result, name)
        if isinstance(value, tuple) and value and is_dataclass(value[0]):
            tables.append(_rows(figure.label, value))
            continue
        for label, entry in _entries(figure.label, value):
            main.add_row(label, figure.text(entry), figure.goal)
    return Group(main, *tables)


def _entries(label: str, value: Any) -> Iterator[tuple[str, Any]]:
    if "{}" not in label:
        yield label, value
        return
    for key, entry in dict(value).items():
        yield label.format(key), entry


def _rows(title: str, results: tuple[Any, ...]) -> Table:
    columns = list(_figures(type(results[0])))
    table = _table(title, tuple(figure.label for _, figure in columns))
    for result in results:
        table.add_row(*(figure.text(getattr(result, name)) for name, figure in columns))
    return table


def _table(title: str, headings: tuple[str, ...]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold")
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="right" if number else "left")
    return table


def _figures(kind: type) -> Iterator[tuple[str, Figure]]:
    """Names and figures of a result's fields and then of its properties, in the order of the class."""
    hints = get_type_hints(kind, include_extras=True)
    getters = {name: member.fget for name, member in vars(kind).items() if isinstance(member, property)}
    hints |= {name: get_type_hints(get, include_extras=True).get("return") for name, get in getters.items()}
    for name, hint in hints.items():
        if get_origin(hint) is Annotated:
            yield from ((name, extra) for extra in get_args(hint)[1:] if isinstance(extra, Figure))
