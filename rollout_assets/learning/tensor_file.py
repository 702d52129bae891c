"""Named tensors and one JSON document in one file: safetensors, no code in it, and equal content gives equal bytes.

Checkpoints and the files that training resumes from are such files. Whatever a stranger's file says about itself is
checked here before anything is allocated for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from rollout_assets.config.hashing import canonical_json
from rollout_assets.files import publish_bytes
from rollout_assets.parsing import parse_json

LARGEST_HEADER = 1 << 20
"""Bytes of the longest header that is read: names and shapes of tensors, and the document."""

LARGEST_FILE = 1 << 30
"""Bytes of the largest file that is read; networks here have a few megabytes."""

_LENGTH_BYTES = 8
_METADATA = "__metadata__"


@dataclass(frozen=True)
class TensorFile:
    """A file's document, and its tensors by name."""

    document: dict[str, Any]
    tensors: dict[str, Tensor]


class NotATensorFile(ValueError):
    """What is wrong with a file: the rest of a sentence that begins with its path. Readers raise their own error."""


def write_tensor_file(path: Path, key: str, document: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Replace a file in one step. The order of the tensors and of the document's keys does not matter."""
    ordered = {name: tensors[name].detach().cpu().contiguous() for name in sorted(tensors)}
    publish_bytes(path, save(ordered, metadata={key: canonical_json(document).decode("ascii")}))


def read_document(path: Path, key: str) -> dict[str, Any]:
    """The document of a file, from its header alone."""
    with _opened(path) as stream:
        length = _header_length(stream.read(_LENGTH_BYTES), path)
        return _document(stream.read(length), length, key)


def read_tensor_file(path: Path, key: str) -> TensorFile:
    """A file whose document has this key; anything else is ``NotATensorFile``."""
    with _opened(path) as stream:
        data = stream.read(LARGEST_FILE)
    length = _header_length(data[:_LENGTH_BYTES], path)
    document = _document(data[_LENGTH_BYTES : _LENGTH_BYTES + length], length, key)
    try:
        return TensorFile(document, load(data))
    except (SafetensorError, KeyError, ValueError, RuntimeError) as error:
        raise NotATensorFile(f"its tensors cannot be read: {error}; the file is cut off or damaged") from None


def _opened(path: Path) -> BinaryIO:
    if not path.is_file():
        raise NotATensorFile("is not a file" if path.exists() else "there is no such file")
    if (size := path.stat().st_size) > LARGEST_FILE:
        raise NotATensorFile(f"has {size:,} bytes; a file of this kind has at most {LARGEST_FILE:,}")
    return path.open("rb")


def _header_length(data: bytes, path: Path) -> int:
    size = path.stat().st_size
    if len(data) < _LENGTH_BYTES:
        raise NotATensorFile(f"has only {size:,} bytes; it is not a safetensors file, or it is cut off")
    length = int.from_bytes(data, "little")
    if length > LARGEST_HEADER:
        raise NotATensorFile(
            f"is not a safetensors file of this kind: its header would have {length:,} bytes, "
            f"at most {LARGEST_HEADER:,} are read"
        )
    if length > size - _LENGTH_BYTES:
        raise NotATensorFile(f"is cut off: its header has {length:,} bytes, but the file has only {size:,}")
    return length


def _document(header: bytes, length: int, key: str) -> dict[str, Any]:
    if len(header) < length:
        raise NotATensorFile("is cut off within its header")
    values = _parsed(header, "is not a safetensors file: its header")
    metadata = values.get(_METADATA)
    text = metadata.get(key) if isinstance(metadata, dict) else None
    if not isinstance(text, str):
        raise NotATensorFile(f"is a safetensors file without a {key}, so it says nothing about itself")
    return _parsed(text, f"its {key}")


def _parsed(text: str | bytes, what: str) -> dict[str, Any]:
    try:
        value = parse_json(text)
    except ValueError as error:
        raise NotATensorFile(f"{what} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise NotATensorFile(f"{what} is JSON, but not an object")
    return value
