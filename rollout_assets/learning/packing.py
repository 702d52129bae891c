"""Many tensors as one, for the way between processes: each tensor that crosses costs a file handle and a message."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

_ALIGNMENT = 64


class Place(NamedTuple):
    """Where a tensor lies in the buffer, and what it is there."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    stop: int


def pack(tensors: Mapping[str, Tensor]) -> tuple[Tensor, tuple[Place, ...]]:
    """One buffer (n,) uint8 with the bytes of all tensors, and where each of them lies."""
    places, end = [], 0
    for name, tensor in tensors.items():
        start = -(-end // _ALIGNMENT) * _ALIGNMENT
        end = start + tensor.numel() * tensor.element_size()
        places.append(Place(name, tensor.dtype, tuple(tensor.shape), start, end))
    buffer = torch.empty(end, dtype=torch.uint8)
    for place, tensor in zip(places, tensors.values(), strict=True):
        _view(buffer, place).copy_(tensor)
    return buffer, tuple(places)


def unpack(buffer: Tensor, places: tuple[Place, ...]) -> dict[str, Tensor]:
    """The tensors by name, as views of the buffer."""
    return {place.name: _view(buffer, place) for place in places}


def _view(buffer: Tensor, place: Place) -> Tensor:
    return buffer[place.start : place.stop].view(place.dtype).view(place.shape)
