"""Chains and records on the wire: back to the bit, or an error that says what is wrong."""

import base64
import dataclasses
import types
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout_assets.errors import PayloadDamaged
from rollout_assets.geometry.poses import Float32
from rollout_assets.rollouts.engine import Chain
from rollout_assets.rollouts.remote.codec import content_sha256, from_text, pack, to_text, unpack
from rollout_assets.rollouts.trace import RolloutZarrRecord
from tests.support.digests import content_digest
from tests.support.refusals import refused

pytestmark = pytest.mark.quick

CHAINS = tuple[Chain, ...]


@dataclasses.dataclass(frozen=True)
class Anything:
    """Values of a declared type with any content: every bit pattern of a float, NaN payloads included."""

    rng: np.random.Generator
    rows: int
    """Of every array."""

    def of(self, kind: Any) -> Any:
        args = get_args(kind)
        if dataclasses.is_dataclass(kind):
            return kind(**{name: self.of(hint) for name, hint in get_type_hints(kind).items()})
        if get_origin(kind) is np.ndarray:
            return self.array(np.dtype(get_args(args[1])[0]))
        if get_origin(kind) is tuple:
            count = int(self.rng.integers(0, 3)) if args[-1] is Ellipsis else len(args)
            return tuple(self.of(args[0]) for _ in range(count))
        if get_origin(kind) is types.UnionType:
            return self.of(args[0]) if self.rng.random() < 0.7 else None
        if get_origin(kind) is Literal:
            return args[self.rng.integers(len(args))]
        return self.scalar(kind)

    def array(self, dtype: np.dtype) -> np.ndarray:
        shape = (self.rows, 12)[: int(self.rng.integers(1, 3))]
        if dtype == np.bool_:
            return self.rng.random(shape) < 0.5
        raw = self.rng.bytes(int(np.prod(shape)) * dtype.itemsize)
        return np.frombuffer(raw, dtype).reshape(shape)

    def scalar(self, kind: type) -> Any:
        raw = self.rng.bytes(8)
        made = {
            bool: raw[0] < 128,
            int: int.from_bytes(raw, "big", signed=True),
            float: float(np.frombuffer(raw, np.float64)[0]) if raw[0] < 200 else float("nan"),
            str: raw.decode("utf-8", "replace"),
        }
        return made[kind]


def any_of(kind: Any) -> st.SearchStrategy[Any]:
    return st.builds(
        lambda seed, rows: Anything(np.random.default_rng(seed), rows).of(kind),
        st.integers(0, 2**32 - 1),
        st.integers(0, 4),
    )


@given(any_of(CHAINS))
def test_chains_come_back_to_the_bit(value):
    again = unpack(CHAINS, from_text(to_text(pack(CHAINS, value))))
    assert content_digest(again) == content_digest(value)
    assert pack(CHAINS, again) == pack(CHAINS, value)


@given(any_of(RolloutZarrRecord))
def test_records_come_back_to_the_bit_and_keep_their_digest(value):
    packed = pack(RolloutZarrRecord, value)
    again = unpack(RolloutZarrRecord, packed)
    assert content_digest(again) == content_digest(value)
    assert content_sha256(pack(RolloutZarrRecord, again)) == content_sha256(packed)


@given(any_of(RolloutZarrRecord), st.data())
def test_a_single_changed_bit_of_the_text_is_found(value, data):
    text = bytearray(base64.b64decode(to_text(pack(RolloutZarrRecord, value))))
    at = data.draw(st.integers(0, len(text) * 8 - 1))
    text[at // 8] ^= 1 << (at % 8)
    with pytest.raises(PayloadDamaged):
        from_text(base64.b64encode(text).decode())


@given(st.binary(max_size=200) | st.just(b""))
def test_any_bytes_are_an_error_and_nothing_else(raw):
    with pytest.raises(PayloadDamaged):
        unpack(RolloutZarrRecord, raw)
    with pytest.raises(PayloadDamaged):
        from_text(raw.decode("latin-1"))


@given(any_of(RolloutZarrRecord), st.data())
def test_changed_bytes_are_another_record_or_an_error(value, data):
    packed = bytearray(pack(RolloutZarrRecord, value))
    at = data.draw(st.integers(0, len(packed) - 1))
    packed[at] = data.draw(st.integers(0, 255))
    try:
        again = unpack(RolloutZarrRecord, bytes(packed))
    except PayloadDamaged:
        return
    assert type(again) is RolloutZarrRecord


@dataclasses.dataclass(frozen=True, eq=False)
class Tag:
    """Small enough to damage by hand."""

    kind: Literal["a", "b"]
    value: float | None
    pair: tuple[int, int]
    column: Float32


TAG = Tag("a", 1.5, (1, 2), np.arange(3, dtype=np.float32))


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({"kind": "c"}, ["Tag.kind: ", "a, b", "'c'"]),
        ({"value": "x"}, ["Tag.value: ", "float", "'x'"]),
        ({"value": 1}, ["Tag.value: ", "float", 1]),
        ({"pair": [1]}, ["Tag.pair: ", 2, "[1]"]),
        ({"pair": [1, True]}, ["Tag.pair[1]: ", "int", True]),
        ({"column": ["<f8", [3], bytes(24)]}, ["Tag.column: ", "float32"]),
        ({"column": ["<f4", [4], bytes(12)]}, ["Tag.column: ", "float32"]),
        ({"column": ["<f4", [-3], bytes(12)]}, ["Tag.column: ", "float32"]),
        ({"column": ["|O", [1], bytes(8)]}, ["Tag.column: ", "float32"]),
        ({"more": 1}, ["Tag: ", "'more'"]),
    ],
)
def test_values_of_another_type_are_refused_with_their_place(change, names):
    plain = msgpack.unpackb(pack(Tag, TAG)) | change
    with refused(PayloadDamaged, *names):
        unpack(Tag, msgpack.packb(plain))


def test_what_is_packed_must_be_of_the_declared_type():
    with refused(TypeError, "float32", "float64"):
        pack(Tag, dataclasses.replace(TAG, column=np.zeros(3)))
    with refused(TypeError, "Tag", "str"):
        pack(Tag, "TAG")


def test_a_small_text_cannot_become_a_large_memory():
    bomb = to_text(bytes(50_000_000))
    assert len(bomb) < 20_000
    with refused(PayloadDamaged, "50,000,000", "1,000,000"):
        from_text(bomb, max_bytes=1_000_000)
    sealed = bytearray(base64.b64decode(bomb))
    sealed[4:12] = (1_000).to_bytes(8, "little")
    with refused(PayloadDamaged, "decompress"):
        from_text(base64.b64encode(sealed).decode(), max_bytes=1_000_000)


def test_layout_in_memory_does_not_change_the_bytes():
    sparse = np.arange(6, dtype=np.float32)[::2]
    plain, other = (dataclasses.replace(TAG, column=column) for column in (sparse.copy(), sparse))
    assert pack(Tag, other) == pack(Tag, plain)
