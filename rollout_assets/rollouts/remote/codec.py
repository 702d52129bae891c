"""Chains and records as bytes, and as text that fits into JSON.

The form is msgpack: a dataclass is a map by field name, an array is ``[dtype, shape, bytes]``. Reading is driven by the
declared class and its type hints; nothing in the bytes names a class, so the worst that bad bytes can do is an error.
Packing is canonical: equal values, NaN payloads included, give equal bytes, which is what a digest is taken of.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import hashlib
import operator
import struct
import types
from collections.abc import Callable
from functools import cache
from math import prod
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import msgpack
import numpy as np
from numcodecs.zstd import Zstd  # type: ignore[import-untyped]
from numpy.typing import NDArray

from rollout_assets.errors import PayloadDamaged

MAX_PAYLOAD_BYTES = 1 << 30
"""Unpacked payloads above this are refused before any memory is taken for them."""

_MAGIC = b"RAW1"
_HEADER = struct.Struct("<4sQ32s")
"""Mark, unpacked length, SHA-256 of the unpacked bytes; then the compressed bytes."""

_ZSTD = Zstd(level=1)

Plain = Any
"""What msgpack knows: None, bool, int, float, str, bytes, list, and maps of these by str."""


@dataclasses.dataclass(frozen=True)
class _Codec:
    """How values of one declared type become plain, and come back. Both refuse what does not fit, with ``where``."""

    pack: Callable[[Any], Plain]
    unpack: Callable[[Plain, str], Any]


def pack(kind: Any, value: Any) -> bytes:
    """The canonical bytes of a value of a declared type: a dataclass, or a tuple such as ``tuple[Chain, ...]``."""
    return msgpack.packb(_codec(kind).pack(value), use_bin_type=True)


def unpack(kind: Any, packed: bytes) -> Any:
    """The value that ``pack`` made these bytes of; anything else is ``PayloadDamaged`` with the place."""
    try:
        plain = msgpack.unpackb(packed, raw=False, strict_map_key=True)
    except (ValueError, RecursionError, msgpack.exceptions.UnpackException) as error:
        raise PayloadDamaged(f"{_name(kind)}: not msgpack: {error}") from None
    return _codec(kind).unpack(plain, _name(kind))


def content_sha256(packed: bytes) -> str:
    """Digest of packed bytes in hex: equal for equal content, wherever it was computed."""
    return hashlib.sha256(packed).hexdigest()


def to_text(packed: bytes) -> str:
    """Packed bytes, compressed and sealed with their digest, as base64."""
    header = _HEADER.pack(_MAGIC, len(packed), hashlib.sha256(packed).digest())
    return base64.b64encode(header + _ZSTD.encode(packed)).decode("ascii")


def from_text(text: str, max_bytes: int = MAX_PAYLOAD_BYTES) -> bytes:
    """The packed bytes of ``to_text``; a single changed bit, or more than ``max_bytes``, is ``PayloadDamaged``."""
    try:
        sealed = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise PayloadDamaged(f"payload is not base64: {error}") from None
    if len(sealed) < _HEADER.size or not sealed.startswith(_MAGIC):
        raise PayloadDamaged(f"payload of {len(sealed)} bytes does not begin like one of {_MAGIC.decode()}")
    _, size, digest = _HEADER.unpack_from(sealed)
    if size > max_bytes:
        raise PayloadDamaged(f"payload says it holds {size:,} bytes; at most {max_bytes:,} are taken")
    packed = _decompressed(sealed[_HEADER.size :], size)
    if hashlib.sha256(packed).digest() != digest:
        raise PayloadDamaged("payload does not match its own digest; it was damaged on its way")
    return packed


def _decompressed(compressed: bytes, size: int) -> bytes:
    """Exactly ``size`` bytes; a frame that holds another number cannot write past them."""
    packed = bytearray(size)
    try:
        written = _ZSTD.decode(compressed, packed) if size else packed
    except (RuntimeError, ValueError) as error:
        raise PayloadDamaged(f"payload cannot be decompressed: {error}") from None
    return bytes(written)


@cache
def _codec(kind: Any) -> _Codec:
    origin = get_origin(kind)
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return _dataclass_codec(kind)
    if origin is np.ndarray:
        return _array_codec(np.dtype(get_args(get_args(kind)[1])[0]))
    if origin in (Union, types.UnionType):
        return _optional_codec(kind)
    if origin is tuple:
        return _tuple_codec(kind)
    if origin is Literal:
        return _literal_codec(get_args(kind))
    if kind in _SCALARS:
        return _scalar_codec(kind)
    raise TypeError(f"{kind} has no form on the wire")


def _dataclass_codec(kind: type[Any]) -> _Codec:
    hints = get_type_hints(kind)
    fields = {field.name: _codec(hints[field.name]) for field in dataclasses.fields(kind)}

    def to_plain(value: Any) -> Plain:
        if type(value) is not kind:
            raise TypeError(f"expected {kind.__name__}, got {type(value).__name__}")
        return {name: codec.pack(getattr(value, name)) for name, codec in fields.items()}

    def to_value(plain: Plain, where: str) -> Any:
        if not isinstance(plain, dict) or plain.keys() != fields.keys():
            found = _shown(sorted(map(str, plain))) if isinstance(plain, dict) else type(plain).__name__
            raise PayloadDamaged(f"{where}: must be a map with the fields of {kind.__name__}, got {found}")
        values = {name: codec.unpack(plain[name], f"{where}.{name}") for name, codec in fields.items()}
        try:
            return kind(**values)
        except ValueError as error:
            raise PayloadDamaged(f"{where}: {error}") from None

    return _Codec(to_plain, to_value)


def _array_codec(dtype: np.dtype[Any]) -> _Codec:
    wire = dtype.newbyteorder("<")

    def to_plain(value: NDArray[Any]) -> Plain:
        if value.dtype != dtype:
            raise TypeError(f"expected an array of {dtype}, got {value.dtype}")
        return [wire.str, list(value.shape), value.astype(wire, copy=False).tobytes()]

    def to_value(plain: Plain, where: str) -> Any:
        match plain:
            case [wire.str, list(shape), bytes(content)] if all(type(size) is int and size >= 0 for size in shape):
                if prod(shape) * wire.itemsize == len(content):
                    return np.frombuffer(content, wire).reshape(shape).astype(dtype, copy=False)
        raise PayloadDamaged(f"{where}: must be an array of {dtype} with as many bytes as its shape says")

    return _Codec(to_plain, to_value)


def _optional_codec(kind: Any) -> _Codec:
    inner = [part for part in get_args(kind) if part is not type(None)]
    if len(inner) != 1:
        raise TypeError(f"{kind} has no form on the wire: one type, or None")
    codec = _codec(inner[0])
    return _Codec(
        lambda value: None if value is None else codec.pack(value),
        lambda plain, where: None if plain is None else codec.unpack(plain, where),
    )


def _tuple_codec(kind: Any) -> _Codec:
    parts = get_args(kind)
    endless = len(parts) == 2 and parts[1] is Ellipsis
    codecs = [_codec(part) for part in parts if part is not Ellipsis]

    def each(count: int) -> list[_Codec]:
        return codecs * count if endless else codecs

    def to_value(plain: Plain, where: str) -> Any:
        if not isinstance(plain, list) or not (endless or len(plain) == len(codecs)):
            raise PayloadDamaged(
                f"{where}: must be a list{'' if endless else f' of {len(codecs)}'}, got {_shown(plain)}"
            )
        pairs = zip(each(len(plain)), plain, strict=True)
        return tuple(codec.unpack(item, f"{where}[{index}]") for index, (codec, item) in enumerate(pairs))

    return _Codec(
        lambda value: [codec.pack(item) for codec, item in zip(each(len(value)), value, strict=True)], to_value
    )


def _literal_codec(values: tuple[Any, ...]) -> _Codec:
    def checked(plain: Plain, where: str = "value") -> Any:
        if plain not in values:
            raise PayloadDamaged(f"{where}: must be one of {', '.join(map(str, values))}, got {_shown(plain)}")
        return plain

    return _Codec(checked, checked)


_SCALARS: dict[type, Callable[[Any], Any]] = {int: operator.index, float: float, str: str, bool: bool}
"""Plain types and how a value of theirs, NumPy's included, becomes plain."""


def _scalar_codec(kind: type) -> _Codec:
    def to_value(plain: Plain, where: str) -> Any:
        if type(plain) is not kind:
            raise PayloadDamaged(f"{where}: must be of type {kind.__name__}, got {_shown(plain)}")
        return plain

    return _Codec(_SCALARS[kind], to_value)


def _name(kind: Any) -> str:
    return getattr(get_args(kind)[0] if get_origin(kind) is tuple else kind, "__name__", str(kind))


def _shown(plain: Plain) -> str:
    text = repr(plain)
    return text if len(text) <= 60 else f"{text[:57]}…"
