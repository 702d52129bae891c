"""A self-contained page: sections, tables, figures and pictures, with Plotly's script in it once and no network."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go
import polars as pl
from plotly.offline import get_plotlyjs

from rollout_assets.errors import ConfigError
from rollout_assets.files import replace_bytes
from rollout_assets.geometry.poses import Float32

_LONG_WORD = 9
_STYLE_FILE = Path(__file__).with_name("page.css")


@dataclass(frozen=True)
class Markup:
    """Text that is HTML already."""

    html: str


@dataclass
class Page:
    """Collects sections and writes them as one file."""

    title: str
    subtitle: str
    _sections: list[tuple[str, str, str]] = field(default_factory=list)
    _figures: int = 0

    def section(self, anchor: str, title: str, *parts: str) -> None:
        """Add a section; parts are HTML."""
        self._sections.append((anchor, title, "\n".join(parts)))

    def figure(self, figure: go.Figure) -> str:
        """A figure as HTML, drawn by the script that the page carries."""
        self._figures += 1
        config = {"displaylogo": False, "responsive": True}
        html: str = figure.to_html(
            full_html=False, include_plotlyjs=False, div_id=f"figure-{self._figures}", config=config
        )
        return html

    def write(self, path: Path) -> Path:
        """One HTML file; the folder is made if need be."""
        refuse_other_endings(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_bytes(path, self.html().encode())
        return path

    def html(self) -> str:
        """The whole page."""
        links = "".join(f'<a href="#{anchor}">{escape(title)}</a>' for anchor, title, _ in self._sections)
        body = "\n".join(
            f'<section id="{anchor}"><h2>{escape(title)}</h2>\n{content}\n</section>'
            for anchor, title, content in self._sections
        )
        script = f"<script>{get_plotlyjs()}</script>" if self._figures else ""
        icon = '<link rel="icon" href="data:,">'
        return (
            f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">{icon}'
            f'<meta name="viewport" content="width=device-width, initial-scale=1">'
            f"<title>{escape(self.title)}</title><style>\n{_STYLE_FILE.read_text('utf-8')}</style>{script}</head>\n<body>"
            f"<header><div><h1>{escape(self.title)}</h1><p class='soft'>{escape(self.subtitle)}</p>"
            f"<nav>{links}</nav></div></header>\n<main>\n{body}\n</main></body></html>\n"
        )


def refuse_other_endings(path: Path) -> None:
    """A page is an HTML file; anything else is a ``ConfigError``, best raised before the work."""
    if path.suffix.lower() not in (".html", ".htm"):
        raise ConfigError(f"a report is a page: it must end in .html, got {path.name}")


def text(value: str, soft: bool = False) -> str:
    """A paragraph."""
    return f"<p{' class=soft' if soft else ''}>{escape(value)}</p>"


def cards(values: Mapping[str, Any]) -> str:
    """Numbers to see first."""
    items = "".join(
        f"<div class=card><b{_size(value)}>{cell(value)}</b><span>{escape(name)}</span></div>"
        for name, value in values.items()
    )
    return f"<div class=cards>{items}</div>"


def _size(value: Any) -> str:
    """A long word is set smaller, so that it is not broken."""
    return " class=long" if isinstance(value, str) and max(map(len, value.split()), default=0) > _LONG_WORD else ""


def pair(*parts: str) -> str:
    """Parts side by side where there is room."""
    return f"<div class=pair>{''.join(f'<div>{part}</div>' for part in parts)}</div>"


def table(columns: Sequence[str], rows: Sequence[Sequence[Any]], ids: Sequence[str] | None = None) -> str:
    """Rows as a table; numbers to the right. ``ids`` makes each row a place to link to."""
    numeric = [bool(rows) and all(isinstance(row[i], int | float | None) for row in rows) for i in range(len(columns))]
    head = "".join(f"<th{' class=n' if n else ''}>{escape(c)}</th>" for c, n in zip(columns, numeric, strict=True))
    lines = []
    for index, row in enumerate(rows):
        anchor = f' id="{escape(ids[index])}"' if ids is not None else ""
        cells = "".join(
            f"<td class={'n' if n else 'wide'}>{cell(value)}</td>" for value, n in zip(row, numeric, strict=True)
        )
        lines.append(f"<tr{anchor}>{cells}</tr>")
    return f"<div class=scroll><table><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table></div>"


def frame(values: pl.DataFrame) -> str:
    """A table of a whole frame."""
    return table([name.replace("_", " ") for name in values.columns], values.rows())


def folded(label: str, content: str) -> str:
    """Something long that a reader opens on demand."""
    return f"<details><summary>{escape(label)}</summary>{content}</details>"


def records(values: Mapping[str, Any]) -> str:
    """Names and values, one a line."""
    return table(("what", "value"), [(name, value) for name, value in values.items()])


def link(target: str, label: Any) -> Markup:
    """A link inside the page."""
    return Markup(f'<a href="#{escape(target)}">{cell(label)}</a>')


def file_link(address: str, label: str) -> Markup:
    """A link to a file beside the page."""
    return Markup(f'<a href="{escape(address)}">{escape(label)}</a>')


def tagged(kind: str, label: str) -> Markup:
    """A word in the colour of its kind: good, careful, bad, error, warning, info."""
    return Markup(f"<span class={escape(kind)}>{escape(label)}</span>")


def code(value: str) -> Markup:
    """A value to copy."""
    return Markup(f"<code>{escape(value)}</code>")


def command(*lines: str) -> str:
    """Something to type."""
    return f"<pre>{escape(chr(10).join(lines))}</pre>"


def depth_picture(depth_m: Float32, near_m: float, far_m: float, caption: str) -> str:
    """A depth image as an embedded PNG; grey where there is no depth, dark is near."""
    from matplotlib import colormaps  # half a second that only pages with depth images need to pay
    from matplotlib.image import imsave

    span = max(far_m - near_m, 1e-6)
    shade = colormaps["viridis"](np.clip((np.nan_to_num(depth_m) - near_m) / span, 0.0, 1.0))
    shade[~np.isfinite(depth_m)] = (0.85, 0.85, 0.85, 1.0)
    buffer = io.BytesIO()
    imsave(buffer, shade, format="png")
    data = base64.b64encode(buffer.getvalue()).decode("ascii")
    return f'<figure><img alt="depth" src="data:image/png;base64,{data}"><figcaption>{caption}</figcaption></figure>'


def cell(value: Any) -> str:
    """A value as HTML; None and NaN are a dash."""
    if isinstance(value, Markup):
        return value.html
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.4g}" if isinstance(value, float) else escape(str(value))
