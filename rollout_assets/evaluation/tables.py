"""The tables of an evaluation: per policy, per view, against each other, and by class, scene and difficulty."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl

from rollout_assets.config.evaluation import BootstrapConfig
from rollout_assets.errors import EvaluationError
from rollout_assets.evaluation.bootstrap import Estimate, Floats, PairedMeans
from rollout_assets.evaluation.outcomes import ABOUT_ROOT, ROOT, gain_columns
from rollout_assets.evaluation.roster import GREEDY, LOOKAHEAD, RANDOM

DIFFICULTIES = {
    "root error": "root_error_m2",
    "headroom at the root": "root_headroom",
    "valid views at the root": "valid_views",
}
"""How difficulty is told -> the column of a root; each is cut into thirds."""

THIRDS = ("low", "middle", "high")


@dataclass(frozen=True, eq=False)
class PairedOutcomes:
    """Outcomes as one row per root and seed, in a fixed order, with a column per policy: the mean over its draws."""

    outcomes: pl.DataFrame
    policies: tuple[str, ...]
    horizon: int
    options: BootstrapConfig

    @cached_property
    def roots(self) -> pl.DataFrame:
        """Every root with what is known of it, and every policy's final gain; one that lacks a policy is refused."""
        about = self.outcomes.group_by(*ROOT).agg(*(pl.col(name).drop_nulls().first() for name in ABOUT_ROOT))
        roots = about.join(self._by_policy("gain"), on=ROOT, how="left").sort(*ROOT)
        for policy in self.policies:
            missing = roots.filter(pl.col(policy).is_null()) if policy in roots.columns else roots
            if not missing.is_empty():
                raise EvaluationError(
                    f"policy {policy} has no outcome at {missing.height} of {roots.height} roots, the first of them "
                    f"{', '.join(map(str, missing.select(ROOT).row(0)))}; policies are compared at the same roots only"
                )
        return roots

    def means(self, column: str = "gain", rows: pl.Series | None = None) -> PairedMeans:
        """Means of all policies in a column of the outcomes, over all roots or those of a mask."""
        frame = self.roots if column == "gain" else self._ordered(column)
        frame = frame if rows is None else frame.filter(rows)
        values: dict[str, Floats] = {name: frame[name].to_numpy() for name in self.policies}
        return PairedMeans(values, frame["scene"].to_list(), self.options)

    def _ordered(self, column: str) -> pl.DataFrame:
        scenes = self.roots.select(*ROOT, "scene")
        return scenes.join(self._by_policy(column), on=ROOT, how="left", maintain_order="left")

    def _by_policy(self, column: str) -> pl.DataFrame:
        means = self.outcomes.group_by(*ROOT, "policy").agg(pl.col(column).mean())
        return means.pivot("policy", index=ROOT, values=column)


def policy_table(paired: PairedOutcomes, roles: Sequence[str]) -> pl.DataFrame:
    """One row per policy: gain, regret to ``oracle_greedy``, shares of the headroom, the first view, and counts."""
    gains, first = paired.means(), paired.means("gain_1")
    random = paired.roots[RANDOM].to_numpy()
    below = {name: float(np.mean(paired.roots[name].to_numpy() < random)) for name in paired.policies}
    counts = paired.outcomes.group_by("policy").agg(
        pl.len().alias("rollouts"),
        pl.col("views").sum(),
        pl.col("ended_early").sum(),
        (pl.col("views") == 0).sum().alias("without_view"),
        (pl.col("gain") < 0).sum().alias("lost_ground"),
    )
    rows = [
        {
            "policy": name,
            "role": role,
            "roots": gains.roots,
            "scenes": gains.scenes,
            **columns("gain", gains.mean(name)),
            **columns("over_random", gains.difference(name, RANDOM)),
            **columns("regret", gains.difference(GREEDY, name)),
            **columns("headroom", gains.share(name, RANDOM, GREEDY)),
            **columns("headroom_lookahead", gains.share(name, RANDOM, LOOKAHEAD)),
            **columns("first_gain", first.mean(name)),
            **columns("first_headroom", first.share(name, RANDOM, GREEDY)),
            "below_random": below[name],
        }
        for name, role in zip(paired.policies, roles, strict=True)
    ]
    joined = _frame(rows).join(counts, on="policy", how="left", maintain_order="left")
    return joined.with_columns((pl.col("gain") * pl.col("rollouts") / pl.col("views")).alias("gain_per_view"))


