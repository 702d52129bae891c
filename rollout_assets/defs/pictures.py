"""One small picture of what a store holds: the waterfall, the gain by step, and why views were refused."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from rollout_assets.candidates.reasons import InvalidReason
from rollout_assets.rollouts.inspection.summary import WATERFALL
from rollout_assets.rollouts.zarr_store.reader import RolloutZarrStoreReader
from rollout_assets.rollouts.zarr_store.schema import CANDIDATES

BLOCK_ROWS = 1 << 20
"""Candidate rows read at a time."""

_COLUMNS = ("step_index", "primary_invalid_reason", "target_root_gain", *(mask for mask in WATERFALL.values() if mask))
_BLUE, _GREY = "#4c72b0", "#8c8c8c"


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
        waterfall: Counter[str] = Counter(dict.fromkeys(WATERFALL, 0))
        reasons: Counter[str] = Counter()
        sums: dict[int, np.ndarray[Any, Any]] = {}
        for reader in readers:
            for start in range(0, reader.num_rows(CANDIDATES.name), BLOCK_ROWS):
                block = reader.columns(CANDIDATES, _COLUMNS, start, start + BLOCK_ROWS)
                _count(block, waterfall, reasons, sums)
        means = {
            step: (float(total[0] / max(total[1], 1)), float(total[2] / max(total[3], 1)))
            for step, total in sorted(sums.items())
        }
        return cls(dict(waterfall), dict(reasons), means)

    @property
    def shell(self) -> int:
        """All candidate views."""
        return self.waterfall["full_shell"]

    def png(self) -> bytes:
        """Three panels, about 20 kB."""
        figure = Figure(figsize=(9.6, 2.6), dpi=72)
        FigureCanvasAgg(figure)
        views, gain, reason = (figure.add_axes((left, 0.12, 0.22, 0.76)) for left in (0.09, 0.37, 0.765))
        views.barh(list(self.waterfall)[::-1], list(self.waterfall.values())[::-1], color=_BLUE)
        views.set_title("views", fontsize=9)
        steps = list(self.gains)
        gain.plot(steps, [self.gains[step][0] for step in steps], "o-", color=_GREY, label="all labelled")
        gain.plot(steps, [self.gains[step][1] for step in steps], "o-", color=_BLUE, label="selected")
        gain.set_xticks(steps)
        gain.set_title("mean root gain by step", fontsize=9)
        if steps:
            gain.legend(fontsize=7)
        ordered = sorted(self.reasons.items(), key=lambda item: item[1])[-6:]
        reason.barh([name.lower() for name, _ in ordered], [count for _, count in ordered], color=_GREY)
        reason.set_title("why views were refused", fontsize=9)
        for axes in (views, gain, reason):
            axes.tick_params(labelsize=7)
            axes.locator_params(axis="y" if axes is gain else "x", nbins=4)
            axes.spines[["top", "right"]].set_visible(False)
        stream = io.BytesIO()
        figure.savefig(stream, format="png")
        return stream.getvalue()


def _count(
    block: dict[str, np.ndarray[Any, Any]],
    waterfall: Counter[str],
    reasons: Counter[str],
    sums: dict[int, np.ndarray[Any, Any]],
) -> None:
    for stage, mask in WATERFALL.items():
        waterfall[stage] += len(block["step_index"]) if mask is None else int(block[mask].sum())
    refused = block["primary_invalid_reason"][~block["actor_action_mask"].astype(bool)]
    values, times = np.unique(refused, return_counts=True)
    reasons.update({InvalidReason(int(value)).name: int(count) for value, count in zip(values, times, strict=True)})
    labelled = block["oracle_label_mask"].astype(bool)
    taken = labelled & block["selected_mask"].astype(bool)
    gain = block["target_root_gain"].astype(np.float64)
    for step in np.unique(block["step_index"]):
        here = block["step_index"] == step
        both = [gain[here & labelled], gain[here & taken]]
        total = np.array([both[0].sum(), len(both[0]), both[1].sum(), len(both[1])])
        sums[int(step)] = sums.get(int(step), np.zeros(4)) + total
