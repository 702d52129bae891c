"""Binary PLY, read in one pass when vertices are plain scalars and every face is a triangle.

That is what scanners and meshing tools write, and five million faces take well under a second. Anything else (ASCII,
mixed polygons, lists among the vertices) raises ``UnusualPly`` and is left to a general reader.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollout_assets.errors import MeshError

_C_NAMES = ("char", "uchar", "short", "ushort", "int", "uint", "float", "double")
_SIZED_NAMES = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "float32", "float64")
_SCALARS = {
    name: np.dtype(sized).str[1:]
    for plain, sized in zip(_C_NAMES, _SIZED_NAMES, strict=True)
    for name in (plain, sized)
}
"""PLY's two names of every scalar type -> its code in NumPy, without the byte order."""

_ORDERS = {"binary_little_endian": "<", "binary_big_endian": ">"}
_INDEX_LISTS = ("vertex_indices", "vertex_index")
_LONGEST_HEADER = 1 << 16


class UnusualPly(Exception):
    """A PLY file whose layout the fast reader does not cover; not an error."""


@dataclass
class _Element:
    """One ``element`` of the header; a property is (name, value type, type of its count or None for a scalar)."""

    name: str
    count: int
    properties: list[tuple[str, str, str | None]] = field(default_factory=list)


def read_binary_ply(path: Path) -> tuple[NDArray[np.float32], NDArray[Any]]:
    """Vertices (n, 3) float32 and faces (m, 3) integers of a binary PLY file of triangles."""
    data = path.read_bytes()
    byte_order, elements, start = _parse_header(path, data)
    tables: dict[str, NDArray[Any]] = {}
    for element in elements:
        layout = _layout(element, byte_order)
        tables[element.name] = _rows(path, data, start, element, layout)
        start += layout.itemsize * element.count
        if {"vertex", "face"} <= tables.keys():
            break
    return _vertices(path, tables), _faces(path, tables)


def write_binary_ply(path: Path, vertices: NDArray[np.float32], faces: NDArray[np.int32]) -> None:
    """Write a plain little-endian PLY file of triangles; equal arrays give equal bytes."""
    header = (
        "ply\nformat binary_little_endian 1.0\n"
        f"element vertex {len(vertices)}\nproperty float x\nproperty float y\nproperty float z\n"
        f"element face {len(faces)}\nproperty list uchar int vertex_indices\nend_header\n"
    )
    rows = np.empty(len(faces), [("count", "u1"), ("corners", "<i4", (3,))])
    rows["count"] = 3
    rows["corners"] = faces
    with path.open("wb") as stream:
        stream.write(header.encode("ascii"))
        stream.write(np.ascontiguousarray(vertices, "<f4").tobytes())
        stream.write(rows.tobytes())


def _parse_header(path: Path, data: bytes) -> tuple[str, list[_Element], int]:
    """Byte order, elements, and where the body starts."""
    if not data.startswith(b"ply"):
        raise MeshError(f"{path}: not a PLY file, it starts with {data[:8]!r}")
    marker = data.find(b"end_header", 0, _LONGEST_HEADER)
    line_end = data.find(b"\n", marker)
    if marker < 0 or line_end < 0:
        raise MeshError(f"{path}: PLY header without end_header; the file may be truncated ({len(data)} bytes)")
    byte_order: str | None = None
    elements: list[_Element] = []
    try:
        for line in data[:marker].decode("ascii", "replace").splitlines():
            words = line.split()
            if words[:1] == ["format"]:
                byte_order = _ORDERS.get(words[1])
            elif words[:1] == ["element"]:
                elements.append(_Element(words[1], int(words[2])))
            elif words[:2] == ["property", "list"]:
                elements[-1].properties.append((words[4], _SCALARS[words[3]], _SCALARS[words[2]]))
            elif words[:1] == ["property"]:
                elements[-1].properties.append((words[2], _SCALARS[words[1]], None))
    except (IndexError, KeyError, ValueError) as error:
        raise MeshError(f"{path}: PLY header cannot be understood: {type(error).__name__}: {error}") from None
    if byte_order is None:
        _refuse_missing_lines(path, data[line_end + 1 :], sum(element.count for element in elements))
        raise UnusualPly("not binary")
    return byte_order, elements, line_end + 1


def _refuse_missing_lines(path: Path, body: bytes, rows: int) -> None:
    lines = sum(1 for line in body.splitlines() if line.strip())
    if lines < rows:
        raise MeshError(f"{path}: truncated, its header promises {rows} rows but {lines} lines follow")


def _layout(element: _Element, byte_order: str) -> np.dtype[Any]:
    """The row dtype of an element, with every index list taken as three long."""
    fields: list[Any] = []
    for number, (name, code, count_code) in enumerate(element.properties):
        if count_code is None:
            fields.append((name if name in ("x", "y", "z") else f"other{number}", byte_order + code))
        elif element.name == "face" and name in _INDEX_LISTS and code[0] in "iu":
            fields += [("corner_count", byte_order + count_code), ("corners", byte_order + code, (3,))]
        else:
            raise UnusualPly(f"list {name} in element {element.name}")
    try:
        layout = np.dtype(fields)
    except ValueError as error:
        raise UnusualPly(str(error)) from None
    if not layout.itemsize:
        raise UnusualPly(f"element {element.name} without properties")
    return layout


def _rows(path: Path, data: bytes, start: int, element: _Element, layout: np.dtype[Any]) -> NDArray[Any]:
    size = layout.itemsize * element.count
    short = start + size - len(data)
    rows = np.frombuffer(data, layout, min(element.count, max(len(data) - start, 0) // layout.itemsize), start)
    if "corner_count" in (layout.names or ()) and (rows["corner_count"] != 3).any():
        raise UnusualPly("faces that are not triangles")
    if short > 0:
        data_rows = f"{element.count} {element.name} rows of {layout.itemsize} bytes"
        raise MeshError(f"{path}: truncated, {data_rows} need {short} bytes more than the file has")
    return rows


def _vertices(path: Path, tables: dict[str, NDArray[Any]]) -> NDArray[np.float32]:
    rows = tables.get("vertex")
    if rows is None or not {"x", "y", "z"} <= set(rows.dtype.names or ()):
        raise MeshError(f"{path}: PLY file without vertex x, y, z")
    vertices = np.empty((len(rows), 3), np.float32)
    for axis, name in enumerate("xyz"):
        vertices[:, axis] = rows[name]
    return vertices


def _faces(path: Path, tables: dict[str, NDArray[Any]]) -> NDArray[Any]:
    rows = tables.get("face")
    if rows is None or "corners" not in (rows.dtype.names or ()):
        raise MeshError(f"{path}: PLY file without faces (a point cloud?)")
    return np.ascontiguousarray(rows["corners"])