def view_table(paired: PairedOutcomes) -> pl.DataFrame:
    """One row per policy and view: the gain once so many views are taken, and what the last of them added."""
    rows = []
    for view, column in enumerate(gain_columns(paired.horizon), start=1):
        means = paired.means(column)
        rows += [{"policy": name, "view": view, **columns("gain", means.mean(name))} for name in paired.policies]
    before = pl.col("gain").shift(1, fill_value=0.0).over("policy", order_by="view")
    return _frame(rows).with_columns((pl.col("gain") - before).alias("added"))


def comparison_table(paired: PairedOutcomes, named: Sequence[str]) -> pl.DataFrame:
    """Every named policy against every other contestant: the paired difference of final gains and who is better."""
    gains = paired.means()
    rows = []
    for policy in named:
        for other in paired.policies:
            if other != policy:
                estimate = gains.difference(policy, other)
                rows.append({"policy": policy, "against": other, **columns("difference", estimate)})
                rows[-1] |= {"chance_better": estimate.chance, "verdict": verdict_word(estimate)}
    return _frame(rows)


def group_table(paired: PairedOutcomes) -> pl.DataFrame:
    """One row per group and policy; groups are classes, scenes, and thirds of three measures of difficulty."""
    rows = []
    for by, group, mask in _groups(paired.roots):
        means = paired.means(rows=mask)
        for name in paired.policies:
            rows.append(
                {
                    "by": by,
                    "group": group,
                    "policy": name,
                    "roots": means.roots,
                    "scenes": means.scenes,
                    **columns("gain", means.mean(name)),
                    **columns("headroom", means.share(name, RANDOM, GREEDY)),
                }
            )
    return _frame(rows)


def verdict_word(difference: Estimate) -> str:
    """``better`` or ``worse`` where the whole interval says so, else ``undecided``."""
    return "better" if difference.above_zero else "worse" if difference.below_zero else "undecided"


def columns(name: str, estimate: Estimate) -> dict[str, Any]:
    """An estimate as three columns."""
    return {name: estimate.value, f"{name}_low": estimate.low, f"{name}_high": estimate.high}


def spread_texts(row: Mapping[str, Any], name: str, *, percent: bool = False) -> tuple[str, str]:
    """A figure of a table and its interval as texts: ``0.4120`` and ``0.3800 to 0.4410``; empty if there is none."""
    texts = [_text(row[column], percent) for column in (name, f"{name}_low", f"{name}_high")]
    return texts[0] or "–", f"{texts[1]} to {texts[2]}" if texts[1] and texts[2] else ""


def _text(value: float | None, percent: bool) -> str:
    if value is None:
        return ""
    shown = f"{100 * value:.0f} %" if percent else f"{value:.4f}"
    return shown.replace("-", "−")


def _groups(roots: pl.DataFrame) -> Iterator[tuple[str, str, pl.Series]]:
    for by, column in (("class", "target_class"), ("scene", "scene")):
        for value in sorted(roots[column].unique().to_list()):
            yield by, str(value), roots[column] == value
    for by, column in DIFFICULTIES.items():
        yield from ((by, label, mask) for label, mask in _thirds(roots[column]))


def _thirds(values: pl.Series) -> Iterator[tuple[str, pl.Series]]:
    """Roots with a low, a middle and a high value, cut at the thirds of all roots that have one."""
    present = values.drop_nulls().cast(pl.Float64).to_numpy()
    if not len(present):
        return
    first, second = np.quantile(present, (1 / 3, 2 / 3)).tolist()
    masks = (values <= first, (values > first) & (values <= second), values > second)
    ends = (f"up to {first:.3g}", f"{first:.3g} to {second:.3g}", f"above {second:.3g}")
    for third, end, mask in zip(THIRDS, ends, masks, strict=True):
        chosen = mask.fill_null(False)
        if chosen.any():
            yield f"{third}, {end}", chosen


def _frame(rows: Sequence[dict[str, Any]]) -> pl.DataFrame:
    """Rows as a table in which a figure that never exists is still a number's column."""
    frame = pl.DataFrame(rows, infer_schema_length=None)
    empty = [name for name, kind in frame.schema.items() if kind == pl.Null]
    return frame.with_columns(pl.col(name).cast(pl.Float64) for name in empty)
