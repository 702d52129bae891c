"""OBJ files, read line by line: any polygons, and the object or group that every face belongs to."""

from __future__ import annotations

import io
import itertools
from array import array
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rollout_assets.errors import MeshError
from rollout_assets.geometry.poses import Float64
from rollout_assets.parsing import open_regular

ObjMesh = tuple[Float64, NDArray[np.int32], NDArray[np.int32], tuple[str, ...]]


def read_obj(path: Path) -> ObjMesh:
    """Vertices (n, 3), triangles (m, 3), label of each triangle (m,) and the labels' names; -1 is a face without one.

    Faces are named by ``o`` lines, or by ``g`` lines in a file that has no ``o`` line.
    """
    tokens = ("o",) if any(line.startswith("o ") for line in _lines(path)) else ("g",)
    vertices, faces, labels = array("d"), array("i"), array("i")
    names: dict[str, int] = {}
    label = -1
    for number, line in enumerate(_lines(path), 1):
        words = line.split()
        if not words:
            continue
        try:
            if words[0] == "v":
                vertices.extend([float(word) for word in words[1:4]])
            elif words[0] == "f":
                corners = [_index(word, len(vertices) // 3) for word in words[1:]]
                for second, third in itertools.pairwise(corners[1:]):
                    faces.extend((corners[0], second, third))
                    labels.append(label)
            elif words[0] in tokens:
                label = names.setdefault(" ".join(words[1:]) or "unnamed", len(names))
        except (ValueError, OverflowError):
            raise MeshError(f"{path.name}: line {number} cannot be understood: {line.strip()[:60]!r}") from None
    if len(vertices) % 3:
        raise MeshError(f"{path.name}: a vertex has fewer than three coordinates")
    return (
        np.array(vertices, np.float64).reshape(-1, 3),
        np.array(faces, np.int32).reshape(-1, 3),
        np.array(labels, np.int32),
        tuple(names),
    )


def _index(word: str, count: int) -> int:
    """A corner's vertex, counted from 0; OBJ counts from 1, and negative numbers from the last vertex back."""
    number = int(word.split("/", 1)[0])
    index = number - 1 if number > 0 else count + number
    if not 0 <= index < 2**31 or number == 0:
        raise ValueError(word)
    return index


def _lines(path: Path) -> Iterator[str]:
    with io.TextIOWrapper(open_regular(path), "utf-8", errors="replace") as stream:
        yield from stream
