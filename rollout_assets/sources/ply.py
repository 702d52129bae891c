"""Binary PLY, read in one pass when vertices are plain scalars and every face is a triangle.

That is what scanners and meshing tools write, and five million faces take well under a second. Anything else (ASCII,
mixed polygons, lists among the vertices) raises ``UnusualPly`` and is left to a general reader.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rollout_assets.errors import MeshError
from rollout_assets.parsing import open_regular, read_regular

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
_ROWS_AT_ONCE = 1 << 18
"""Rows written together, to bound memory."""


class UnusualPly(Exception):
    """A PLY file whose layout the fast reader does not cover; not an error."""


class LabelledPly(NamedTuple):
    """vertices (n, 3) float32, faces (m, 3) integers; ``column`` names where labels (m,) come from, if any."""

    vertices: NDArray[np.float32]
    faces: NDArray[Any]
    column: str | None
    labels: NDArray[Any] | None


@dataclass
class _Element:
    """One ``element`` of the header; a property is (name, value type, type of its count or None for a scalar)."""

    name: str
    count: int
    properties: list[tuple[str, str, str | None]] = field(default_factory=list)


def read_binary_ply(path: Path) -> tuple[NDArray[np.float32], NDArray[Any]]:
    """Vertices (n, 3) float32 and faces (m, 3) integers of a binary PLY file of triangles."""
    data = read_regular(path)
    byte_order, elements, start = _parse_header(path, data)
    tables: dict[str, NDArray[Any]] = {}
    for element in elements:
        layout = _layout(element, byte_order)
        tables[element.name] = _rows(path, data, start, element, layout)
        start += layout.itemsize * element.count
        if {"vertex", "face"} <= tables.keys():
            break
    return _vertices(path, tables), _faces(path, tables)


def read_labelled_ply(path: Path, columns: Sequence[str]) -> LabelledPly:
    """Vertices (n, 3), triangles (m, 3) and the first of the named face columns (m,), or None when it has none.

    Faces may all be quads as well; each becomes two triangles with the same label. In a file without such a face column
    one of the vertices is looked for: a triangle has the label that most of its corners have, or else its first one's.
    """
    data = read_regular(path)
    byte_order, elements, start = _parse_header(path, data)
    tables: dict[str, NDArray[Any]] = {}
    for element in elements:
        layout, tables[element.name] = _uniform_rows(path, data, start, element, byte_order, columns)
        start += layout.itemsize * element.count
        if {"vertex", "face"} <= tables.keys():
            break
    corners = _faces(path, tables)
    name, labels = _labels(tables["face"], columns)
    if corners.shape[1] == 4:
        corners = corners[:, [0, 1, 2, 0, 2, 3]].reshape(-1, 3)
        labels = None if labels is None else np.repeat(labels, 2)
    vertices = _vertices(path, tables)
    if labels is None:
        name, of_vertices = _labels(tables["vertex"], columns)
        labels = None if of_vertices is None else _most_of_corners(path, of_vertices, corners)
    return LabelledPly(vertices, corners, name, labels)


def _labels(rows: NDArray[Any], columns: Sequence[str]) -> tuple[str | None, NDArray[Any] | None]:
    name = next((name for name in columns if name in (rows.dtype.names or ())), None)
    return name, None if name is None else np.ascontiguousarray(rows[name])


def _most_of_corners(path: Path, labels: NDArray[Any], faces: NDArray[Any]) -> NDArray[Any]:
    """labels (n,) of vertices, faces (m, 3) -> (m,)."""
    if faces.size and not 0 <= int(faces.min()) <= int(faces.max()) < len(labels):
        raise MeshError(f"{path}: a face names vertex {int(faces.max())}, but there are {len(labels)} vertices")
    first, second, third = (labels[faces[:, corner]] for corner in range(3))
    return np.where(second == third, second, first)


def _uniform_rows(
    path: Path, data: bytes, start: int, element: _Element, byte_order: str, columns: Sequence[str]
) -> tuple[np.dtype[Any], NDArray[Any]]:
    """Rows of an element whose index lists are all three long, or all four."""
    layout = _layout(element, byte_order, columns)
    try:
        return layout, _rows(path, data, start, element, layout)
    except UnusualPly:
        layout = _layout(element, byte_order, columns, corners=4)
        return layout, _rows(path, data, start, element, layout)


def has_column(path: Path, columns: Sequence[str]) -> bool:
    """Whether a PLY file's header names one of the columns, of faces or of vertices."""
    with open_regular(path) as stream:
        lines = stream.read(_LONGEST_HEADER).split(b"end_header")[0].decode("ascii", "replace").splitlines()
    return any(line.split()[:1] == ["property"] and line.split()[-1] in columns for line in lines)


def write_binary_ply(path: Path, vertices: NDArray[np.float32], faces: NDArray[np.int32]) -> None:
    """Write a plain little-endian PLY file of triangles; equal arrays give equal bytes."""
    header = (
        "ply\nformat binary_little_endian 1.0\n"
        f"element vertex {len(vertices)}\nproperty float x\nproperty float y\nproperty float z\n"
        f"element face {len(faces)}\nproperty list uchar int vertex_indices\nend_header\n"
    )
    with path.open("wb") as stream:
        stream.write(header.encode("ascii"))
        for start in range(0, len(vertices), _ROWS_AT_ONCE):
            stream.write(np.ascontiguousarray(vertices[start : start + _ROWS_AT_ONCE], "<f4").tobytes())
        for start in range(0, len(faces), _ROWS_AT_ONCE):
            stream.write(_face_rows(faces[start : start + _ROWS_AT_ONCE]).tobytes())


def _face_rows(faces: NDArray[np.int32]) -> NDArray[Any]:
    rows = np.empty(len(faces), [("count", "u1"), ("corners", "<i4", (3,))])
    rows["count"] = 3
    rows["corners"] = faces
    return rows


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


def _layout(element: _Element, byte_order: str, kept: Sequence[str] = (), corners: int = 3) -> np.dtype[Any]:
    """The row dtype of an element, with every index list taken as ``corners`` long; columns ``kept`` by name."""
    fields: list[Any] = []
    for number, (name, code, count_code) in enumerate(element.properties):
        if count_code is None:
            plain = name in ("x", "y", "z") or (element.name in ("vertex", "face") and name in kept)
            fields.append((name if plain else f"other{number}", byte_order + code))
        elif element.name == "face" and name in _INDEX_LISTS and code[0] in "iu":
            fields += [("corner_count", byte_order + count_code), ("corners", byte_order + code, (corners,))]
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
    if "corner_count" in (layout.names or ()) and (rows["corner_count"] != layout["corners"].shape[0]).any():
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


def read_ply_points(path: Path) -> NDArray[np.float32]:
    """Vertices (n, 3) float32 of a binary PLY file, with or without faces."""
    data = read_regular(path)
    try:
        byte_order, elements, start = _parse_header(path, data)
        for element in elements:
            layout = _layout(element, byte_order)
            rows = _rows(path, data, start, element, layout)
            if element.name == "vertex":
                return _vertices(path, {"vertex": rows})
            start += layout.itemsize * element.count
    except UnusualPly as error:
        raise MeshError(f"{path}: points must be a plain binary PLY file ({error})") from None
    raise MeshError(f"{path}: PLY file without vertex x, y, z")
