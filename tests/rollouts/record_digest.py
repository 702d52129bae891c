"""One digest over everything a record holds, so that two runs can be compared to the bit."""

import dataclasses
import hashlib

import numpy as np


def digest(value: object) -> str:
    """SHA-256 over the value's whole content, arrays by dtype, shape and bytes."""
    state = hashlib.sha256()
    _feed(state, value)
    return state.hexdigest()


def _feed(state: "hashlib._Hash", value: object) -> None:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            state.update(field.name.encode())
            _feed(state, getattr(value, field.name))
    elif isinstance(value, np.ndarray):
        state.update(f"{value.dtype}{value.shape}".encode())
        state.update(np.ascontiguousarray(value).tobytes())
    elif isinstance(value, list | tuple):
        state.update(f"[{len(value)}".encode())
        for item in value:
            _feed(state, item)
    else:
        state.update(repr(value).encode())
