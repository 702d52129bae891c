"""Meshes with fewer faces, by quadric edge collapse, as ARIA-NBV makes them before it scores anything.

The package ``fast-simplification`` does the work. It is deterministic, but keeps the mesh that it works on in one place
of the process, so that only one thread may use it at a time.
"""

from __future__ import annotations

import hashlib
import threading
from importlib import import_module
from importlib.metadata import version
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollout_assets.errors import ConfigError

PACKAGE = "fast-simplification"

_ONE_AT_A_TIME = threading.Lock()


def require_package(share: float) -> None:
    """Raise ``ConfigError`` unless meshes can be simplified here."""
    try:
        import_module("fast_simplification")
    except ImportError:
        raise ConfigError(
            f"oracle.simplify = {share:g} needs the package {PACKAGE}, which is not installed; "
            f"run: pip install {PACKAGE}, or leave oracle.simplify out to score whole meshes"
        ) from None


def simplified_version(content_hash: str, share: float) -> str:
    """Version of a simplified mesh: SHA-256 over the whole mesh's hash, the kept share and the package's version."""
    recipe = f"{content_hash} simplified to {share!r} by {PACKAGE} {version(PACKAGE)}\n"
    return hashlib.sha256(recipe.encode("ascii")).hexdigest()


def simplify(
    vertices: NDArray[np.float32], faces: NDArray[np.int32], share: float
) -> tuple[NDArray[np.float64], NDArray[np.int32]]:
    """About ``share`` of the faces, in the shape of all. vertices: (n, 3) metres, faces: (m, 3)."""
    package: Any = import_module("fast_simplification")  # an optional package
    target = max(1, round(share * len(faces)))
    with _ONE_AT_A_TIME:
        points, triangles = package.simplify(vertices.astype(np.float64), faces.copy(), target_count=target)
    return np.asarray(points, np.float64), np.asarray(triangles, np.int32)
