"""NumPy's array files, whose headers may promise anything."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy_format
from numpy.typing import NDArray

from rollout_assets.parsing import open_regular


def read_array_file(path: Path) -> NDArray[Any]:
    """The array of an ``.npy`` file; whatever is wrong with its bytes is a ``ValueError``.

    No more memory is taken than the file has bytes. It is not mapped: a read of a map that fails ends the process.
    """
    with open_regular(path) as stream:
        shape, dtype = _promised(stream)
        held = os.fstat(stream.fileno()).st_size - stream.tell()
        if math.prod(shape) * dtype.itemsize > held:
            raise ValueError(f"its header promises {dtype} with shape {shape}, and {held:,} bytes follow")
        stream.seek(0)
        try:
            array: NDArray[Any] = np.load(stream, allow_pickle=False)
        except EOFError as error:
            raise ValueError(str(error)) from None
    return array


def _promised(stream: Any) -> tuple[tuple[int, ...], np.dtype[Any]]:
    try:
        major, _ = npy_format.read_magic(stream)
        read_header = npy_format.read_array_header_1_0 if major == 1 else npy_format.read_array_header_2_0
        shape, _, dtype = read_header(stream)
    except (RecursionError, MemoryError, EOFError):
        raise ValueError("its header cannot be read") from None
    return shape, dtype
