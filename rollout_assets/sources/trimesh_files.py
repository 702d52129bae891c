"""Mesh files for trimesh: opened safely, with the files that they refer to, and of no more than they hold."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from rollout_assets.errors import MeshError
from rollout_assets.parsing import open_regular, parse_json, read_regular

_GLB_MAGIC = b"glTF"
_GLB_HEADER_BYTES = 20
_COMPONENT_BYTES = {5120: 1, 5121: 1, 5122: 2, 5123: 2, 5125: 4, 5126: 4}
_COMPONENTS = {"SCALAR": 1, "VEC2": 2, "VEC3": 3, "VEC4": 4, "MAT2": 4, "MAT3": 9, "MAT4": 16}


@contextmanager
def opened_for_trimesh(path: Path) -> Iterator[dict[str, Any]]:
    """Arguments with which trimesh loads a file; one that promises more than it holds is a ``MeshError``."""
    import trimesh.resolvers  # slow to load

    class RegularFiles(trimesh.resolvers.FilePathResolver):
        """Materials and buffers beside a mesh."""

        def get(self, name: str) -> bytes:
            """The bytes of a file below the mesh's folder."""
            place = Path(self.parent).resolve()
            for candidate in (name.strip(), name.strip().lstrip("/"), Path(name).name):
                file = (place / candidate).resolve()
                if file.is_relative_to(place) and file.exists():
                    return read_regular(file)
            raise FileNotFoundError(name)

    with open_regular(path) as stream:
        _refuse_empty_promises(path, stream)
        kind = path.suffix.lower().removeprefix(".")
        yield {"file_obj": stream, "file_type": kind, "resolver": RegularFiles(str(path))}


def _refuse_empty_promises(path: Path, stream: BinaryIO) -> None:
    """A glTF accessor without a buffer stands for zeros of any number, which trimesh makes before anything else."""
    header = stream.read(_GLB_HEADER_BYTES)
    if header.startswith(_GLB_MAGIC):
        size = stream.seek(0, 2)
        stream.seek(_GLB_HEADER_BYTES)
        document = stream.read(min(int.from_bytes(header[12:16], "little"), size))
        promised = _bytes_without_a_buffer(path, document)
        if promised > size:
            raise MeshError(f"{path}: accessors without a buffer promise {promised:,} bytes, the file has {size:,}")
    stream.seek(0)


def _bytes_without_a_buffer(path: Path, document: bytes) -> int:
    try:
        accessors = parse_json(document).get("accessors", [])
        return sum(
            abs(accessor["count"]) * _COMPONENT_BYTES[accessor["componentType"]] * _COMPONENTS[accessor["type"]]
            for accessor in accessors
            if "bufferView" not in accessor
        )
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise MeshError(f"{path}: its glTF header cannot be understood: {type(error).__name__}: {error}") from None
