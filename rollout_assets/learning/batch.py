"""What training gets: rows of the training view as tensors, and on request what the actor knew and saw before."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rollout_assets.learning.packing import Place, pack, unpack
from rollout_assets.observations.observation import Observations


class _Tensors:
    """A frozen dataclass of tensors that is moved as a whole; a ``DataLoader`` pins it by calling ``pin_memory``."""

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Self:
        """A copy on another device."""
        return self._mapped(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> Self:
        """A copy in page-locked memory."""
        return self._mapped(lambda tensor: tensor.pin_memory())

    def _mapped(self, change: Callable[[Tensor], Tensor]) -> Self:
        changed: dict[str, Any] = {}
        for field in fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if isinstance(value, Tensor):
                changed[field.name] = change(value)
            elif isinstance(value, _Tensors):
                changed[field.name] = value._mapped(change)
            elif isinstance(value, Observations):
                changed[field.name] = value.mapped(change)
        return replace(self, **changed)  # type: ignore[type-var]


@dataclass(frozen=True, eq=False)
class DepthHistory(_Tensors):
    """Depth of the views selected before each state, latest first.

    depth_m: (b, n, h, w) float16, 0 where invalid; valid_mask: (b, n, h, w); present: (b, n), false where a
    chain began less than n steps ago.
    """

    depth_m: Tensor
    valid_mask: Tensor
    present: Tensor


@dataclass(frozen=True, eq=False)
class QHBatch(_Tensors):
    """b states of the training view, A candidates wide. Columns are those of ``q_h``; bitsets are int64.

    ``store_index`` (b,) says which of the dataset's stores a state's row ids belong to. ``observations`` is what the
    actor knew at each state, and ``next_observations`` what it knew after the selected view; where ``td_terminal_mask``
    says that nothing follows, the latter repeats the state itself.
    """

    store_index: Tensor
    state_step_row_id: Tensor
    source_row_id: Tensor
    candidate_row_id: Tensor
    valid_action_mask: Tensor
    q_train_mask: Tensor
    target_row_id: Tensor
    selected_candidate_index: Tensor
    position_id: Tensor
    one_step_target_rri: Tensor
    one_step_target_root_gain: Tensor
    invalid_reason_bitset: Tensor
    td_selected_candidate_row_id: Tensor
    td_reward: Tensor
    td_reward_target_rri: Tensor
    td_next_step_row_id: Tensor
    td_terminal_mask: Tensor
    td_discount: Tensor
    depth_history: DepthHistory | None = None
    observations: Observations[Tensor] | None = None
    next_observations: Observations[Tensor] | None = None

    def __len__(self) -> int:
        return len(self.state_step_row_id)

    def __reduce__(self) -> tuple[Callable[..., QHBatch], tuple[Any, ...]]:
        """A batch goes from a worker to its loader as one tensor."""
        return _unpacked, pack(_flattened(self))


def to_batch(columns: dict[str, NDArray[Any]], **shown: Any) -> QHBatch:
    """Columns of the training view, and ``store_index``, copied into tensors; ``shown`` is what comes with them."""
    tensors: dict[str, Any] = {name: as_tensor(values) for name, values in columns.items()}
    return QHBatch(**tensors, **shown)


_PARTS: Mapping[str, Callable[..., Any]] = {
    "depth_history": DepthHistory,
    "observations": Observations,
    "next_observations": Observations,
}
"""Fields of a batch that hold several tensors, and their type."""


def _flattened(batch: QHBatch) -> dict[str, Tensor]:
    """Every tensor of a batch; those of its parts as ``part.name``."""
    tensors: dict[str, Tensor] = {}
    for field in fields(batch):
        value = getattr(batch, field.name)
        if isinstance(value, Tensor):
            tensors[field.name] = value
        elif value is not None:
            tensors |= {f"{field.name}.{part.name}": getattr(value, part.name) for part in fields(value)}
    return tensors


def _unpacked(buffer: Tensor, places: tuple[Place, ...]) -> QHBatch:
    own: dict[str, Any] = {}
    parts: dict[str, dict[str, Tensor]] = {}
    for name, tensor in unpack(buffer, places).items():
        part, _, within = name.partition(".")
        if within:
            parts.setdefault(part, {})[within] = tensor
        else:
            own[name] = tensor
    return QHBatch(**own, **{name: _PARTS[name](**tensors) for name, tensors in parts.items()})


def as_tensor(values: NDArray[Any]) -> Tensor:
    """A copy as a tensor; uint32 becomes int64, because few torch operations support it."""
    return torch.from_numpy(values.astype(np.int64) if values.dtype == np.uint32 else values.copy())
