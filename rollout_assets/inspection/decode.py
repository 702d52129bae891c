"""Stored numbers as stable names. Codes that this version does not know keep their number and never fail."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import polars as pl
import polars.selectors as cs

from rollout_assets.candidates.reasons import INVALID_REASON_CODES
from rollout_assets.candidates.shell import POSITION_IDS, STRATEGY_IDS
from rollout_assets.rollouts.zarr_store.schema import ABSENT
from rollout_assets.targets.reasons import TARGET_INVALID_REASON_CODES

UNKNOWN = "unknown"
"""Name of every negative id."""

REASON_SEPARATOR = "+"
"""Between the names of a bitset."""


def decode_invalid_reason(code: int) -> str:
    """Return the stable invalid-reason name for one numeric code; ``reason_N`` for one that is not known."""
    return _name(_REASONS, "reason", code)


def decode_target_invalid_reason(code: int) -> str:
    """Return the stable target-invalidity reason name for one numeric code; ``target_reason_N`` if not known."""
    return _name(_TARGET_REASONS, "target_reason", code)


def decode_position_id(position_id: int) -> str:
    """Return the stable position-family name for one numeric id; ``position_N`` for one that is not known."""
    return _name(_POSITIONS, "position", position_id)


def decode_strategy_id(strategy_id: int) -> str:
    """Return the stable orientation/strategy name for one numeric id; ``strategy_N`` for one that is not known."""
    return _name(_STRATEGIES, "strategy", strategy_id)


def decode_reason_bitset(bitset: int) -> str:
    """The names of all bits of a candidate's bitset, in bit order; empty for 0."""
    return _bit_names(bitset, decode_invalid_reason)


def decode_target_reason_bitset(bitset: int) -> str:
    """The names of all bits of a target's bitset, in bit order; empty for 0."""
    return _bit_names(bitset, decode_target_invalid_reason)


def named(codes: pl.Series, decode: Callable[[int], str]) -> pl.Series:
    """A column of codes as names; each distinct code is decoded once."""
    distinct = codes.unique().drop_nulls()
    names = [decode(int(code)) for code in distinct.to_list()]
    return codes.replace_strict(distinct, pl.Series(names, dtype=pl.String), default=None, return_dtype=pl.String)


def absent_as_null(frame: pl.DataFrame) -> pl.DataFrame:
    """A table as people read it: what a store marks as not given, -1 in whole numbers and NaN in floats, is null."""
    return frame.with_columns(
        pl.when(cs.signed_integer() != ABSENT).then(cs.signed_integer()), cs.float().fill_nan(None)
    )


def _by_code(codes: Mapping[str, int]) -> dict[int, str]:
    return {code: name for name, code in codes.items()}


_REASONS = _by_code(INVALID_REASON_CODES)
_TARGET_REASONS = _by_code(TARGET_INVALID_REASON_CODES)
_POSITIONS = _by_code(POSITION_IDS)
_STRATEGIES = _by_code(STRATEGY_IDS)


def _name(names: Mapping[int, str], prefix: str, code: int) -> str:
    return UNKNOWN if code < 0 else names.get(code, f"{prefix}_{code}")


def _bit_names(bitset: int, decode: Callable[[int], str]) -> str:
    return REASON_SEPARATOR.join(decode(bit) for bit in range(bitset.bit_length()) if bitset >> bit & 1)
