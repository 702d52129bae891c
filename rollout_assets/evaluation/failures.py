"""Where policies fail: the roots at which they lose most to ``oracle_greedy``, and where chance does better."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, zip_longest
from pathlib import Path
from urllib.parse import quote

import polars as pl

from rollout_assets.evaluation.outcomes import ROOT
from rollout_assets.evaluation.roster import GREEDY, RANDOM
from rollout_assets.evaluation.tables import PairedOutcomes
from rollout_assets.reports.rollout_picture import StoredPictures

BEHIND_GREEDY = f"far behind {GREEDY}"
BELOW_RANDOM = f"below {RANDOM}"

_KINDS = {BEHIND_GREEDY: GREEDY, BELOW_RANDOM: RANDOM}
"""Kind of failure -> the reference that the policy is behind."""

PictureKey = tuple[int, int]
"""Seed and rollout row: a chain of one of the stores."""


def failure_table(paired: PairedOutcomes, named: Sequence[str], count: int) -> pl.DataFrame:
    """The worst ``count`` roots of every named policy and kind; ``loss`` is what the reference gains more."""
    parts = [
        _worst(paired, policy, kind, reference).head(count) for policy in named for kind, reference in _KINDS.items()
    ]
    none = pl.lit(None, pl.String)
    return pl.concat(parts).with_columns(none.alias("page"), none.alias("greedy_page"))


def _worst(paired: PairedOutcomes, policy: str, kind: str, reference: str) -> pl.DataFrame:
    behind = paired.roots.with_columns(
        pl.lit(policy).alias("policy"),
        pl.lit(kind).alias("kind"),
        pl.col(policy).alias("gain"),
        pl.col(reference).alias("reference_gain"),
        (pl.col(reference) - pl.col(policy)).alias("loss"),
    )
    rows = behind.filter(pl.col("loss") > 0).join(_rows_of(paired, policy, "rollout_row_id"), on=ROOT, how="left")
    rows = rows.join(_rows_of(paired, GREEDY, "greedy_rollout_row_id"), on=ROOT, how="left")
    return rows.sort(pl.col("loss"), *ROOT, descending=[True, False, False, False]).select(
        "policy", "kind", *ROOT, "scene", "target_class", "gain", "reference_gain", "loss",
        "rollout_row_id", "greedy_rollout_row_id",
    )  # fmt: skip


def _rows_of(paired: PairedOutcomes, policy: str, name: str) -> pl.DataFrame:
    first = paired.outcomes.filter((pl.col("policy") == policy) & (pl.col("draw") == 0))
    return first.select(*ROOT, pl.col("rollout_row_id").alias(name))


def with_pages(failures: pl.DataFrame, pictures: Mapping[int, StoredPictures], folder: Path, most: int) -> pl.DataFrame:
    """The failures with the addresses of 3-D pages of the policy's chain and of ``oracle_greedy``'s, from ``folder``.

    ``pictures`` has an entry per seed. Pages are written for the worst of every policy before the second worst of any,
    ``most`` in all; they lie in a folder per seed below ``folder / "evaluation_rollouts"``.
    """
    keys = list(dict.fromkeys(_in_turn(failures)))[:most]
    pages: dict[PictureKey, str] = {}
    for seed, stored in pictures.items():
        rows = sorted(row for of_seed, row in keys if of_seed == seed)
        place = folder / "evaluation_rollouts" / f"seed-{seed}"
        if stored.problem is None and (rows or place.exists()):
            written = stored.write_pages(rows, place)
            pages |= {(seed, row): quote(path.relative_to(folder).as_posix()) for row, path in written.items()}
    columns = {"page": "rollout_row_id", "greedy_page": "greedy_rollout_row_id"}
    found = [
        pl.Series(name, [pages.get(key) for key in failures.select("seed", row).iter_rows()], pl.String)
        for name, row in columns.items()
    ]
    return failures.with_columns(found)


def _in_turn(failures: pl.DataFrame) -> Iterator[PictureKey]:
    """Chains to show: the policy's and the greedy one of the worst failure of each policy and kind, then the next."""
    lists = [
        [((seed, own), (seed, greedy)) for seed, own, greedy in part.iter_rows()]
        for part in (
            group.select("seed", "rollout_row_id", "greedy_rollout_row_id")
            for group in failures.partition_by("policy", "kind", maintain_order=True)
        )
    ]
    for both in chain.from_iterable(zip_longest(*lists)):
        yield from both or ()
