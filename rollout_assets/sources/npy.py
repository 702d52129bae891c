"""Arrays in ``.npy`` files of others, of no more bytes than the file has."""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollout_assets.parsing import read_regular


def read_npy(path: Path) -> NDArray[Any]:
    """The array of a file; one that is none is a ``ValueError``.

    NumPy itself makes room for what the header promises before it reads.
    """
    data = read_regular(path)
    stream = io.BytesIO(data)
    version = np.lib.format.read_magic(stream)
    if version not in _HEADERS:
        raise ValueError(f"format version {version} is not known")
    shape, columns_first, dtype = _HEADERS[version](stream)
    values = np.frombuffer(data, np.uint8, offset=stream.tell())
    if dtype.hasobject or math.prod(shape) * dtype.itemsize != len(values):
        raise ValueError(f"its header promises {dtype} with shape {shape}, and {len(values):,} bytes follow")
    return values.view(dtype).reshape(shape, order="F" if columns_first else "C")


_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
