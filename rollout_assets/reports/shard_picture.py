"""One small picture of what a store holds: the waterfall, the gain by step, and why views were refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np

from rollout_assets.rollouts.zarr_store.reader import RolloutZarrStoreReader
from rollout_assets.rollouts.zarr_store.summary import candidate_blocks, count_candidates

_BLUE, _GREY = "#4c72b0", "#8c8c8c"
_PANEL, _HEIGHT, _NAMES = 340, 200, 150


@dataclass(frozen=True)
class StoreSketch:
    """Counts behind the picture, over all given stores, read in blocks."""

    waterfall: dict[str, int]
    reasons: dict[str, int]
    gains: dict[int, tuple[float, float]]
    """Step -> mean root gain of the labelled views, and of the selected one."""

    @classmethod
    def of(cls, readers: Sequence[RolloutZarrStoreReader]) -> StoreSketch:
        """The sketch of some stores together."""
        counts = count_candidates(readers)
        return cls(counts.stages, dict(counts.refused), _mean_gains(readers))

    @property
    def shell(self) -> int:
        """All candidate views."""
        return self.waterfall["full_shell"]

    def svg(self) -> bytes:
        """Three panels side by side, a few kB; text, because a shard's picture must not cost more than reading it."""
        most = sorted(self.reasons.items(), key=lambda item: -item[1])[:6]
        body = (
            _bars(0, "views", self.waterfall, _BLUE)
            + _lines(1, "mean root gain by step", self.gains)
            + _bars(2, "why views were refused", {name.lower(): count for name, count in most}, _GREY)
        )
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{3 * _PANEL}" height="{_HEIGHT}" '
            f'font-family="sans-serif" font-size="11"><rect width="100%" height="100%" fill="white"/>{body}</svg>'
        ).encode()

    def small_svg(self) -> bytes:
        """The waterfall alone, in so few bytes that the UI of Dagster draws it without a click."""
        top = self.shell or 1
        rows = [
            f'<rect x="90" y="{16 * row + 3}" width="{round(200 * count / top)}" height="11"/>'
            f'<text y="{16 * row + 12}">{name}</text><text x="295" y="{16 * row + 12}">{count}</text>'
            for row, (name, count) in enumerate(self.waterfall.items())
        ]
        size = f'width="350" height="{16 * len(rows)}"'
        style = 'font-size="12" fill="#4c72b0"'
        return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>{"".join(rows)}</svg>'.encode()


def _bars(panel: int, title: str, counts: Mapping[str, int], color: str) -> str:
    """Counts by name as horizontal bars, with their numbers."""
    top = max(counts.values(), default=0) or 1
    room = _PANEL - _NAMES - 60
    rows = []
    for row, (name, count) in enumerate(counts.items()):
        y = 44 + row * 24
        width = round(room * count / top, 1)
        rows.append(
            f'<text x="{_NAMES - 6}" y="{y + 4}" text-anchor="end">{escape(name)}</text>'
            f'<rect x="{_NAMES}" y="{y - 7}" width="{width}" height="15" fill="{color}"/>'
            f'<text x="{_NAMES + width + 5}" y="{y + 4}">{count:,}</text>'
        )
    return _panel(panel, title, "".join(rows))


def _lines(panel: int, title: str, gains: Mapping[int, tuple[float, float]]) -> str:
    """Mean gain of all labelled views and of the selected ones, by step."""
    values = [value for pair in gains.values() for value in pair]
    low, high = min([0.0, *values]), max([0.0, *values])
    span = (high - low) or 1.0
    left, right, top, bottom = 60.0, _PANEL - 30.0, 44.0, _HEIGHT - 44.0

    def y(value: float) -> float:
        return round(bottom - (bottom - top) * (value - low) / span, 1)

    def x(step: int) -> float:
        return round(left + (right - left) * step / max(max(gains, default=0), 1), 1)

    parts = [
        f'<line x1="{left}" x2="{right}" y1="{y(tick)}" y2="{y(tick)}" stroke="#ddd"/>'
        f'<text x="{left - 6}" y="{y(tick) + 4}" text-anchor="end">{tick:.2f}</text>'
        for tick in sorted({low, 0.0, high})
    ]
    parts += [f'<text x="{x(step)}" y="{_HEIGHT - 24}" text-anchor="middle">{step}</text>' for step in gains]
    for which, (name, color) in enumerate((("all labelled", _GREY), ("selected", _BLUE))):
        points = [(x(step), y(pair[which])) for step, pair in gains.items()]
        joined = " ".join(f"{px},{py}" for px, py in points)
        parts.append(f'<polyline points="{joined}" fill="none" stroke="{color}" stroke-width="2"/>')
        parts += [f'<circle cx="{px}" cy="{py}" r="3.5" fill="{color}"/>' for px, py in points]
        parts.append(f'<text x="{left + 110 * which}" y="{_HEIGHT - 6}" fill="{color}">● {name}</text>')
    return _panel(panel, title, "".join(parts))


def _panel(panel: int, title: str, body: str) -> str:
    return f'<g transform="translate({panel * _PANEL} 0)"><text x="16" y="20" font-size="13">{title}</text>{body}</g>'


def _mean_gains(readers: Sequence[RolloutZarrStoreReader]) -> dict[int, tuple[float, float]]:
    """Step -> mean root gain of all labelled views, and of the selected ones among them."""
    sums: dict[int, np.ndarray[Any, Any]] = {}
    for block in candidate_blocks(readers, ("step_index", "target_root_gain", "oracle_label_mask", "selected_mask")):
        labelled = block["oracle_label_mask"].astype(bool)
        selected = labelled & block["selected_mask"].astype(bool)
        gain = block["target_root_gain"].astype(np.float64)
        for step in np.unique(block["step_index"]):
            here = block["step_index"] == step
            both = [gain[here & labelled], gain[here & selected]]
            total = np.array([both[0].sum(), len(both[0]), both[1].sum(), len(both[1])])
            sums[int(step)] = sums.get(int(step), np.zeros(4)) + total
    return {
        step: (float(total[0] / max(total[1], 1)), float(total[2] / max(total[3], 1)))
        for step, total in sorted(sums.items())
    }
