"""A plan in columns, and its lines without a model per row.

A line of a plan is canonical JSON: sorted keys, no whitespace, ASCII. Lines are put together here from text that is
escaped once, byte for byte as ``RolloutShardEntry.to_json`` writes them; a test holds the two against each other.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from json.encoder import encode_basestring_ascii as quoted
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from rollout_assets.campaigns.columns.kept import Columns, text_list, texts
from rollout_assets.config import SplitConfig
from rollout_assets.sources import layout
from rollout_assets.sources.layout import IndexRow, MovedRow
from rollout_assets.sources.scene_splits import scene_splits

MANIFEST_VERSION = "rollout-shard-manifest-v2"
_HEAD = f'{{"manifest_version":"{MANIFEST_VERSION}","rows":['
_NAMES = ("splits", "configs", "scenes", "source_shards")


class PlannedRow(Protocol):
    """What the columns keep of a planned source row."""

    @property
    def sample_index(self) -> int: ...
    @property
    def scene_id(self) -> str: ...
    @property
    def source_shard_id(self) -> str: ...
    @property
    def split(self) -> str: ...
    @property
    def own_split(self) -> str: ...


class PlannedEntry(Protocol):
    """What the columns keep of a planned shard."""

    @property
    def split(self) -> str: ...
    @property
    def writer_config_hash(self) -> str: ...
    @property
    def rows(self) -> Sequence[PlannedRow]: ...


@dataclass(frozen=True, eq=False)
class PlanColumns:
    """Shards of a plan in order, and their rows below each other.

    ``digests``: (shards,) SHA-256 of each canonical line, in hex. ``split``, ``config``: (shards,) numbers of names.
    ``row_end``: (shards,) where the rows of each shard end in ``sample``, ``scene``, ``source_shard``, ``row_split``
    and ``own_split``: (rows,). ``canonical``: whether every line is the very text that this package writes.
    """

    digests: NDArray[np.bytes_]
    split: NDArray[np.int32]
    config: NDArray[np.int32]
    row_end: NDArray[np.int64]
    sample: NDArray[np.int64]
    scene: NDArray[np.int32]
    source_shard: NDArray[np.int32]
    row_split: NDArray[np.int32]
    own_split: NDArray[np.int32]
    names: Mapping[str, Sequence[str]]
    canonical: bool

    def __len__(self) -> int:
        return len(self.split)

    @property
    def num_rows(self) -> int:
        """Source rows in all shards."""
        return len(self.sample)

    @cached_property
    def sha256(self) -> list[str]:
        """Digest of each shard's canonical line."""
        return self.digests.astype(np.str_).tolist()

    @cached_property
    def splits(self) -> list[str]:
        """The split of each shard."""
        return [self.names["splits"][number] for number in self.split.tolist()]

    @cached_property
    def rows_per_shard(self) -> NDArray[np.int64]:
        """(shards,) number of rows."""
        return np.diff(self.row_end, prepend=0)

    @cached_property
    def shard_of_row(self) -> NDArray[np.int64]:
        """(rows,) number of the shard that each row is in."""
        return np.repeat(np.arange(len(self)), self.rows_per_shard)

    def shards_with(self, row_mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """(shards,) which shards have a row of the mask (rows,)."""
        return np.bincount(self.shard_of_row[row_mask], minlength=len(self)) > 0

    def moved_rows(self, config: SplitConfig) -> NDArray[np.bool_]:
        """(rows,) which rows are of a scene that a campaign's ``[split]`` puts elsewhere."""
        names, splits = self.names["splits"], scene_splits(config)
        count = max(len(names), 1)
        facts = (self.scene.astype(np.int64) * count + self.own_split) * count + self.row_split
        triples, place = np.unique(facts, return_inverse=True)
        moved = [
            splits.split_of(self.names["scenes"][fact // count**2], names[fact // count % count]) != names[fact % count]
            for fact in triples.tolist()
        ]
        return np.array(moved, np.bool_)[place]

    def rows_by_split(self) -> dict[str, int]:
        """Source rows of every planned split, in the order in which the splits are planned."""
        counts = np.bincount(self.row_split, minlength=len(self.names["splits"])).tolist()
        return {name: count for name, count in zip(self.names["splits"], counts, strict=True) if count}

    def to_columns(self) -> Columns:
        """As they are kept."""
        numbers = {name: value for name, value in vars(self).items() if isinstance(value, np.ndarray)}
        numbers = {name: value for name, value in numbers.items() if name in self.__dataclass_fields__}
        names = {f"names_{name}": texts(list(self.names[name])) for name in _NAMES}
        return numbers | names | {"canonical": np.array(self.canonical)}

    @classmethod
    def of_columns(cls, columns: Columns) -> PlanColumns:
        """As they were kept; columns of another kind are a ``KeyError``."""
        names = {name: text_list(columns[f"names_{name}"]) for name in _NAMES}
        numbers: dict[str, Any] = {
            name: columns[name] for name in cls.__dataclass_fields__ if name not in ("names", "canonical")
        }
        return cls(**numbers, names=names, canonical=bool(columns["canonical"]))


@dataclass(eq=False)
class PlanColumnsBuilder:
    """Collects columns shard by shard, on top of those of a plan that grows."""

    base: PlanColumns | None = None
    canonical: bool = True
    _numbers: dict[str, dict[str, int]] = field(init=False)
    _shards: list[tuple[str, int, int, int]] = field(default_factory=list)
    _rows: list[tuple[int, int, int, int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        names = {} if self.base is None else self.base.names
        self._numbers = {kind: {name: number for number, name in enumerate(names.get(kind, ()))} for kind in _NAMES}

    def number(self, kind: str, name: str) -> int:
        """The number of a name, which is a new one for a new name."""
        numbers = self._numbers[kind]
        return numbers.setdefault(name, len(numbers))

    def add(self, sha256: str, entry: PlannedEntry) -> None:
        """Add a shard with all its rows."""
        for row in entry.rows:
            self.add_row(row.sample_index, row.scene_id, row.source_shard_id, row.split, row.own_split)
        self.add_shard(sha256, entry.split, entry.writer_config_hash)

    def add_shard(self, sha256: str, split: str, config: str) -> None:
        """Add a shard, after its rows."""
        numbers = self.number("splits", split), self.number("configs", config)
        self._shards.append((sha256, *numbers, len(self._rows)))

    def add_row(self, sample: int, scene: str, source_shard: str, split: str, own_split: str) -> None:
        """Add a row of the next shard."""
        self._rows.append(
            (
                sample,
                self.number("scenes", scene),
                self.number("source_shards", source_shard),
                self.number("splits", split),
                self.number("splits", own_split),
            )
        )

    def finish(self) -> PlanColumns:
        """All columns."""
        rows = np.array(self._rows, np.int64).reshape(-1, 5)
        numbers = np.array([shard[1:] for shard in self._shards], np.int64).reshape(-1, 3)
        small = {
            "split": numbers[:, 0],
            "config": numbers[:, 1],
            "scene": rows[:, 1],
            "source_shard": rows[:, 2],
            "row_split": rows[:, 3],
            "own_split": rows[:, 4],
        }
        columns: dict[str, NDArray[Any]] = {name: values.astype(np.int32) for name, values in small.items()}
        columns["digests"] = np.array([shard[0] for shard in self._shards], "S64")
        columns["sample"], columns["row_end"] = rows[:, 0].copy(), numbers[:, 2].copy()
        if self.base is not None:
            columns["row_end"] += self.base.num_rows
            columns = {name: np.concatenate([getattr(self.base, name), added]) for name, added in columns.items()}
        names = {kind: list(numbers) for kind, numbers in self._numbers.items()}
        canonical = self.canonical and (self.base is None or self.base.canonical)
        return PlanColumns(**columns, names=names, canonical=canonical)


def read_columns(lines: Iterable[bytes], parse: Callable[[int, bytes], tuple[PlannedEntry, bytes]]) -> PlanColumns:
    """The columns of a plan's lines; ``parse`` gives the entry of a numbered line, and its canonical text."""
    builder = PlanColumnsBuilder()
    for number, line in enumerate(lines, start=1):
        entry, canonical = parse(number, line)
        builder.canonical &= canonical == line
        builder.add(hashlib.sha256(canonical + b"\n").hexdigest(), entry)
    return builder.finish()


class LineWriter:
    """Writes lines of one split under one origin, which is what a line says about campaign and source."""

    def __init__(self, split: str, cache_version: str, origin: Mapping[str, str]) -> None:
        self.split, self.config_hash = split, origin["writer_config_hash"]
        facts = {"source_cache_version": cache_version, "split": split} | dict(origin)
        self._tail = "".join(f',"{name}":{quoted(facts[name])}' for name in sorted(facts)) + "}"

    def line(self, shard_id: str, rows: Iterable[IndexRow]) -> bytes:
        """One line, without its newline."""
        return f'{rows_text(rows)}],"shard_id":"{shard_id}"{self._tail}'.encode("ascii")


class PlanGrowth:
    """A plan that gets shards at its end."""

    def __init__(self, lines: Sequence[bytes], columns: PlanColumns | None) -> None:
        self._lines = list(lines)
        self._builder = PlanColumnsBuilder(columns)

    def add(self, rows: Sequence[IndexRow], rows_per_shard: int, writer: LineWriter) -> None:
        """Plan rows of one split, in order."""
        for start in range(0, len(rows), rows_per_shard):
            part = rows[start : start + rows_per_shard]
            for row in part:
                self._builder.add_row(row.sample_index, row.scene_id, row.shard_id, row.split, row.own_split)
            line = writer.line(layout.shard_name(len(self._lines)), part)
            self._builder.add_shard(hashlib.sha256(line + b"\n").hexdigest(), writer.split, writer.config_hash)
            self._lines.append(line)

    def finish(self) -> tuple[list[bytes], PlanColumns]:
        """All lines, and their columns."""
        return self._lines, self._builder.finish()


def rows_text(rows: Iterable[IndexRow]) -> str:
    """The beginning of a line, up to and with its rows."""
    return _HEAD + ",".join(row_text(order, row) for order, row in enumerate(rows))


def row_text(order: int, row: IndexRow) -> str:
    """One row of a line; the source's own split is named where the campaign's is another one."""
    own = f'"source_split":"{row.own_split}",' if isinstance(row, MovedRow) else ""
    return (
        f'{{"order":{order},"sample_index":{row.sample_index},"sample_key":{quoted(row.sample_key)},'
        f'"scene_id":{quoted(row.scene_id)},"snippet_id":{quoted(row.snippet_id)},'
        f'"source_shard_id":{quoted(row.shard_id)},"source_shard_row":{row.row},{own}"split":"{row.split}"}}'
    )


def drifted(plan: PlanColumns, lines: Sequence[bytes], rows: Sequence[IndexRow]) -> Iterator[int]:
    """Numbers of the shards whose line does not begin with the rows that the source has at their places now.

    A line that is not canonical may be among them although its rows are the same; whoever parses it can tell.
    """
    splits = plan.names["splits"]
    samples, row_splits = plan.sample.tolist(), plan.row_split.tolist()
    for number, (start, end) in enumerate(pairwise([0, *plan.row_end.tolist()])):
        places = samples[start:end]
        if max(places) >= len(rows):
            yield number
            continue
        moved = (rows[at].in_split(splits[split]) for at, split in zip(places, row_splits[start:end], strict=True))
        if not lines[number].startswith(f"{rows_text(moved)}]".encode("ascii")):
            yield number
